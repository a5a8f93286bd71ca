"""Figures as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from math import log, log1p
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter

from bluegrad._files import write_atomically

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


def frontier(path: Path, *, title: str, rows: Sequence[tuple[str, int, float]], best: Sequence[str]) -> None:
    """Draw every mechanism's noise against its memory, with the frontier of those that no other beats in both.

    Args:
        path: PNG file to write.
        title: steps and guarantee.
        rows: name, model copies and noise of every mechanism.
        best: names on the frontier.

    Raises:
        OSError: the file can't be written.
    """
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    edge = sorted((memory, noise) for name, memory, noise in rows if name in best)
    most = max(memory for _, memory, _ in rows)
    x, y = [memory for memory, _ in edge], [noise for _, noise in edge]
    axes.step([*x, max(2 * most, 1)], [*y, y[-1]], where="post", color=COLOURS[0], alpha=0.6, label="frontier")
    for name, memory, noise in rows:
        on = name in best
        axes.plot(memory, noise, "o", color=COLOURS[0] if on else "0.55", markersize=7 if on else 5)
    for name, memory, noise, low in _labels(rows, best):
        axes.annotate(
            name, (memory, noise), xytext=(7, low), textcoords="offset points", fontsize=8, va="center",
            color=COLOURS[0] if name in best else "0.35",
        )  # fmt: skip
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("log")
    axes.set(xlim=(-0.25, max(15 * most, 2)), xlabel="memory (model copies beyond DP-SGD)")
    axes.set(ylim=_limits(rows), ylabel="noise at the model (RMSE x noise multiplier, clip norm 1)")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="upper right")
    axes.set_title(title, fontsize=10)
    _write(figure, path)


def advice(
    path: Path, *, title: str, values: Sequence[float], multiplicities: Sequence[float], floor: float,
    errors: dict[str, float],
) -> None:  # fmt: skip
    """Draw a measured spectrum, and the error of several mechanisms over DP-SGD's.

    Args:
        path: PNG file to write.
        title: model, learning rate and data.
        values: eigenvalues, rising.
        multiplicities: how often each occurs.
        floor: eigenvalue below which a direction doesn't settle within the run.
        errors: ratio to DP-SGD's of every mechanism.

    Raises:
        OSError: the file can't be written.
    """
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    above, total = [], 0.0
    for count in reversed(list(multiplicities)):
        total += count
        above.append(total)
    shown = [(x, y) for x, y in zip(reversed(list(values)), above) if x > 1e-3 * floor]
    left.step([x for x, _ in shown], [y for _, y in shown], where="post", color=COLOURS[0])
    left.axvline(floor, color="k", ls=":", label="settles within the run to the right")
    left.set(xscale="log", yscale="log", xlabel="eigenvalue", ylabel="eigenvalues at least as large")
    left.legend(fontsize=8)
    bars = right.barh(list(errors), list(errors.values()), color=COLOURS[: len(errors)])
    right.bar_label(bars, fmt="%.3g", padding=3)
    right.invert_yaxis()
    right.set(xlim=(0, 1.15), xlabel="private error over DP-SGD's")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=10)
    _write(figure, path)


def audits(path: Path, *, title: str, claimed: float, rows: Sequence[tuple[str, float, float, str]]) -> None:
    """Draw what audits prove of epsilon against the claim, a line a mechanism.

    Args:
        path: PNG file to write.
        title: level, law and steps.
        claimed: epsilon of all claims.
        rows: name, bound for any mechanism, bound for the claimed law, and verdict.

    Raises:
        OSError: the file can't be written.
    """
    figure = Figure(figsize=(8.0, 1.6 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows) - 1, -1, -1)
    colours = [COLOURS[1] if verdict == "refuted" else COLOURS[0] for *_, verdict in rows]
    axes.barh(places, [fitted for _, _, fitted, _ in rows], color=colours, alpha=0.35, height=0.62)
    axes.barh(places, [proved for _, proved, _, _ in rows], color=colours, height=0.62)
    axes.axvline(claimed, color="black", linestyle="--", label=f"claimed: {claimed:g}")
    axes.bar([0], [0], color="0.35", label="proved for any mechanism")
    axes.bar([0], [0], color="0.35", alpha=0.35, label="proved for the claimed law, noise of any size")
    if COLOURS[1] in colours:
        axes.bar([0], [0], color=COLOURS[1], label="refuted")
    axes.set_yticks(places, [name for name, *_ in rows])
    axes.set(xlabel="epsilon", xlim=(0, 1.08 * max(claimed, *(row[2] for row in rows))))
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    axes.set_title(title, fontsize=10)
    _write(figure, path)


def _limits(rows: Sequence[tuple[str, int, float]]) -> tuple[float, float]:
    noises = [noise for *_, noise in rows]
    return 0.8 * min(noises), 1.15 * max(noises)


def _labels(rows: Sequence[tuple[str, int, float]], best: Sequence[str]) -> list[tuple[str, int, float, float]]:
    """Rows with the vertical offset of their label in points, pushed down where labels of like memory would overlap."""
    out: list[tuple[str, int, float, float]] = []
    lowest, highest = _limits(rows)
    scale = 300.0 / log(highest / lowest)  # points of the axes' height a unit
    for name, memory, noise in sorted(rows, key=lambda row: -row[2]):
        at = scale * log(noise)
        near = [y + scale * log(other) for _, m, other, y in out if abs(log1p(m) - log1p(memory)) < 2.0]
        low = -8.0 if name in best else 5.0  # off the line
        for taken in sorted(near, reverse=True):
            if abs(at + low - taken) < 10.0:
                low = taken - 10.0 - at
        out.append((name, memory, noise, low))
    return out


def _write(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    image = BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_atomically(path, lambda file: file.write(image.getvalue()))
