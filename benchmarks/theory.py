"""Reproduction of "Correlated noise provably beats independent noise" (arXiv 2310.06771): figures and their numbers.

Usage: python benchmarks/theory.py NAME [--out FOLDER], NAME one of mean, regression, signs, dense, rates, pair, convex,
schedule, simulation. Each writes theory-NAME.csv and theory-NAME.png.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.linalg import toeplitz
from scipy.optimize import minimize_scalar

import bluegrad as bg
from bluegrad import optimize, theory
from bluegrad.plots import COLOURS

Rows = list[dict[str, float | str]]
ALPHAS = (0.0, 0.5, 1.0, 2.0)
DIMENSIONS = tuple(2**i for i in range(3, 11))
NAMES = ("DP-SGD", "damped Anti-PGD", "nu-DP-FTRL", "optimum")


def slope(x: list[float], y: list[float]) -> float:
    """Slope of a straight line through logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def best(error: Callable[[float], float]) -> tuple[float, float]:
    """Damping nu of least error, and that error."""
    grid = np.linspace(math.log(1e-9), math.log(0.999), 120)
    start = grid[int(np.argmin([error(math.exp(x)) for x in grid]))]
    bounds = (start - 0.2, min(start + 0.2, math.log(0.9999)))
    found = minimize_scalar(lambda x: error(math.exp(x)), bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x), float(found.fun)


def private_errors(problem: theory.Problem) -> dict[str, float]:
    """Private error of the four mechanisms, the damped ones at their own best nu."""
    return {
        "DP-SGD": theory.white_private(problem),
        "damped Anti-PGD": best(lambda nu: theory.difference_private(problem, nu))[1],
        "nu-DP-FTRL": best(lambda nu: theory.root_private(problem, nu))[1],
        "optimum": theory.optimal_private(problem),
    }


def spectrum(alpha: float, dimension: int) -> np.ndarray:
    """Eigenvalues k^-alpha."""
    return np.arange(1.0, dimension + 1.0) ** -alpha


