"""Figures as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bluegrad.training.checkpoint import write_atomically

# Colour-blind safe (Okabe and Ito), blue first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def training_curves(
    path: Path, *, title: str, epochs: Sequence[float], accuracy: Sequence[float], loss: Sequence[float]
) -> None:
    """Draw test accuracy and training loss over the epochs of one run.

    Args:
        path: PNG file to write.
        title: mechanism and guarantee.
        epochs: abscissa.
        accuracy: test accuracy in [0, 1].
        loss: mean training loss.

    Raises:
        OSError: the file can't be written.
    """
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    marker = "o" if len(epochs) < 30 else None
    left.plot(epochs, [100.0 * a for a in accuracy], color=COLOURS[0], marker=marker)
    left.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 100))
    right.plot(epochs, loss, color=COLOURS[1], marker=marker)
    right.set(xlabel="epoch", ylabel="training loss (mean of the epoch)", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title, fontsize=10)
    _write(figure, path)


def comparison(path: Path, *, title: str, curves: dict[str, list[list[float]]]) -> None:
    """Draw the test accuracy of several mechanisms, the mean over seeds with the range of the seeds.

    Args:
        path: PNG file to write.
        title: the common guarantee.
        curves: for every mechanism, one list of accuracies in [0, 1] a seed, by epoch.

    Raises:
        OSError: the file can't be written.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for colour, (name, seeds) in zip(COLOURS, curves.items()):
        epochs = range(1, len(seeds[0]) + 1)
        at_epoch = [[100.0 * curve[i] for curve in seeds] for i in range(len(seeds[0]))]
        mean = [sum(values) / len(values) for values in at_epoch]
        axes.plot(epochs, mean, color=colour, label=f"{name}: {mean[-1]:.1f} %", marker="o" if len(mean) < 30 else None)
        if len(seeds) > 1:
            axes.fill_between(epochs, [min(v) for v in at_epoch], [max(v) for v in at_epoch], color=colour, alpha=0.15)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", title="after the last epoch")
    axes.set_title(title, fontsize=10)
    _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    image = BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_atomically(path, lambda file: file.write(image.getvalue()))
