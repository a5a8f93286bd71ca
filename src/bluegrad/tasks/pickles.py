"""Reads the pickles of CIFAR-10's python version without running what they name."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"}


class _Type:
    """Stands for numpy.dtype: integers only, since numpy's own restores any flags that a pickle asks for."""

    def __init__(self, code: str | bytes, align: object = False, copy: object = False) -> None:
        self.code, self.order = _text(code).lstrip("|<>="), "="
        if self.code not in _TYPES:
            raise pickle.UnpicklingError(f"refused an array of type {code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if _text(state[1]) == ">" else "<"

    def array(self, raw: bytes, shape: tuple[int, ...], order: Any) -> NDArray[Any]:
        kind = np.dtype(self.order + self.code)
        if len(raw) != kind.itemsize * math.prod(shape):
            raise pickle.UnpicklingError(f"an array of shape {shape} holds {len(raw)} bytes")
        return np.frombuffer(raw, dtype=kind).reshape(shape, order=order)


class _Array:
    """Stands for numpy.ndarray."""

    values: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, column_major, raw = state
        self.values = kind.array(raw, shape, "F" if column_major else "C")


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    """Stands for numpy's function of that name: an array whose state follows."""
    return _Array()


def _from_buffer(raw: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    """Stands for numpy's function of that name, as pickle protocol 5 uses it."""
    made = _Array()
    made.values = kind.array(raw, shape, "F" if order == "F" else "C")
    return made


def _encode(text: str, encoding: str) -> bytes:
    """Stands for codecs.encode, by which early protocols write bytes."""
    return text.encode("latin-1")


# All that such a pickle may name, each replaced by a stand-in of this module: no foreign code is looked up or run.
_STANDINS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STANDINS:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return _STANDINS[module, name]


def read(path: Path, content: bytes) -> dict[str, Any]:
    """Dictionary of integer arrays, bytes, strings, numbers and lists; any other global is refused.

    Args:
        path: for messages.
        content: the pickle, of any protocol, written by Python 2 or 3.

    Returns:
        The dictionary, its keys as text.

    Raises:
        ValueError: it is damaged, isn't a dictionary, or names a global that isn't allowed; named by path.
    """
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}, not a dictionary")
        return {
            _text(key): value.values if isinstance(value, _Array) else value
            for key, value in loaded.items()
            if isinstance(key, (str, bytes))
        }
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(
            f"{path}: can't be read as a CIFAR-10 python file ({type(error).__name__}: {error}); fetch it "
            "again from its source"
        ) from None


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
