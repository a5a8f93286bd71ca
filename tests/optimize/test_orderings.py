"""Orderings between families that hold for optima, whatever their values."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg
from bluegrad import optimize

PROBLEMS = {
    "prefix, 3 epochs": (bg.PrefixSum(60), bg.FixedEpochs(60, 3)),
    "prefix, one epoch": (bg.PrefixSum(48), bg.SinglePass(48)),
    "momentum": (bg.Sgd(60, momentum=0.8), bg.FixedEpochs(60, 4)),
    "schedule": (bg.Sgd(60, momentum=0.5, learning_rates=np.linspace(1, 0.1, 60)), bg.FixedEpochs(60, 3)),
}
SLACK = 1 + 1e-6


@pytest.fixture(params=PROBLEMS, scope="module")
def problem(request):
    return PROBLEMS[request.param]


def test_a_wider_family_is_never_worse(problem):
    work, law = problem

    def loss(strategy):
        return bg.rmse(strategy, work, law)

    best = optimize.dense(work, law)
    bound = best.optimization.lower_bound
    tree = optimize.stamps(bg.tree_aggregation, work, law)
    others = [bg.identity(work.steps), optimize.lambda_cgd(work, law), optimize.nu_dp_ftrl(work, law), tree]
    before = np.inf
    for bands in (1, 2, 5, 10):
        uneven, even = loss(optimize.banded(work, law, bands)), loss(optimize.toeplitz(work, law, bands))
        inverse = loss(optimize.banded_inverse(work, law, bands))
        assert bound <= uneven <= even * SLACK
        assert inverse >= bound and uneven <= before * SLACK
        before = uneven
        if work.coefficients() is not None:
            assert even <= loss(bg.banded_square_root(work, bands)) * SLACK
            assert inverse <= loss(bg.banded_inverse_square_root(work, bands)) * SLACK
    assert all(loss(best) <= loss(other) * (1 + 1e-4) and bound <= loss(other) for other in others)
    assert loss(optimize.banded_inverse(work, law, 2)) <= loss(optimize.lambda_cgd(work, law)) * SLACK
    buffered = [loss(optimize.buffered_toeplitz(work, law, buffers)) for buffers in (1, 2, 3)]
    assert buffered[0] >= buffered[1] / SLACK >= buffered[2] / SLACK**2 >= bound / SLACK**2
    assert buffered[0] <= loss(optimize.lambda_cgd(work, law)) * SLACK  # lambda-CGD is a buffer


def test_the_largest_error_is_least_where_it_is_minimised(problem):
    work, law = problem
    for search in (optimize.lambda_cgd, optimize.nu_dp_ftrl):
        by_rmse, by_max = search(work, law), search(work, law, loss="max_error")
        assert bg.max_error(by_max, work, law) <= bg.max_error(by_rmse, work, law) * SLACK
        assert bg.rmse(by_rmse, work, law) <= bg.rmse(by_max, work, law) * SLACK
    for search, size in ((optimize.toeplitz, 6), (optimize.banded_inverse, 4), (optimize.buffered_toeplitz, 2)):
        by_rmse, by_max = search(work, law, size), search(work, law, size, loss="max_error")
        assert bg.max_error(by_max, work, law) <= bg.max_error(by_rmse, work, law) * (1 + 1e-4)
        assert bg.rmse(by_rmse, work, law) <= bg.rmse(by_max, work, law) * SLACK


@pytest.mark.parametrize("search", [
    lambda w, p: optimize.toeplitz(w, p, 5), lambda w, p: optimize.banded_inverse(w, p, 3),
    lambda w, p: optimize.buffered_toeplitz(w, p, 2), lambda w, p: optimize.banded(w, p, 4), optimize.dense,
    optimize.lambda_cgd, optimize.nu_dp_ftrl,
])  # fmt: skip
def test_a_scaled_workload_has_the_same_optimum(search):
    law = bg.FixedEpochs(40, 4)
    one, other = bg.Sgd(40, momentum=0.5), bg.Sgd(40, momentum=0.5, learning_rates=np.full(40, 0.25))
    first, second = search(one, law), search(other, law)
    assert second.optimization.value == pytest.approx(0.25 * first.optimization.value, rel=1e-6)
    again = search(one, law)
    assert again.describe() == first.describe(), "the same result on every run"
