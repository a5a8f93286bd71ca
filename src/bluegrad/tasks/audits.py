"""Claims to audit, by the names of the command line, and their audits one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bluegrad import _checks, accounting
from bluegrad._checks import Unsupported
from bluegrad.audit import Audit, Replay, Training, examine
from bluegrad.mechanism import Mechanism
from bluegrad.participation import BallsInBins, CyclicPoisson, FixedEpochs, Participation, Poisson
from bluegrad.tasks.mechanisms import FAMILIES, build_strategy, check_name

SAMPLINGS = ("fixed", "poisson", "balls-in-bins", "cyclic-poisson")
LEVELS = ("replay", "training")
ALL = "all"
# Bands of a mechanism that has the choice.
_BANDS = 16


@dataclass(frozen=True)
class Audits:
    """Audits of several mechanisms, in the order of the families, and why others aren't there."""

    audits: list[Audit]
    left_out: dict[str, str]

    @property
    def refuted(self) -> bool:
        """Whether any claim is refuted."""
        return any(audit.verdict == "refuted" for audit in self.audits)


def make_law(sampling: str, steps: int, epochs: int, period: int | None = None) -> Participation:
    """The participation of a name.

    Args:
        sampling: one of SAMPLINGS.
        steps: training steps.
        epochs: passes over the data, in expectation under Poisson laws.
        period: groups of cyclic Poisson sampling; by default half as many as steps an epoch.

    Raises:
        ValueError: unknown name, steps, epochs or period out of range, or a period for a law that has none.
    """
    _checks.choice("sampling", sampling, SAMPLINGS)
    fixed = FixedEpochs(steps, epochs)
    if period is not None and sampling != "cyclic-poisson":
        raise _checks.fail("period", period, f"{sampling} sampling has none", "leave it out")
    if sampling == "cyclic-poisson":
        groups = max(1, fixed.separation // 2) if period is None else period
        _checks.integer("period", groups, minimum=1, fix="give the strategy's number of bands, or more")
        if groups > fixed.separation:
            raise _checks.fail(
                "period", groups, f"is more than the {fixed.separation} steps an epoch",
                "a group can't be due more often than all of it is drawn",
            )  # fmt: skip
        return CyclicPoisson(steps, groups, groups / fixed.separation)
    if sampling == "poisson":
        return Poisson(steps, epochs / steps)
    return BallsInBins(steps, epochs) if sampling == "balls-in-bins" else fixed


def make_claim(name: str, parameter: float | None, law: Participation, *, epsilon: float, delta: float) -> Mechanism:
    """A mechanism of the command line, calibrated under the law; its strategy is the one for a known partition.

    Raises:
        ValueError: see `build_strategy` and `bluegrad.calibrate`.
        Unsupported: no guarantee is known for the mechanism under the law.
    """
    if parameter is None and isinstance(law, CyclicPoisson) and name in FAMILIES:
        family = FAMILIES[name]
        parameter = min(_BANDS, law.period) if family.parameter == "bands" else None
    strategy = build_strategy(name, parameter, _fixed(law))
    return accounting.calibrate(strategy, law, epsilon=epsilon, delta=delta)


def _fixed(law: Participation) -> FixedEpochs:
    """The known partition of as many epochs."""
    if isinstance(law, FixedEpochs):
        return law
    if isinstance(law, BallsInBins):
        return FixedEpochs(law.steps, law.epochs)
    assert isinstance(law, (Poisson, CyclicPoisson))
    share = law.rate if isinstance(law, Poisson) else law.rate / law.period
    return FixedEpochs(law.steps, round(law.steps * share))


def audit_all(
    name: str,
    law: Participation,
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
        law: sampling law of claim and audit.
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
    _checks.confidence(confidence)
    if name == ALL and parameter is not None:
        raise _checks.fail("parameter", parameter, "means something else for each of all mechanisms", "name one")
    claims, left_out = {}, {}
    for one in names:
        progress(one, 0, 1)
        try:
            claims[one] = make_claim(one, parameter, law, epsilon=epsilon, delta=delta)
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
