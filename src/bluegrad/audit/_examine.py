"""An audit: many runs with and without a canary, and what they prove against a claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import numpy as np
from scipy.optimize import brentq

from bluegrad import _checks, accounting
from bluegrad.audit import _evidence
from bluegrad.audit._attack import log_likelihood_ratio
from bluegrad.audit._canary import Array, check_steps, choose_canary, whitened
from bluegrad.audit._subjects import Replay, Subject
from bluegrad.mechanism import Mechanism

# Where the privacy curve is looked at, in units of the claimed epsilon: there delta is large enough to be measured.
_POINT = 0.02
# Repetitions, used for nothing else, from which the attacker learns how large the noise is.
_PILOT = 2000
_SILENT = 1e-6
# Share of the claim from which an audit that found nothing wrong says something.
STRONG = 0.5
# Relative accuracy of the noise multiplier that fits a measured point.
_FIT = 1e-2
# Largest change of the noise multiplier, in logarithms, that is tried for it.
_FARTHEST = 3.0


@dataclass(frozen=True)
class Audit:
    """Outcome of an audit; all bounds together hold with the stated confidence.

    Args:
        level: "replay" or "training".
        mechanism: the claim's, as a name.
        law: sampling law of the claim.
        delta: failure probability of the guarantee.
        claimed: epsilon at delta that is claimed.
        epsilon: lower bound on the true epsilon at delta, for any mechanism.
        fitted: lower bound on it if noise and law are the claim's but for the noise's size: sharper.
        point: where the privacy curve was measured, an epsilon.
        claimed_delta: delta at the point that is claimed.
        measured_delta: lower bound on the true delta at the point, for any mechanism.
        noise_p_value: of the released noise under the claimed law.
        confidence: probability, at least, that a true claim isn't refuted.
        repetitions: runs of the canary, and as many without.
    """

    level: str
    mechanism: str
    law: str
    delta: float
    claimed: float
    epsilon: float
    fitted: float
    point: float
    claimed_delta: float
    measured_delta: float
    noise_p_value: float
    confidence: float
    repetitions: int

    @property
    def reasons(self) -> tuple[str, ...]:
        """What refutes the claim: "epsilon" and "curve" mean too little privacy, "noise" another law than claimed."""
        found = {
            "epsilon": self.epsilon > self.claimed,
            "curve": self.measured_delta > self.claimed_delta,
            "noise": self.noise_p_value < (1.0 - self.confidence) / 3.0,
        }
        return tuple(name for name, refuted in found.items() if refuted)

    @property
    def strength(self) -> float:
        """Fitted over claimed epsilon: near 1 if the audit would have seen a claim that is a little too good."""
        return self.fitted / self.claimed

    @property
    def verdict(self) -> str:
        """ "refuted", "upheld", or "weak": nothing was found, by an audit that couldn't have found much."""
        if self.reasons:
            return "refuted"
        return "upheld" if self.strength >= STRONG else "weak"

    def describe(self) -> dict[str, Any]:
        """Plain data (JSON) of the record, with its verdict."""
        return {**vars(self), "strength": self.strength, "reasons": list(self.reasons), "verdict": self.verdict}


