"""Participation: at which steps one privacy unit may take part, and by which law that is drawn.

Frozen descriptions only: `score` reads them for the sensitivity, `accounting` for the privacy law,
`sampling` for the batches, so what is drawn is what is accounted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from bluegrad import _checks


def _truncation(largest: int | None, units: int | None) -> None:
    """Check the two parts of a largest batch size."""
    if (largest is None) != (units is None):
        raise _checks.fail(
            "largest", largest, f"needs units beside it, which is {units!r}",
            "give both, units the most that either of two neighbouring data sets has, or neither",
        )  # fmt: skip
    if largest is not None:
        _checks.integer("largest", largest, minimum=1, fix="give the largest number of examples in a batch")
        _checks.integer("units", units, minimum=1, fix="give the number of units, one more if one may be added")


def _cut(largest: int | None, units: int | None) -> dict[str, Any]:
    """What a description says of it: nothing where there is none."""
    return {} if largest is None else {"largest": largest, "units": units}


class Participation(ABC):
    """Who may take part when, over a horizon of `steps` steps."""

    steps: int

    @abstractmethod
    def prefix(self, steps: int) -> Participation:
        """What holds of the first `steps` steps alone (never fewer patterns than truly possible)."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain data that names the law, its parameters and its neighbouring relation."""


