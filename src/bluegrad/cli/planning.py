"""Commands that need neither data nor torch: plan, optimize."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bluegrad import report
from bluegrad.cli._common import INTERRUPTED, Delta, Draw, Epsilon, user_errors
from bluegrad.tasks.laws import Sampling
from bluegrad.tasks.mechanisms import Plan
from bluegrad.tasks.mechanisms import plan as make_plan
from bluegrad.tasks.search import SEARCHES, Search, read_rates


def plan(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 2000,
    epochs: Annotated[int, typer.Option(help="Passes over the data; must divide the steps.")] = 20,
    epsilon: Epsilon = 8.0,
    delta: Delta = 1e-5,
    sampling: Draw = "fixed",
    slow: Annotated[bool, typer.Option("--slow", help="Include mechanisms that take minutes to optimise.")] = False,
    plot: Annotated[Path, typer.Option(help="PNG file for the frontier of noise against memory.")] = Path("plan.png"),
) -> None:
    """Show what every mechanism costs, without data or training; with --sampling, beside what it costs unamplified."""
    with user_errors():
        console = Console()
        drawn = Sampling(sampling, steps, epochs)
        result = _planned(drawn, epsilon, delta, slow, console)
        law = report.law_text(result.rows[0].mechanism.participation)
        plots: Any = importlib.import_module("bluegrad.plots")
        plots.frontier(
            plot,
            title=f"{steps:,} steps, {epochs} epochs, epsilon {epsilon:g}, delta {delta:g}, {law}",
            rows=[(row.name, row.memory, row.noise) for row in result.rows],
            best=[row.name for row in result.frontier],
        )
        if sampling == "fixed":
            console.print(report.plan_table(result, epsilon=epsilon, delta=delta))
        else:
            plain = _planned(Sampling("fixed", steps, epochs), epsilon, delta, slow, console)
            console.print(report.amplified_table(result, plain, epsilon=epsilon, delta=delta))
        for name, reason in result.left_out.items():
            console.print(f"left out: {name}: {reason}", soft_wrap=True, highlight=False)
        console.print(f"plot: {plot}", soft_wrap=True)


def _planned(sampling: Sampling, epsilon: float, delta: float, slow: bool, console: Console) -> Plan:
    """A plan, with a bar while it is made."""
    columns = (TextColumn("planning ({task.fields[law]}) {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, law=sampling.name)
        return make_plan(
            sampling, epsilon=epsilon, delta=delta, slow=slow,
            progress=lambda name, done, total: bar.update(task, description=name, completed=done, total=total),
        )  # fmt: skip


def optimize(
    family: Annotated[str, typer.Argument(help=f"One of {', '.join(SEARCHES)}.")],
    steps: Annotated[int, typer.Option(help="Training steps.")],
    epochs: Annotated[int, typer.Option(help="Passes over the data; must divide the steps.")],
    out: Annotated[Path, typer.Option(help="File for the strategy (.npz), for train --mechanism FILE.")],
    size: Annotated[int | None, typer.Option(help="Bands or buffers, where the family has them.")] = None,
    loss: Annotated[str, typer.Option(help="rmse or max_error.")] = "rmse",
    momentum: Annotated[float, typer.Option(help="Momentum of the SGD whose error counts.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Shrinkage of the model a step.")] = 0.0,
    rates: Annotated[Path | None, typer.Option(help="Text file of one learning rate a step.")] = None,
    sampling: Annotated[
        str, typer.Option(help="fixed, or balls-in-bins: the least noise at --epsilon and --delta.")
    ] = "fixed",
    epsilon: Epsilon = 8.0,
    delta: Delta = 1e-5,
) -> None:
    """Find the best strategy of a family and save it. Interrupted, the same command continues."""
    with user_errors():
        search = Search(
            family, steps=steps, epochs=epochs, size=size, loss=loss, momentum=momentum, weight_decay=weight_decay,
            rates=None if rates is None else read_rates(rates), sampling=sampling, privacy=(epsilon, delta),
        )  # fmt: skip
        console = Console()
        columns = (TextColumn("{task.description}"), SpinnerColumn(), TextColumn("{task.fields[note]}"))
        with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(f"optimizing {family}", total=None, note="")
            try:
                best = search.run(
                    out, lambda iteration, value: bar.update(task, note=f"iteration {iteration}: {loss} {value:.6g}")
                )
            except KeyboardInterrupt:
                bar.stop()
                console.print("interrupted; the same command continues where it was", soft_wrap=True)
                raise typer.Exit(INTERRUPTED) from None
        console.print(report.search_table(best, search.participation))
        console.print(f"strategy: {out}", soft_wrap=True)
