"""The command that puts claims to the test: audit."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bluegrad import report
from bluegrad._files import write_atomically
from bluegrad.cli._common import REFUTED, Delta, Draw, Epsilon, Parameter, read_parameter, user_errors
from bluegrad.tasks.laws import Sampling


def audit(
    mechanism: Annotated[str, typer.Option(help="A mechanism, a strategy's .npz file, or all.")] = "all",
    parameter: Parameter = "auto",
    sampling: Draw = "fixed",
    level: Annotated[str, typer.Option(help="replay (noise and batches), or training (whole runs).")] = "replay",
    epsilon: Epsilon = 4.0,
    delta: Delta = 1e-5,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 24,
    epochs: Annotated[int, typer.Option(help="Passes over the data; must divide the steps.")] = 4,
    period: Annotated[int | None, typer.Option(help="Groups of cyclic Poisson sampling; by default the best.")] = None,
    repetitions: Annotated[int | None, typer.Option(help="Runs with the canary, and as many without.")] = None,
    confidence: Annotated[float, typer.Option(help="Probability that no true claim is refuted.")] = 0.999,
    plot: Annotated[Path, typer.Option(help="PNG file for claimed against measured.")] = Path("audit.png"),
    out: Annotated[Path | None, typer.Option(help="JSON file for the records.")] = None,
) -> None:
    """Attack mechanisms with a canary: lower bounds on epsilon beside the claim. Exit code 1 if a claim is refuted."""
    with user_errors():
        audits: Any = importlib.import_module("bluegrad.tasks.audits")  # with torch, only here
        drawn = Sampling(sampling, steps, epochs, period=period)
        console = Console()
        columns = (TextColumn("auditing {task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)
            result = audits.audit_all(
                mechanism, drawn, epsilon=epsilon, delta=delta, parameter=read_parameter(parameter), level=level,
                repetitions=repetitions, confidence=confidence,
                progress=lambda name, done, total: bar.update(task, description=name, completed=done, total=total),
            )  # fmt: skip
        console.print(report.audit_table(result.audits, steps=steps, confidence=confidence))
        for name, reason in result.left_out.items():
            console.print(f"left out: {name}: {reason}", soft_wrap=True, highlight=False)
        plots: Any = importlib.import_module("bluegrad.plots")
        plots.audits(
            plot,
            title=f"{level}: {report.LAWS[result.audits[0].law]}, {steps} steps, {epochs} epochs, delta {delta:g}",
            claimed=epsilon,
            rows=[(one.mechanism, one.epsilon, one.fitted, one.verdict) for one in result.audits],
        )
        console.print(f"plot: {plot}", soft_wrap=True)
        if out is not None:
            text = json.dumps([one.describe() for one in result.audits], indent=2)
            write_atomically(out, lambda file: file.write(text.encode()))
            console.print(f"records: {out}", soft_wrap=True)
        if result.refuted:
            raise typer.Exit(REFUTED)
