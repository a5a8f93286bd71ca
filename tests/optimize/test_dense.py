"""The best dense strategy: against a conic solver, published optima, certificates, and every other strategy."""

from __future__ import annotations

import itertools

import cvxpy as cp
import mpmath
import numpy as np
import pytest

import bluegrad as bg
from bluegrad.optimize import _dual, _projected
from bluegrad.strategy.base import MATRIX_STEPS
from bluegrad.workload import DenseWorkload

CONSTRAINTS = ("orthogonal", "signs", "nonnegative", "nonnegative_pairs")


def random_workload(steps: int, seed: int) -> DenseWorkload:
    """Lower-triangular with a heavy diagonal: with a light one, random triangles are all but singular."""
    a = np.tril(np.random.default_rng(seed).normal(size=(steps, steps)), -1)
    return DenseWorkload(0.5 * a + np.eye(steps))


def warm_sgd(steps: int) -> bg.Sgd:
    """Momentum 0.95, the last quarter of the rates falling from 1 to 0.05."""
    rates = np.ones(steps)
    rates[-(steps // 4) :] = np.linspace(1.0, 0.05, steps // 4)
    return bg.Sgd(steps, momentum=0.95, learning_rates=rates)


def conic_optimum(a: np.ndarray, times: int, constraint: str) -> float:
    """Least tr(A X^-1 A^T), by a general conic solver from the definition."""
    n = len(a)
    patterns = [list(range(s, n, n // times)) for s in range(n // times)]
    x = cp.Variable((n, n), symmetric=True)
    rules = []
    for p in patterns:
        if constraint == "signs":
            for signs in itertools.product((1.0, -1.0), repeat=times):
                rules.append(cp.sum(cp.multiply(np.outer(signs, signs), x[np.ix_(p, p)])) <= 1.0)
        elif constraint == "orthogonal":
            rules += [x[i, j] == 0.0 for i in p for j in p if i < j]
            rules.append(sum(x[i, i] for i in p) <= 1.0)
        else:
            rules.append(cp.sum(x[np.ix_(p, p)]) <= 1.0)
            rules += [x[i, j] >= 0.0 for i in p for j in p if i < j]
    if constraint == "nonnegative":
        rules.append(x >= 0.0)
    program = cp.Problem(cp.Minimize(cp.matrix_frac(a.T, x)), rules)
    program.solve(solver=cp.CLARABEL)
    assert program.status == cp.OPTIMAL
    return float(program.value)


def certificates(workload, times: int, constraint: str, tolerance: float) -> _dual.Best:
    """Primal and dual of a constraint's own problem, X by pattern."""
    a = workload.dense()
    task = _dual.problem(a.T @ a, times)
    if constraint == "signs":
        signs = _projected.Signs(task)
        return _projected.ascend(task, signs, signs.start(), tolerance, None)
    best, factor = _dual.solve(task, tolerance)
    if constraint == "nonnegative":
        everywhere = _projected.Nonnegative(task)
        return _projected.ascend(task, everywhere, everywhere.start(factor), tolerance, None)
    return best


SMALL = [
    (bg.PrefixSum(6), 3),
    (bg.PrefixSum(8), 2),
    (bg.PrefixSum(5), 1),
    (bg.PrefixSum(4), 4),
    (bg.Sgd(6, momentum=0.95), 3),
    (bg.Sgd(8, momentum=0.9, weight_decay=0.01, learning_rates=np.linspace(1.0, 0.1, 8)), 4),
    (random_workload(8, seed=1), 2),
    (random_workload(6, seed=2), 3),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize(("workload", "times"), SMALL, ids=lambda x: repr(x)[:40])
def test_small_problems_reach_the_optimum_of_a_conic_solver(workload, times, constraint):
    truth = conic_optimum(workload.dense(), times, constraint)
    best = certificates(workload, times, constraint, 1e-6)
    assert best.gap <= 1e-6
    assert best.dual <= truth * (1.0 + 1e-6)
    assert truth * (1.0 - 1e-6) <= best.primal <= truth * (1.0 + 3e-6)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_primal_is_feasible(constraint):
    times = 3
    for workload in (bg.Sgd(6, momentum=0.95), random_workload(6, seed=3)):
        x = _dual.in_order(certificates(workload, times, constraint, 1e-6).x, times)
        assert np.linalg.eigvalsh(x)[0] > 0.0
        for s in range(2):
            gram = x[s::2, s::2]
            signs = np.array(list(itertools.product((1.0, -1.0), repeat=times)))
            squares = np.einsum("mi,ij,mj->m", signs, gram, signs)
            assert squares.max() == pytest.approx(1.0, abs=1e-12)
            if constraint != "signs":
                assert (gram[~np.eye(times, dtype=bool)] == 0.0).all()
        if constraint == "nonnegative":
            assert (x >= 0.0).all()


@pytest.mark.parametrize(
    ("workload", "constraint", "value"),
    [(bg.PrefixSum(6), constraint, 6.46088) for constraint in CONSTRAINTS]
    + [
        (bg.Sgd(6, momentum=0.95), "signs", 16.1144),
        (bg.Sgd(6, momentum=0.95), "nonnegative", 16.1339),
        (bg.Sgd(6, momentum=0.95), "nonnegative_pairs", 16.1313),
        (bg.Sgd(6, momentum=0.95), "orthogonal", 16.1313),
    ],
    ids=str,
)
def test_published_constraint_sets(workload, constraint, value):
    best = certificates(workload, 3, constraint, 1e-7)
    assert np.sqrt(best.primal) == pytest.approx(value, abs=6e-5)
    assert np.sqrt(best.dual) == pytest.approx(value, abs=6e-5)
    strategy = bg.optimize.dense(workload, bg.FixedEpochs(6, 3), constraint=constraint, tolerance=1e-7)
    record = strategy.optimization
    assert record.lower_bound * np.sqrt(6) == pytest.approx(value, abs=6e-5)
    if constraint != "signs":
        assert record.value * np.sqrt(6) == pytest.approx(value, abs=6e-5)


def test_signs_alone_would_understate_what_gradients_contribute():
    workload, law = bg.Sgd(6, momentum=0.95), bg.FixedEpochs(6, 3)
    signs = bg.optimize.dense(workload, law, constraint="signs").optimization
    vectors = bg.optimize.dense(workload, law).optimization
    assert signs.lower_bound < vectors.lower_bound < vectors.value < signs.value
    assert signs.converged and signs.gap > 1e-3


@pytest.mark.parametrize(
    ("steps", "epochs", "value"),
    [(256, 8, 8.0343), (512, 8, 8.5769), (64, 1, 2.0998565), (256, 1, 2.5244144), (512, 1, 2.7393847)],
)
def test_certified_optima(steps, epochs, value):
    record = bg.optimize.dense(bg.PrefixSum(steps), bg.FixedEpochs(steps, epochs)).optimization
    assert record.converged and record.gap <= 1e-4
    assert record.lower_bound <= value * (1.0 + 1e-5)
    assert value * (1.0 - 1e-5) <= record.value <= value * (1.0 + 6e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "epochs", "value"),
    [(bg.PrefixSum(2000), 20, 18.0716), (warm_sgd(2052), 6, 104.038), (bg.PrefixSum(1024), 1, 2.955452)],
    ids=["prefix sum, 20 epochs", "momentum and schedule, 6 epochs", "prefix sum, one epoch"],
)
def test_large_certified_optima(workload, epochs, value):
    law = bg.FixedEpochs(workload.steps, epochs)
    strategy = bg.optimize.dense(workload, law)
    record = strategy.optimization
    assert record.converged and record.gap <= 1e-4
    assert record.lower_bound <= value * (1.0 + 1e-5) and record.value >= value * (1.0 - 2e-5)
    assert bg.sensitivity(strategy, law) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("epochs", [1, 2, 4])
@pytest.mark.parametrize(
    "workload", [bg.PrefixSum(24), warm_sgd(24), random_workload(24, seed=4)], ids=lambda w: repr(w)[:20]
)
def test_record_tells_the_truth_about_the_strategy(workload, epochs, constraint):
    law = bg.FixedEpochs(24, epochs)
    strategy = bg.optimize.dense(workload, law, constraint=constraint, tolerance=1e-3)
    c, record = strategy.dense(), strategy.optimization
    assert not np.triu(c, 1).any() and (np.diag(c) > 0.0).all()
    assert bg.sensitivity(strategy, law) == pytest.approx(1.0, abs=1e-9) and bg.sensitivity(strategy, law) <= 1.0
    assert record.loss == "rmse" and record.seconds > 0.0 and record.iterations >= 1
    assert record.value == pytest.approx(bg.rmse(strategy, workload, law), rel=1e-12)
    by_hand = np.linalg.norm(workload.dense() @ np.linalg.inv(c)) / np.sqrt(24)
    assert record.value == pytest.approx(by_hand, rel=1e-9)
    assert record.lower_bound <= record.value
    assert record.converged == (record.gap <= 1e-3) or constraint == "signs"


@pytest.mark.parametrize("epochs", [1, 4])
def test_no_strategy_is_below_the_bound(epochs):
    n = 32
    law = bg.FixedEpochs(n, epochs)
    for workload in (bg.PrefixSum(n), bg.Sgd(n, momentum=0.9)):
        best = bg.optimize.dense(workload, law, tolerance=1e-6)
        others = [
            bg.identity(n),
            bg.optimize.lambda_cgd(workload, law),
            bg.optimize.nu_dp_ftrl(workload, law),
            bg.square_root(workload),
            bg.banded_square_root(workload, 4),
            bg.banded_inverse_square_root(workload, 4),
            bg.column_normalized(bg.square_root(workload)),
            bg.stamped(bg.square_root(type(workload)(n // 4)), 4),
            bg.tree_aggregation(n),
            bg.full_batch(n),
            bg.optimize.dense(workload, law, constraint="nonnegative"),
        ]
        for other in others:
            assert best.optimization.lower_bound <= bg.rmse(other, workload, law), other
            assert best.optimization.value <= bg.rmse(other, workload, law) * (1.0 + 1e-6), other


def test_full_batch_is_the_optimum_of_one_step_an_epoch():
    law = bg.FixedEpochs(40, 40)
    record = bg.optimize.dense(bg.PrefixSum(40), law, tolerance=1e-8).optimization
    assert record.value == pytest.approx(bg.rmse(bg.full_batch(40), bg.PrefixSum(40), law), rel=1e-8)


@pytest.mark.parametrize("seed", range(30))
def test_dual_is_never_above_primal(seed):
    rng = np.random.default_rng(seed)
    times, b = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    workload = random_workload(times * b, seed)
    # any dual point is below any feasible point, not only at the end
    task = _dual.problem(workload.dense().T @ workload.dense(), times)
    bounds, losses = [], []
    for _ in range(4):
        factor = np.tril(rng.normal(size=(b, times, times))) + 2.0 * np.eye(times)
        factor /= np.linalg.norm(factor, axis=2, keepdims=True)
        v = rng.uniform(0.1, 3.0, size=b)
        root, x = _dual.respond(task.gram, factor * np.sqrt(v)[:, None, None])
        bounds.append(root**2 / v.sum())
        best = _dual.Best(np.eye(0))
        _dual.certify(best, task.gram, _dual.separate(x, times))
        losses.append(best.primal)
    assert max(bounds) <= min(losses)
    for constraint in CONSTRAINTS:
        best = certificates(workload, times, constraint, 1e-3)
        assert best.dual <= best.primal
        if constraint not in {"signs", "nonnegative"}:
            assert max(bounds) <= best.primal and best.dual <= min(losses)


def test_bound_is_not_above_the_truth_where_rounding_matters():
    a = bg.Sgd(48, momentum=0.99, learning_rates=np.geomspace(1.0, 1e-4, 48)).dense()
    root, _ = _dual.respond(a.T @ a, np.ones((48, 1, 1)))
    with mpmath.workdps(60):
        exact = mpmath.matrix(a.tolist())
        truth = sum(mpmath.sqrt(w) for w in mpmath.eigsy(exact.T * exact, eigvals_only=True))
    assert root <= float(truth) and root == pytest.approx(float(truth), rel=1e-6)


def test_response_solves_its_equation_and_is_the_gradient():
    rng = np.random.default_rng(5)
    a = bg.Sgd(12, momentum=0.9).dense()
    task = _dual.problem(a.T @ a, 3)
    factor = np.tril(rng.normal(size=(4, 3, 3))) + 2.0 * np.eye(3)
    root, x = _dual.respond(task.gram, factor)
    u = np.zeros((12, 12))
    for p, h in enumerate(factor):
        u[3 * p : 3 * p + 3, 3 * p : 3 * p + 3] = h @ h.T
    assert x @ u @ x == pytest.approx(task.gram, rel=1e-8)
    assert root == pytest.approx(np.trace(x @ u), rel=1e-9)
    change, h = np.tril(rng.normal(size=(4, 3, 3))), 1e-5
    ahead, behind = (_dual.respond(task.gram, factor + sign * h * change)[0] for sign in (1.0, -1.0))
    # d(2 S) = tr(X dU), dU = dH H^T + H dH^T on every pattern
    blocks = _dual.blocks_of(x, 3)
    expected = sum(float(np.trace(blocks[p] @ (change[p] @ factor[p].T))) * 2.0 for p in range(4))
    assert (ahead - behind) / h == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["signs", "nonnegative"])
def test_gradients_agree_with_finite_differences(kind):
    rng = np.random.default_rng(6)
    a = bg.Sgd(9, momentum=0.9).dense()
    task = _dual.problem(a.T @ a, 3)
    if kind == "signs":
        dual = _projected.Signs(task)
        z = rng.uniform(0.5, 1.5, size=len(dual.lower))
    else:
        dual = _projected.Nonnegative(task)
        z = rng.uniform(0.0, 0.08, size=len(dual.lower))

    def value(z):
        u, total = dual.multiplier(z)
        return total - 2.0 * _dual.respond(task.gram, np.linalg.cholesky(u))[0]

    u, _ = dual.multiplier(z)
    gradient = dual.gradient(z, _dual.respond(task.gram, np.linalg.cholesky(u))[1])
    h = 1e-6
    for i in range(len(z)):
        step = h * np.eye(len(z))[i]
        assert gradient[i] == pytest.approx((value(z + step) - value(z - step)) / (2.0 * h), rel=1e-5, abs=1e-6)


def test_one_step_alone_is_optimal_for_a_block_alone():
    """With one pattern only, the closed-form step lands on the optimum."""
    a = random_workload(5, seed=7).dense()
    task = _dual.problem(a.T @ a, 5)
    best, _ = _dual.iterate(task, np.zeros((1, 5, 5)), 1e-9, None)
    x = np.sqrt(np.diag(task.gram))
    assert best.iterations == 2
    assert best.primal == pytest.approx(x.sum() ** 2, rel=1e-9)


def test_progress_sees_every_iteration_and_results_repeat():
    seen = []
    workload, law = bg.PrefixSum(64), bg.FixedEpochs(64, 4)
    first = bg.optimize.dense(workload, law, progress=lambda *report: seen.append(report))
    again = bg.optimize.dense(workload, law)
    assert np.array_equal(first.dense(), again.dense())
    assert [iteration for iteration, _, _ in seen] == list(range(1, first.optimization.iterations + 1))
    values, gaps = [v for _, v, _ in seen], [g for _, _, g in seen]
    assert values == sorted(values, reverse=True) and gaps == sorted(gaps, reverse=True)
    assert values[-1] == pytest.approx(first.optimization.value, rel=1e-9)
    assert gaps[-1] == pytest.approx(first.optimization.gap, abs=1e-9) and gaps[-1] <= 1e-4 < gaps[-2]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_interruption_leaves_nothing_behind(constraint):
    workload, law = bg.Sgd(12, momentum=0.95), bg.FixedEpochs(12, 3)
    before = bg.optimize.dense(workload, law, constraint=constraint)

    def stop(iteration, value, gap):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bg.optimize.dense(workload, law, constraint=constraint, progress=stop)
    after = bg.optimize.dense(workload, law, constraint=constraint)
    assert np.array_equal(before.dense(), after.dense())


def test_out_of_reach_is_said_and_still_private():
    workload, law = bg.Sgd(24, momentum=0.95), bg.FixedEpochs(24, 4)
    strategy = bg.optimize.dense(workload, law, tolerance=1e-300)
    record = strategy.optimization
    assert not record.converged and 0.0 <= record.gap < 1e-6
    assert bg.sensitivity(strategy, law) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_the_unit_of_the_workload_does_not_matter(scale):
    law = bg.FixedEpochs(16, 2)
    one = bg.optimize.dense(DenseWorkload(np.tri(16)), law).optimization
    other = bg.optimize.dense(DenseWorkload(scale * np.tri(16)), law).optimization
    assert other.value == pytest.approx(scale * one.value, rel=1e-9)


def test_single_pass_is_one_epoch():
    single = bg.optimize.dense(bg.PrefixSum(20), bg.SinglePass(20))
    epoch = bg.optimize.dense(bg.PrefixSum(20), bg.FixedEpochs(20, 1))
    assert np.array_equal(single.dense(), epoch.dense())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"workload": np.tri(4)}, "workload="),
        ({"participation": bg.FixedEpochs(8, 2)}, "participation.steps=8: must equal the workload's steps=4"),
        ({"constraint": "psd"}, "constraint='psd'.*choose one of orthogonal"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"tolerance": 1.0}, "tolerance=1.0"),
        ({"tolerance": float("nan")}, "tolerance=nan"),
        ({"tolerance": "tight"}, "tolerance='tight'"),
        ({"progress": 3}, "progress=3: must be callable; give a function"),
    ],
    ids=str,
)
def test_bad_input_is_refused_by_name(change, says):
    arguments = {"workload": bg.PrefixSum(4), "participation": bg.FixedEpochs(4, 2), **change}
    with pytest.raises(ValueError, match=says):
        bg.optimize.dense(**arguments)


@pytest.mark.parametrize(
    ("workload", "law", "constraint", "says"),
    [
        (bg.PrefixSum(12), bg.MinSeparation(12, 3, 4), "orthogonal", "MinSeparation"),
        (bg.PrefixSum(12), bg.Poisson(12, 0.1), "orthogonal", "Poisson"),
        (bg.PrefixSum(40), bg.FixedEpochs(40, 40), "signs", "sign vectors"),
        (
            bg.PrefixSum(MATRIX_STEPS + 1),
            bg.SinglePass(MATRIX_STEPS + 1),
            "orthogonal",
            f"steps={MATRIX_STEPS + 1}: more",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(workload, law, constraint, says):
    with pytest.raises(bg.Unsupported, match=says):
        bg.optimize.dense(workload, law, constraint=constraint)
