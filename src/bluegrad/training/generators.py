"""The process's global random generators, which dropout and augmentation draw from; the noise never does."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch

from bluegrad import _checks


def capture() -> dict[str, Any]:
    """The states of torch's, Python's and NumPy's global generators, as plain data and tensors."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state(legacy=False)),  # noqa: NPY002 - the global generator is the point
    }


def restore(states: Any) -> None:
    """Take back what `capture` gave; states that are refused leave the generators as they were.

    Where CUDA's can't be taken back, on a machine of other devices, a warning says so.

    Raises:
        ValueError: malformed states.
    """
    before = capture()
    try:
        _set(states)
    except Exception as error:  # each library has errors of its own for what is no state
        _set(before)
        raise _checks.fail(
            "generators", type(states).__name__, f"isn't a state of the random generators ({error})",
            "give a checkpoint that bluegrad wrote",
        ) from None  # fmt: skip
    here = len(before["cuda"])
    if len(states["cuda"]) not in (0, here):
        warnings.warn(
            f"generators: saved on a machine of {len(states['cuda'])} CUDA devices, restored on one of {here}; dropout "
            "and other random layers won't repeat the saved run bit for bit (the noise does)",
            stacklevel=2,
        )


def _set(states: Any) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, state in enumerate(states["cuda"][:here]):
        torch.cuda.set_rng_state(state, device)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
