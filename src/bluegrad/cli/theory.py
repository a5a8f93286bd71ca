"""`bluegrad theory advise`: which noise the curvature of a model on public data calls for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize_scalar

from bluegrad import _checks
from bluegrad.cli._common import Data, user_errors
from bluegrad.theory import Problem, difference_private, optimal_private, root_private, white_private

app = typer.Typer(help="The theory of correlated noise as a tool.", no_args_is_help=True)

_MODELS = ("linear", "cnn")
WARNING = (
    "The data is used without any privacy: advise on public or synthetic data. A choice made by looking at private "
    "data costs privacy that no epsilon here counts."
)


@app.callback()
def root() -> None:
    """The theory of correlated noise as a tool."""


@app.command()
def advise(
    data: Data = None,
    model: Annotated[
        str, typer.Option(help=f"One of {', '.join(_MODELS)}: softmax regression, train's network.")
    ] = "cnn",
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of the run to come.")] = 0.1,
    steps: Annotated[
        int, typer.Option(help="Steps of that run; directions that need longer to settle don't count.")
    ] = 2000,
    examples: Annotated[int, typer.Option(help="Examples that the curvature is measured on.")] = 200,
    iterations: Annotated[int, typer.Option(help="Lanczos iterations a probe.")] = 40,
    probes: Annotated[int, typer.Option(help="Random probes.")] = 2,
    seed: Annotated[int, typer.Option(help="Initial weights, and which examples.")] = 0,
    plot: Annotated[Path, typer.Option(help="PNG file for spectrum and errors.")] = Path("advice.png"),
) -> None:
    """Measure a model's curvature on public data and say which noise suits it, and what it gains over DP-SGD."""
    with user_errors():
        _checks.choice("model", model, _MODELS)
        for name, value in (("steps", steps), ("examples", examples)):
            _checks.integer(name, value, minimum=1, fix="give how many")
        _checks.real("lr", lr, low=0.0, low_open=True, fix="give the learning rate")
        console = Console()
        console.print(f"[bold yellow]note:[/] {WARNING}", soft_wrap=True)
        density = _density(data, model, examples, iterations, probes, seed)
        problem, left_out = density.problem(lr, slowest=1.0 / steps)
        rows = advice(problem)
        console.print(_summary(problem, left_out, float(density.multiplicities.sum())), soft_wrap=True, highlight=False)
        console.print(_table(rows))
        plots: Any = importlib.import_module("bluegrad.plots")
        plots.advice(
            plot, title=f"{model}, learning rate {lr:g}, {examples} examples", values=density.values,
            multiplicities=density.multiplicities, floor=1.0 / (steps * lr), errors={row[0]: row[2] for row in rows},
        )  # fmt: skip
        console.print(f"plot: {plot}", soft_wrap=True)


def advice(problem: Problem) -> list[tuple[str, str, float]]:
    """Mechanism, best parameter and private error over DP-SGD's, of every mechanism."""
    white = white_private(problem)
    nu, root = _best(lambda x: root_private(problem, x))
    damping, difference = _best(lambda x: difference_private(problem, x))
    least = float(problem.rates[0])
    return [
        ("dp-sgd", "", 1.0),
        ("lambda-cgd", f"lam = {1.0 - damping:.4g}", difference / white),
        ("nu-dp-ftrl", f"nu = {nu:.3g} (eta * mu = {least:.2g})", root / white),
        ("optimum", "", optimal_private(problem) / white),
    ]


def _best(error: Callable[[float], float]) -> tuple[float, float]:
    """Damping of least error: the error is unimodal in its logarithm."""
    found = minimize_scalar(lambda x: error(math.exp(x)), bounds=(math.log(1e-10), -1e-9), method="bounded")
    return math.exp(found.x), float(found.fun)


def _density(data: str | None, model: str, examples: int, iterations: int, probes: int, seed: int) -> Any:
    """The measured spectrum, torch loaded here."""
    torch: Any = importlib.import_module("torch")
    images: Any = importlib.import_module("bluegrad.tasks.data")
    measured: Any = importlib.import_module("bluegrad.theory.measured")
    source = images.demo(seed)[0] if data is None else images.load(data)
    inputs, _ = images.to_tensor_dataset(source).tensors
    chosen = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:examples]
    batch = inputs[chosen]
    channels, height, width = batch.shape[1:]
    models: Any = importlib.import_module("bluegrad.tasks.models")
    network = models.for_images(height, width, channels, len(source.classes), seed=seed)
    if model == "linear":
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(batch[0].numel(), len(source.classes)))
        torch.nn.init.zeros_(network[1].weight)
        torch.nn.init.zeros_(network[1].bias)
    product, dimension = measured.gauss_newton_product(network.eval(), batch)
    return measured.stochastic_lanczos(product, dimension, iterations=iterations, probes=probes, seed=seed)


def _summary(problem: Problem, left_out: float, parameters: float) -> str:
    return (
        f"{parameters:,.0f} parameters; about {problem.dimension:,.0f} directions settle within the run "
        f"({left_out:,.0f} don't). Largest eigenvalue {problem.spectrum.max():.4g}, effective dimension "
        f"{problem.effective_dimension:.4g}, stable rank {problem.stable_rank:.4g}."
    )


def _table(rows: list[tuple[str, str, float]]) -> Table:
    table = Table(title="private error once settled, at equal rho and clip norm")
    for column in ("mechanism", "best parameter", "error over DP-SGD's", "gain"):
        table.add_column(column, justify="right" if "over" in column or column == "gain" else "left")
    for name, parameter, ratio in rows:
        table.add_row(name, parameter, f"{ratio:.4f}", f"{1.0 / ratio:.1f}")
    return table
