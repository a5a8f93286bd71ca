"""Bad input at the door: every message gives name and value."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg

N = 12
LAW = bg.FixedEpochs(N, 3)
BAD_STEPS = [0, -1, 2.5, True, "ten", None, float("nan")]


@pytest.mark.parametrize("steps", BAD_STEPS)
@pytest.mark.parametrize(
    "make",
    [
        bg.PrefixSum,
        bg.SinglePass,
        bg.identity,
        lambda n: bg.FixedEpochs(n, 1),
        lambda n: bg.MinSeparation(n, 1, 1),
        lambda n: bg.Poisson(n, 0.5),
        lambda n: bg.lambda_cgd(n, 0.5),
        lambda n: bg.nu_dp_ftrl(n, 0.5),
        lambda n: bg.toeplitz([1.0], n),
        lambda n: bg.banded_inverse_toeplitz([1.0], n),
    ],
)
def test_steps(make, steps):
    with pytest.raises(ValueError, match="steps=") as caught:
        make(steps)
    assert repr(steps) in str(caught.value)


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1, float("nan"), float("inf"), "half", None, True])
def test_lam_and_nu(value):
    for name, make in (("lam", bg.lambda_cgd), ("nu", bg.nu_dp_ftrl)):
        with pytest.raises(ValueError, match=f"{name}=") as caught:
            make(N, value)
        assert repr(value) in str(caught.value) and "[0, 1)" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bg.FixedEpochs(100, 7), ["epochs=7", "steps=100", "steps=98 or steps=105"]),
        (lambda: bg.FixedEpochs(3, 5), ["epochs=5", "steps=5"]),
        (lambda: bg.FixedEpochs(10, 0), ["epochs=0"]),
        (lambda: bg.MinSeparation(10, 0, 1), ["separation=0"]),
        (lambda: bg.MinSeparation(10, 1, 0), ["times=0"]),
        (lambda: bg.Poisson(10, 0.0), ["rate=0.0", "(0, 1]"]),
        (lambda: bg.Poisson(10, 1.5), ["rate=1.5", "(0, 1]"]),
        (lambda: bg.Poisson(10, float("nan")), ["rate=nan"]),
        (lambda: bg.Poisson(10, -0.1), ["rate=-0.1", "(0, 1]"]),
        (lambda: bg.Poisson(10, "half"), ["rate='half'"]),
        (lambda: bg.Poisson(10, True), ["rate=True"]),
        (lambda: bg.FixedEpochs(10, 2.5), ["epochs=2.5"]),
        (lambda: bg.FixedEpochs(10, True), ["epochs=True"]),
        (lambda: bg.MinSeparation(10, 2.5, 1), ["separation=2.5"]),
        (lambda: bg.MinSeparation(10, 1, True), ["times=True"]),
        (lambda: bg.toeplitz([0.0, 1.0], N), ["coefficients[0]=0.0"]),
        (lambda: bg.toeplitz([1.0, float("nan")], N), ["coefficients[1]=nan"]),
        (lambda: bg.toeplitz([], N), ["coefficients.shape=(0,)"]),
        (lambda: bg.toeplitz(np.eye(3), N), ["coefficients.shape=(3, 3)"]),
        (lambda: bg.toeplitz(np.ones(N + 1), N), [f"len(coefficients)={N + 1}", f"at most {N}"]),
        (lambda: bg.toeplitz("abc", N), ["coefficients='abc'"]),
        (lambda: bg.banded_inverse_toeplitz([0.0], N), ["noise_coefficients[0]=0.0"]),
        (lambda: bg.banded_inverse_toeplitz([1.0, float("inf")], N), ["noise_coefficients[1]=inf"]),
        (lambda: bg.banded_inverse_toeplitz([], N), ["noise_coefficients.shape=(0,)"]),
        (lambda: bg.banded_inverse_toeplitz(np.eye(3), N), ["noise_coefficients.shape=(3, 3)"]),
        (lambda: bg.banded_inverse_toeplitz(np.ones(N + 1), N), [f"len(noise_coefficients)={N + 1}", f"at most {N}"]),
        (lambda: bg.square_root(N), ["workload=12", "PrefixSum"]),
        (lambda: bg.toeplitz([1.0, 50.0], 1000).noising(), ["toeplitz(steps=1000", "overflows"]),
        (lambda: bg.sensitivity(np.eye(3), bg.SinglePass(3)), ["strategy=array", "bluegrad strategy"]),
        (lambda: bg.sensitivity(bg.identity(5), LAW), ["participation.steps=12", "5"]),
        (lambda: bg.rmse(bg.identity(N), bg.PrefixSum(5), LAW), ["workload.steps=5", "12"]),
        (lambda: bg.errors(bg.identity(N), bg.PrefixSum(5)), ["workload.steps=5", "12"]),
        (lambda: bg.max_error(bg.identity(N), bg.PrefixSum(5), LAW), ["workload.steps=5", "12"]),
        (lambda: bg.calibrate(bg.identity(5), LAW, epsilon=1.0, delta=1e-5), ["participation.steps=12", "5"]),
        (lambda: bg.optimize.lambda_cgd(bg.PrefixSum(N), LAW, loss="mae"), ["loss='mae'", "rmse, max_error"]),
        (lambda: bg.optimize.nu_dp_ftrl(bg.PrefixSum(5), LAW), ["participation.steps=12", "5"]),
        (lambda: bg.Mechanism(bg.identity(N), LAW, 0.0), ["noise_multiplier=0.0"]),
        (lambda: bg.Mechanism(bg.identity(N), LAW, float("inf")), ["noise_multiplier=inf"]),
        (lambda: bg.Mechanism(bg.identity(N), LAW, 1.0).after(N + 1), ["steps=13"]),
        (lambda: bg.Mechanism(bg.identity(N), LAW, 1.0).after(0), ["steps=0"]),
    ],
)
def test_messages_name_the_argument_its_value_and_the_rule(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "one", None])
def test_epsilon(value):
    mechanism = bg.Mechanism(bg.identity(N), LAW, 1.0)
    for call in (
        lambda: bg.calibrate(bg.identity(N), LAW, epsilon=value, delta=1e-5),
        lambda: bg.delta(mechanism, epsilon=value),
    ):
        with pytest.raises(ValueError, match="epsilon=") as caught:
            call()
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-5, 2.0, float("nan"), "tiny", None])
def test_delta(value):
    mechanism = bg.Mechanism(bg.identity(N), LAW, 1.0)
    for call in (
        lambda: bg.calibrate(bg.identity(N), LAW, epsilon=1.0, delta=value),
        lambda: bg.epsilon(mechanism, delta=value),
    ):
        with pytest.raises(ValueError, match="delta=") as caught:
            call()
        assert repr(value) in str(caught.value)


def test_names_that_do_not_exist():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bg.no_such_name
    assert "calibrate" in dir(bg)
