"""epsilon, delta and calibrate: high precision, published values, never on the wrong side."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from mpmath import mpf

import bluegrad as bg
from oracles import dense

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "values.json"
LAW = bg.FixedEpochs(12, 3)


def calibrated(epsilon: float, delta: float) -> bg.Mechanism:
    return bg.calibrate(bg.lambda_cgd(12, 0.6), LAW, epsilon=epsilon, delta=delta)


def test_reference_values_and_never_less_noise_than_needed():
    assert REFERENCE.is_file(), f"{REFERENCE} is needed for this test"
    for entry in json.loads(REFERENCE.read_text())["gaussian"]:
        epsilon, delta = entry["epsilon"], entry["delta"]
        sigma = calibrated(epsilon, delta).noise_multiplier
        assert sigma == pytest.approx(entry["noise_multiplier"], rel=1e-6)
        assert dense.gaussian_delta(sigma, epsilon) <= mpf(delta)
        assert dense.gaussian_delta(sigma * (1 - 2e-8), epsilon) > mpf(delta)  # and the check can fail


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-5, 1e-12, 1e-30, 1e-200])
def test_extreme_targets_are_met_tightly(epsilon, delta):
    mechanism = calibrated(epsilon, delta)
    sigma = mechanism.noise_multiplier
    truth = dense.gaussian_sigma(epsilon, delta)
    assert mpf(1) < mpf(sigma) / truth < mpf(1) + mpf("1e-7")
    assert bg.epsilon(mechanism, delta=delta) <= epsilon
    assert bg.delta(mechanism, epsilon=epsilon) <= delta


@pytest.mark.parametrize("sigma", [0.05, 0.6, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-20])
def test_epsilon_and_delta_are_bounds_from_above_and_tight(sigma, delta):
    mechanism = bg.Mechanism(bg.identity(12), LAW, sigma)
    epsilon = bg.epsilon(mechanism, delta=delta)
    assert dense.gaussian_delta(sigma, epsilon) <= mpf(delta)
    truth = dense.gaussian_epsilon(sigma, delta)
    assert (epsilon == 0.0) == (truth == 0)
    assert truth <= mpf(epsilon) <= truth * (1 + mpf("1e-6"))
    if epsilon > 0:
        assert dense.gaussian_delta(sigma, epsilon * (1 - 1e-7)) > mpf(delta)
        at = bg.delta(mechanism, epsilon=epsilon)
        assert at == pytest.approx(delta, rel=1e-6) and mpf(at) >= dense.gaussian_delta(sigma, epsilon)


@pytest.mark.parametrize(("sigma", "epsilon"), [
    (9079.92871976583, 0.0010686064291138724), (7869.448133327415, 0.0011587995551266674), (3.7, 1.0), (0.6, 8.0),
])  # fmt: skip
def test_delta_is_a_bound_where_the_two_terms_nearly_cancel(sigma, epsilon):
    """Large noise: delta is the small difference of two probabilities, and its rounding must not make it smaller."""
    truth = dense.gaussian_delta(sigma, epsilon)
    found = mpf(bg.delta(bg.Mechanism(bg.identity(12), LAW, sigma), epsilon=epsilon))
    assert found <= truth * (1 + mpf("1e-6"))
    assert found >= truth, f"delta too small by {float(1 - found / truth):.1e}, relative"


def test_noise_so_large_that_epsilon_is_zero():
    assert bg.epsilon(bg.Mechanism(bg.identity(12), LAW, 1e5), delta=1e-2) == 0.0


def test_epsilon_depends_on_the_multiplier_alone():
    """Strategy and participation enter through the sensitivity, which the multiplier is in units of."""
    laws = [bg.SinglePass(12), bg.FixedEpochs(12, 4), bg.MinSeparation(12, 2, 5)]
    found = {
        bg.calibrate(strategy, law, epsilon=2.0, delta=1e-6).noise_multiplier
        for law in laws
        for strategy in (bg.identity(12), bg.nu_dp_ftrl(12, 0.1), bg.toeplitz([1, 0.9], 12))
    }
    assert len(found) == 1


def test_more_noise_less_epsilon_and_more_delta_less_epsilon():
    mechanisms = [bg.Mechanism(bg.identity(12), LAW, sigma) for sigma in (0.3, 0.6, 1.2, 2.4)]
    epsilons = [bg.epsilon(mechanism, delta=1e-6) for mechanism in mechanisms]
    assert epsilons == sorted(epsilons, reverse=True)
    by_delta = [bg.epsilon(mechanisms[1], delta=delta) for delta in (1e-12, 1e-9, 1e-6, 1e-3)]
    assert by_delta == sorted(by_delta, reverse=True)


def test_a_published_production_run():
    """Noise 1.411 on squared sensitivity 3/5: the published epsilon is 3.4240 at delta 1e-10."""
    mechanism = bg.Mechanism(bg.identity(12), LAW, 1.411 / math.sqrt(0.6))
    assert bg.epsilon(mechanism, delta=1e-10) == pytest.approx(3.4240, abs=5e-5)
    rho = 0.5 / mechanism.noise_multiplier**2
    assert rho == pytest.approx(0.15068403, abs=1e-8)
    assert bg.epsilon(mechanism, delta=1e-10) < rho + 2 * math.sqrt(rho * math.log(1e10))  # looser conversion of zCDP


def direct(sigma: float, rate: float, steps: int, delta: float) -> float:
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4)
    return one.self_compose(steps).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.02, 200), (0.7, 0.1, 50)])
def test_poisson_is_dp_accounting(sigma, rate, steps):
    mechanism = bg.Mechanism(bg.identity(steps), bg.Poisson(steps, rate), sigma)
    assert bg.epsilon(mechanism, delta=1e-5) == pytest.approx(direct(sigma, rate, steps, 1e-5), rel=1e-6)


@pytest.mark.parametrize(("sigma", "rate", "epsilon"), [(1.0, 0.1, 1.0), (0.7, 0.01, 0.5), (2.0, 0.5, 0.3)])
def test_one_poisson_step_has_a_closed_form(sigma, rate, epsilon):
    truth = dense.poisson_step_delta(sigma, rate, epsilon)
    found = mpf(bg.delta(bg.Mechanism(bg.identity(1), bg.Poisson(1, rate), sigma), epsilon=epsilon))
    assert truth <= found <= truth * (1 + mpf("1e-4"))
    assert found < dense.gaussian_delta(sigma, epsilon) / 2  # without amplification: another number altogether


def test_poisson_calibration_errs_on_the_private_side():
    # at the last two the plain root of the search lies on the wrong side
    for epsilon, rate, steps in ((1.0, 0.05, 100), (2.0, 0.1, 20), (1.5, 0.25, 8)):
        mechanism = bg.calibrate(bg.identity(steps), bg.Poisson(steps, rate), epsilon=epsilon, delta=1e-5)
        sigma = mechanism.noise_multiplier
        assert direct(sigma, rate, steps, 1e-5) <= epsilon
        assert direct(sigma * (1 - 1e-4), rate, steps, 1e-5) > epsilon


def test_poisson_at_rate_one_is_the_composed_gaussian():
    steps, sigma = 16, 4.0
    sampled = bg.epsilon(bg.Mechanism(bg.identity(steps), bg.Poisson(steps, 1.0), sigma), delta=1e-5)
    exact = bg.epsilon(bg.Mechanism(bg.identity(steps), bg.SinglePass(steps), sigma / math.sqrt(steps)), delta=1e-5)
    assert exact <= sampled <= 1.01 * exact


def test_amplification_never_hurts_and_a_lower_rate_helps():
    epsilons = [
        bg.epsilon(bg.Mechanism(bg.identity(50), bg.Poisson(50, rate), 1.5), delta=1e-5) for rate in (0.05, 0.2, 1.0)
    ]
    assert epsilons == sorted(epsilons) and epsilons[0] < epsilons[-1] / 4


def test_correlated_noise_under_poisson_is_refused_by_name():
    with pytest.raises(bg.Unsupported, match=r"lambda_cgd.*Poisson"):
        bg.calibrate(bg.lambda_cgd(10, 0.5), bg.Poisson(10, 0.1), epsilon=1.0, delta=1e-5)
    with pytest.raises(bg.Unsupported, match=r"square_root.*Poisson"):
        bg.Mechanism(bg.square_root(bg.PrefixSum(10)), bg.Poisson(10, 0.1), 1.0)


def test_an_unknown_participation_is_refused_by_name():
    class Weekly(bg.SinglePass):
        pass

    class Other(type(bg.Poisson(1, 1.0)).__mro__[1]):  # the abstract base
        steps = 10

        def prefix(self, steps):
            return self

        def describe(self):
            return {"law": "other"}

        def __repr__(self):
            return "Other()"

    with pytest.raises(bg.Unsupported, match="Other"):
        bg.calibrate(bg.identity(10), Other(), epsilon=1.0, delta=1e-5)


def test_what_a_prefix_has_spent_grows_to_the_whole():
    for strategy in (bg.lambda_cgd(12, 0.6), bg.identity(12), bg.square_root(bg.PrefixSum(12))):
        mechanism = bg.calibrate(strategy, LAW, epsilon=3.0, delta=1e-5)
        spent = [bg.epsilon(mechanism.after(t), delta=1e-5) for t in range(1, 13)]
        assert spent == sorted(spent) and spent[-1] <= 3.0
        for t in (1, 4, 5, 8):
            part = mechanism.after(t)
            # the raw noise is the same: only the sensitivity of what was released is smaller
            assert part.noise_scale(2.0) == pytest.approx(mechanism.noise_scale(2.0), rel=1e-12)
            c = strategy.dense()[:t, :t]
            truth = dense.sign_sensitivity(c, dense.separated_patterns(t, 4, 3))
            assert part.sensitivity == pytest.approx(truth, rel=1e-9)


def test_fingerprints_tell_mechanisms_apart():
    base = calibrated(2.0, 1e-5)
    assert base.fingerprint == calibrated(2.0, 1e-5).fingerprint
    others = [
        calibrated(2.0001, 1e-5),
        bg.Mechanism(bg.lambda_cgd(12, 0.61), LAW, base.noise_multiplier),
        bg.Mechanism(bg.lambda_cgd(12, 0.6), bg.FixedEpochs(12, 4), base.noise_multiplier),
        bg.Mechanism(bg.banded_inverse_toeplitz([1, -0.6], 12), LAW, base.noise_multiplier),
    ]
    assert len({m.fingerprint for m in [base, *others]}) == 5
