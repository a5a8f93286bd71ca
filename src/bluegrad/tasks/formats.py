"""Array formats of image data: CIFAR-10's python and binary files, and .npz."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
# All that a pickle of CIFAR-10's python files may name.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


@dataclass(frozen=True)
class Arrays:
    """Training part, test part where the source has one, and class names."""

    train: Part
    test: Part | None
    classes: tuple[str, ...]


def read(path: Path) -> Arrays | None:
    """Arrays at a path, or None if it is none of these formats (then it may hold images).

    Raises:
        ValueError: one of these formats, but damaged or without the arrays that are needed; named by path.
    """
    if path.is_dir():
        return _cifar_folder(path)
    if path.suffix.lower() == ".npz":
        return _npz(path)
    if path.suffix.lower() == ".bin":
        return Arrays(_binary([path]), None, CIFAR10)
    if path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        return None
    if path.name.startswith(("data_batch", "test_batch")):
        return Arrays(_python([path]), None, CIFAR10)
    raise ValueError(f"{path}: isn't a folder, .zip, .npz, .bin or CIFAR-10 batch; give one of these")


def _cifar_folder(path: Path) -> Arrays | None:
    inner = [path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"]
    for folder in inner:
        for suffix, reader in ((".bin", _binary), ("", _python)):
            train = sorted(folder.glob(f"data_batch_[0-9]{suffix}"))
            if train:
                test = folder / f"test_batch{suffix}"
                return Arrays(reader(train), reader([test]) if test.exists() else None, CIFAR10)
    return None


def _binary(paths: Sequence[Path]) -> Part:
    """Records of one label byte and 3 x 32 x 32 pixel bytes."""
    images, labels = [], []
    for path in paths:
        raw = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if raw.size == 0 or raw.size % _RECORD:
            raise ValueError(f"{path}: has {raw.size} bytes, not a multiple of {_RECORD}; the file is cut or foreign")
        records = raw.reshape(-1, _RECORD)
        labels.append(records[:, 0].astype(np.int64))
        images.append(records[:, 1:])
    return _planes(np.concatenate(images)), np.concatenate(labels)


class _Unpickler(pickle.Unpickler):
    """Loads arrays, bytes, strings, numbers, lists and dictionaries; any other global is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return super().find_class(module, name)


def _python(paths: Sequence[Path]) -> Part:
    """Pickled dictionaries with data, shape (examples, 3072), and labels."""
    images, labels = [], []
    for path in paths:
        try:
            batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
            data = np.asarray(batch[b"data"], dtype=np.uint8)
            part = np.asarray(batch[b"labels"], dtype=np.int64)
        except Exception as error:  # a pickle can fail in any way
            raise ValueError(
                f"{path}: can't be read as a CIFAR-10 python batch ({type(error).__name__}: {error})"
            ) from None
        if data.ndim != 2 or data.shape[1] != _RECORD - 1 or part.shape != data.shape[:1]:
            raise ValueError(f"{path}: data of shape {data.shape} with labels {part.shape}; must be (n, 3072) and (n,)")
        images.append(data)
        labels.append(part)
    return _planes(np.concatenate(images)), np.concatenate(labels)


def _planes(flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: can't be read as .npz of plain arrays ({error})") from None
    for x, y in (("x_train", "y_train"), ("x", "y"), ("images", "labels")):
        if x in arrays and y in arrays:
            train = _pair(path, x, y, arrays)
            test = _pair(path, "x_test", "y_test", arrays) if {"x_test", "y_test"} <= set(arrays) else None
            count = int(train[1].max()) + 1 if len(train[1]) else 0
            return Arrays(train, test, tuple(str(i) for i in range(count)))
    raise ValueError(
        f"{path}: has arrays {', '.join(sorted(arrays)) or 'none'}; needs x and y, images and labels, or x_train and "
        "y_train"
    )


def _pair(path: Path, x: str, y: str, arrays: dict[str, NDArray[Any]]) -> Part:
    images, labels = arrays[x], arrays[y]
    if images.dtype != np.uint8:
        raise ValueError(
            f"{path}: {x} is {images.dtype}; must be uint8 pixels from 0 to 255, so that their scale is known; convert"
        )
    if images.ndim == 3:
        images = images[..., None]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(f"{path}: {y} is {labels.dtype} of shape {labels.shape}; must be integers of shape (n,)")
    return images, labels.astype(np.int64)
