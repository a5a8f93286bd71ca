"""Array formats of image data: CIFAR-10's python and binary files, and .npz."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bluegrad.tasks import pickles

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True)
class Arrays:
    """Training part, test part where the source has one, and class names."""

    train: Part
    test: Part | None
    classes: tuple[str, ...]


def read(path: Path) -> Arrays | None:
    """Arrays at a path, or None if it is none of these formats (then it may hold images).

    Returns:
        Images (examples, height, width, channels) and labels (examples,) of each part, not yet checked further.

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
    kinds: tuple[tuple[str, Callable[[Sequence[Path]], Part], str], ...] = (
        (".bin", _binary, "batches.meta.txt"),
        ("", _python, "batches.meta"),
    )
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        for suffix, reader, meta in kinds:
            train = [p for p in sorted(folder.glob(f"data_batch_[0-9]{suffix}")) if p.is_file()]
            if train:
                test = folder / f"test_batch{suffix}"
                return Arrays(reader(train), reader([test]) if test.is_file() else None, _names(folder / meta))
    return None


def _names(meta: Path) -> tuple[str, ...]:
    """Class names of a batches.meta or batches.meta.txt; CIFAR-10's own where there is none."""
    if not meta.is_file():
        return CIFAR10
    if meta.suffix == ".txt":
        return tuple(_bytes(meta).decode(errors="replace").split())
    names = pickles.read(meta, _bytes(meta)).get("label_names")
    if not isinstance(names, list):
        raise ValueError(f"{meta}: has no list label_names; restore the file, or remove it to use CIFAR-10's names")
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error.strerror}); check the file and its permissions") from None


def _binary(paths: Sequence[Path]) -> Part:
    """Records of one label byte and 3 x 32 x 32 pixel bytes."""
    images, labels = [], []
    for path in paths:
        raw = np.frombuffer(_bytes(path), dtype=np.uint8)
        if raw.size == 0 or raw.size % _RECORD:
            raise ValueError(
                f"{path}: has {raw.size} bytes, not a multiple of {_RECORD}; the file is cut or foreign, fetch it again"
            )
        records = raw.reshape(-1, _RECORD)
        labels.append(records[:, 0].astype(np.int64))
        images.append(records[:, 1:])
    return _planes(np.concatenate(images)), np.concatenate(labels)


def _python(paths: Sequence[Path]) -> Part:
    """Pickled dictionaries with data, shape (examples, 3072), and labels."""
    images, labels = [], []
    for path in paths:
        batch = pickles.read(path, _bytes(path))
        try:
            data, part = (np.asarray(batch.get(key)) for key in ("data", "labels"))
        except ValueError:
            raise ValueError(f"{path}: data or labels are ragged; they must be (n, 3072) and (n,)") from None
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _RECORD - 1:
            raise ValueError(f"{path}: data is {data.dtype} of shape {data.shape}; must be uint8 of shape (n, 3072)")
        if part.dtype.kind not in "iu" or part.shape != data.shape[:1]:
            raise ValueError(f"{path}: labels are {part.dtype} of shape {part.shape}; must be {len(data)} integers")
        images.append(data)
        labels.append(part.astype(np.int64))
    return _planes(np.concatenate(images)), np.concatenate(labels)


def _planes(flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _npz(path: Path) -> Arrays:
    arrays = _arrays(path)
    for x, y in (("x_train", "y_train"), ("x", "y"), ("images", "labels")):
        if x in arrays and y in arrays:
            train = _pair(path, x, y, arrays)
            given = {"x_test", "y_test"} & set(arrays)
            if len(given) == 1:
                raise ValueError(f"{path}: has {given.pop()} alone; a test part needs both x_test and y_test")
            test = _pair(path, "x_test", "y_test", arrays) if given else None
            return Arrays(train, test, _numbered(path, y, train[1]))
    raise ValueError(
        f"{path}: has arrays {', '.join(sorted(arrays)) or 'none'}; needs x and y, images and labels, or x_train and "
        "y_train"
    )


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path):  # a lone .npy under this suffix is no archive
            pass
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        MemoryError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as e:
        raise ValueError(f"{path}: can't be read as .npz of plain arrays ({e}); write it with numpy.savez") from None
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _numbered(path: Path, y: str, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Names "0", "1", ... up to the largest label."""
    count = int(labels.max()) + 1 if len(labels) else 0
    if count > len(labels) > 0:
        raise ValueError(
            f"{path}: {y} reaches {count - 1} with {len(labels)} examples, fewer than classes; number classes from 0"
        )
    return tuple(str(i) for i in range(count))


def _pair(path: Path, x: str, y: str, arrays: dict[str, NDArray[Any]]) -> Part:
    images, labels = arrays[x], arrays[y]
    if images.dtype != np.uint8:
        raise ValueError(
            f"{path}: {x} is {images.dtype}; must be uint8 pixels from 0 to 255, so that their scale is known; convert "
            "floats in [0, 1] with (255 * x).round().astype('uint8')"
        )
    if images.ndim == 3:
        images = images[..., None]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(f"{path}: {y} is {labels.dtype} of shape {labels.shape}; must be integers of shape (n,)")
    return images, labels.astype(np.int64)
