"""Renyi and zero-concentrated DP: integration oracles, dp_accounting's numbers, laws."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

import bluegrad as bg
from oracles import bins as oracle
from oracles import dense
from oracles.general import General


def divergences(p, q, order):
    """Both directions, of densities on a grid (times the cell)."""
    return tuple(
        np.log((np.exp(order * np.log(a) + (1 - order) * np.log(b))).sum()) / (order - 1) for a, b in ((p, q), (q, p))
    )


@pytest.mark.parametrize("law", [bg.SinglePass(12), bg.FixedEpochs(12, 3), bg.MinSeparation(12, 4, 2)])
def test_gaussian_laws_are_exact(law):
    mechanism = bg.Mechanism(bg.lambda_cgd(12, 0.5), law, 1.7)
    assert bg.zcdp(mechanism) == pytest.approx(1 / (2 * 1.7**2), rel=1e-14)
    t = np.linspace(-15, 20, 20_001)
    p, q = (np.exp(-((t - m) ** 2) / (2 * 1.7**2)) / (1.7 * np.sqrt(2 * np.pi)) * (t[1] - t[0]) for m in (1.0, 0.0))
    for order in (1.5, 2.0, 7.0):
        found = bg.renyi(mechanism, order=order)
        assert found == pytest.approx(max(divergences(p, q, order)), rel=1e-9) and found.method == "exact"
        assert found == pytest.approx(order * bg.zcdp(mechanism), rel=1e-14)


def test_a_published_production_run():
    """sigma 1.411 at squared sensitivity 3 / 5: rho .15068403, epsilon 3.4240 at delta 1e-10."""
    mechanism = bg.Mechanism(bg.identity(4), bg.FixedEpochs(4, 1), 1.411 / np.sqrt(0.6))
    assert bg.zcdp(mechanism) == pytest.approx(0.15068403, rel=1e-7)
    assert bg.epsilon(mechanism, delta=1e-10) == pytest.approx(dense.gaussian_epsilon(1.411 / np.sqrt(0.6), 1e-10))


class TestPoisson:
    @pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.7, 0.5), (3.0, 0.01)])
    def test_against_integration(self, sigma, rate):
        t = np.linspace(-12 * sigma, 12 * sigma + 15, 40_001)
        q = np.exp(-t * t / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi)) * (t[1] - t[0])
        p = (1 - rate) * q + rate * q * np.exp((t - 0.5) / sigma**2)
        one = bg.Mechanism(bg.identity(1), bg.Poisson(1, rate), sigma)
        for order in (2, 3, 6):
            assert bg.renyi(one, order=order) == pytest.approx(max(divergences(p, q, order)), rel=1e-6)
        between = bg.renyi(one, order=2.5)
        assert max(divergences(p, q, 2.5)) < between == bg.renyi(one, order=3) * 1.0

    def test_rounds_add_up_as_in_dp_accounting(self):
        accountant = rdp_privacy_accountant.RdpAccountant([8.0])
        accountant.compose(dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(0.9)), 40)
        plain = bg.Mechanism(bg.identity(40), bg.Poisson(40, 0.05), 0.9)
        cyclic = bg.Mechanism(bg.toeplitz([1, 0.5], 80), bg.CyclicPoisson(80, 2, 0.05), 0.9)
        for mechanism in (plain, cyclic):
            divergence = bg.renyi(mechanism, order=8)
            # epsilon of that one order, by the conversion that dp_accounting uses
            at = divergence + np.log(1 - 1 / 8) - np.log(1e-5 * 8) / 7
            assert at == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
            assert at >= bg.epsilon(mechanism, delta=1e-5)

    def test_zcdp_is_the_limit_of_large_orders(self):
        mechanism = bg.Mechanism(bg.identity(5), bg.Poisson(5, 0.1), 1.5)
        ratios = [bg.renyi(mechanism, order=a) / a for a in (2, 10, 100, 1000, 4000, 1e6)]
        assert ratios == sorted(ratios) and ratios[-1] == pytest.approx(bg.zcdp(mechanism), rel=1e-12)
        assert 0.99 * bg.zcdp(mechanism) < ratios[-2] < bg.zcdp(mechanism) and ratios[0] < 0.1 * ratios[-1]


class TestBallsInBins:
    @pytest.mark.parametrize(("lam", "sigma"), [(0.0, 1.0), (0.5, 0.8), (0.9, 2.0)])
    def test_never_below_two_bins_by_integration(self, lam, sigma):
        strategy, law = bg.lambda_cgd(6, lam), bg.BallsInBins(6, 3)
        m = oracle.means(strategy.dense(), 3) / bg.sensitivity(strategy, law)
        basis, _ = np.linalg.qr(m.T)
        flat = m @ basis / sigma
        t = np.linspace(-14, 18, 1201)
        x, y = np.meshgrid(t, t, indexing="ij")
        q = np.exp(-0.5 * (x * x + y * y)) * (t[1] - t[0]) ** 2 / (2 * np.pi)
        p = sum(0.5 * np.exp(a * x + b * y - 0.5 * (a * a + b * b)) for a, b in flat * np.sign(flat.sum())) * q
        mechanism = bg.Mechanism(strategy, law, sigma)
        for order in (2, 3, 5):
            truth = max(divergences(p, q, order))
            found = bg.renyi(mechanism, order=order)
            assert truth * (1 - 1e-9) <= found <= min(1.3 * truth, order * bg.zcdp(mechanism))
        assert found.method == "renyi" and bg.zcdp(mechanism) == pytest.approx(1 / (2 * sigma**2), rel=1e-12)

    def test_order_two_is_exact(self):
        """E_P[P / Q] = mean_ij exp(S_ij), where the rows of a circulant have equal means; little noise, S = 4."""
        mechanism = bg.Mechanism(bg.identity(12), bg.BallsInBins(12, 3), 0.5)
        assert bg.renyi(mechanism, order=2) == pytest.approx(np.log((np.exp(4) + 3) / 4), rel=1e-8)

    def test_it_rises_with_the_order_and_bounds_epsilon(self):
        mechanism = bg.Mechanism(bg.lambda_cgd(40, 0.5), bg.BallsInBins(40, 4), 1.0)
        found = [bg.renyi(mechanism, order=a) for a in (1.5, 2, 3, 8, 30)]
        assert found == sorted(found) and found[0] == found[1]
        at = found[3] + np.log(1 - 1 / 8) - np.log(1e-5 * 8) / 7
        assert at >= bg.epsilon(mechanism, delta=1e-5, method="renyi") * 0.999
        one = bg.Mechanism(General(np.eye(4)), bg.BallsInBins(4, 4), 2.0)
        assert bg.renyi(one, order=3) == pytest.approx(3 / 8, rel=1e-12) and bg.renyi(one, order=3).method == "exact"


def test_refusals():
    mechanism = bg.Mechanism(bg.identity(4), bg.FixedEpochs(4, 1), 1.0)
    for bad in (1.0, 0.5, float("nan"), "two"):
        with pytest.raises(ValueError, match="order="):
            bg.renyi(mechanism, order=bad)
