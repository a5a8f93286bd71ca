"""A privacy parameter with its pedigree."""

from __future__ import annotations

from typing import Any


class Bound(float):
    """An epsilon or delta, a float, that knows how it was found.

    Args:
        value: the upper bound.
        law: the sampling law that was accounted.
        method: "exact", "pld" (privacy loss distribution on a grid), "monte_carlo" or "renyi".
        failure_probability: chance, over the draws of a Monte Carlo method, that the bound is below the truth.
        estimate: the plain estimate without confidence margin, of a Monte Carlo method.

    Example:
        >>> Bound(1.5, law="gaussian", method="exact") + 1
        2.5
    """

    law: str
    method: str
    failure_probability: float
    estimate: float | None

    def __new__(
        cls,
        value: float,
        *,
        law: str = "",
        method: str = "exact",
        failure_probability: float = 0.0,
        estimate: float | None = None,
    ) -> Bound:
        self = super().__new__(cls, value)
        self.law, self.method = law, method
        self.failure_probability, self.estimate = failure_probability, estimate
        return self

    def describe(self) -> dict[str, Any]:
        """Plain data for ledgers: value, law, method and failure probability."""
        return {
            "value": float(self),
            "law": self.law,
            "method": self.method,
            "failure_probability": self.failure_probability,
        }
