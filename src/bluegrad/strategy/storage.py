"""Strategies as .npz files: arrays and plain metadata, no pickle."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bluegrad import _checks, _series
from bluegrad._files import write_atomically
from bluegrad.strategy.base import Array, Strategy, check_scale, check_strategy
from bluegrad.strategy.buffered import Buffered, buffered_toeplitz
from bluegrad.strategy.circulant import Fourier, fourier
from bluegrad.strategy.matrix import Banded, Dense, banded, dense
from bluegrad.strategy.series import Toeplitz, banded_inverse_toeplitz, toeplitz
from bluegrad.strategy.tree import Tree, tree_aggregation
from bluegrad.strategy.wrappers import ColumnScaled, Prefix, Stamped, stamped

_FORMAT = "bluegrad-strategy-1"
# What numpy and zipfile raise on files that are none of theirs.
_UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, AttributeError, RuntimeError, MemoryError, struct.error,
    zipfile.BadZipFile,
)  # fmt: skip
_FIX = "load a file that bluegrad.save_strategy wrote"


@dataclass(frozen=True)
class _Parts:
    """What a strategy is made of: its kind, plain values, arrays, and the strategy it wraps."""

    kind: str
    plain: dict[str, Any]
    arrays: dict[str, Array]
    inner: Strategy | None = None


def save_strategy(strategy: Strategy, path: str | Path) -> Path:
    """Write a strategy, with the record of its optimisation if it has one, whole or not at all.

    Args:
        strategy: any strategy of this package.
        path: the file, by custom .npz.

    Returns:
        The path.

    Raises:
        ValueError: no strategy of this package.
        OSError: the file can't be written.

    Example:
        >>> import tempfile
        >>> from bluegrad import lambda_cgd
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_strategy(save_strategy(lambda_cgd(100, lam=0.9), f"{folder}/c.npz"))
        lambda_cgd(steps=100, lam=0.9)

    Source: numpy's .npz format.
    """
    check_strategy(strategy)
    levels, arrays, part = [], {}, _take_apart(strategy)
    while True:
        levels.append({"kind": part.kind, "plain": part.plain, "arrays": sorted(part.arrays)})
        arrays.update({f"{len(levels) - 1}.{name}": np.asarray(x, dtype="<f8") for name, x in part.arrays.items()})
        if part.inner is None:
            break
        part = _take_apart(part.inner)
    record = strategy.optimization
    meta = {
        "format": _FORMAT,
        "levels": levels,
        "describe": strategy.describe(),
        "optimization": asdict(record) if is_dataclass(record) and not isinstance(record, type) else None,
        "digest": _digest(arrays),
    }
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    content: dict[str, Any] = {"meta": text, **arrays}
    write_atomically(path, lambda file: np.savez(file, **content))
    return Path(path)


def load_strategy(path: str | Path) -> Strategy:
    """The strategy that `save_strategy` wrote, equal in every coefficient.

    Args:
        path: the file.

    Returns:
        The strategy; its `optimization` is the record's plain data, or None.

    Raises:
        ValueError: no such file, damaged, no strategy file, or parts that don't make a strategy.

    Example:
        >>> load_strategy("missing.npz")
        Traceback (most recent call last):
        ValueError: path='missing.npz': doesn't exist; load a file that bluegrad.save_strategy wrote

    Source: numpy's .npz format.
    """
    try:
        with open(path, "rb") as raw:
            found = _arrays(raw)
        meta = json.loads(found.pop("meta").tobytes())
    except FileNotFoundError:
        raise _checks.fail("path", str(path), "doesn't exist", _FIX) from None
    except _UNREADABLE as error:
        raise _checks.fail("path", str(path), f"isn't a strategy file ({type(error).__name__})", _FIX) from None
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        raise _checks.fail("path", str(path), f"isn't a {_FORMAT} file", _FIX)
    if any(x.dtype.str != "<f8" for x in found.values()) or meta.get("digest") != _digest(found):
        raise _checks.fail("path", str(path), "is damaged: its arrays don't match their digest", _FIX)
    try:
        strategy = _rebuild(meta["levels"], found)
        same = json.dumps(strategy.describe(), sort_keys=True) == json.dumps(meta["describe"], sort_keys=True)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise _checks.fail("path", str(path), f"lacks a part ({error!r})", _FIX) from None
    if not same:
        raise _checks.fail("path", str(path), "describes another strategy than its parts make", _FIX)
    if meta.get("optimization") is not None:
        object.__setattr__(strategy, "optimization", meta["optimization"])
    return strategy


def _arrays(raw: BinaryIO) -> dict[str, Array]:
    """The arrays of an .npz file, no more bytes of them than the file has."""
    with zipfile.ZipFile(raw) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("compressed")  # not written by us, and may unpack to more than the memory
    raw.seek(0)
    with np.load(raw, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _digest(arrays: dict[str, Array]) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].shape};".encode())
        total.update(np.ascontiguousarray(arrays[name], dtype="<f8").tobytes())
    return total.hexdigest()


@singledispatch
def _take_apart(strategy: Strategy) -> _Parts:
    raise _checks.fail("strategy", strategy, "isn't one of bluegrad's own", "save what it is made of")


@_take_apart.register
def _(strategy: Toeplitz) -> _Parts:
    given = {"given": strategy.given, "given_noise": strategy.given_noise}
    arrays = {name: x for name, x in given.items() if x is not None}
    plain = {"name": strategy.name, "steps": strategy.steps, "parameters": strategy.parameters}
    return _Parts("toeplitz", plain, arrays)


@_take_apart.register
def _(strategy: Buffered) -> _Parts:
    return _Parts("buffered", {"steps": strategy.steps}, {"decays": strategy.decays, "scales": strategy.scales})


@_take_apart.register
def _(strategy: Banded) -> _Parts:
    plain = {"name": strategy.name, "parameters": strategy.parameters}
    return _Parts("banded", plain, {"columns": strategy.columns})


@_take_apart.register
def _(strategy: Dense) -> _Parts:
    return _Parts("dense", {}, {"matrix": strategy.matrix})


@_take_apart.register
def _(strategy: Tree) -> _Parts:
    return _Parts("tree", {"steps": strategy.steps, "decoder": strategy.decoder}, {})


@_take_apart.register
def _(strategy: Fourier) -> _Parts:
    return _Parts("fourier", {"steps": strategy.steps, "decoder": strategy.decoder}, {})


@_take_apart.register
def _(strategy: ColumnScaled) -> _Parts:
    return _Parts("scaled", {"horizon": strategy.horizon}, {"norms": strategy.norms}, strategy.inner)


@_take_apart.register
def _(strategy: Stamped) -> _Parts:
    return _Parts("stamped", {"repeats": strategy.repeats}, {}, strategy.inner)


@_take_apart.register
def _(strategy: Prefix) -> _Parts:
    return _Parts("prefix", {"steps": strategy.steps}, {}, strategy.whole)


def _rebuild(levels: list[dict[str, Any]], arrays: dict[str, Array]) -> Strategy:
    """From the innermost level outwards."""
    strategy: Strategy | None = None
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        parts = {name: arrays[f"{depth}.{name}"] for name in level["arrays"]}
        for x in parts.values():
            x.flags.writeable = False
        strategy = _MAKERS[level["kind"]](level["plain"], parts, strategy)
    if strategy is None:
        raise _checks.fail("levels", [], "must not be empty", _FIX)
    return strategy


def _make_toeplitz(plain: dict[str, Any], arrays: dict[str, Array], inner: Strategy | None) -> Strategy:
    """Checked as what it claims to be: coefficients of C, of N, or of both, each the other's inverse."""
    steps, both = plain["steps"], [arrays.get("given"), arrays.get("given_noise")]
    given = [x for x in both if x is not None]
    for x in given:
        toeplitz(x[:steps], steps)  # raises what is no series of a strategy
    if len(given) == 2:
        size = float(np.abs(given[0]).sum() * np.abs(given[1]).max())
        product = _series.multiply(given[0], given[1], steps)
        product[0] -= 1.0
        if not float(np.abs(product).max()) <= 1e-9 * size:
            raise _checks.fail("given_noise", "", "isn't the inverse of the given strategy", _FIX)
    own = _BY_COEFFICIENTS.get(str(plain["name"]))
    if own is not None and len(given) == 1:
        return own(given[0], max(steps, len(given[0]))).prefix(steps)
    return Toeplitz(str(plain["name"]), steps, dict(plain["parameters"]), *both)


