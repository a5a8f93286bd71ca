"""The command line: one module for each group of commands. Those that need torch load it when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from bluegrad import __version__
from bluegrad.cli import auditing, doctor, planning, theory, training

app = typer.Typer(
    name="bluegrad",
    help="Train PyTorch models with differential privacy by correlated noise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (planning.plan, planning.optimize, training.train, training.compare, auditing.audit, doctor.doctor):
    app.command()(command)
app.add_typer(theory.app, name="theory")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """Train PyTorch models with differential privacy by correlated noise."""
    if version:
        print(f"bluegrad {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `bluegrad` command."""
    app()
