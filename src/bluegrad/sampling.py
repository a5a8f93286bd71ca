"""Batches of example indices that obey a participation exactly: a pure function of (key, step)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from bluegrad import _checks
from bluegrad._checks import Unsupported
from bluegrad.noise import kernel
from bluegrad.noise.key import NoiseKey, require_key
from bluegrad.participation import BallsInBins, CyclicPoisson, Participation, Poisson, Separated

Indices = NDArray[np.int64]
_DRAWS, _ORDER, _SEEDS, _BINS, _CUTS = 0, 1, 2, 3, 4  # what the words of a step are for


class BatchStream(Sampler[list[int]], ABC):
    """Index batches of a participation, one a step, for use as the `batch_sampler` of a DataLoader.

    One iteration yields the batches of the rest of an epoch, beginning at the step that `position()` tells,
    so that after a resume, or a loop left early, the data go on where the releases stand.

    Args:
        participation: the law that batches obey.
        size: number of examples N.
        key: secret of the draw; not the noise's.

    Raises:
        ValueError: fewer examples than batches in an epoch.
    """

    def __init__(self, participation: Participation, size: int, key: NoiseKey) -> None:
        self.participation = participation
        self.size = _checks.integer("size", size, minimum=1, fix="give a data set with examples")
        self.key = require_key(key)
        self.position: Callable[[], int] = lambda: 0
        self.issued = -1  # last step whose batch left this sampler
        self.workers: int | None = None  # of the loader that reads this in a run; above 0 they read ahead
        self.watched = False  # whether the next iteration is by a loader that counts what it hands out
        self.rank, self.ranks = 0, 1  # this process, and how many share every batch out

    can_be_empty = False

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.participation.steps

    @property
    @abstractmethod
    def epoch_steps(self) -> int:
        """Steps of one pass over the data (of its expected length under random laws)."""

    @property
    @abstractmethod
    def expected_batch_size(self) -> float:
        """Mean number of examples a batch: the only number that gradients may be divided by."""

    @abstractmethod
    def batch(self, step: int) -> Indices:
        """Indices of step `step`'s batch, shape (examples,); may be empty under random laws."""

    def share(self, step: int) -> Indices:
        """This process's part of the batch; an empty one is a step like any other."""
        return self.batch(step)[self.rank :: self.ranks]

    @property
    def may_be_empty(self) -> bool:
        """Whether a share may be."""
        return self.can_be_empty or self.size // self.epoch_steps < self.ranks

    def seed(self, step: int, part: int) -> int:
        """64 bits for whatever is random in loading one part of a step's batch: independent of the batch itself."""
        return int(_words64(self.key, step=step, leaf=_SEEDS, count=part + 1)[part])

    def __len__(self) -> int:
        return min(self.epoch_steps, self.steps)

    def __iter__(self) -> Iterator[list[int]]:
        start = self.position()
        if start >= self.steps:
            raise ValueError(
                f"step={start + 1}: all steps={self.steps} of the mechanism have been taken; to evaluate on the "
                "training data, make a DataLoader of your own"
            )
        watched, self.watched = self.watched, False
        if self.workers and not watched:
            raise RuntimeError(
                "data_loader: with workers, batches are drawn ahead, and a skipped one couldn't be noticed; use the "
                "engine's max_physical_batch_size instead of BatchMemoryManager, or num_workers=0"
            )
        end = min((start // self.epoch_steps + 1) * self.epoch_steps, self.steps)
        for step in range(start, end):
            if self.workers == 0 and self.position() != step:
                raise RuntimeError(
                    f"step={self.position() + 1}: its batch was handed out but not released, and the next is asked "
                    "for; every batch of a private run takes one optimizer.step(), empty ones included"
                )
            self.issued = step
            yield self.share(step).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which the same batches are drawn again; holds the draw's key."""
        return {"participation": self.participation.describe(), "size": self.size, "key": self.key.hex()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw the batches of the saved run; a state that is refused changes nothing.

        Raises:
            ValueError: no such state, or saved under another law or for another number of examples.
        """
        self.key = self._parse(state)
        self.issued = -1

    def check_state_dict(self, state: Any) -> None:
        """Refuse what `load_state_dict` would refuse, and load nothing.

        Raises:
            ValueError: as `load_state_dict`.
        """
        self._parse(state)

    def _parse(self, state: Any) -> NoiseKey:
        if not isinstance(state, dict):
            raise _checks.fail("state", type(state).__name__, "isn't a state of batches", "load what state_dict gave")
        own = {"participation": self.participation.describe(), "size": self.size}
        for name, value in own.items():
            _checks.equal(f"state[{name!r}]", state.get(name), value, fix="resume with the same data and law")
        return NoiseKey.from_hex(state.get("key", ""))


class Partition(BatchStream):
    """One shuffle, one partition into groups of nearly equal size, repeated every epoch in the same order."""

    def __init__(self, participation: Separated, size: int, key: NoiseKey) -> None:
        super().__init__(participation, size, key)
        n, k = participation.steps, participation.times
        # groups recur every `groups` steps: at least the separation, and seldom enough for at most k times
        self._groups = max(participation.separation, -(-n // k))
        if size < self._groups:
            raise _checks.fail(
                "size", size, f"is smaller than the {self._groups} batches of an epoch",
                "use fewer batches, or more examples",
            )  # fmt: skip
        self._order = self._shuffle()

    def _shuffle(self) -> Indices:
        tags = _words64(self.key, step=0, leaf=_ORDER, count=self.size)
        return np.argsort(tags, kind="stable")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the saved key, and so the saved partition."""
        super().load_state_dict(state)
        self._order = self._shuffle()

    @property
    def epoch_steps(self) -> int:
        """Number of groups."""
        return self._groups

    @property
    def expected_batch_size(self) -> float:
        """Examples over groups."""
        return self.size / self._groups

    def batch(self, step: int) -> Indices:
        """The group that is due at this step."""
        group = step % self._groups
        low, high = group * self.size // self._groups, (group + 1) * self.size // self._groups
        return self._order[low:high]


class PoissonBatches(BatchStream):
    """Every example joins every step independently at the law's rate."""

    participation: Poisson
    can_be_empty = True

    def __init__(self, participation: Poisson, size: int, key: NoiseKey) -> None:
        super().__init__(participation, size, key)
        _check_units(size, participation.units)

    @property
    def epoch_steps(self) -> int:
        """Steps until an example has been drawn once, in expectation."""
        return max(1, round(1.0 / self.participation.rate))

    @property
    def expected_batch_size(self) -> float:
        """Rate times examples."""
        return float(self.participation.rate) * self.size

    def batch(self, step: int) -> Indices:
        """Indices whose 64-bit word falls below rate * 2^64 (rounded down: never a higher rate); cut to the largest."""
        drawn = np.flatnonzero(_joins(self.key, step, self.size, float(self.participation.rate)))
        return _cut(drawn, self.participation.largest, self.key, step)


class RandomBins(BatchStream):
    """Every example in one bin, uniform and independent of the others, the same every epoch; bins may be empty."""

    participation: BallsInBins
    can_be_empty = True

    def __init__(self, participation: BallsInBins, size: int, key: NoiseKey) -> None:
        super().__init__(participation, size, key)
        self._assign()

    def _assign(self) -> None:
        """Sort the examples by their bin; `_ends[i]` is where bin i ends."""
        words = _words64(self.key, step=0, leaf=_BINS, count=self.size)
        bins = _scaled(words, self.participation.bins)
        self._order = np.argsort(bins, kind="stable")
        self._ends = np.cumsum(np.bincount(bins, minlength=self.participation.bins))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the saved key, and so the saved bins."""
        super().load_state_dict(state)
        self._assign()

    @property
    def epoch_steps(self) -> int:
        """Number of bins."""
        return self.participation.bins

    @property
    def expected_batch_size(self) -> float:
        """Examples over bins."""
        return self.size / self.participation.bins

    def batch(self, step: int) -> Indices:
        """The bin that is due at this step."""
        i = step % self.participation.bins
        return self._order[self._ends[i - 1] if i else 0 : self._ends[i]]


class CyclicPoissonBatches(BatchStream):
    """One shuffle and one partition into `period` groups of nearly equal size; the due group is drawn by Poisson."""

    participation: CyclicPoisson
    can_be_empty = True

    def __init__(self, participation: CyclicPoisson, size: int, key: NoiseKey) -> None:
        super().__init__(participation, size, key)
        if size < participation.period:
            raise _checks.fail(
                "size", size, f"is smaller than the {participation.period} groups of the period",
                "use a shorter period, or more examples",
            )  # fmt: skip
        _check_units(size, participation.units)
        self._order = self._shuffle()

    def _shuffle(self) -> Indices:
        return np.argsort(_words64(self.key, step=0, leaf=_ORDER, count=self.size), kind="stable")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the saved key, and so the saved groups."""
        super().load_state_dict(state)
        self._order = self._shuffle()

    @property
    def epoch_steps(self) -> int:
        """Steps until an example has been drawn once, in expectation."""
        return max(1, round(self.participation.period / self.participation.rate))

    @property
    def expected_batch_size(self) -> float:
        """Rate times the mean size of a group."""
        return float(self.participation.rate) * self.size / self.participation.period

    def batch(self, step: int) -> Indices:
        """Members of the due group whose 64-bit word falls below rate * 2^64; cut to the largest."""
        group, period = step % self.participation.period, self.participation.period
        members = self._order[group * self.size // period : (group + 1) * self.size // period]
        drawn = members[_joins(self.key, step, len(members), float(self.participation.rate))]
        return _cut(drawn, self.participation.largest, self.key, step)


def _check_units(size: int, units: int | None) -> None:
    if units is not None and size > units:
        raise _checks.fail(
            "size", size, f"is more than the units={units} that the law was made for", "make it for this data set"
        )


def _cut(drawn: Indices, largest: int | None, key: NoiseKey, step: int) -> Indices:
    """A uniformly random subset of `largest` of them, independent of who was drawn, where there are more."""
    if largest is None or len(drawn) <= largest:
        return drawn
    tags = _words64(key, step=step, leaf=_CUTS, count=len(drawn))
    return drawn[np.sort(np.argsort(tags, kind="stable")[:largest])]


def _joins(key: NoiseKey, step: int, count: int, rate: float) -> NDArray[np.bool_]:
    """Independent events of probability `rate`, rounded down to a multiple of 2^-64."""
    if rate == 1.0:
        return np.ones(count, dtype=np.bool_)
    return _words64(key, step=step, leaf=_DRAWS, count=count) < np.uint64(int(rate * 2.0**64))


def _scaled(words: NDArray[np.uint64], count: int) -> Indices:
    """floor(word * count / 2^64): every value has 2^64 / count words, to one, for count < 2^32."""
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    n = np.uint64(count)
    return ((high * n + ((low * n) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def _words64(key: NoiseKey, *, step: int, leaf: int, count: int) -> NDArray[np.uint64]:
    words = kernel.words(key.secret, domain=kernel.SAMPLING, step=step, leaf=leaf, start=0, count=2 * count).astype(
        np.uint64
    )
    return (words[0::2] << np.uint64(32)) | words[1::2]


@singledispatch
def batch_stream(participation: Participation, size: int, key: NoiseKey) -> BatchStream:
    """The index stream of a participation.

    Args:
        participation: the law.
        size: number of examples.
        key: secret of the draw, not the noise's.

    Raises:
        ValueError: fewer examples than batches in an epoch.
        Unsupported: no sampler draws this law.

    Example:
        >>> from bluegrad import FixedEpochs
        >>> stream = batch_stream(FixedEpochs(4, epochs=2), 6, NoiseKey(bytes(16)))
        >>> [len(batch) for batch in stream], stream.batch(0).tolist() == stream.batch(2).tolist()
        ([3, 3], True)
    """
    raise Unsupported(f"no sampler draws {participation!r}")


@batch_stream.register
def _(participation: Separated, size: int, key: NoiseKey) -> BatchStream:
    return Partition(participation, size, key)


@batch_stream.register
def _(participation: Poisson, size: int, key: NoiseKey) -> BatchStream:
    return PoissonBatches(participation, size, key)


@batch_stream.register
def _(participation: BallsInBins, size: int, key: NoiseKey) -> BatchStream:
    return RandomBins(participation, size, key)


@batch_stream.register
def _(participation: CyclicPoisson, size: int, key: NoiseKey) -> BatchStream:
    return CyclicPoissonBatches(participation, size, key)
