"""What every strategy promises. A new one gives an example here and inherits all of it."""

from __future__ import annotations

import dataclasses
import functools
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
    "buffered_toeplitz": [
        lambda: bg.buffered_toeplitz(1, [0.5], [0.5]),
        lambda: bg.buffered_toeplitz(8, [0.9, 0.3], [0.3, 0.2]),
        lambda: bg.buffered_toeplitz(6, [0.5, 0.0], [0.8, 0.3]),
        lambda: bg.buffered_toeplitz(40, [0.99, 0.9, 0.4], [0.05, 0.2, 0.25]),
    ],
    "banded": [
        lambda: bg.banded([[2.0]]),
        lambda: bg.banded(columns(8, 3, 0)),
        lambda: bg.banded(columns(7, 7, 1)),
        lambda: bg.banded(columns(8, 3, 0)).prefix(5),
        lambda: bg.banded(columns(40, 4, 2)),
    ],
    "full_batch": [lambda: bg.full_batch(1), lambda: bg.full_batch(8), lambda: bg.full_batch(40)],
    "dense": [
        lambda: bg.dense([[3.0]]),
        lambda: bg.dense(np.tril(mixed(8, 8, 0)) + 3 * np.eye(8)),
        lambda: bg.dense(mixed(6, 6, 1)),
        lambda: bg.dense(mixed(9, 5, 2)),
        lambda: bg.dense(mixed(50, 40, 3)),
    ],
    "tree_aggregation": [
        *[
            functools.partial(bg.tree_aggregation, n, decoder=d)
            for d in ("online", "full")
            for n in (1, 2, 5, 7, 8, 40)
        ],
        lambda: bg.tree_aggregation(8, decoder="full").prefix(6),
        lambda: bg.tree_aggregation(40, decoder="online").prefix(31),
    ],
    "fourier": [
        *[functools.partial(bg.fourier, n, decoder=d) for d in ("plain", "optimal") for n in (1, 2, 7, 40)],
        lambda: bg.fourier(8, decoder="optimal").prefix(5),
    ],
    "stamped": [
        lambda: bg.stamped(bg.lambda_cgd(4, 0.7), 2),
        lambda: bg.stamped(bg.tree_aggregation(3), 2),
        lambda: bg.stamped(bg.tree_aggregation(4, decoder="full"), 2).prefix(7),
        lambda: bg.stamped(bg.square_root(bg.PrefixSum(20)), 2),
        lambda: bg.stamped(bg.buffered_toeplitz(10, [0.9], [0.4]), 4),
        lambda: bg.stamped(bg.banded(columns(4, 2, 3)), 2),
        lambda: bg.stamped(bg.fourier(4, decoder="optimal"), 2),
    ],
    "column_normalized": [
        lambda: bg.column_normalized(bg.lambda_cgd(8, 0.8)),
        lambda: bg.column_normalized(bg.square_root(bg.PrefixSum(7))),
        lambda: bg.column_normalized(bg.square_root(bg.PrefixSum(40))),
        lambda: bg.column_normalized(bg.toeplitz([1.0, 0.5, -0.4], 8)),
        lambda: bg.column_normalized(bg.tree_aggregation(6)),
        lambda: bg.column_normalized(bg.stamped(bg.banded(columns(4, 2, 4)), 2)),
        lambda: bg.column_normalized(bg.dense(mixed(7, 6, 5))),
    ],
}


