"""Claims to audit, by the names of the command line, and their audits one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bluegrad import _checks, accounting
from bluegrad._checks import Unsupported
from bluegrad.audit import Audit, Replay, Training, examine
from bluegrad.tasks.laws import Sampling
from bluegrad.tasks.mechanisms import FAMILIES, build_strategy, check_name, choose_law

LEVELS = ("replay", "training")
ALL = "all"


@dataclass(frozen=True)
class Audits:
    """Audits of several mechanisms, in the order of the families, and why others aren't there."""

    audits: list[Audit]
    left_out: dict[str, str]

    @property
    def refuted(self) -> bool:
        """Whether any claim is refuted."""
        return any(audit.verdict == "refuted" for audit in self.audits)


def audit_all(
    name: str,
    sampling: Sampling,
    *,
    epsilon: float,
    delta: float,
    parameter: float | None = None,
    level: str = "replay",
    repetitions: int | None = None,
    confidence: float = 0.999,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Audits:
    """Audit one mechanism of the command line, or all that have a guarantee under the law.

    Args:
        name: of a family or a strategy's file, or "all".
        sampling: how batches are drawn, in claim and audit.
        epsilon: claimed for every mechanism.
        delta: failure probability of the guarantee.
        parameter: lam, nu, bands or stamps of the one mechanism.
        level: "replay" or "training".
        repetitions: see `bluegrad.audit.examine`.
        confidence: of the whole: each of several audits gets its share of the rest.
        progress: called with a mechanism's name, the repetitions done and their number.

    Raises:
        ValueError: unknown name or level, a parameter for all, or an argument out of range.
        Unsupported: the one mechanism has no guarantee under the law.
    """
    names = list(FAMILIES) if name == ALL else [check_name(name)]
    _checks.choice("level", level, LEVELS)
    _checks.epsilon(epsilon)
    _checks.delta(delta)
    _checks.confidence(confidence)
    if name == ALL and parameter is not None:
        raise _checks.fail("parameter", parameter, "means something else for each of all mechanisms", "name one")
    claims, left_out = {}, {}
    for one in names:
        progress(one, 0, 1)
        try:
            law = choose_law(one, parameter, sampling, (epsilon, delta))
            strategy = build_strategy(one, parameter, law, (epsilon, delta))
            claims[one] = accounting.calibrate(strategy, law, epsilon=epsilon, delta=delta)
        except Unsupported as error:
            if name != ALL:
                raise
            left_out[one] = str(error)
    share = 1.0 - (1.0 - confidence) / len(claims)
    audits = []
    for one, claim in claims.items():
        found = examine(
            claim,
            delta=delta,
            epsilon=epsilon,
            subject=Replay(claim) if level == "replay" else Training(claim),
            name=one,
            repetitions=repetitions,
            confidence=share,
            progress=partial(progress, one),
        )
        audits.append(found)
    return Audits(audits, left_out)
