"""Evaluations of a search in a file, so that an interrupted search continues where it was, bit for bit."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]

_MAGIC = b"bluegrad-search-1\n"
_HEAD = struct.Struct("<32sdQI")  # digest of x, value, entries of the gradient, checksum of all that


class Journal:
    """A file of evaluations: those of an earlier run are read back as long as the search asks for the same points.

    Optimisers are deterministic, so a search that is begun again asks for the same points in the same order: up to
    where it was interrupted nothing is computed twice, and from there on it goes its own way.

    Args:
        path: the file; made if it isn't there.

    Raises:
        ValueError: the file isn't a journal.
        OSError: it can't be written.

    Example:
        >>> import tempfile
        >>> from bluegrad import FixedEpochs, PrefixSum, optimize
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for _ in range(2):
        ...         with Journal(f"{folder}/search") as journal:
        ...             best = optimize.toeplitz(PrefixSum(100), FixedEpochs(100, 5), 4, journal=journal)
        ...             print(journal.computed > 0)
        True
        False

    Source: write-ahead logging.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.computed = 0  # evaluations that weren't in the file
        self.replayed = 0
        self._stage = 0
        new = not self.path.exists() or self.path.stat().st_size == 0
        self._file: BinaryIO = self.path.open("w+b" if new else "r+b")
        if new:
            self._file.write(_MAGIC)
            self._file.flush()
        elif self._file.read(len(_MAGIC)) != _MAGIC:
            self._file.close()
            raise _checks.fail("path", str(path), "isn't the journal of a search", "give another file, or delete it")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def through(self, function: Function, label: bytes) -> Function:
        """The function, its values read from the file where they are the next ones in it, and written to it else.

        Args:
            function: x -> (value, gradient).
            label: what tells this function from others: another label's values are never taken for this one's.
        """
        self._stage += 1
        name = label + self._stage.to_bytes(8, "little")

        def evaluated(x: Array) -> tuple[float, Array]:
            digest = hashlib.sha256(name + np.ascontiguousarray(x, dtype="<f8").tobytes()).digest()
            at = self._file.tell()
            known = self._read(digest)
            if known is not None:
                self.replayed += 1
                return known
            self._file.seek(at)
            self._file.truncate()  # what follows belongs to another search, or was cut short
            value, gradient = function(x)
            body = np.ascontiguousarray(gradient, dtype="<f8").tobytes()
            check = zlib.crc32(digest + struct.pack("<dQ", value, len(gradient)) + body)
            self._file.write(_HEAD.pack(digest, value, len(gradient), check) + body)
            self._file.flush()
            self.computed += 1
            return value, gradient

        return evaluated

    def _read(self, digest: bytes) -> tuple[float, Array] | None:
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        found, value, size, check = _HEAD.unpack(head)
        if found != digest:
            return None
        body = self._file.read(8 * size)
        if len(body) < 8 * size or check != zlib.crc32(digest + struct.pack("<dQ", value, size) + body):
            return None
        return value, np.frombuffer(body, dtype="<f8").astype(np.float64)
