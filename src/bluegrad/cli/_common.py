"""What the commands share: options, exit codes, and how errors are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from bluegrad import _checks
from bluegrad.tasks.laws import SAMPLINGS
from bluegrad.tasks.mechanisms import FAMILIES

REFUTED, USER_ERROR, INTERRUPTED = 1, 2, 130

Mechanism = Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}, or a strategy's .npz file.")]
Parameter = Annotated[str, typer.Option(help="The mechanism's lam, nu, bands or stamps, or auto: the least RMSE.")]
Epsilon = Annotated[float, typer.Option(help="Privacy budget of the whole run.")]
Delta = Annotated[float, typer.Option(help="Failure probability.")]
Epochs = Annotated[int, typer.Option(help="Passes over the data.")]
BatchSize = Annotated[int, typer.Option(help="Mean number of examples a step.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate.")]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD.")]
Clip = Annotated[float, typer.Option(help="Norm that one example's gradient is clipped to.")]
Draw = Annotated[
    str,
    typer.Option(
        "--sampling",
        help=f"How batches are drawn: {', '.join(SAMPLINGS)}. All but fixed amplify privacy; correlated noise has "
        "balls-in-bins, and cyclic-poisson for mechanisms with few bands.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Folder or zip of class-named folders of images, CIFAR-10's python or binary files, or an .npz; "
        "5,000 MNIST digits if not given."
    ),
]
TestData = Annotated[str | None, typer.Option(help="Test images; else the data's own test part, or a fifth of it.")]
Physical = Annotated[int, typer.Option(help="Examples held in memory at once; larger batches are split.")]
Mode = Annotated[str, typer.Option(help="Per-sample gradients by hooks, functorch or ghost (clipping).")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn what a user can cause into one line on stderr and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print("[bold red]error:[/] ", end="")
        print(_text(error), file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None


def _text(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'file'}: {error.strerror}"
    return str(error)


def read_parameter(text: str) -> float | None:
    """The value of --parameter, None for "auto".

    Raises:
        ValueError: neither "auto" nor a number.
    """
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise _checks.fail("parameter", text, "must be a number or 'auto'", "e.g. --parameter 0.9") from None
