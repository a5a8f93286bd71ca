"""What every strategy promises. A new one gives an example here and inherits all of it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import bluegrad as bg
from bluegrad import strategy as strategies
from oracles import dense

# factory -> examples of at most 8 steps, and one longer than any small special case
EXAMPLES = {
    "identity": [lambda: bg.identity(1), lambda: bg.identity(6)],
    "lambda_cgd": [lambda: bg.lambda_cgd(1, 0.5), lambda: bg.lambda_cgd(7, 0.8), lambda: bg.lambda_cgd(40, 0.95)],
    "nu_dp_ftrl": [lambda: bg.nu_dp_ftrl(6, 0.1), lambda: bg.nu_dp_ftrl(8, 0.0), lambda: bg.nu_dp_ftrl(40, 0.01)],
    "square_root": [
        lambda: bg.square_root(bg.PrefixSum(1)),
        lambda: bg.square_root(bg.PrefixSum(8)),
        lambda: bg.square_root(bg.Sgd(8, momentum=0.9, weight_decay=0.01, learning_rates=np.full(8, 0.5))),
    ],
    "banded_square_root": [
        lambda: bg.banded_square_root(bg.PrefixSum(8), 3),
        lambda: bg.banded_square_root(bg.Sgd(7, momentum=0.9, weight_decay=0.1), 4),
    ],
    "banded_inverse_square_root": [
        lambda: bg.banded_inverse_square_root(bg.PrefixSum(8), 3),
        lambda: bg.banded_inverse_square_root(bg.Sgd(40, momentum=0.5), 20),
    ],
    "toeplitz": [
        lambda: bg.toeplitz([2.0], 5),
        lambda: bg.toeplitz([1.0, 0.5, 0.25], 8),
        lambda: bg.toeplitz([-1.0, 0.5, 0.7, -0.2], 6),
        lambda: bg.toeplitz(0.9 ** np.arange(40), 40),
    ],
    "banded_inverse_toeplitz": [
        lambda: bg.banded_inverse_toeplitz([0.5], 5),
        lambda: bg.banded_inverse_toeplitz([1.0, -0.5, -0.125], 8),
        lambda: bg.banded_inverse_toeplitz([1.0, 0.4, -0.3], 7),
        lambda: bg.banded_inverse_toeplitz(np.linspace(1, -0.2, 30), 40),
    ],
}
CASES = [pytest.param(make, id=f"{name}-{i}") for name, makes in EXAMPLES.items() for i, make in enumerate(makes)]


def test_every_factory_and_every_class_has_an_example():
    assert set(EXAMPLES) == set(strategies.FACTORIES)
    seen = {type(make()) for makes in EXAMPLES.values() for make in makes}

    def final(cls):
        below = [c for sub in cls.__subclasses__() for c in final(sub)]
        return [*below] if cls.__abstractmethods__ else [cls, *below]

    ours = {cls for cls in final(bg.Strategy) if cls.__module__.startswith("bluegrad.")}
    assert ours <= seen


@pytest.fixture(params=CASES)
def strategy(request) -> bg.Strategy:
    return request.param()


def test_shapes_and_inverse(strategy):
    c, n = strategy.dense(), strategy.noising()
    assert c.shape[1] == strategy.steps == n.shape[0] and c.shape[0] == n.shape[1]
    assert c.dtype == n.dtype == np.float64 and np.isfinite(c).all()
    assert n @ c == pytest.approx(np.eye(strategy.steps), abs=1e-10)


def test_stream_equals_dense_on_arrays_and_tensors(strategy):
    z = np.random.default_rng(0).standard_normal((strategy.noising().shape[1], 3))
    expected = strategy.noising() @ z
    state, tensor_state = strategy.init(), strategy.init()
    for t in range(strategy.steps):
        row, state = strategy.step(z[t], state)
        assert row == pytest.approx(expected[t], abs=1e-10)
        tensor, tensor_state = strategy.step(torch.from_numpy(z[t]), tensor_state)
        assert tensor.numpy() == pytest.approx(expected[t], abs=1e-10)
    with pytest.raises(ValueError, match=f"steps={strategy.steps}"):
        strategy.step(z[0], state)


def test_a_step_leaves_its_arguments_as_they_were(strategy):
    rng = np.random.default_rng(1)
    state = strategy.init()
    for _ in range(strategy.steps - 1):
        _, state = strategy.step(rng.standard_normal(2), state)
    z = rng.standard_normal(2)
    before = z.copy()
    (one, _), (two, _) = strategy.step(z, state), strategy.step(z, state)
    assert (one == two).all() and (z == before).all()


def test_taps_are_rows_of_the_noising(strategy):
    n = strategy.noising()
    for t in range(strategy.steps):
        taps = strategy.taps(t)
        if taps is None:
            assert strategy.taps(0) is None, "taps are there for every step or for none"
            continue
        assert len(taps) <= t + 1, "a tap on noise from before the first step would wrap around below"
        row = np.zeros(strategy.steps)
        row[t - np.arange(len(taps))] = taps
        assert row == pytest.approx(n[t], abs=1e-12)


def test_noising_is_causal(strategy):
    n = strategy.noising()
    # row t is followed by noise that no earlier row has seen: the stream's rows only use z up to t
    assert n.shape[0] != n.shape[1] or np.abs(np.triu(n, 1)).max(initial=0.0) == 0.0


def test_state_stays_within_the_stated_memory(strategy):
    state, most = strategy.init(), 0
    for _ in range(strategy.steps):
        _, state = strategy.step(np.zeros(1), state)
        most = max(most, len(state[1]))
    if strategy.taps(0) is None:  # what a stream keeps is exactly this state
        assert most == strategy.memory
    assert most <= max(strategy.steps - 1, 0)


def test_frozen(strategy):
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy.steps = 5
    for x in (strategy.coefficients(), strategy.noise_coefficients()):
        if x is not None:
            with pytest.raises(ValueError, match="read-only"):
                x[0] = 7.0


def test_coefficients_are_those_of_the_matrices(strategy):
    for x, matrix in ((strategy.coefficients(), strategy.dense()), (strategy.noise_coefficients(), strategy.noising())):
        if x is not None:
            assert dense.toeplitz(x, strategy.steps) == pytest.approx(matrix, abs=0)


def test_prefix_is_the_top_left_block(strategy):
    for steps in {1, strategy.steps // 2 or 1, strategy.steps}:
        part = strategy.prefix(steps)
        assert part.steps == steps
        assert part.dense() == pytest.approx(strategy.dense()[:steps, :steps], abs=1e-12)
        assert part.noising() == pytest.approx(strategy.noising()[:steps, :steps], abs=1e-12)
    with pytest.raises(ValueError, match="steps="):
        strategy.prefix(strategy.steps + 1)


def test_scores_equal_the_dense_ones(strategy):
    n = strategy.steps
    c, work = strategy.dense(), bg.PrefixSum(n)
    for law in (bg.SinglePass(n), bg.FixedEpochs(n, n), bg.MinSeparation(n, max(n // 3, 1), 3)):
        sensitivity = bg.sensitivity(strategy, law)
        assert bg.rmse(strategy, work, law) == pytest.approx(dense.rmse(c, sensitivity), rel=1e-9)
        assert bg.max_error(strategy, work, law) == pytest.approx(dense.max_error(c, sensitivity), rel=1e-9)
        if n <= 8:
            patterns = dense.separated_patterns(n, law.separation, law.times)
            assert sensitivity >= dense.sign_sensitivity(c, patterns) * (1 - 1e-12)
            low, up = dense.vector_truth(c, patterns)
            assert sensitivity >= low * (1 - 1e-12)
            assert not bg.certify(strategy, law).exact or sensitivity <= up * (1 + 1e-8)


def test_a_scaled_twin_has_scaled_sensitivity_and_the_same_error(strategy):
    n, c = strategy.steps, strategy.dense()
    if c.shape != (n, n) or not np.allclose(c, dense.toeplitz(c[:, 0], n), rtol=0, atol=0):
        pytest.skip("only Toeplitz strategies have a twin that is built from coefficients")
    twin, work = bg.toeplitz(-3.0 * c[:, 0], n), bg.PrefixSum(n)
    for law in (bg.SinglePass(n), bg.FixedEpochs(n, n), bg.MinSeparation(n, max(n // 3, 1), 3)):
        assert bg.sensitivity(twin, law) == pytest.approx(3.0 * bg.sensitivity(strategy, law), rel=1e-7)
        assert bg.rmse(twin, work, law) == pytest.approx(bg.rmse(strategy, work, law), rel=1e-7)


def test_description_is_plain_and_determines_the_matrix(strategy):
    text = json.dumps(strategy.describe(), sort_keys=True)
    assert strategy.describe()["steps"] == strategy.steps
    others = {json.dumps(make().describe(), sort_keys=True) for makes in EXAMPLES.values() for make in makes}
    assert text in others and len(others) == sum(len(makes) for makes in EXAMPLES.values())
    assert f"steps={strategy.steps}" in repr(strategy)
