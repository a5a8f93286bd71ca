"""Where the arrays of a noise stream live: host memory, the parameter's device, or a file without a name."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bluegrad import _checks

Floats = NDArray[np.float32]


class Place(ABC):
    """Makes arrays, and brings drawn noise to where it can be added to them."""

    @abstractmethod
    def zeros(self, rows: int, size: int) -> Any:
        """Float32 zeros, shape (rows, size)."""

    def bring(self, z: Floats) -> Any:
        """Drawn noise as an operand of these arrays."""
        return z

    def give(self, row: Any) -> Floats:
        """One of these arrays in host memory."""
        return np.array(row)


class Host(Place):
    """Host memory."""

    def zeros(self, rows: int, size: int) -> Floats:
        """Pages are taken when they are first written to.

        Raises:
            ValueError: more than the machine can promise.
        """
        try:
            return np.zeros((rows, size), dtype=np.float32)
        except MemoryError:
            raise _checks.fail(
                "history", "host", f"needs {rows * size / 2**28:.3g} GiB of memory for the noise history",
                "give a folder, or a strategy of less memory, such as bluegrad.approximated(strategy)",
            ) from None  # fmt: skip


class Scratch(Place):
    """A file that lost its name when it was opened: it vanishes with the process, and nobody else can open it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def zeros(self, rows: int, size: int) -> Floats:
        """A memory map of a file whose room on the disk is taken at once: a full disk would kill the process later.

        Raises:
            OSError: not enough room.
        """
        if not rows * size:
            return np.zeros((rows, size), dtype=np.float32)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, rows * size * 4)
            elif shutil.disk_usage(self.folder).free < rows * size * 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            file.truncate(rows * size * 4)
            return np.memmap(file, dtype=np.float32, mode="r+", shape=(rows, size))


class Device(Place):
    """Tensors on one device, added there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def zeros(self, rows: int, size: int) -> torch.Tensor:
        """Zeros on the device."""
        return torch.zeros((rows, size), dtype=torch.float32, device=self.device)

    def bring(self, z: Floats) -> torch.Tensor:
        """A copy on the device."""
        return torch.from_numpy(z).to(self.device)

    def give(self, row: Any) -> Floats:
        """A copy in host memory."""
        return np.asarray(row.cpu().numpy())


def choose_places(history: str | Path, devices: list[torch.device]) -> list[Place]:
    """A place for every leaf.

    Args:
        history: "host", "device", or a folder for files.
        devices: where the leaves are.

    Raises:
        ValueError: neither of the two words nor a folder.
    """
    if history == "host":
        return [Host() for _ in devices]
    if history == "device":
        return [Host() if device.type == "cpu" else Device(device) for device in devices]
    if not isinstance(history, (str, Path)) or not Path(history).is_dir():
        raise _checks.fail(
            "history", str(history), 'must be "host", "device" or an existing folder',
            "create the folder, on a disk with room for the noise history",
        )  # fmt: skip
    return [Scratch(Path(history)) for _ in devices]
