"""The frozen record of everything that epsilon or the law of the noise depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bluegrad import _checks, score
from bluegrad.participation import Participation
from bluegrad.score import Sensitivity
from bluegrad.strategy import Strategy


@dataclass(frozen=True)
class Mechanism:
    """A strategy under a participation at a noise multiplier: what is accounted, drawn and added.

    The noise of step t is row t of N Z, Z ~ Normal(0, (noise_multiplier * clip_norm * sensitivity)^2).

    Args:
        strategy: C, n steps.
        participation: which steps a unit may join, n steps.
        noise_multiplier: standard deviation of Z in units of clip norm times sensitivity, above 0.

    Raises:
        ValueError: different numbers of steps, or a noise multiplier that isn't above 0.
        Unsupported: no sensitivity rule for the pair.

    Example:
        >>> from bluegrad import FixedEpochs, identity
        >>> Mechanism(identity(4), FixedEpochs(4, 4), noise_multiplier=1.5).noise_scale(clip_norm=2.0)
        6.0
    """

    strategy: Strategy
    participation: Participation
    noise_multiplier: float

    def __post_init__(self) -> None:
        _checks.real(
            "noise_multiplier", self.noise_multiplier, low=0.0, low_open=True,
            fix="bluegrad.calibrate finds it for an (epsilon, delta)",
        )  # fmt: skip
        assert self.certificate.value > 0.0

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return self.strategy.steps

    @cached_property
    def certificate(self) -> Sensitivity:
        """Sensitivity with its rule."""
        return score.certify(self.strategy, self.participation)

    @property
    def sensitivity(self) -> float:
        """Sensitivity of C in units of the clip norm."""
        return self.certificate.value

    def noise_scale(self, clip_norm: float) -> float:
        """Standard deviation of the raw noise Z."""
        return self.noise_multiplier * clip_norm * self.sensitivity

    def after(self, steps: int) -> Mechanism:
        """What the first `steps` releases alone amount to, at most: same noise, the sensitivity of the prefix.

        A law whose prefixes are whole epochs (balls-in-bins) rounds up to one: fewer releases follow from more.

        Raises:
            ValueError: steps isn't within 1 .. n.
        """
        _checks.integer("steps", steps, minimum=1, fix=f"give at most {self.steps}")
        if steps == self.steps:
            return self
        participation = self.participation.prefix(steps)
        if participation.steps == self.steps:
            return self
        strategy = self.strategy.prefix(participation.steps)
        ratio = self.sensitivity / score.sensitivity(strategy, participation)
        return Mechanism(strategy, participation, self.noise_multiplier * ratio)

    def describe(self) -> dict[str, Any]:
        """Plain data (JSON) for ledgers: strategy, participation, noise multiplier, sensitivity and its rule."""
        return {
            "strategy": self.strategy.describe(),
            "participation": self.participation.describe(),
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "sensitivity_exact": self.certificate.exact,
            "sensitivity_rule": self.certificate.rule,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what determines the noise and its guarantee; equal fingerprints, equal mechanisms."""
        fixed = {
            "strategy": self.strategy.describe(),
            "participation": self.participation.describe(),
            "noise_multiplier": float(self.noise_multiplier).hex(),
        }
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
