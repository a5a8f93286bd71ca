"""Commands that train: train, compare. They load torch when they run."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bluegrad import _checks, report
from bluegrad.cli._common import (
    INTERRUPTED,
    BatchSize,
    Clip,
    Data,
    Delta,
    Epochs,
    Epsilon,
    Mechanism,
    Mode,
    Momentum,
    Parameter,
    Physical,
    Rate,
    TestData,
    read_parameter,
    user_errors,
)
from bluegrad.tasks.settings import Settings


def train(
    data: Data = None,
    test_data: TestData = None,
    mechanism: Mechanism = "lambda-cgd",
    parameter: Parameter = "auto",
    epsilon: Epsilon = Settings.epsilon,
    delta: Delta = Settings.delta,
    epochs: Epochs = Settings.epochs,
    batch_size: BatchSize = Settings.batch_size,
    lr: Rate = Settings.lr,
    momentum: Momentum = Settings.momentum,
    clip: Clip = Settings.clip,
    seed: Annotated[int, typer.Option(help="Initial weights and data order; never the noise.")] = 0,
    sampling: Annotated[str, typer.Option(help="fixed, or poisson (dp-sgd only).")] = Settings.sampling,
    grad_sample_mode: Mode = Settings.grad_sample_mode,
    physical_batch_size: Physical = Settings.physical_batch_size,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, with its options.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/<time> if not given.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints; 0: after every step.")] = 10.0,
    noise_history: Annotated[
        str, typer.Option(help="Where a mechanism with memory keeps its noise: host, device, or a folder.")
    ] = "host",
    unsafe_noise_key_file: Annotated[
        Path | None,
        typer.Option(
            help="Noise key as 32 hex digits, to repeat a run exactly. Unsafe: one key, one run; who has the file "
            "can remove the noise."
        ),
    ] = None,
) -> None:
    """Train an image classifier under (epsilon, delta)-differential privacy."""
    with user_errors():
        settings = Settings(
            mechanism=mechanism,
            parameter=read_parameter(parameter),
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            momentum=momentum,
            clip=clip,
            seed=seed,
            sampling=sampling,
            grad_sample_mode=grad_sample_mode,
            physical_batch_size=physical_batch_size,
            data=data,
            test_data=test_data,
        )
        console = Console()
        key = None if unsafe_noise_key_file is None else _read_key(unsafe_noise_key_file)
        result = _train(
            settings, _folder(out, resume), resume, console,
            key=key, checkpoint_seconds=checkpoint_seconds, noise_history=noise_history,
        )  # fmt: skip
        console.print(report.result_table(result))


def compare(
    mechanisms: Annotated[str, typer.Option(help="Comma-separated mechanisms.")] = "dp-sgd,lambda-cgd",
    seeds: Annotated[int, typer.Option(help="Runs a mechanism, with seeds 0, 1, ...")] = 1,
    data: Data = None,
    test_data: TestData = None,
    epsilon: Epsilon = Settings.epsilon,
    delta: Delta = Settings.delta,
    epochs: Epochs = Settings.epochs,
    batch_size: BatchSize = Settings.batch_size,
    lr: Annotated[str, typer.Option(help="Learning rate, or one for each mechanism, comma-separated.")] = "1.0",
    momentum: Momentum = Settings.momentum,
    clip: Clip = Settings.clip,
    grad_sample_mode: Mode = Settings.grad_sample_mode,
    physical_batch_size: Physical = Settings.physical_batch_size,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/<time> if not given.")] = None,
) -> None:
    """Train several mechanisms at equal epsilon, and print and plot them side by side."""
    with user_errors():
        names = [name.strip() for name in mechanisms.split(",") if name.strip()]
        if not names or len(set(names)) < len(names):
            raise _checks.fail("mechanisms", mechanisms, "must be distinct names", "e.g. dp-sgd,lambda-cgd")
        _checks.integer("seeds", seeds, minimum=1, fix="give the number of runs a mechanism")
        rates = _rates(lr, names)
        base = Settings(
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            batch_size=batch_size,
            momentum=momentum,
            clip=clip,
            grad_sample_mode=grad_sample_mode,
            physical_batch_size=physical_batch_size,
            data=data,
            test_data=test_data,
        )
        every = [
            (name, replace(base, mechanism=name, lr=rates[name], seed=seed)) for seed in range(seeds) for name in names
        ]
        folder, console = _folder(out, resume), Console()
        results: dict[str, list[Any]] = {name: [] for name in names}
        images = None
        for name, settings in every:
            images = images or _images(settings, console)
            results[name].append(
                _train(settings, folder / f"{name}-seed{settings.seed}", resume, console, images, label=name)
            )
        plots: Any = importlib.import_module("bluegrad.plots")
        plots.comparison(
            folder / "comparison.png",
            title=f"epsilon {epsilon:g}, delta {delta:g}, no amplification, {seeds} seed{'s' if seeds > 1 else ''}",
            curves={
                name: [[m["test_accuracy"] for m in run.metrics] for run in runs] for name, runs in results.items()
            },
        )
        console.print(report.comparison_table(results))
        console.print(f"plot: {folder / 'comparison.png'}", soft_wrap=True)


def _folder(out: Path | None, resume: bool) -> Path:
    if out is None and resume:
        raise _checks.fail("out", None, "is needed with --resume", "give the folder of the run to continue")
    return out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")


def _read_key(path: Path) -> Any:
    key: Any = importlib.import_module("bluegrad.noise.key")
    return key.NoiseKey.from_hex(path.read_text().strip())


def _images(settings: Settings, console: Console) -> Any:
    """Training and test images, with a progress bar where they are many."""
    loop: Any = importlib.import_module("bluegrad.tasks.loop")
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("reading images", total=None)
        return loop.load_data(settings, lambda done, total: bar.update(task, completed=done, total=total))


def _train(
    settings: Settings,
    folder: Path,
    resume: bool,
    console: Console,
    images: Any = None,
    label: str = "training",
    key: Any = None,
    checkpoint_seconds: float = 10.0,
    noise_history: str = "host",
) -> Any:
    """One run with its bar; Ctrl-C finishes the step, saves and leaves."""
    loop: Any = importlib.import_module("bluegrad.tasks.loop")
    train_images, test_images = images or _images(settings, console)
    run = loop.Run(
        settings, train_images, test_images, folder, resume=resume, key=key, checkpoint_seconds=checkpoint_seconds,
        noise_history=noise_history,
    )  # fmt: skip
    with _bar(console) as bar:
        task = bar.add_task(label, total=run.steps, completed=run.steps_done, note="")

        def show(progress: Any) -> None:
            accuracy = "" if progress.accuracy is None else f" accuracy {100.0 * progress.accuracy:.1f} %"
            note = f"loss {progress.loss:.3f} epsilon {progress.epsilon:.3g}{accuracy}"
            bar.update(task, completed=progress.step, note=note)

        with _finish_step_on_interrupt(run, console, folder):
            result = run.train(show)
    plots: Any = importlib.import_module("bluegrad.plots")
    plots.training_curves(
        folder / "curves.png",
        title=f"{settings.mechanism}, epsilon {result.epsilon:.4g}, delta {settings.delta:g}",
        epochs=[m["epoch"] for m in result.metrics],
        accuracy=[m["test_accuracy"] for m in result.metrics],
        loss=[m["train_loss"] for m in result.metrics],
    )
    return result


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


@contextmanager
def _finish_step_on_interrupt(run: Any, console: Console, folder: Path) -> Iterator[None]:
    """Ctrl-C once: finish the step, save, leave with 130. Twice: leave at once; the last checkpoint stands."""

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run.stop = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; continue with: --resume --out {folder}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _rates(text: str, names: list[str]) -> dict[str, float]:
    """One learning rate for all mechanisms, or one each."""
    parts = text.split(",")
    try:
        rates = [float(part) for part in parts]
    except ValueError:
        raise _checks.fail("lr", text, "must be numbers", "e.g. --lr 0.5 or --lr 0.5,1") from None
    if len(rates) not in (1, len(names)):
        raise _checks.fail("lr", text, f"has {len(rates)} rates for {len(names)} mechanisms", "give one, or one each")
    return dict(zip(names, rates * len(names) if len(rates) == 1 else rates))