def mixed(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


def columns(n: int, bands: int, seed: int) -> np.ndarray:
    """Columns of a banded matrix, signs mixed, nothing past the last row."""
    out = mixed(n, bands, seed)
    out[:, 0] = 1.5 + np.abs(out[:, 0])
    out[np.arange(n)[:, None] + np.arange(bands) >= n] = 0.0
    return out


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


def test_causal_factor_has_the_law_of_the_noising(strategy):
    """What is released depends on N N^T alone; where N is lower-triangular its causal factor is N itself."""
    n, lower = strategy.noising(), strategy.causal()
    assert lower.shape == (strategy.steps, strategy.steps) and np.isfinite(lower).all()
    assert np.abs(np.triu(lower, 1)).max(initial=0.0) == 0.0, "a row may only use noise that exists by then"
    assert lower @ lower.T == pytest.approx(n @ n.T, abs=1e-9 * np.abs(n @ n.T).max())
    if n.shape[0] == n.shape[1] and not np.triu(n, 1).any():
        assert lower == pytest.approx(n, abs=1e-12 * np.abs(n).max())


def test_noise_columns_have_the_law_of_the_noising(strategy):
    n, m = strategy.noising(), np.concatenate(list(strategy.noise_columns()), axis=1)
    assert m @ m.T == pytest.approx(n @ n.T, abs=1e-9 * np.abs(n @ n.T).max())


def test_gram_diagonals_norms_and_bands_are_those_of_the_matrix(strategy):
    x = strategy.dense().T @ strategy.dense()
    for lag in range(strategy.steps):
        assert strategy.gram_diagonal(lag) == pytest.approx(np.diag(x, lag), abs=1e-12 * np.abs(x).max())
    assert strategy.column_norms() ** 2 == pytest.approx(np.diag(x), rel=1e-12)
    apart = np.abs(np.subtract.outer(np.arange(strategy.steps), np.arange(strategy.steps)))
    assert np.abs(x[apart >= strategy.bands]).max(initial=0.0) <= 1e-12 * np.abs(x).max()
    if strategy.gram_coefficients() is not None:
        assert x == pytest.approx(strategy.gram_coefficients()[apart], abs=1e-12)


def test_stream_equals_dense_on_arrays_and_tensors(strategy):
    z = np.random.default_rng(0).standard_normal((strategy.steps, 3))
    expected = strategy.causal() @ z
    state, tensor_state = strategy.init(), strategy.init()
    for t in range(strategy.steps):
        row, state = strategy.step(z[t], state)
        assert row == pytest.approx(expected[t], abs=1e-10 * np.abs(expected).max())
        tensor, tensor_state = strategy.step(torch.from_numpy(z[t]), tensor_state)
        assert tensor.numpy() == pytest.approx(expected[t], abs=1e-10 * np.abs(expected).max())
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


def test_taps_are_rows_of_the_causal_factor(strategy):
    n = strategy.causal()
    for t in range(strategy.steps):
        taps = strategy.taps(t)
        if taps is None:
            assert strategy.taps(0) is None, "taps are there for every step or for none"
            continue
        assert len(taps) <= t + 1, "a tap on noise from before the first step would wrap around below"
        row = np.zeros(strategy.steps)
        row[t - np.arange(len(taps))] = taps
        assert row == pytest.approx(n[t], abs=1e-12)


def test_state_stays_within_the_stated_memory(strategy):
    state, most = strategy.init(), 0
    for t in range(1, strategy.steps):
        _, state = strategy.step(np.zeros(1), state)
        assert len(state[1]) == strategy.kept(t)
        most = max(most, len(state[1]))
    if strategy.taps(0) is None:  # what a stream keeps is exactly this state
        assert most == strategy.memory
    assert most <= max(strategy.steps - 1, 0)


def test_taps_reach_back_no_further_than_what_is_kept(strategy):
    taps = [strategy.taps(t) for t in range(strategy.steps)]
    if taps[0] is not None:
        longest = max(len(row) for row in taps)
        assert strategy.memory >= longest - 1 or (strategy.memory == 0 and longest <= 16)
        starts = [t - len(row) for t, row in enumerate(taps)]
        assert starts == sorted(starts), "what has been dropped is never needed again"


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


def test_prefix_is_the_law_of_the_first_releases(strategy):
    for steps in {1, strategy.steps // 2 or 1, strategy.steps}:
        part = strategy.prefix(steps)
        assert part.steps == steps
        assert part.noising() @ part.dense() == pytest.approx(np.eye(steps), abs=1e-9)
        # the first releases have the same law, and C tells no less about them than they do
        whole = strategy.causal()
        assert part.causal() == pytest.approx(whole[:steps, :steps], abs=1e-9 * np.abs(whole).max())
        least = np.linalg.inv(part.causal() @ part.causal().T)
        excess = part.dense().T @ part.dense() - least
        assert np.linalg.eigvalsh(excess)[0] >= -1e-8 * np.abs(least).max()
    with pytest.raises(ValueError, match="steps="):
        strategy.prefix(strategy.steps + 1)


def test_scores_equal_the_dense_ones(strategy):
    n = strategy.steps
    c, work = strategy.dense(), bg.PrefixSum(n)
    squares = ((np.tri(n) @ strategy.noising()) ** 2).sum(axis=1)
    for law in (bg.SinglePass(n), bg.FixedEpochs(n, n), bg.MinSeparation(n, max(n // 3, 1), 3)):
        sensitivity = bg.sensitivity(strategy, law)
        assert bg.rmse(strategy, work, law) == pytest.approx(sensitivity * np.sqrt(squares.mean()), rel=1e-9)
        assert bg.max_error(strategy, work, law) == pytest.approx(sensitivity * np.sqrt(squares.max()), rel=1e-9)
        if n <= 8:
            patterns = dense.separated_patterns(n, law.separation, law.times)
            assert sensitivity >= dense.sign_sensitivity(c, patterns) * (1 - 1e-12)
            low, up = dense.vector_truth(c, patterns)
            assert sensitivity >= low * (1 - 1e-12)
            assert not bg.certify(strategy, law).exact or sensitivity <= up * (1 + 1e-8)


def test_a_scaled_twin_has_scaled_sensitivity_and_the_same_error(strategy):
    n, c = strategy.steps, strategy.dense()
    is_toeplitz = c.shape == (n, n) and np.array_equal(c, dense.toeplitz(c[:, 0], n))
    twin = bg.toeplitz(-3.0 * c[:, 0], n) if is_toeplitz else bg.dense(-3.0 * c)
    work = bg.PrefixSum(n)
    for law in (bg.SinglePass(n), bg.FixedEpochs(n, n), bg.MinSeparation(n, max(n // 3, 1), 3)):
        found, other = bg.certify(strategy, law), bg.certify(twin, law)
        if found.exact and other.exact:
            assert other.value == pytest.approx(3.0 * found.value, rel=1e-7)
        if c.shape == (n, n):  # both have the noise C^-1
            expected = bg.rmse(strategy, work, law) * other.value / (3.0 * found.value)
            assert bg.rmse(twin, work, law) == pytest.approx(expected, rel=1e-7)


def test_description_is_plain_and_determines_the_matrix(strategy):
    text = json.dumps(strategy.describe(), sort_keys=True)
    assert strategy.describe()["steps"] == strategy.steps
    others = {json.dumps(make().describe(), sort_keys=True) for makes in EXAMPLES.values() for make in makes}
    assert text in others and len(others) == sum(len(makes) for makes in EXAMPLES.values())
    assert f"steps={strategy.steps}" in repr(strategy)
