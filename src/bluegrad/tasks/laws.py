"""Sampling laws by the names of the command line. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass

from bluegrad import _checks
from bluegrad.participation import BallsInBins, CyclicPoisson, FixedEpochs, Participation, Poisson

SAMPLINGS = ("fixed", "balls-in-bins", "cyclic-poisson", "poisson")


@dataclass(frozen=True)
class Sampling:
    """How batches are drawn.

    Args:
        name: one of SAMPLINGS.
        steps: number of steps.
        epochs: passes over the data; must divide the steps.
        rate: mean batch size over number of examples; by default epochs / steps.
        period: groups of cyclic-poisson; by default the mechanism's number of bands, where that is known.

    Raises:
        ValueError: an option out of range, or a period that the law hasn't or that doesn't fit into an epoch.
    """

    name: str
    steps: int
    epochs: int
    rate: float | None = None
    period: int | None = None

    def __post_init__(self) -> None:
        _checks.choice("sampling", self.name, SAMPLINGS)
        FixedEpochs(self.steps, self.epochs)
        if self.period is not None:
            if self.name != "cyclic-poisson":
                raise _checks.fail("period", self.period, f"sampling {self.name!r} has none", "leave it out")
            _checks.integer("period", self.period, minimum=1, fix="give the mechanism's number of bands, or more")
            if self.period > self.most:
                raise _checks.fail(
                    "period", self.period, f"is more than the {self.most} batches of an epoch",
                    "give at most that many groups",
                )  # fmt: skip

    @property
    def share(self) -> float:
        """Probability that an example is in a batch, on average."""
        return self.epochs / self.steps if self.rate is None else self.rate

    @property
    def most(self) -> int:
        """Most groups: a batch is drawn from one group."""
        return max(1, int(1.0 / self.share + 1e-9))

    def law(self, period: int | None = None) -> Participation:
        """The participation.

        Args:
            period: groups of cyclic-poisson.
        """
        if self.name == "fixed":
            return FixedEpochs(self.steps, self.epochs)
        if self.name == "balls-in-bins":
            return BallsInBins(self.steps, self.epochs)
        if self.name == "poisson":
            return Poisson(self.steps, self.share)
        groups = period or self.period
        assert groups is not None, "the caller chooses it"
        return CyclicPoisson(self.steps, groups, min(1.0, groups * self.share))
