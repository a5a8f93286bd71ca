"""Tables for people, as rich renders them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from bluegrad.participation import Participation
from bluegrad.score import certify
from bluegrad.strategy import Strategy
from bluegrad.tasks.mechanisms import Plan

if TYPE_CHECKING:
    from bluegrad.audit import Audit
    from bluegrad.tasks.loop import Result

LAWS = {
    "fixed-epochs": "same batches every epoch, no amplification",
    "balls-in-bins": "balls in bins (amplified)",
    "cyclic-poisson": "cyclic Poisson (amplified)",
    "poisson": "Poisson (amplified)",
}


def law_text(participation: Participation) -> str:
    """The sampling law in words."""
    law = participation.describe()["law"]
    return LAWS.get(law, law)


def result_table(result: Result) -> Table:
    """Closing table of a training run."""
    mechanism = result.mechanism
    table = Table(title="Private training", show_header=False, title_justify="left")
    rows = {
        "test accuracy": f"{100.0 * result.accuracy:.2f} %",
        "epsilon": f"{result.epsilon:.6g}",
        "delta": f"{result.settings.delta:g}",
        "neighbours": mechanism.participation.describe()["neighbours"],
        "mechanism": repr(mechanism.strategy),
        "noise multiplier": f"{mechanism.noise_multiplier:.6g}",
        "sensitivity": f"{mechanism.sensitivity:.6g} ({mechanism.certificate.rule})",
        "sampling law": law_text(mechanism.participation),
        "steps": f"{mechanism.steps} of about {result.examples / _batches(result):.0f} of {result.examples} examples",
        "parameters": f"{result.parameters:,}",
        "non-finite gradients": f"{result.metrics[-1]['nonfinite_gradients']:.0f}",
        "time": f"{result.seconds:.1f} s",
        "folder": str(result.folder),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _batches(result: Result) -> float:
    return result.mechanism.steps / result.settings.epochs


def _ranking(*, title: str, caption: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table of mechanisms that fits 80 columns."""
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def plan_table(plan: Plan, *, epsilon: float, delta: float) -> Table:
    """Table of a plan, least noise first."""
    law = plan.rows[0].mechanism.participation
    table = _ranking(
        title=f"{law.steps:,} steps, epsilon {epsilon:g}, delta {delta:g}, noise multiplier "
        f"{plan.rows[0].mechanism.noise_multiplier:.5g}: {law_text(law)}",
        caption="noise = RMSE of the prefix sum x noise multiplier, in units of the clip norm: what ranks mechanisms. "
        "RMSE and max error have the sensitivity (sens.) in them. memory: model copies beyond DP-SGD. step: normals "
        "drawn + vectors added a parameter. * on the frontier of noise against memory.",
        words=("mechanism", "parameter"),
        numbers=("sens.", "RMSE", "max\nerror", "noise", "mem-\nory", "step"),
    )
    frontier = {row.name for row in plan.frontier}
    for row in plan.rows:
        draws, sums = row.mechanism.strategy.cost
        table.add_row(
            f"{row.name}{' *' if row.name in frontier else ''}",
            row.parameter,
            f"{row.mechanism.sensitivity:.3g}",
            f"{row.rmse:.4g}",
            f"{row.max_error:.4g}",
            f"{row.noise:.5g}",
            f"{row.memory}",
            f"{draws}+{sums}" if sums else f"{draws}",
        )
    return table


def amplified_table(plan: Plan, plain: Plan, *, epsilon: float, delta: float) -> Table:
    """Table of a plan under a sampling law, least noise first, beside what the mechanisms cost without amplification.

    Args:
        plan: under the law.
        plain: of the same horizon, with the same batches every epoch.
        epsilon: privacy budget of both.
        delta: of both.
    """
    law = plan.rows[0].mechanism.participation
    unamplified = {row.name: row for row in plain.rows}
    multiplier = plain.rows[0].mechanism.noise_multiplier
    table = _ranking(
        title=f"{law.steps:,} steps, epsilon {epsilon:g}, delta {delta:g}: {law_text(law)}",
        caption="mult.: noise multiplier. noise = RMSE of the prefix sum x mult., in units of the clip norm: what "
        f"ranks mechanisms. fixed: noise with the same batches every epoch, at multiplier {multiplier:.5g}, with the "
        "parameter that is best there. memory: model copies beyond DP-SGD. step: normals drawn + vectors added a "
        "parameter. * on the frontier of noise against memory.",
        words=("mechanism", "parameter"),
        numbers=("mult.", "RMSE", "noise", "fixed", "mem-\nory", "step"),
    )
    frontier = {row.name for row in plan.frontier}
    for row in plan.rows:
        draws, sums = row.mechanism.strategy.cost
        beside = unamplified.get(row.name)
        table.add_row(
            f"{row.name}{' *' if row.name in frontier else ''}",
            row.parameter,
            f"{row.mechanism.noise_multiplier:.4g}",
            f"{row.rmse:.4g}",
            f"{row.noise:.5g}",
            "" if beside is None else f"{beside.noise:.5g}",
            f"{row.memory}",
            f"{draws}+{sums}" if sums else f"{draws}",
        )
    return table


