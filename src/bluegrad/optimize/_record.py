"""What an optimiser found, and how: attached to the strategy that it returns."""

from __future__ import annotations

from dataclasses import dataclass

from bluegrad.strategy import Strategy


@dataclass(frozen=True)
class Optimization:
    """How a strategy was found.

    Args:
        loss: "rmse" or "max_error".
        value: the loss of the strategy, as `bluegrad.rmse` or `bluegrad.max_error` gives it.
        iterations: steps of the optimiser.
        seconds: wall-clock time.
        converged: whether the stopping rule was met, or the optimiser gave up before.
        lower_bound: what no strategy of the family beats, where that is known.
        noise: where the search was for least noise at a privacy target, `value` times the noise multiplier there, as
            estimated; `bluegrad.calibrate` gives the multiplier that is proved.
    """

    loss: str
    value: float
    iterations: int
    seconds: float
    converged: bool
    lower_bound: float | None = None
    noise: float | None = None

    @property
    def gap(self) -> float | None:
        """Relative distance of the squared value from the squared bound, or None without a bound."""
        if self.lower_bound is None:
            return None
        return (self.value**2 - self.lower_bound**2) / self.value**2


def attach(strategy: Strategy, record: Optimization) -> Strategy:
    """The strategy, with the record as its `optimization`."""
    object.__setattr__(strategy, "optimization", record)  # strategies are frozen
    return strategy