# Strategies whose parameters are their coefficients, which then aren't taken on the file's word.
_BY_COEFFICIENTS = {"toeplitz": toeplitz, "banded_inverse_toeplitz": banded_inverse_toeplitz}


def _make_banded(plain: dict[str, Any], arrays: dict[str, Array], inner: Strategy | None) -> Strategy:
    checked = banded(arrays["columns"])
    assert isinstance(checked, Banded)
    return Banded(str(plain["name"]), checked.columns, dict(plain["parameters"]))


def _make_scaled(plain: dict[str, Any], arrays: dict[str, Array], inner: Strategy | None) -> Strategy:
    check_strategy(inner)
    assert inner is not None
    fix = "one norm above 0 a step"
    norms = _checks.vector("norms", arrays["norms"], longest=inner.steps, fix=fix)
    if len(norms) != inner.steps or (norms <= 0.0).any():
        raise _checks.fail("norms", f"of shape {norms.shape}", "must be positive, one a step", fix)
    check_scale("norms", float(norms.min()))
    check_scale("norms", float(norms.max()))
    return ColumnScaled(inner, norms, _checks.integer("horizon", plain["horizon"], minimum=inner.steps, fix=fix))


def _make_prefix(plain: dict[str, Any], arrays: dict[str, Array], inner: Strategy | None) -> Strategy:
    check_strategy(inner)
    assert inner is not None
    return inner.prefix(plain["steps"])


def _make_stamped(plain: dict[str, Any], arrays: dict[str, Array], inner: Strategy | None) -> Strategy:
    check_strategy(inner)
    assert inner is not None
    return stamped(inner, plain["repeats"])


_MAKERS: dict[str, Callable[[dict[str, Any], dict[str, Array], Strategy | None], Strategy]] = {
    "toeplitz": _make_toeplitz,
    "buffered": lambda plain, arrays, _: buffered_toeplitz(plain["steps"], arrays["decays"], arrays["scales"]),
    "banded": _make_banded,
    "dense": lambda _, arrays, __: dense(arrays["matrix"]),
    "tree": lambda plain, _, __: tree_aggregation(plain["steps"], decoder=plain["decoder"]),
    "fourier": lambda plain, _, __: fourier(plain["steps"], decoder=plain["decoder"]),
    "scaled": _make_scaled,
    "stamped": _make_stamped,
    "prefix": _make_prefix,
}