def panels(count: int, title: str, *, rows: int = 1) -> tuple[Figure, list]:
    """Axes in rows."""
    figure = Figure(figsize=(4.6 * count / rows, 4.4 * rows), layout="constrained")
    axes = figure.subplots(rows, count // rows, squeeze=False).ravel()
    figure.suptitle(title, fontsize=11)
    for ax in axes:
        ax.grid(alpha=0.3)
    return figure, list(axes)


def mean() -> tuple[Rows, Figure]:
    """Mean estimation: error over the learning rate, lines exact, points simulated."""
    rows: Rows = []
    etas = np.geomspace(1e-4, 0.9, 30)
    fixed = 0.01
    laws = {
        "DP-SGD": theory.white_private,
        "damped Anti-PGD, best nu": lambda p: best(lambda nu: theory.difference_private(p, nu))[1],
        f"nu-DP-FTRL, nu = {fixed}": lambda p: theory.root_private(p, fixed),
        "optimum (nu-DP-FTRL, nu = eta)": theory.optimal_private,
    }
    figure, (ax,) = panels(1, "Mean estimation: where noisy gradient descent settles")
    figure.set_size_inches(7.0, 5.2)
    for colour, (name, law) in zip(COLOURS, laws.items()):
        errors = [law(theory.Problem([1.0], eta)) for eta in etas]
        small = etas < 0.01
        found = slope(etas[small], np.array(errors)[small])
        ax.loglog(etas, errors, color=colour, label=f"{name}: slope {found:.2f}")
        rows += [{"mechanism": name, "eta": eta, "exact": error} for eta, error in zip(etas, errors)]
    for eta in (0.01, 0.03, 0.1, 0.3):
        problem = theory.Problem([1.0], eta)
        nu = best(lambda nu, p=problem: theory.difference_private(p, nu))[0]
        noises = [
            theory.white(),
            theory.damped_difference(nu),
            theory.damped_root(fixed),
            theory.optimal_noise(problem),
        ]
        for colour, (name, law), noise in zip(COLOURS, laws.items(), noises):
            run = theory.simulate(problem, noise, steps=60_000, repeats=32, seed=len(rows))
            found = run.stationary(burn_in=int(10 / eta))
            low, high = found.interval(0.9999)
            ax.errorbar(
                eta, found.mean, [[found.mean - low], [high - found.mean]], color=colour, fmt="o", ms=4, capsize=3
            )
            sizes = {"simulated": found.mean, "standard_error": found.standard_error}
            rows.append({"mechanism": name, "eta": eta, "exact": law(problem), **sizes})
    x = etas[etas < 0.05]
    ax.loglog(x, 0.02 * x**2 * np.log(8 / x) ** 2, "k:", label="eta^2 log^2(8 / eta), any scale")
    ax.set(xlabel="learning rate eta (slopes below 0.01)", ylabel="private error, G^2 / rho = 1")
    ax.legend(fontsize=8)
    return rows, figure


def regression() -> tuple[Rows, Figure]:
    """Linear regression: error over the dimension for spectra k^-alpha; the best nu against eta * lambda_min."""
    rows: Rows = []
    eta = 0.02
    figure, axes = panels(6, f"Linear regression, eigenvalues k^-alpha, eta = {eta}", rows=2)
    slopes: dict[str, list[float]] = {name: [] for name in (*NAMES, "d_eff")}
    for ax, alpha in zip(axes, ALPHAS):
        errors = {name: [] for name in NAMES}
        for d in DIMENSIONS:
            problem = theory.Problem(spectrum(alpha, d), eta)
            for name, error in private_errors(problem).items():
                errors[name].append(error)
                sizes = {"alpha": alpha, "d": d, "d_eff": problem.effective_dimension}
                rows.append({**sizes, "mechanism": name, "private_error": error})
        effective = [theory.Problem(spectrum(alpha, d), eta).effective_dimension for d in DIMENSIONS]
        for name, y in (*errors.items(), ("d_eff", effective)):
            slopes[name].append(slope(DIMENSIONS, y))
        for colour, name in zip(COLOURS, NAMES):
            label = f"{name}: {slopes[name][-1]:.2f}"
            ax.loglog(DIMENSIONS, errors[name], "x--" if name == "optimum" else "o-", ms=4, color=colour, label=label)
        ax.loglog(DIMENSIONS, 2e-4 * np.array(effective), "k:", label=f"d_eff, any scale: {slopes['d_eff'][-1]:.2f}")
        ax.set(title=f"alpha = {alpha:g}", xlabel="d", ylabel="private error, G^2 / rho = 1", ylim=(1e-4, 200))
        ax.legend(fontsize=8, title="slope in d", loc="upper left")
    ax = axes[4]
    for colour, name in zip((*COLOURS[:4], "k"), slopes):
        ax.plot(ALPHAS, slopes[name], "o-" if name != "d_eff" else ":", color=colour, label=name)
    ax.set(title="from d to d_eff", xlabel="alpha", ylabel="slope in d (8 to 1024)")
    ax.legend(fontsize=8)
    ax = axes[-1]
    for colour, alpha in zip(COLOURS, ALPHAS):
        nus, least = [], []
        for d in DIMENSIONS:
            problem = theory.Problem(spectrum(alpha, d), eta)
            nus.append(best(lambda nu, p=problem: theory.root_private(p, nu))[0])
            least.append(float(problem.rates[0]))
            rows.append({"alpha": alpha, "d": d, "mechanism": "best nu", "nu": nus[-1], "eta_lambda_min": least[-1]})
        ax.loglog(least, nus, "o", ms=5, color=colour, label=f"alpha = {alpha:g}")
    line = np.geomspace(1e-8, 0.05, 2)
    ax.loglog(line, line, "k:", label="nu = eta * lambda_min")
    ax.set(title="best nu of nu-DP-FTRL", xlabel="eta * lambda_min", ylabel="best nu")
    ax.legend(fontsize=8)
    return rows, figure


def signs() -> tuple[Rows, Figure]:
    """The ablation: the optimum's magnitudes with all signs positive, so that noise adds up instead of cancelling."""
    rows: Rows = []
    etas = np.geomspace(0.003, 0.8, 16)
    figure, axes = panels(2, "Cancelling against adding the same magnitudes, at equal privacy")
    for ax, (name, values) in zip(axes, {"mean estimation": [1.0], "k^-1, d = 128": spectrum(1.0, 128)}.items()):
        errors: dict[str, list[float]] = {"positive signs": [], "DP-SGD": [], "negative signs (optimum)": []}
        for eta in etas:
            problem = theory.Problem(values, eta)
            n = theory.optimal_noise(problem).coefficients(4000)
            noises = dict(zip(errors, (theory.moving(np.abs(n)), theory.white(), theory.moving(n))))
            for law, noise in noises.items():
                errors[law].append(theory.suboptimality(problem, noise).private)
                sizes = {"gamma": noise.gamma, "private_error": errors[law][-1]}
                rows.append({"problem": name, "eta": eta, "noise": law, **sizes})
        for colour, (law, y) in zip((COLOURS[1], COLOURS[6], COLOURS[0]), errors.items()):
            ax.loglog(etas, y, "o-", ms=4, color=colour, label=law)
        ax.set(title=name, xlabel="learning rate eta", ylabel="private error, G^2 / rho = 1")
        ax.legend(fontsize=9)
    return rows, figure


def trajectory_workload(problem: theory.Problem, steps: int) -> bg.DenseWorkload:
    """A with |A N|^2 = sum over steps and directions of l_j eta^2 |row of direction j's response times N|^2."""
    square = np.zeros((steps, steps))
    for value in problem.spectrum:
        response = toeplitz((1.0 - problem.learning_rate * value) ** np.arange(steps), np.zeros(steps))
        square += value * problem.learning_rate**2 * response.T @ response
    upper = np.linalg.cholesky(square[::-1, ::-1]).T  # A^T A = square with A lower-triangular, by reversal
    return bg.DenseWorkload(np.tril(upper[::-1, ::-1]))


def dense() -> tuple[Rows, Figure]:
    """Toeplitz against general strategies on the true objective, the mean error over n = 100 steps."""
    rows: Rows = []
    steps, d, eta = 100, 64, 0.2
    law = bg.SinglePass(steps)
    figure, axes = panels(
        2, f"Mean suboptimality over n = {steps} steps, d = {d}, eta = {eta}: over the general optimum's"
    )
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
        problem = theory.Problem(spectrum(alpha, d), eta)
        work = trajectory_workload(problem, steps)
        general = optimize.dense(work, law)
        nu_error = minimize_scalar(lambda nu: bg.rmse(bg.nu_dp_ftrl(steps, nu), work, law), bounds=(0, 0.99)).fun  # noqa: B023
        found = {
            "DP-SGD": bg.rmse(bg.identity(steps), work, law),
            "asymptotic optimum": bg.rmse(theory.optimal_strategy(problem, steps), work, law),
            "nu-DP-FTRL, best nu": nu_error,
            "best Toeplitz C": bg.rmse(optimize.toeplitz(work, law, steps), work, law),
        }
        least = bg.rmse(general, work, law)
        for name, error in found.items():
            ratio = (error / least) ** 2
            rows.append({"alpha": alpha, "d_eff": problem.effective_dimension, "mechanism": name, "ratio": ratio})
        print(alpha, general.optimization.converged, found, least, flush=True)
    for ax, names in zip(axes, (list(found), list(found)[1:])):
        for name in names:
            at = [(row["d_eff"], row["ratio"]) for row in rows if row["mechanism"] == name]
            ax.semilogx(*zip(*at), "o-", ms=4, color=COLOURS[list(found).index(name)], label=name)
        ax.set(xlabel="effective dimension", ylabel="squared error over the general optimum's")
        ax.legend(fontsize=9)
    axes[1].set_title("Toeplitz mechanisms, enlarged", fontsize=10)
    axes[1].axhline(1.0, color="k", lw=0.8, ls=":")
    return rows, figure


STATED = {
    ("DP-SGD", "eta"): 1.0, ("damped Anti-PGD", "eta"): 1.5, ("nu-DP-FTRL", "eta"): 2.0, ("optimum", "eta"): 2.0,
    ("DP-SGD", "d at Tr H fixed"): 1.0, ("damped Anti-PGD", "d at Tr H fixed"): 0.5,
    ("nu-DP-FTRL", "d at Tr H fixed"): 0.0, ("optimum", "d at Tr H fixed"): 0.0,
    ("DP-SGD", "Tr H at d fixed"): 0.0, ("damped Anti-PGD", "Tr H at d fixed"): 0.5,
    ("nu-DP-FTRL", "Tr H at d fixed"): 1.0, ("optimum", "Tr H at d fixed"): 1.0,
}  # fmt: skip


def rates() -> tuple[Rows, Figure]:
    """Measured exponents beside those of Tables 1 and 2 (logarithms aside)."""
    floor, d = 1e-3, 256
    # one large direction carries the trace, the others lie at a floor: d and Tr H change independently
    sweeps = {
        "eta": [theory.Problem(spectrum(1.0, 128), eta) for eta in np.geomspace(1e-4, 1e-2, 9)],
        "d at Tr H fixed": [theory.Problem([1.0, *[0.1 / count] * count], 0.02) for count in (64, 128, 256, 512, 1024)],
        "Tr H at d fixed": [
            theory.Problem([scale * 1.0] * 8 + [scale * floor] * (d - 8), 0.002) for scale in np.geomspace(1, 16, 5)
        ],
    }
    variable = {
        "eta": lambda p: p.learning_rate, "d at Tr H fixed": lambda p: p.dimension, "Tr H at d fixed": lambda p: p.trace
    }  # fmt: skip
    rows: Rows = []
    figure, (ax,) = panels(1, "Exponents of the private error: measured (bars) and stated (marks)")
    figure.set_size_inches(9.0, 4.8)
    for i, (what, problems) in enumerate(sweeps.items()):
        errors = [private_errors(problem) for problem in problems]
        x = [variable[what](problem) for problem in problems]
        for j, name in enumerate(NAMES):
            measured, stated = slope(x, [error[name] for error in errors]), STATED[name, what]
            rows.append({"mechanism": name, "in": what, "measured": measured, "stated": stated})
            label = name if i == 0 else None
            ax.bar(i + 0.2 * (j - 1.5), measured, 0.17, color=COLOURS[j], alpha=0.75, label=label)
            ax.plot(i + 0.2 * (j - 1.5), stated, "k_", ms=18, mew=2, label="stated" if i == 0 and j == 0 else None)
    ax.set_xticks(range(len(sweeps)), [f"in {name}" for name in sweeps])
    ax.set(ylabel="exponent (logarithmic factors lower that of eta)")
    ax.legend(fontsize=9)
    return rows, figure


def equal_pair(steps: int) -> tuple[bg.Strategy, bg.Strategy]:
    """Two diagonal strategies of equal sensitivity and equal squared prefix-sum error: loud early, and loud late."""
    burst = 20
    weight = np.arange(steps, 0, -1.0)  # how many prefix sums contain a step's noise
    early, late = np.ones(steps), np.ones(steps)
    early[:burst] += 10.0
    late[-burst:] += 10.0 * weight[:burst].sum() / weight[-burst:].sum()
    return tuple(bg.dense(np.diag(variance**-0.5)) for variance in (early, late))


def pair() -> tuple[Rows, Figure]:
    """Equal squared error and equal sensitivity, and yet one converges and the other diverges as the horizon grows."""
    rows: Rows = []
    eta = 0.1
    figure, axes = panels(2, "Equal squared error of prefix sums, equal sensitivity: mean estimation, eta = 0.1")
    horizons = (50, 100, 200, 400, 800, 1600)
    ends: dict[str, list[float]] = {"loud early": [], "loud late": []}
    for steps in horizons:
        law, work = bg.SinglePass(steps), bg.PrefixSum(steps)
        for name, strategy in zip(ends, equal_pair(steps)):
            response = toeplitz((1.0 - eta) ** np.arange(steps), np.zeros(steps)) @ strategy.noising()
            error = 0.5 * eta**2 * bg.sensitivity(strategy, law) ** 2 / 2.0 * np.square(response).sum(axis=1)
            ends[name].append(float(error[-1]))
            sizes = {"squared_error": bg.rmse(strategy, work, law) ** 2, "sensitivity": bg.sensitivity(strategy, law)}
            rows.append({"steps": steps, "strategy": name, **sizes, "final_error": ends[name][-1]})
            if steps == 400:
                axes[0].semilogy(np.arange(1, steps + 1), error, color=COLOURS[list(ends).index(name)], label=name)
    axes[0].set(title="n = 400", xlabel="step", ylabel="error of the iterate, G^2 / rho = 1")
    for colour, (name, y) in zip(COLOURS, ends.items()):
        axes[1].loglog(horizons, y, "o-", color=colour, label=f"{name}: slope {slope(horizons[2:], y[2:]):.2f}")
    axes[1].set(title="the last iterate", xlabel="horizon n", ylabel="error after n steps")
    for ax in axes:
        ax.legend(fontsize=9)
    return rows, figure


def convex() -> tuple[Rows, Figure]:
    """Bounds for strongly convex losses across condition numbers, k = 1000 frequencies, and the worst quadratic."""
    rows: Rows = []
    eta = 0.5
    conditions = np.geomspace(1.5, 100, 9)
    figure, (ax,) = panels(
        1, f"mu-strongly convex, 1-smooth losses, eta = {eta}: bound (lines), worst quadratic (dots)"
    )
    figure.set_size_inches(7.4, 5.0)
    for colour, name in zip(COLOURS, ("DP-SGD", "nu-DP-FTRL, nu = eta mu", "optimized")):
        bounds, worst = [], []
        for condition in conditions:
            losses = theory.ConvexClass(1.0 / condition, 1.0, eta)
            if name == "optimized":
                found = theory.convex_optimal(losses, points=1000, rounds=8)
            else:
                noise = theory.white() if name == "DP-SGD" else theory.damped_root(eta / condition)
                found = theory.convex_bound(losses, noise, points=1000)
            gain = found.noise.gain(eta * np.geomspace(1.0 / condition, 1.0, 200)).max()
            worst.append(0.5 * eta**2 * found.noise.gamma**2 / 2.0 * gain)
            bounds.append(found.value)
            sizes = {"bound": bounds[-1], "worst_quadratic": worst[-1]}
            rows.append({"condition_number": condition, "noise": name, **sizes})
            print(rows[-1], flush=True)
        ax.loglog(conditions, bounds, color=colour, label=f"{name}: slope {slope(conditions[4:], bounds[4:]):.2f}")
        ax.loglog(conditions, worst, "o", ms=4, color=colour)
    ax.set(xlabel="condition number L / mu", ylabel="bound on F, G^2 / rho = 1")
    ax.legend(fontsize=9)
    return rows, figure


def schedule() -> tuple[Rows, Figure]:
    """A decaying learning rate: one fixed nu against nu that follows the rate, in finite time and at equal privacy."""
    rows: Rows = []
    steps, d = 400, 64
    values = spectrum(1.0, d)
    rate = 0.2 * np.linspace(1.0, 0.05, steps)
    law = bg.SinglePass(steps)
    figure, (ax,) = panels(1, f"Linear decay from 0.2 to 0.01 in {steps} steps, eigenvalues 1/k, d = {d}")
    figure.set_size_inches(7.4, 4.8)

    def final(strategy: bg.Strategy) -> float:
        """Exact private error of the last iterate, noise of all steps propagated."""
        noise, total = strategy.noising(), 0.0
        for value in values:
            kept = np.cumprod(np.append(1.0, (1.0 - rate[:0:-1] * value)))[::-1]
            total += 0.5 * value * float(np.square((rate * kept) @ noise).sum())
        return total * bg.sensitivity(strategy, law) ** 2 / 2.0

    def varying(scale: float) -> bg.Strategy:
        """Row t of the noising has the coefficients of nu_t = scale * rate_t."""
        n = np.zeros((steps, steps))
        for t in range(steps):
            n[t, : t + 1] = theory.damped_root(min(scale * rate[t], 0.999)).coefficients(t + 1)[::-1]
        return bg.dense(np.linalg.inv(n))

    scales = np.geomspace(1e-3, 4.0, 22)
    laws = {
        "fixed nu = scale * mean rate": lambda s: bg.nu_dp_ftrl(steps, min(s * rate.mean(), 0.999)),
        "nu follows the rate": varying,
    }
    for colour, (name, strategy) in zip(COLOURS, laws.items()):
        errors = [final(strategy(scale)) for scale in scales]
        ax.loglog(scales, errors, "o-", ms=4, color=colour, label=f"{name}: least {min(errors):.3g}")
        rows += [{"law": name, "scale": s, "final_private_error": e} for s, e in zip(scales, errors)]
    plain = final(bg.identity(steps))
    rows.append({"law": "DP-SGD", "scale": "", "final_private_error": plain})
    ax.axhline(plain, color="k", ls=":", label=f"DP-SGD: {plain:.3g}")
    ax.set(xlabel="scale (nu over learning rate)", ylabel="private error of the last iterate, G^2 / rho = 1")
    ax.legend(fontsize=9)
    return rows, figure


def simulation() -> tuple[Rows, Figure]:
    """The simulator at d = 1024, 100,000 steps, 16 repeats: error over time, beside the exact settled error."""
    rows: Rows = []
    problem = theory.Problem(spectrum(0.5, 1024), 0.02, sgd_noise=0.05)
    start = 0.3 * np.ones(1024)
    figure, (ax,) = panels(1, "d = 1024, eigenvalues k^-0.5, eta = 0.02, 16 repeats: simulated (lines), exact (dotted)")
    figure.set_size_inches(8.0, 4.8)
    noises = {
        "DP-SGD": theory.white(),
        "nu-DP-FTRL": theory.damped_root(0.0012),
        "lambda-CGD": theory.damped_difference(0.15),
    }
    for colour, (name, noise) in zip(COLOURS, noises.items()):
        began, used = time.perf_counter(), time.process_time()
        run = theory.simulate(problem, noise, steps=100_000, repeats=16, start=start, seed=2)
        seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
        found, exact = run.stationary(burn_in=20_000), theory.suboptimality(problem, noise).total
        off = (found.mean - exact) / found.standard_error
        ax.loglog(
            run.times, run.errors.mean(axis=1), color=colour, lw=0.8, label=f"{name}: off by {off:+.1f} standard errors"
        )
        ax.axhline(exact, color=colour, ls=":")
        sizes = {"exact": exact, "simulated": found.mean, "standard_error": found.standard_error}
        rows.append({"noise": name, **sizes, "off_in_standard_errors": off, **seconds})
        print(rows[-1], flush=True)
    ax.set(xlabel="step", ylabel="suboptimality, G^2 / rho = 1")
    ax.legend(fontsize=9)
    return rows, figure


FIGURES = {f.__name__: f for f in (mean, regression, signs, dense, rates, pair, convex, schedule, simulation)}


def main() -> None:
    """Draw one figure and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(FIGURES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    rows, figure = FIGURES[arguments.name]()
    arguments.out.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (arguments.out / f"theory-{arguments.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        shown = [{k: f"{v:.8g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
        writer.writerows(shown)
    FigureCanvasAgg(figure)
    figure.savefig(arguments.out / f"theory-{arguments.name}.png", dpi=110)


if __name__ == "__main__":
    main()
