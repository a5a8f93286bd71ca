"""The processes of a distributed run: what they agree on, and how the parts of a step become one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributed

from bluegrad.noise.key import NoiseKey, require_key
from bluegrad.noise.place import Floats
from bluegrad.noise.stream import Shard


@dataclass(frozen=True)
class Ranks:
    """This process's number among those of the run; every method is called by all of them together.

    Args:
        rank: 0 .. count - 1.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace every tensor by its sum over the processes, the same bits everywhere."""
        if self.count > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    def total(self, *numbers: float) -> list[float]:
        """Sums of numbers over the processes."""
        if self.count == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=_device())
        distributed.all_reduce(sums)
        return [float(x) for x in sums]

    def any(self, *flags: bool) -> list[bool]:
        """Which flags are set in any process: decisions that all must take alike."""
        return [count > 0.0 for count in self.total(*map(float, flags))]

    def key(self, given: NoiseKey | None) -> NoiseKey:
        """The first process's key, a fresh one if none is given.

        Raises:
            ValueError: what is given isn't a NoiseKey.
        """
        key = NoiseKey.generate() if given is None else require_key(given)
        return NoiseKey.from_hex(self.shared(key.hex())) if self.count > 1 else key

    def shared(self, value: Any) -> Any:
        """The first process's value, plain data."""
        if self.count == 1:
            return value
        held = [value]
        distributed.broadcast_object_list(held, src=0, device=_device())
        return held[0]

    def gathered(self, value: Any) -> list[Any]:
        """Every process's value, plain data, in order of rank."""
        if self.count == 1:
            return [value]
        held: list[Any] = [None] * self.count
        distributed.all_gather_object(held, value)
        return held

    def align(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every process the first one's values."""
        if self.count > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            distributed.barrier()

    def shard(self) -> Shard:
        """This process's part of the noise."""
        return Shard(self.rank, self.count, self._whole) if self.count > 1 else Shard()

    def _whole(self, part: Floats, size: int) -> Floats:
        """All elements from every process's part: bits are added to zeros as integers, so none changes."""
        span = Shard(self.rank, self.count).span(size)
        whole = np.zeros(size, np.float32)
        whole[span.start : span.stop] = part
        bits = torch.from_numpy(whole.view(np.int32)).to(_device())
        distributed.all_reduce(bits)
        return np.asarray(bits.cpu().numpy()).view(np.float32)


def start() -> Ranks:
    """Join the processes that torchrun started, if it did.

    Raises:
        ValueError: the variables of torchrun are there, but not all, or malformed.
    """
    if "WORLD_SIZE" not in os.environ or distributed.is_initialized():
        return current()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if cuda else "gloo")
    return current()


def finish() -> None:
    """Leave the group that `start` joined, once all have come so far: a process that is gone may make another abort."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def current() -> Ranks:
    """The process group of torch.distributed, if one was initialised; else this process alone."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return Ranks()
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def _device() -> torch.device:
    """Where the group's tensors must be."""
    cuda = "nccl" in str(distributed.get_backend())
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
