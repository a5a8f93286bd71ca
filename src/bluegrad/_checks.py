"""Argument checks at the door: every message gives the name, the value, the rule and the fix."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Unsupported(ValueError):
    """A pair (strategy, participation) or a combination whose guarantee nobody has proved here."""


def fail(name: str, value: Any, rule: str, fix: str) -> ValueError:
    """Return (not raise) the ValueError for one bad argument."""
    return ValueError(f"{name}={value!r}: {rule}; {fix}")


def integer(name: str, value: Any, *, minimum: int, fix: str) -> int:
    """Return `value` as an int of at least `minimum`.

    Raises:
        ValueError: it isn't an integer (bool included), or it is below `minimum`.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < minimum:
        raise fail(name, value, f"must be an integer of at least {minimum}", fix)
    return int(value)


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
    fix: str,
) -> float:
    """Return `value` as a finite float within an interval.

    Raises:
        ValueError: it isn't a finite real number, or it lies outside the interval.
    """
    left = "(" if low_open or math.isinf(low) else "["
    right = ")" if high_open or math.isinf(high) else "]"
    interval = f"{left}{low:g}, {high:g}{right}"
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
        raise fail(name, value, f"must be a finite number in {interval}", fix)
    x = float(value)
    if x < low or x > high or (low_open and x == low) or (high_open and x == high):
        raise fail(name, value, f"must lie in {interval}", fix)
    return x


def equal(name: str, found: Any, expected: Any, *, fix: str) -> None:
    """Refuse a value read from a file that isn't the expected plain data, whatever kind of thing it is.

    Raises:
        ValueError: it differs, or can't be compared.
    """
    try:
        same = bool(found == expected)
    except Exception:  # a tensor or array in its place answers in ways of its own
        same = False
    if not same:
        raise fail(name, found, f"must equal {expected!r}", fix)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return `value`, one of `allowed`.

    Raises:
        ValueError: it is none of them.
    """
    if value not in allowed:
        raise fail(name, value, "is not known", f"choose one of {', '.join(allowed)}")
    return str(value)


def vector(name: str, value: ArrayLike, *, longest: int | None = None, fix: str) -> NDArray[np.float64]:
    """Return `value` as a read-only float64 vector, non-empty and finite, of at most `longest` entries.

    Raises:
        ValueError: wrong shape, no entry, too many entries, or an entry that isn't finite.
    """
    try:
        x = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(name, value, "must be a sequence of numbers", fix) from None
    if x.ndim != 1 or x.size == 0:
        raise fail(f"{name}.shape", x.shape, "must be one-dimensional and not empty", fix)
    if longest is not None and x.size > longest:
        raise fail(f"len({name})", x.size, f"must be at most {longest}", fix)
    if not np.isfinite(x).all():
        bad = int(np.flatnonzero(~np.isfinite(x))[0])
        raise fail(f"{name}[{bad}]", float(x[bad]), "must be finite", fix)
    x.flags.writeable = False
    return x


def matrix(name: str, value: ArrayLike, *, fix: str) -> NDArray[np.float64]:
    """Return `value` as a read-only float64 matrix, non-empty and finite.

    Raises:
        ValueError: wrong shape, no entry, or an entry that isn't finite.
    """
    try:
        x = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(name, type(value).__name__, "must be rows of numbers, equally long", fix) from None
    if x.ndim != 2 or x.size == 0:
        raise fail(f"{name}.shape", x.shape, "must be two-dimensional and not empty", fix)
    if not np.isfinite(x).all():
        i, j = (int(index[0]) for index in np.nonzero(~np.isfinite(x)))
        raise fail(f"{name}[{i}, {j}]", float(x[i, j]), "must be finite", fix)
    x.flags.writeable = False
    return x


def epsilon(value: Any, name: str = "epsilon") -> float:
    """Return a privacy budget epsilon > 0.

    Raises:
        ValueError: not a finite number above 0.
    """
    return real(name, value, low=0.0, low_open=True, fix="give the privacy budget, commonly between 0.1 and 10")


def delta(value: Any, name: str = "delta") -> float:
    """Return a failure probability delta in (0, 1).

    Raises:
        ValueError: not in the open interval.
    """
    return real(
        name, value, low=0.0, high=1.0, low_open=True, high_open=True,
        fix="give a value well below 1 / (number of examples), such as 1e-5",
    )  # fmt: skip


def confidence(value: Any) -> float:
    """Return a confidence in [0.5, 1).

    Raises:
        ValueError: not in the interval.
    """
    return real(
        "confidence", value, low=0.5, high=1.0, high_open=True,
        fix="give the probability that a true claim isn't refuted, such as 0.999",
    )  # fmt: skip
