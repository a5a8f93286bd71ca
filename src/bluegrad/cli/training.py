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
    Draw,
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
    sampling: Draw = Settings.sampling,
    period: Annotated[
        int | None, typer.Option(help="Groups of cyclic-poisson; by default those of least noise.")
    ] = None,
    grad_sample_mode: Mode = Settings.grad_sample_mode,
    physical_batch_size: Physical = Settings.physical_batch_size,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, with its options.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/<time> if not given.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints; 0: after every step.")] = 10.0,
    noise_history: Annotated[
        str, typer.Option(help="Where a mechanism with memory keeps its noise: host, device, or a folder.")
    ] = "host",
    secure_noise: Annotated[
        bool, typer.Option("--secure-noise", help="Draw the noise from AES-256; needs bluegrad[secure].")
    ] = False,
    unsafe_noise_key_file: Annotated[
        Path | None,
        typer.Option(
            help="Noise key as 32 or 64 hex digits, to repeat a run exactly. Unsafe: one key, one run; who has the "
            "file can remove the noise."
        ),
    ] = None,
) -> None:
    """Train an image classifier under (epsilon, delta)-differential privacy; under torchrun, on several processes."""
    with user_errors():
        settings = Settings(
            mechanism=mechanism, parameter=read_parameter(parameter), epsilon=epsilon, delta=delta, epochs=epochs,
            batch_size=batch_size, lr=lr, momentum=momentum, clip=clip, seed=seed, sampling=sampling, period=period,
            grad_sample_mode=grad_sample_mode, physical_batch_size=physical_batch_size, data=data, test_data=test_data,
        )  # fmt: skip
        console = _console()
        key = _key(unsafe_noise_key_file, secure_noise)
        result = _train(
            settings, _folder(out, resume), resume, console,
            key=key, checkpoint_seconds=checkpoint_seconds, noise_history=noise_history,
        )  # fmt: skip
        console.print(report.result_table(result))
        _finish()


def compare(
    mechanisms: Annotated[str, typer.Option(help="Comma-separated mechanisms.")] = "dp-sgd,lambda-cgd",
    seeds: Annotated[int, typer.Option(help="Runs a mechanism, with seeds 0, 1, ...")] = 1,
    data: Data = None,
    test_data: TestData = None,
    epsilon: Epsilon = Settings.epsilon,
    delta: Delta = Settings.delta,
    epochs: Epochs = Settings.epochs,
    batch_size: BatchSize = Settings.batch_size,
    sampling: Annotated[
        str, typer.Option(help="How batches are drawn (see train), or one for each mechanism, comma-separated.")
    ] = "fixed",
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
        entrants = _entrants(mechanisms, sampling, lr)
        _checks.integer("seeds", seeds, minimum=1, fix="give the number of runs a mechanism")
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
            (label, replace(base, mechanism=name, sampling=drawn, lr=rate, seed=seed))
            for seed in range(seeds)
            for label, name, drawn, rate in entrants
        ]
        folder, console = _folder(out, resume), _console()
        results: dict[str, list[Any]] = {label: [] for label, *_ in entrants}
        images = None
        for name, settings in every:
            images = images or _images(settings, console)
            results[name].append(
                _train(settings, folder / f"{_stem(name)}-seed{settings.seed}", resume, console, images, label=name)
            )
        _finish()
        if console.quiet:  # another process prints and draws
            return
        title = f"epsilon {epsilon:g}, delta {delta:g}, sampling {sampling}, {seeds} seed{'s' if seeds > 1 else ''}"
        _show(results, folder / "comparison.png", title, console)


def _show(results: dict[str, list[Any]], path: Path, title: str, console: Console) -> None:
    """The comparison as a table, and its curves as a plot at `path`."""
    plots: Any = importlib.import_module("bluegrad.plots")
    curves = {name: [[m["test_accuracy"] for m in run.metrics] for run in runs] for name, runs in results.items()}
    plots.comparison(path, title=title, curves=curves)
    console.print(report.comparison_table(results))
    console.print(f"plot: {path}", soft_wrap=True)


def _console() -> Console:
    """Where to print: of several processes the first one alone does."""
    ranks: Any = importlib.import_module("bluegrad.training.ranks")
    return Console(quiet=not ranks.start().first)


def _finish() -> None:
    """Leave the other processes, if there are any, when all is done."""
    ranks: Any = importlib.import_module("bluegrad.training.ranks")
    ranks.finish()


def _folder(out: Path | None, resume: bool) -> Path:
    if out is None and resume:
        raise _checks.fail("out", None, "is needed with --resume", "give the folder of the run to continue")
    ranks: Any = importlib.import_module("bluegrad.training.ranks")
    return out or Path("runs") / ranks.current().shared(datetime.now().strftime("%Y%m%d-%H%M%S"))


def _key(path: Path | None, secure: bool) -> Any:
    """The noise key to start with; None for a fresh one of the usual kind. A resumed run keeps its own."""
    key: Any = importlib.import_module("bluegrad.noise.key")
    if path is None:
        return key.NoiseKey.generate(secure=True) if secure else None
    if secure:
        raise _checks.fail("secure_noise", True, "chooses a fresh key, but a key file is given", "give one of both")
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
    with console.status(f"{label}: finding the mechanism and its noise"):
        run = loop.Run(
            settings, train_images, test_images, folder, resume=resume, key=key,
            checkpoint_seconds=checkpoint_seconds, noise_history=noise_history,
        )  # fmt: skip
    with _bar(console) as bar:
        task = bar.add_task(label, total=run.steps, completed=run.steps_done, note="")

        def show(progress: Any) -> None:
            accuracy = "" if progress.accuracy is None else f" accuracy {100.0 * progress.accuracy:.1f} %"
            note = f"loss {progress.loss:.3f} epsilon {progress.epsilon:.3g}{accuracy}"
            bar.update(task, completed=progress.step, note=note)

        with _finish_step_on_interrupt(run, console, folder):
            result = run.train(show)
    if not run.ranks.first:
        return result
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


def _entrants(mechanisms: str, sampling: str, lr: str) -> list[tuple[str, str, str, float]]:
    """Label, mechanism, sampling and learning rate of everything that is compared."""
    names = [name.strip() for name in mechanisms.split(",") if name.strip()]
    if not names:
        raise _checks.fail("mechanisms", mechanisms, "must be names", "e.g. dp-sgd,lambda-cgd")
    drawn = _each("sampling", sampling, len(names))
    try:
        rates = [float(rate) for rate in _each("lr", lr, len(names))]
    except ValueError as error:
        if "mechanisms" in str(error):
            raise
        raise _checks.fail("lr", lr, "must be numbers", "e.g. --lr 0.5 or --lr 0.5,1") from None
    labels = names if len(set(drawn)) == 1 else [f"{name}, {how}" for name, how in zip(names, drawn)]
    if len(set(labels)) < len(labels):
        raise _checks.fail("mechanisms", mechanisms, "must be distinct names", "or sampled differently")
    return list(zip(labels, names, drawn, rates))


def _each(option: str, text: str, count: int) -> list[str]:
    """One value for all mechanisms, or one each."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, count):
        raise _checks.fail(option, text, f"has {len(parts)} values for {count} mechanisms", "give one, or one each")
    return parts * count if len(parts) == 1 else parts


def _stem(label: str) -> str:
    """A label as part of a folder's name."""
    return label.replace(", ", "-").replace("/", "-")
