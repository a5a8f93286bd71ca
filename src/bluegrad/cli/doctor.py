"""The command that looks at the installation: doctor."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bluegrad import __version__
from bluegrad.cli._common import user_errors
from bluegrad.noise import kernel

BROKEN = 1
_PACKAGES = ("torch", "opacus", "numpy", "scipy", "dp-accounting")
_AT = {"key": bytes(range(16)), "step": 3, "leaf": 1, "start": 5}
_TAPS = [1.0, -0.9, 0.5]


def doctor() -> None:
    """Show versions, the noise kernel in use and its speed; exit code 1 if two kernels disagree in one bit."""
    with user_errors():
        table = Table(box=None, show_header=False, pad_edge=False)
        for row in _rows():
            table.add_row(*row)
        wrong = _disagreeing()
        table.add_row("kernels agree", "no: " + ", ".join(wrong) if wrong else f"yes: {', '.join(kernel.backends())}")
        Console().print(table)
        if wrong:
            raise typer.Exit(BROKEN)


def _rows() -> Iterator[tuple[str, str]]:
    yield "bluegrad", __version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in _PACKAGES:
        yield name, _version(name)
    yield "gpu", _gpus()
    chosen, threads = kernel.choose(None), kernel.default_threads()
    if chosen.name == "fallback":
        yield "noise kernel", "fallback (NumPy); with a C++ compiler, install again for the compiled one"
    else:
        yield "noise kernel", f"native ({chosen.name})"
    yield "normals a second", f"{_rate(1) / 1e9:.2f}e9 on one thread, {_rate(threads) / 1e9:.2f}e9 on {threads}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpus() -> str:
    cuda: Any = importlib.import_module("torch").cuda
    if not cuda.is_available():
        return "none"
    return ", ".join(cuda.get_device_name(i) for i in range(cuda.device_count()))


def _rate(threads: int) -> float:
    """Normals a second: the best of ten draws of a million."""
    out, best = np.zeros(1 << 20, np.float32), float("inf")
    for _ in range(10):
        began = time.perf_counter()
        kernel.add_weighted_normals(out, [1.0], scale=1.0, threads=threads, **_AT)  # type: ignore[arg-type]
        best = min(best, time.perf_counter() - began)
    return len(out) / best


def _disagreeing() -> list[str]:
    """Kernels whose weighted sums aren't the fallback's, bit for bit."""

    def draw(backend: str) -> bytes:
        out = np.ones(100_003, np.float32)
        kernel.add_weighted_normals(out, _TAPS, scale=0.7, backend=backend, **_AT)  # type: ignore[arg-type]
        return out.tobytes()

    expected = draw("fallback")
    return [name for name in kernel.backends() if draw(name) != expected]
