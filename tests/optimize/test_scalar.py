"""Searches over one parameter: the record, and the guideline of shorter memories."""

from __future__ import annotations

import pytest

import bluegrad as bg

WORK, LAW = bg.PrefixSum(400), bg.FixedEpochs(400, 8)


@pytest.mark.parametrize("loss", ["rmse", "max_error"])
@pytest.mark.parametrize("search", [bg.optimize.lambda_cgd, bg.optimize.nu_dp_ftrl])
def test_the_record_is_the_loss_of_what_is_returned(search, loss):
    best = search(WORK, LAW, loss=loss)
    value = (bg.rmse if loss == "rmse" else bg.max_error)(best, WORK, LAW)
    record = best.optimization
    assert (record.loss, record.converged, record.gap) == (loss, True, None)
    assert record.value == pytest.approx(value, rel=1e-12) and record.iterations > 10 and record.seconds > 0


@pytest.mark.parametrize("shortened", [1.0, 2.0, 4.0, 1e6])
def test_a_shortened_memory(shortened):
    best = bg.optimize.lambda_cgd(WORK, LAW)
    chosen = bg.optimize.lambda_cgd(WORK, LAW, shortened=shortened)
    memory = 1 / (1 - best.parameters["lam"]) / shortened
    assert 1 / (1 - chosen.parameters["lam"]) == pytest.approx(max(memory, 1.0), rel=1e-9)
    assert chosen.optimization.value == pytest.approx(bg.rmse(chosen, WORK, LAW), rel=1e-12)
    assert bg.sensitivity(chosen, LAW) <= bg.sensitivity(best, LAW) * (1 + 1e-12)


@pytest.mark.parametrize("shortened", [0.5, float("nan"), "2"])
def test_a_longer_memory_is_refused(shortened):
    with pytest.raises(ValueError, match="shortened="):
        bg.optimize.lambda_cgd(WORK, LAW, shortened=shortened)
