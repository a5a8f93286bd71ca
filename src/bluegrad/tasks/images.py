"""Class-named folders of images, in a folder or a zip archive, decoded without unpacking."""

from __future__ import annotations

import io
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_GREY = {"1", "L", "LA", "I", "I;16", "F"}
_THREADS = 4  # decoding releases the interpreter's lock
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class _Store(ABC):
    """Named files below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def names(self) -> list[PurePosixPath]:
        """All files, relative to the root."""

    @abstractmethod
    def read(self, name: PurePosixPath) -> bytes:
        """Content of one file."""

    @abstractmethod
    def label(self, name: PurePosixPath) -> str:
        """The file's path for messages."""


class _Folder(_Store):
    def names(self) -> list[PurePosixPath]:
        return [PurePosixPath(p.relative_to(self.root).as_posix()) for p in self.root.rglob("*") if p.is_file()]

    def read(self, name: PurePosixPath) -> bytes:
        return (self.root / name).read_bytes()

    def label(self, name: PurePosixPath) -> str:
        return str(self.root / name)


class _Archive(_Store):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(root.read_bytes()))
        except zipfile.BadZipFile:
            raise ValueError(f"{root}: isn't a readable zip archive; give a zip of class-named folders") from None

    def names(self) -> list[PurePosixPath]:
        return [PurePosixPath(info.filename) for info in self._zip.infolist() if not info.is_dir()]

    def read(self, name: PurePosixPath) -> bytes:
        return self._zip.read(str(name))

    def label(self, name: PurePosixPath) -> str:
        return f"{self.root}!/{name}"


def read(path: Path, show: Callable[[int, int], None] | None = None) -> tuple[Images, Labels, tuple[str, ...]]:
    """Decode class-named folders of images of one size.

    Args:
        path: folder or zip archive; one enclosing folder is looked through.
        show: called with (done, total).

    Returns:
        Images (examples, height, width, 1 or 3), labels (examples,), class names in alphabetical order. One colour
        image makes all of them colour.

    Raises:
        ValueError: no images, one that can't be read, or images of several sizes; named by path.
    """
    store: _Store = _Folder(path) if path.is_dir() else _Archive(path)
    names = _images_by_class(store)
    classes = tuple(sorted({name.parts[-2] for name in names}))
    number = {name: i for i, name in enumerate(classes)}
    first = _decode(store, names[0])
    out = np.empty((len(names), *first.shape[:2], 3), dtype=np.uint8)
    grey = np.empty(len(names), dtype=bool)

    def one(i: int) -> tuple[int, ...]:
        pixels = _decode(store, names[i])
        if pixels.shape[:2] == first.shape[:2]:
            out[i] = pixels
            grey[i] = pixels.shape[2] == 1
        return pixels.shape[:2]

    with ThreadPoolExecutor(_THREADS) as pool:
        for i, size in enumerate(pool.map(one, range(len(names)))):
            if size != first.shape[:2]:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ValueError(
                    f"{store.label(names[i])}: is {size[1]} x {size[0]} pixels but {store.label(names[0])} is "
                    f"{first.shape[1]} x {first.shape[0]}; bring all images to one size"
                )
            if show is not None and (i % 256 == 0 or i + 1 == len(names)):
                show(i + 1, len(names))
    labels = np.array([number[name.parts[-2]] for name in names], dtype=np.int64)
    return (out[..., :1].copy() if grey.all() else out), labels, classes


def _images_by_class(store: _Store) -> list[PurePosixPath]:
    found = sorted(
        name
        for name in store.names()
        if name.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") or part == "__MACOSX" for part in name.parts)
    )
    if not found:
        raise ValueError(f"{store.root}: holds no images; give class-named folders of {', '.join(sorted(SUFFIXES))}")
    depths = {len(name.parts) for name in found}
    if len(depths) > 1 or min(depths) < 2:
        odd = min(found, key=lambda name: len(name.parts))
        raise ValueError(
            f"{store.label(odd)}: lies outside a class folder; every image belongs in a folder of its class"
        )
    above = {name.parts[:-2] for name in found}
    if len(above) > 1:
        raise ValueError(
            f"{store.root}: has class folders below {', '.join(sorted('/'.join(a) for a in above)[:4])}; give one of "
            "them as --data and another as --test-data"
        )
    return found


def _decode(store: _Store, name: PurePosixPath) -> Images:
    """Pixels, shape (height, width, 1 or 3)."""
    try:
        content = store.read(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a decompression bomb is only a warning
            with Image.open(io.BytesIO(content)) as image:
                mode = "L" if image.mode in _GREY else "RGB"
                pixels = np.asarray(image.convert(mode))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, zipfile.BadZipFile, Warning) as error:
        size = "is empty" if not _size(store, name) else f"can't be read as an image ({type(error).__name__}: {error})"
        raise ValueError(f"{store.label(name)}: {size}; repair or remove it") from None
    return pixels.reshape(*pixels.shape[:2], -1)


def _size(store: _Store, name: PurePosixPath) -> int:
    try:
        return len(store.read(name))
    except (OSError, zipfile.BadZipFile):
        return -1