def search_table(strategy: Strategy, participation: Participation) -> Table:
    """What a search found."""
    record = strategy.optimization
    certificate = certify(strategy, participation)
    table = Table(title="Best strategy", show_header=False, title_justify="left")
    rows = {
        "strategy": repr(strategy)[:200],
        record.loss: f"{record.value:.8g} (prefix sum or the given SGD, noise multiplier 1)",
        **({} if record.noise is None else {"noise": f"about {record.noise:.6g}: {record.loss} x noise multiplier"}),
        "certified bound": "none for this family"
        if record.gap is None
        else f"gap {record.gap:.1e} in the squared loss",
        "converged": "yes" if record.converged else "no: best so far",
        "iterations": f"{record.iterations} in {record.seconds:.1f} s",
        "sensitivity": f"{certificate.value:.8g} ({certificate.rule})",
        "memory": f"{strategy.memory} model copies beyond DP-SGD",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _laws(results: dict[str, list[Result]]) -> set[str]:
    return {law_text(run.mechanism.participation) for runs in results.values() for run in runs}


def comparison_table(results: dict[str, list[Result]]) -> Table:
    """Mechanisms side by side, the best mean accuracy first."""
    first = next(iter(results.values()))[0]
    seeds = len(next(iter(results.values())))
    table = _ranking(
        title=f"Test accuracy at epsilon {first.settings.epsilon:g}, delta {first.settings.delta:g}, "
        f"{first.mechanism.steps} steps, {seeds} seed{'s' if seeds > 1 else ''}",
        caption="Mean over seeds +- standard deviation. Batches: " + "; ".join(sorted(_laws(results))) + ".",
        words=("mechanism",),
        numbers=("accuracy", "+-", "lr", "epsilon", "noise\nmult.", "time\na run"),
    )
    for name, runs in sorted(results.items(), key=lambda item: -mean(run.accuracy for run in item[1])):
        accuracies = [100.0 * run.accuracy for run in runs]
        table.add_row(
            name,
            f"{mean(accuracies):.2f} %",
            f"{stdev(accuracies):.2f}" if seeds > 1 else "-",
            f"{runs[0].settings.lr:g}",
            f"{max(run.epsilon for run in runs):.6g}",
            f"{runs[0].mechanism.noise_multiplier:.5g}",
            f"{mean(run.seconds for run in runs):.1f} s",
        )
    return table


def audit_table(audits: Sequence[Audit], *, steps: int, confidence: float) -> Table:
    """Claims beside what an attack on them proves."""
    first = audits[0]
    table = _ranking(
        title=f"Audit by {first.level}: epsilon {first.claimed:g} claimed at delta {first.delta:g}, "
        f"{steps} steps, confidence {confidence:g}, {first.repetitions:,} runs each with and without the "
        f"canary: {LAWS[first.law]}",
        caption="Lower bounds on epsilon, proved for any mechanism, and fitted: if only the size of the noise may "
        f"differ from the claim. delta at epsilon {first.point:.3g}: claimed, and proved for any mechanism. noise: "
        "p-value of its claimed law. A claim is refuted where what is proved exceeds it, or by the noise.",
        words=("mechanism",),
        numbers=("epsilon\nproved", "\nfitted", "delta\nclaimed", "\nproved", "noise\np", "verdict"),
    )
    colours = {"upheld": "green", "weak": "yellow", "refuted": "bold red"}
    for audit in audits:
        table.add_row(
            audit.mechanism,
            f"{audit.epsilon:.3g}",
            f"{audit.fitted:.3g}",
            f"{audit.claimed_delta:.3g}",
            f"{max(0.0, audit.measured_delta):.3g}",
            f"{audit.noise_p_value:.2g}",
            f"[{colours[audit.verdict]}]{audit.verdict}[/]",
        )
    return table
