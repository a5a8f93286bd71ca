"""Checkpoints, written whole or not at all, and loaded as plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bluegrad import _checks
from bluegrad._files import write_atomically
from bluegrad.training.optimizer import CorrelatedNoise

_FORMAT = "bluegrad-checkpoint-1"
_KEYS = {"mechanism", "module", "optimizer", "torch_rng", "extra", "digest"}


def save(
    path: str | Path, *, module: nn.Module, optimizer: CorrelatedNoise, extra: dict[str, Any] | None = None
) -> None:
    """Write all that a run needs to continue bit for bit. The file holds the noise key: keep it secret.

    Args:
        path: the checkpoint's file.
        module: the wrapped model.
        optimizer: the private optimizer.
        extra: plain data of the caller, such as a schedule's state_dict().

    Raises:
        OSError: the file can't be written.
    """
    state = {
        "format": _FORMAT,
        "mechanism": optimizer.stream.mechanism.describe(),
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "torch_rng": torch.get_rng_state(),  # dropout and the like; the noise doesn't use it
        "extra": extra or {},
    }
    state["digest"] = digest(state)
    try:
        write_atomically(path, lambda file: torch.save(state, file), secret=True)
    except RuntimeError as error:
        # torch's archive writer answers a failed write by one of its own, which hides the reason
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load(path: str | Path, *, module: nn.Module, optimizer: CorrelatedNoise) -> dict[str, Any]:
    """Restore what `save` wrote into a model and optimizer made in the same way.

    Args:
        path: the checkpoint's file.
        module: the wrapped model.
        optimizer: the private optimizer of the same mechanism.

    Returns:
        The caller's `extra`.

    Raises:
        ValueError: no such file, damaged, no checkpoint of bluegrad, or of another run.
    """
    state = read(path)
    if not same_shapes(module.state_dict(), state["module"]):
        raise _checks.fail("path", str(path), "holds another model's weights", "build the model that was saved")
    try:
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise ValueError(f"path={str(path)!r}: is another run's checkpoint: {error}") from None
    module.load_state_dict(state["module"])
    torch.set_rng_state(state["torch_rng"])
    return dict(state["extra"])


def read(path: str | Path) -> dict[str, Any]:
    """The checkpoint as plain data.

    Raises:
        ValueError: no such file, damaged, or no checkpoint of bluegrad.
    """
    fix = "give a checkpoint that bluegrad wrote, or start anew"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise _checks.fail("path", str(path), "doesn't exist", fix) from None
    except Exception as error:  # a damaged archive can fail in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _checks.fail("path", str(path), f"can't be read as a checkpoint ({reason[:120]})", fix) from None
    if not isinstance(state, dict) or state.get("format") != _FORMAT or not set(state) >= _KEYS:
        raise _checks.fail("path", str(path), f"isn't a {_FORMAT} file", fix)
    if digest({name: value for name, value in state.items() if name != "digest"}) != state["digest"]:
        raise _checks.fail("path", str(path), "is damaged: its content doesn't match its digest", fix)
    return state


def digest(value: Any) -> str:
    """SHA-256 over plain data and tensors: the archive's own checksums aren't verified on loading."""
    total = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            total.update(f"tensor {part.dtype} {tuple(part.shape)};".encode())
            total.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, Mapping):
            total.update(f"map {len(part)};".encode())
            for name, inside in part.items():
                add(name)
                add(inside)
        elif isinstance(part, (list, tuple)):
            total.update(f"list {len(part)};".encode())
            for inside in part:
                add(inside)
        else:
            total.update(f"{type(part).__name__} {part!r};".encode())

    add(value)
    return total.hexdigest()


def same_shapes(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two state dicts have the same names and shapes."""
    return {k: tuple(v.shape) for k, v in one.items()} == {k: tuple(v.shape) for k, v in other.items()}
