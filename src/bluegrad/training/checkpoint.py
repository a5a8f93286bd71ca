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
from bluegrad.training import generators
from bluegrad.training.optimizer import CorrelatedNoise
from bluegrad.training.ranks import Ranks

_FAMILY = "bluegrad-checkpoint-"
_FORMAT = f"{_FAMILY}3"
_KEYS = {"mechanism", "module", "optimizer", "generators", "extra", "digest"}


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
        ValueError: `extra` isn't a dict.
        OSError: the file can't be written.
    """
    if not isinstance(extra, (dict, type(None))):
        raise _checks.fail("extra", type(extra).__name__, "must be a dict of plain data", "put it into one")
    state = {
        "format": _FORMAT,
        "mechanism": optimizer.stream.mechanism.describe(),
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generators": optimizer.ranks.gathered(generators.capture()),
        "extra": extra or {},
    }
    if not optimizer.ranks.first:
        optimizer.ranks.wait()
        return
    state["digest"] = digest(state)
    try:
        write_atomically(path, lambda file: torch.save(state, file), secret=True)
    except RuntimeError as error:
        # torch's archive writer answers a failed write by one of its own, which hides the reason
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    finally:
        optimizer.ranks.wait()


def load(path: str | Path, *, module: nn.Module, optimizer: CorrelatedNoise) -> dict[str, Any]:
    """Restore what `save` wrote into a model and optimizer made in the same way; a refused file changes nothing.

    The process's global random generators (torch's, CUDA's, Python's and NumPy's) go on where they were, so that
    dropout, and augmentation that draws from them, is repeated bit for bit.

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
    before = generators.capture()
    try:
        generators.restore(_own(state["generators"], optimizer.ranks))
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        generators.restore(before)
        raise ValueError(f"path={str(path)!r}: is another run's checkpoint: {error}") from None
    module.load_state_dict(state["module"])
    return dict(state["extra"])


def _own(saved: Any, ranks: Ranks) -> Any:
    """This process's generators; one that wasn't there goes on from another's."""
    if not isinstance(saved, list) or not saved:
        raise _checks.fail("generators", type(saved).__name__, "must be a list", "give a checkpoint of bluegrad")
    return saved[ranks.rank % len(saved)]


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
    found = state.get("format") if isinstance(state, dict) else None
    if isinstance(found, str) and found.startswith(_FAMILY) and found != _FORMAT:
        raise _checks.fail(
            "path", str(path), f"is a {found} file, where this version of bluegrad reads {_FORMAT}",
            "finish the run with the version that wrote it, or start anew",
        )  # fmt: skip
    if not isinstance(found, str) or found != _FORMAT or not set(state) >= _KEYS:
        raise _checks.fail("path", str(path), f"isn't a {_FORMAT} file", fix)
    if digest({name: value for name, value in state.items() if name != "digest"}) != state["digest"]:
        raise _checks.fail("path", str(path), "is damaged: its content doesn't match its digest", fix)
    if not isinstance(state["module"], dict) or not isinstance(state["extra"], dict):
        raise _checks.fail("path", str(path), f"isn't a {_FORMAT} file: its weights or extra are no dicts", fix)
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


def same_shapes(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two state dicts have the same names and shapes."""

    def shapes(state: dict[str, Any]) -> dict[str, Any]:
        return {k: tuple(v.shape) if isinstance(v, torch.Tensor) else None for k, v in state.items()}

    return shapes(one) == shapes(other)
