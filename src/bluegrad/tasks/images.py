"""Class-named folders of images, in a folder or a zip archive, decoded without unpacking."""

from __future__ import annotations

import io
import struct
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_GREY = {"1", "L", "La", "LA"}
_THREADS = 4  # decoding releases the interpreter's lock
_BLOCK = 64  # images a thread decodes at a time
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

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Let go of what is held open."""


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
            self._zip = zipfile.ZipFile(root)
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, struct.error) as error:
            raise ValueError(
                f"{root}: isn't a readable zip archive ({error}); give a zip of class-named folders"
            ) from None
        # By normalised path: archives may say "./cat/1.jpg".
        self._members = {PurePosixPath(m.filename): m.filename for m in self._zip.infolist() if not m.is_dir()}
        self._lock = threading.Lock()  # zipfile counts its open members without one

    def names(self) -> list[PurePosixPath]:
        return list(self._members)

    def read(self, name: PurePosixPath) -> bytes:
        with self._lock:
            return self._zip.read(self._members[name])

    def label(self, name: PurePosixPath) -> str:
        return f"{self.root}!/{name}"

    def close(self) -> None:
        self._zip.close()


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
    with closing(_Folder(path) if path.is_dir() else _Archive(path)) as store:
        names = _images_by_class(store)
        classes = tuple(sorted({name.parts[-2] for name in names}))
        number = {name: i for i, name in enumerate(classes)}
        labels = np.array([number[name.parts[-2]] for name in names], dtype=np.int64)
        return _decode_all(store, names, show), labels, classes


def _decode_all(store: _Store, names: list[PurePosixPath], show: Callable[[int, int], None] | None) -> Images:
    """Pixels, shape (examples, height, width, 1 or 3), decoded by threads into one array."""
    first = _decode(store, names[0])
    height, width, _ = first.shape
    try:
        out = np.empty((len(names), height, width, 3), dtype=np.uint8)
    except MemoryError:
        raise ValueError(
            f"{store.root}: {len(names)} images of {width} x {height} pixels don't fit in memory; make them smaller"
        ) from None
    grey = np.empty(len(names), dtype=bool)

    def block(start: int) -> None:
        for i in range(start, min(start + _BLOCK, len(names))):
            pixels = _decode(store, names[i])
            if pixels.shape[:2] != (height, width):
                raise ValueError(
                    f"{store.label(names[i])}: is {pixels.shape[1]} x {pixels.shape[0]} pixels but "
                    f"{store.label(names[0])} is {width} x {height}; bring all images to one size"
                )
            out[i] = pixels  # grey repeats itself over the three channels
            grey[i] = pixels.shape[2] == 1

    with ThreadPoolExecutor(_THREADS) as pool:
        # In order, so the first bad image is the one reported; what isn't begun by then is cancelled.
        for n, _ in enumerate(pool.map(block, range(0, len(names), _BLOCK)), start=1):
            if show is not None:
                show(min(n * _BLOCK, len(names)), len(names))
    return out[..., :1].copy() if grey.all() else out


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
        if not content:
            raise ValueError("it is empty")
        with Image.open(io.BytesIO(content)) as image:
            # Past this limit Pillow only warns; warning filters are shared by all threads, so none is set here.
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"decompression bomb of {image.width} x {image.height} pixels, limit {limit}")
            pixels = _eight_bit(image)
    except Exception as error:  # a decoder can fail in any way on a damaged file
        raise ValueError(
            f"{store.label(name)}: can't be read as an image ({type(error).__name__}: {error}); repair or remove it"
        ) from None
    return pixels.reshape(*pixels.shape[:2], -1)


def _eight_bit(image: Image.Image) -> Images:
    """Grey stays one channel, everything else becomes red, green and blue; transparency is dropped."""
    if image.mode == "F":
        raise ValueError("float pixels, whose scale isn't known; save it with 8 bits")
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion would cut everything above 255
        wide = np.asarray(image)
        if wide.min() < 0 or wide.max() > 0xFFFF:
            raise ValueError("pixels beyond 16 bits; save it with 8 bits")
        return (wide >> 8).astype(np.uint8)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns
    return np.asarray(image.convert("L" if image.mode in _GREY else "RGB"))
