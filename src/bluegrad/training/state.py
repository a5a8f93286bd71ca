"""A wrapped optimizer's saved state: loaded as a whole or refused, where torch takes almost anything."""

from __future__ import annotations

import inspect
import math
import numbers
from typing import Any

import torch
from torch.optim import Optimizer

from bluegrad import _checks

_FIX = "load what state_dict() gave, for the same optimizer and model"
_IMPLEMENTATION = ("foreach", "fused")  # None lets torch choose


def load_wrapped(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state into a torch optimizer; one that is refused leaves it exactly as it was.

    torch itself finds some faults only in the next step, when that step's noise has been drawn already.

    Raises:
        ValueError: malformed, or another optimizer's or model's.
    """
    before = optimizer.state, optimizer.param_groups
    try:
        _check_packed(state, optimizer.state_dict()["param_groups"])
        try:
            optimizer.load_state_dict(state)
        except Exception as error:  # malformed values make torch fail in any way
            raise ValueError(f"isn't a state of {type(optimizer).__name__} ({error}); {_FIX}") from None
        _check_options(optimizer, before[1])
        if type(optimizer).__module__.partition(".")[0] == "torch":
            _check_entries(optimizer)
    except BaseException:
        # torch puts new objects in place of these, which are still what they were
        optimizer.state, optimizer.param_groups = before
        raise


def _check_packed(state: dict[str, Any], own: list[dict[str, Any]]) -> None:
    for name, kind in (("state", dict), ("param_groups", list)):
        if not isinstance(state.get(name), kind):
            raise _checks.fail(name, type(state.get(name)).__name__, f"must be a {kind.__name__}", _FIX)
    groups = state["param_groups"]
    if not all(isinstance(group, dict) for group in groups):
        raise _checks.fail("param_groups", [type(group).__name__ for group in groups], "must be dicts", _FIX)
    _checks.equal(
        "param_groups' parameters", [group.get("params") for group in groups], [group["params"] for group in own],
        fix="resume with the same parameter groups",
    )  # fmt: skip


def _check_options(optimizer: Optimizer, own: list[dict[str, Any]]) -> None:
    """Every option that the optimizer reads must be there, of the kind that it has in this one."""
    for at, (loaded, before) in enumerate(zip(optimizer.param_groups, own)):
        for name in optimizer.defaults.keys() & before.keys():
            where = f"param_groups[{at}][{name!r}]"
            if name not in loaded:
                raise _checks.fail(where, None, "is missing", _FIX)
            chosen_by_torch = name in _IMPLEMENTATION and loaded[name] is None
            if not chosen_by_torch and not _alike(loaded[name], before[name]):
                raise _checks.fail(where, loaded[name], f"is of another kind than {before[name]!r}", _FIX)


def _alike(value: Any, own: Any) -> bool:
    if own is None:
        return value is None or isinstance(value, bool) or _is_number(value)
    if isinstance(own, bool):
        return isinstance(value, bool)
    if isinstance(own, (numbers.Real, torch.Tensor)):
        return _is_number(value)
    if isinstance(own, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) == len(own) and all(map(_alike, value, own))
    return isinstance(value, type(own))


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and bool(torch.isfinite(value).all())
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _check_entries(optimizer: Optimizer) -> None:
    """What one of torch's own optimizers keeps for each parameter: what a step of its like leaves behind."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers_of = {id(p): at for at, p in enumerate(parameters)}
    foreign = [key for key in optimizer.state if id(key) not in numbers_of]
    if foreign:
        raise _checks.fail("state", foreign, "belongs to no parameter", _FIX)
    empty: list[str] = []
    full: list[str] = []
    for group in optimizer.param_groups:
        for dims in {p.dim() for p in group["params"]}:
            at_start, later = _shapes_kept(optimizer, group, dims)
            for p in (p for p in group["params"] if p.dim() == dims):
                where, entry = f"state[{numbers_of[id(p)]}]", optimizer.state.get(p, {})
                if entry != {} or at_start:
                    _check_entry(where, entry, {name: _scaled(shape, p) for name, shape in later.items()})
                if p.requires_grad and later:
                    (full if entry else empty).append(where)
    if full and empty:
        raise _checks.fail(empty[0], {}, f"must hold something, as {full[0]} does", _FIX)


def _shapes_kept(optimizer: Optimizer, group: dict[str, Any], dims: int) -> tuple[bool, dict[str, torch.Size]]:
    """Whether such an optimizer keeps something before its first step, and what after it for a parameter of twos."""
    kind, like = type(optimizer), group["params"][0]
    p = torch.zeros((2,) * dims, dtype=like.dtype, device=like.device, requires_grad=True)
    p.grad = torch.zeros_like(p)
    options = {name: value for name, value in group.items() if name != "params"}
    try:
        probe = kind([p], **{name: options[name] for name in inspect.signature(kind).parameters if name in options})
        at_start = bool(probe.state.get(p))
        probe.step()
    except Exception as error:  # whatever the options make of it
        raise _checks.fail("param_groups", options, f"aren't options of {kind.__name__} here ({error})", _FIX) from None
    return at_start, {name: value.shape for name, value in probe.state[p].items()}


def _scaled(shape: torch.Size, p: torch.Tensor) -> tuple[int, ...]:
    return tuple(full if size == 2 else size for full, size in zip(p.shape, shape))


def _check_entry(where: str, entry: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    names = sorted(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
    if names != sorted(shapes):
        raise _checks.fail(where, names, f"must be a dict of {sorted(shapes)}", _FIX)
    for name, value in entry.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            kind = getattr(value, "layout", type(value).__name__)
            raise _checks.fail(f"{where}[{name!r}]", kind, "must be a dense tensor", _FIX)
        if tuple(value.shape) != shapes[name]:
            raise _checks.fail(f"{where}[{name!r}].shape", tuple(value.shape), f"must be {shapes[name]}", _FIX)
        if name == "step" and not (torch.isfinite(value) & (value >= 0)).all():
            raise _checks.fail(f"{where}['step']", value, "must be a number of steps", _FIX)