class Separated(Participation):
    """A unit takes part at most `times` times, two of them at least `separation` steps apart."""

    separation: int
    times: int

    def prefix(self, steps: int) -> Participation:
        """Minimum separation over the first `steps` steps."""
        return MinSeparation(steps, self.separation, min(self.times, -(-steps // self.separation)))

    def _describe(self, law: str) -> dict[str, Any]:
        return {
            "law": law,
            "steps": self.steps,
            "separation": self.separation,
            "times": self.times,
            "neighbours": "zero-out",
        }


@dataclass(frozen=True)
class SinglePass(Separated):
    """Each unit takes part in at most one step: one epoch, no repetition.

    Args:
        steps: number of steps n.

    Raises:
        ValueError: steps isn't a positive integer.

    Example:
        >>> SinglePass(100).times
        1
    """

    steps: int

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")

    @property
    def separation(self) -> int:  # type: ignore[override]
        """The whole horizon: there is no second participation."""
        return self.steps

    @property
    def times(self) -> int:  # type: ignore[override]
        """One."""
        return 1

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers and fingerprints."""
        return self._describe("single-pass")


@dataclass(frozen=True)
class FixedEpochs(Separated):
    """The same partition into batches every epoch: (k, b)-participation, exactly b = steps / epochs apart.

    Args:
        steps: number of steps n = k b.
        epochs: number of epochs k; must divide steps.

    Raises:
        ValueError: not positive integers, or epochs doesn't divide steps.

    Example:
        >>> FixedEpochs(2000, 20).separation
        100

    Source: arXiv 2211.06530, section 2.
    """

    steps: int
    epochs: int

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")
        _checks.integer("epochs", self.epochs, minimum=1, fix="give the number of passes over the data")
        if self.steps % self.epochs:
            below = self.steps - self.steps % self.epochs
            raise _checks.fail(
                "epochs", self.epochs, f"must divide steps={self.steps}",
                f"use steps={below or self.epochs} or steps={below + self.epochs}",
            )  # fmt: skip

    @property
    def separation(self) -> int:  # type: ignore[override]
        """Steps an epoch, b."""
        return self.steps // self.epochs

    @property
    def times(self) -> int:  # type: ignore[override]
        """Epochs, k."""
        return self.epochs

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers and fingerprints."""
        return self._describe("fixed-epochs")


@dataclass(frozen=True)
class MinSeparation(Separated):
    """Any two participations of a unit are at least `separation` steps apart, at most `times` of them.

    Args:
        steps: number of steps n.
        separation: smallest distance b between two participations.
        times: largest number of participations k (more than ceil(n / b) can't happen).

    Raises:
        ValueError: not positive integers.

    Example:
        >>> MinSeparation(100, separation=30, times=3)
        MinSeparation(steps=100, separation=30, times=3)

    Source: arXiv 2306.08153, section 3.
    """

    steps: int
    separation: int
    times: int

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")
        _checks.integer("separation", self.separation, minimum=1, fix="give the distance in steps")
        _checks.integer("times", self.times, minimum=1, fix="give the largest number of participations")

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers and fingerprints."""
        return self._describe("min-separation")


@dataclass(frozen=True)
class BallsInBins(Participation):
    """Each unit lands in one uniformly random bin of b = steps / epochs, and joins that batch in every epoch.

    Bins are drawn once, independently for each unit, and kept secret; batches vary in size and may be empty. The
    guarantee counts on the draw: it is smaller than that of a known partition (`FixedEpochs`), whose patterns
    these are. Reshuffling every epoch is another law.

    Args:
        steps: number of steps n = k b.
        epochs: number of epochs k; must divide steps.

    Raises:
        ValueError: not positive integers, or epochs doesn't divide steps.

    Example:
        >>> BallsInBins(2000, 20).bins
        100

    Source: arXiv 2410.06266, algorithm 1.
    """

    steps: int
    epochs: int

    def __post_init__(self) -> None:
        FixedEpochs(self.steps, self.epochs)

    @property
    def bins(self) -> int:
        """Bins b: steps an epoch."""
        return self.steps // self.epochs

    def prefix(self, steps: int) -> Participation:
        """The whole epochs that the first `steps` steps lie in: what they release follows from what these release.

        Cut in the middle of an epoch, bins would differ in their number of steps, which no law here covers.
        """
        _checks.integer("steps", steps, minimum=1, fix=f"give at most {self.steps}")
        epochs = -(-steps // self.bins)
        return BallsInBins(epochs * self.bins, epochs)

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers and fingerprints."""
        return {
            "law": "balls-in-bins",
            "steps": self.steps,
            "epochs": self.epochs,
            "bins": self.bins,
            "neighbours": "zero-out",
        }


@dataclass(frozen=True)
class CyclicPoisson(Participation):
    """Units are split into `period` groups; step t draws each unit of group t mod `period` with probability `rate`.

    For strategies of at most `period` bands the rounds of a unit don't overlap in C, so the whole is Poisson
    sampling of ceil(steps / period) independent rounds.

    Args:
        steps: number of steps n.
        period: number of groups, at least the strategy's number of bands.
        rate: sampling probability within the due group, in (0, 1]: period * batch size / number of units.
        largest: as in `Poisson`.
        units: as in `Poisson`; no group has more than ceil(units / period) of them.

    Raises:
        ValueError: steps or period isn't a positive integer, period is above steps, rate is outside (0, 1], or one of
            largest and units is given without the other or isn't a positive integer.

    Example:
        >>> CyclicPoisson(2000, period=10, rate=0.1).rounds
        200

    Source: arXiv 2306.08153, section 5 and theorem 4.
    """

    steps: int
    period: int
    rate: float
    largest: int | None = None
    units: int | None = None

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")
        _checks.integer("period", self.period, minimum=1, fix="give the strategy's number of bands, or more")
        if self.period > self.steps:
            raise _checks.fail("period", self.period, f"is more than steps={self.steps}", "use at most as many groups")
        _checks.real(
            "rate", self.rate, low=0.0, high=1.0, low_open=True,
            fix="give period times the expected batch size divided by the number of examples",
        )  # fmt: skip
        _truncation(self.largest, self.units)

    @property
    def rounds(self) -> int:
        """Steps at which the first group is due, ceil(steps / period): no group has more."""
        return -(-self.steps // self.period)

    def prefix(self, steps: int) -> Participation:
        """The same law over fewer steps; within the first cycle some groups aren't due at all."""
        _checks.integer("steps", steps, minimum=1, fix=f"give at most {self.steps}")
        return CyclicPoisson(steps, min(self.period, steps), self.rate, self.largest, self.units)

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers and fingerprints."""
        return {
            "law": "cyclic-poisson",
            "steps": self.steps,
            "period": self.period,
            "rate": float(self.rate),
            **_cut(self.largest, self.units),
            "neighbours": "zero-out",
        }


@dataclass(frozen=True)
class Poisson(Participation):
    """Each unit joins each step independently with probability `rate`: DP-SGD's usual law.

    Only the identity strategy is supported under it: its steps are independent, and its guarantee comes
    from composing amplified steps.

    With `largest`, batches of more units are cut to a uniformly random subset of that many, so that memory is bounded;
    the accountant adds its price in delta, which is negligible from some standard deviations above the mean.

    Args:
        steps: number of steps n.
        rate: sampling probability in (0, 1], the expected batch size over the number of units.
        largest: largest batch, or None.
        units: with `largest`, the most units that either of two neighbouring data sets has.

    Raises:
        ValueError: steps isn't a positive integer, rate lies outside (0, 1], or one of largest and units is given
            without the other or isn't a positive integer.

    Example:
        >>> Poisson(100, rate=0.01).rate
        0.01
    """

    steps: int
    rate: float
    largest: int | None = None
    units: int | None = None

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")
        _checks.real(
            "rate", self.rate, low=0.0, high=1.0, low_open=True,
            fix="give the expected batch size divided by the number of examples",
        )  # fmt: skip
        _truncation(self.largest, self.units)

    def prefix(self, steps: int) -> Participation:
        """The same law over fewer steps."""
        return Poisson(steps, self.rate, self.largest, self.units)

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers and fingerprints."""
        return {
            "law": "poisson",
            "steps": self.steps,
            "rate": float(self.rate),
            **_cut(self.largest, self.units),
            "neighbours": "add-or-remove",
        }
