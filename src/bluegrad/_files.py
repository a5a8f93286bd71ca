"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object], *, secret: bool = False) -> None:
    """Write a file whole or not at all: beside it, to the disk, then renamed.

    Args:
        path: where the file shall be.
        write: called with a binary file to write to.
        secret: readable by its owner only; otherwise as the process's umask says.

    Raises:
        OSError: no space, no permission; nothing is left behind and an earlier file stays as it was.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if not secret:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