def examine(
    claim: Mechanism,
    *,
    delta: float,
    epsilon: float | None = None,
    subject: Subject | None = None,
    name: str | None = None,
    repetitions: int | None = None,
    confidence: float = 0.999,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Attack what a claim describes, and report what the attack proves beside what is claimed.

    A canary of the worst pattern and signs joins a run, or doesn't. The attacker sees all releases, knows the law that
    batches are drawn by, measures the size of the noise and takes the likelihood ratio. Three things can refute the
    claim, each with a third of 1 - confidence: a lower bound on epsilon at delta; one on delta where it is large, at a
    fiftieth of the claimed epsilon (the sharper of the two); and a test of the released noise against its claimed law.

    Args:
        claim: the mechanism whose guarantee is claimed.
        delta: failure probability of the guarantee.
        epsilon: what is claimed at delta; by default what `bluegrad.epsilon` says.
        subject: what runs; by default `Replay(claim)`.
        name: of the mechanism in the record; its strategy's repr by default.
        repetitions: runs with the canary, and as many without; by default what the subject does in seconds.
        confidence: probability that a true claim isn't refuted, in [0.5, 1).
        progress: called with the repetitions done and their number.

    Returns:
        The record.

    Raises:
        ValueError: an argument out of range, subject and claim of different steps, or too few repetitions for the
            confidence.
        Unsupported: more steps than an n x n matrix is formed for, or a law that isn't accounted or drawn here.

    Example:
        >>> from bluegrad import FixedEpochs, calibrate, lambda_cgd
        >>> mechanism = calibrate(lambda_cgd(12, 0.8), FixedEpochs(12, 3), epsilon=2.0, delta=1e-5)
        >>> examine(mechanism, delta=1e-5, repetitions=20_000, confidence=1 - 1e-9).verdict
        'upheld'
        >>> loud = Mechanism(mechanism.strategy, mechanism.participation, 0.7 * mechanism.noise_multiplier)
        >>> examine(mechanism, delta=1e-5, subject=Replay(loud), repetitions=20_000).reasons
        ('curve', 'noise')

    Guarantees: a true claim is refuted with probability 1 - confidence at most (and, under a law whose claims are
    Monte Carlo bounds, that of theirs). Upheld means that this attack found nothing.
    Source: Nasr et al. 2023 (arXiv 2302.07956), audits with strong adversaries.
    """
    subject = Replay(claim) if subject is None else subject
    _checks.delta(delta)
    failure = 1.0 - _checks.confidence(confidence)
    check_steps(claim.participation, subject.sampling)
    claimed = float(accounting.epsilon(claim, delta=delta)) if epsilon is None else _checks.epsilon(epsilon)
    if claimed == 0.0:
        raise _checks.fail("delta", delta, "the mechanism claims epsilon 0 at it", "give a smaller delta")
    point = _POINT * claimed
    at_point = float(accounting.delta(claim, epsilon=point))
    count = _count(subject, repetitions, _evidence.repetitions_needed(point, at_point, failure / 3.0), confidence)
    absent, present, products, columns = _collect(claim, subject, count, progress)
    measured = _evidence.delta_at_least(present, absent, point, failure / 3.0)
    return Audit(
        level=subject.name,
        mechanism=repr(claim.strategy) if name is None else name,
        law=str(claim.participation.describe()["law"]),
        delta=delta,
        claimed=claimed,
        epsilon=_evidence.epsilon_at_least(present, absent, delta, failure / 3.0),
        fitted=_fitted(claim, point, measured, delta),
        point=point,
        claimed_delta=at_point,
        measured_delta=measured,
        noise_p_value=_evidence.white_noise_p_value(products, columns),
        confidence=confidence,
        repetitions=count,
    )


def _count(subject: Subject, repetitions: int | None, needed: int, confidence: float) -> int:
    fix = "leave it out for the default"
    if repetitions is None:
        return max(4 * needed, subject.repetitions)
    if _checks.integer("repetitions", repetitions, minimum=1, fix=fix) < needed:
        raise _checks.fail(
            "repetitions", repetitions, f"too few to say anything with confidence {confidence:g}",
            f"give at least {needed} at this epsilon",
        )  # fmt: skip
    return repetitions


def _collect(
    claim: Mechanism, subject: Subject, count: int, progress: Callable[[int, int], None]
) -> tuple[Array, Array, Array, int]:
    """Scores without and with the canary, each (count,), and W W^T of the noise with its number of columns.

    A column of W has two repetitions' noise, so that the products tell too whether repetitions share noise.
    """
    effects = whitened(claim)
    canary = choose_canary(subject.sampling, effects)
    white = np.asarray(effects @ subject.releases(canary, _PILOT)[0])
    # size of the noise, which any attacker can see, in units of the claimed; above 0 even if there is none
    size = max(float(np.sqrt(np.mean(white**2))), _SILENT)
    if not np.isfinite(size):
        raise _checks.fail("subject", subject.name, "released NaN or infinity", "audit runs that don't diverge")
    score = log_likelihood_ratio(subject.sampling, effects / size, canary)
    without: list[Array] = []
    with_canary: list[Array] = []
    products, columns, done = np.zeros((2 * claim.steps, 2 * claim.steps)), 0, 0
    while done < count:
        absent, present = (effects @ releases for releases in subject.releases(canary, count - done))
        half = absent.shape[1] // 2
        pairs = np.concatenate((absent[:, :half], absent[:, half : 2 * half]))
        products, columns = products + pairs @ pairs.T, columns + half
        without.append(score(absent / size))
        with_canary.append(score(present / size))
        done += absent.shape[1]
        progress(min(done, count), count)
    return np.concatenate(without)[:count], np.concatenate(with_canary)[:count], products, columns


def _fitted(claim: Mechanism, point: float, measured: float, delta: float) -> float:
    """Epsilon at delta of the claimed mechanism with as much noise as what was measured allows."""
    if measured <= 0.0:
        return 0.0

    def scaled(log_factor: float) -> Mechanism:
        return replace(claim, noise_multiplier=claim.noise_multiplier * exp(log_factor))

    def excess(log_factor: float) -> float:
        return log(max(accounting.delta(scaled(log_factor), epsilon=point), 1e-300) / measured)

    def at(log_factor: float) -> float:
        return float(accounting.epsilon(scaled(log_factor + _FIT), delta=delta))

    away = 1.0 if excess(0.0) > 0.0 else -1.0
    near, far = 0.0, 0.1 * away
    while excess(far) * away > 0.0:
        near, far = far, 3.0 * far
        if abs(far) > _FARTHEST:  # enough to say how far off the claim is
            return 0.0 if away > 0.0 else at(near)
    return at(float(brentq(excess, *sorted((near, far)), xtol=_FIT)))
