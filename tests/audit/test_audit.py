"""Audits: every mechanism passes, every mutant is caught, at a level where no test run sees a false alarm.

Each audit refutes a true claim with probability 1e-9 at most; there are some sixty of them here.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bluegrad as bg
from bluegrad import audit
from bluegrad.accounting import balls_in_bins, poisson
from bluegrad.noise import kernel
from bluegrad.noise.source import Replayed
from bluegrad.tasks.mechanisms import FAMILIES, build_strategy

CONFIDENCE = 1.0 - 1e-9
DELTA = 1e-5
FIXED = bg.FixedEpochs(24, 4)
# noise multipliers for epsilon 2 or so (searching for them takes longer than the audits) that no other test accounts
POISSON = bg.Mechanism(bg.identity(8), bg.Poisson(8, 1 / 4), 2.03)
CYCLIC = bg.Mechanism(bg.toeplitz([1.0, 0.6], 8), bg.CyclicPoisson(8, 2, 1 / 2), 2.04)
BINS = bg.Mechanism(bg.lambda_cgd(8, 0.8), bg.BallsInBins(8, 4), 2.05)
AMPLIFIED = pytest.mark.parametrize("mechanism", [POISSON, CYCLIC, BINS], ids=lambda m: type(m.participation).__name__)

torch.set_num_threads(1)  # models are tiny


def claim(strategy, law, epsilon: float = 4.0) -> bg.Mechanism:
    return bg.calibrate(strategy, law, epsilon=epsilon, delta=DELTA)


def louder(mechanism: bg.Mechanism, factor: float) -> bg.Mechanism:
    """The mechanism with so many times its noise."""
    return replace(mechanism, noise_multiplier=factor * mechanism.noise_multiplier)


def examine(mechanism: bg.Mechanism, subject=None, repetitions: int = 40_000, **options) -> audit.Audit:
    return audit.examine(
        mechanism, delta=DELTA, subject=subject, repetitions=repetitions, confidence=CONFIDENCE, **options
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_every_mechanism_passes_and_the_audit_comes_close_to_its_claim(name):
    found = examine(claim(build_strategy(name, None, FIXED), FIXED), name=name)
    assert (found.verdict, found.reasons, found.mechanism) == ("upheld", (), name)
    assert found.claimed == pytest.approx(4.0, rel=1e-6)
    assert 0.4 < found.epsilon < found.fitted <= found.claimed
    assert found.strength > (0.65 if name == "tree-online" else 0.8)


@pytest.fixture(autouse=True)
def _quick_accounting(monkeypatch):
    """Claims under amplification a little looser, and found ten times sooner."""
    monkeypatch.setattr(balls_in_bins, "default_samples", lambda bins: 100_000)
    monkeypatch.setattr(poisson, "_INTERVAL", 1e-3)


@AMPLIFIED
def test_amplified_laws_pass_and_their_mutants_are_caught(mechanism):
    found = examine(mechanism, repetitions=100_000)
    assert found.verdict == "upheld" and 0.6 < found.strength <= 1.0
    quiet = examine(mechanism, audit.Replay(louder(mechanism, 0.8)), 100_000, epsilon=found.claimed)
    assert quiet.reasons == ("curve", "noise") and quiet.fitted > found.claimed


def test_an_amplified_claim_is_caught_under_a_known_partition():
    found = examine(POISSON, audit.Replay(POISSON, drawn=bg.FixedEpochs(8, 2)), epsilon=2.0)
    assert "curve" in found.reasons and "noise" not in found.reasons


def test_batches_drawn_at_a_higher_rate_are_caught():
    found = examine(POISSON, audit.Replay(POISSON, drawn=bg.Poisson(8, 0.4)), epsilon=2.0)
    assert found.reasons == ("curve",)


class WrongKey(bg.NoiseStream):
    """Draws old noise again with another key, so that it doesn't cancel."""

    def _make_source(self, key):
        source = super()._make_source(key)
        assert type(source) is Replayed
        source.__class__ = WrongKeyReplayed
        return source


class WrongKeyReplayed(Replayed):
    def add(self, out, step, leaf, start):
        for lag, weight in enumerate(self._weights(step)):
            key = self.key.secret if lag == 0 else bytes(16)
            z = kernel.normals(key, step=step - lag, leaf=leaf, start=start, count=len(out))
            out += np.float32(weight * self.scale) * z


class SharedLeaves(bg.NoiseStream):
    """Gives every leaf the first one's noise."""

    def next(self):
        first, *others = super().next()
        return [first, *(first[: len(x)].clone() if len(first) >= len(x) else x for x in others)]


def noise_of(strategy, law, mechanism: bg.Mechanism) -> bg.Mechanism:
    """The claim's mechanism with the noise that (strategy, law) would be given for its guarantee."""
    return louder(mechanism, claim(strategy, law).noise_scale(1.0) / mechanism.noise_scale(1.0))


def mutants(mechanism: bg.Mechanism):
    one = bg.sensitivity(mechanism.strategy, bg.SinglePass(24)) / mechanism.sensitivity
    half = noise_of(mechanism.strategy.prefix(12), bg.FixedEpochs(12, 2), mechanism)
    return {
        "noise 20 % too small": (audit.Replay(louder(mechanism, 0.8)), {"curve", "noise"}),
        "sensitivity of one epoch": (audit.Replay(louder(mechanism, one)), {"curve", "noise"}),
        "half of the steps counted": (audit.Replay(half), {"curve", "noise"}),
        "old noise by another key": (audit.Replay(mechanism, stream=WrongKey), {"noise"}),
        "leaves share noise": (audit.Replay(mechanism, stream=SharedLeaves), {"noise"}),
    }


@pytest.mark.parametrize("strategy", [bg.lambda_cgd(24, 0.8), bg.banded_inverse_square_root(bg.PrefixSum(24), 4)])
def test_mutants_are_caught(strategy):
    mechanism = claim(strategy, FIXED)
    for name, (subject, reasons) in mutants(mechanism).items():
        found = examine(mechanism, subject)
        assert found.verdict == "refuted" and reasons <= set(found.reasons), name
        if "curve" in reasons:
            assert found.fitted > found.claimed, name


def test_steps_that_are_not_counted_void_the_claim():
    """The guarantee of the first half of a run, claimed for the whole of it."""
    mechanism = claim(bg.lambda_cgd(24, 0.8), FIXED)
    spent = float(bg.epsilon(mechanism.after(12), delta=DELTA))
    found = examine(mechanism, epsilon=spent)
    assert spent < found.fitted and found.reasons == ()  # the curve, and so the mechanism, is as claimed
    counted = louder(mechanism, mechanism.after(12).noise_multiplier / mechanism.noise_multiplier)
    assert examine(counted, audit.Replay(mechanism)).reasons == ("curve", "noise")


def test_a_proof_for_any_mechanism_refutes_gross_mistakes():
    mechanism = claim(bg.identity(24), FIXED, epsilon=1.0)
    found = examine(mechanism, audit.Replay(louder(mechanism, 0.2)))
    assert found.reasons == ("epsilon", "curve", "noise") and found.epsilon > 1.0


class NoNoise(audit.Replay):
    """Forgets the noise, or breaks down."""

    value = 0.0

    def _noise(self, count):
        return np.full((self.mechanism.steps, count), self.value)


def test_no_noise_at_all_and_nan_are_noticed():
    mechanism = claim(bg.identity(24), FIXED, epsilon=1.0)
    found = examine(mechanism, NoNoise(mechanism))
    assert found.reasons == ("epsilon", "curve", "noise") and found.noise_p_value == 0.0
    assert found.measured_delta > 0.99 and found.epsilon > 5.0

    class Broken(NoNoise):
        value = float("nan")

    with pytest.raises(ValueError, match=r"subject='replay': released NaN"):
        examine(mechanism, Broken(mechanism))


SILENT = 1e-5  # noise multiplier of runs whose signal is looked at


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_training_releases_clipped_gradients_of_the_canary_and_noise(mode):
    """Where there is next to no noise, replay and training release the canary's signs at the steps it joins."""
    law = bg.FixedEpochs(6, 3)
    mechanism = bg.Mechanism(bg.lambda_cgd(6, 0.5), law, SILENT)
    canary = audit._canary.Canary(np.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0]), np.array([True, False] * 3))
    for subject in (audit.Training(mechanism, mode), audit.Replay(mechanism)):
        absent, present = subject.releases(canary, 5)
        assert absent.shape == present.shape == (6, 5)
        np.testing.assert_allclose(absent, 0.0, atol=1e-3)
        np.testing.assert_allclose(present, np.outer(canary.signs * canary.pattern, np.ones(5)), atol=1e-3)


@AMPLIFIED
def test_training_draws_the_batches_of_the_law(mechanism):
    """As much is released at each step as the canary joins; replay's own tests hold these draws to the law."""
    canary = audit._canary.Canary(np.ones(8), None)
    absent, present = audit.Training(replace(mechanism, noise_multiplier=SILENT)).releases(canary, 300)
    np.testing.assert_allclose(absent, 0.0, atol=1e-3)
    joined = np.round(present)
    np.testing.assert_allclose(present, joined, atol=1e-3)
    assert set(np.unique(joined)) == {0.0, 1.0}
    if isinstance(mechanism.participation, bg.BallsInBins):
        assert (joined[:2].sum(axis=0) == 1.0).all() and (joined == np.tile(joined[:2], (4, 1))).all()
    if isinstance(mechanism.participation, bg.CyclicPoisson):
        assert (joined[1::2] == 0.0).all(), "not the first group"
    due = joined[::2] if isinstance(mechanism.participation, bg.CyclicPoisson) else joined
    rate = getattr(mechanism.participation, "rate", 0.5)
    assert abs(due.mean() - rate) < 7.0 * np.sqrt(rate * (1.0 - rate) / 300)


class Unclipped(audit.Training):
    """Forgets to clip."""

    def make_private(self, *run):
        module, optimizer, loader = super().make_private(*run)
        optimizer._clip_factors = lambda rows: torch.ones(len(rows[0]))
        return module, optimizer, loader


class Independent(audit.Training):
    """The correlated optimizer silently replaced by independent noise of the same size."""

    def make_private(self, *run):
        module, optimizer, loader = super().make_private(*run)
        mechanism = replace(self.mechanism, strategy=bg.identity(self.mechanism.steps), noise_multiplier=1.0)
        scale = self.mechanism.noise_scale(1.0) / mechanism.noise_scale(1.0)
        optimizer.stream = bg.NoiseStream(
            louder(mechanism, scale), optimizer.params, clip_norm=self.clip_norm, key=bg.NoiseKey.generate()
        )
        optimizer.batches.position = lambda: optimizer.stream.steps_taken
        return module, optimizer, loader


def test_training_passes_from_end_to_end_and_its_mutants_are_caught():
    law = bg.FixedEpochs(12, 3)
    mechanism = claim(bg.lambda_cgd(12, 0.8), law, epsilon=8.0)
    for mode in ("hooks", "ghost"):
        found = examine(mechanism, audit.Training(mechanism, mode), 1600)
        assert found.verdict == "upheld" and found.strength > 0.5 and found.level == "training"
    caught = {
        "noise": audit.Training(louder(mechanism, 0.8)),
        "curve": Unclipped(mechanism),
    }
    for reason, subject in caught.items():
        assert reason in examine(mechanism, subject, 1600).reasons
    assert examine(mechanism, Independent(mechanism), 1600).reasons in (("noise",), ("curve", "noise"))


@pytest.mark.slow
@AMPLIFIED
def test_training_under_drawn_batches_passes(mechanism):
    mechanism = louder(mechanism, 0.4)
    found = examine(mechanism, audit.Training(mechanism), 1200)
    assert found.reasons == () and found.strength > 0.3


def test_an_audit_of_few_runs_is_weak_and_says_so():
    mechanism = claim(bg.identity(4), bg.FixedEpochs(4, 2), epsilon=1.0)
    found = replace(examine(mechanism), noise_p_value=0.5, epsilon=0.2, confidence=0.999)
    strong = replace(found, measured_delta=0.9 * found.claimed_delta, fitted=0.9 * found.claimed)
    weak = replace(found, measured_delta=0.1 * found.claimed_delta, fitted=0.1 * found.claimed)
    assert (strong.verdict, weak.verdict) == ("upheld", "weak")
    assert json.loads(json.dumps(found.describe()))["verdict"] == found.verdict
    assert replace(found, epsilon=1.1).reasons == ("epsilon",)
    assert replace(found, noise_p_value=1e-4).reasons == ("noise",)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"repetitions": 300}, r"repetitions=300: too few.*confidence 0.999; give at least \d+"),
        ({"repetitions": 0}, r"repetitions=0: must be an integer"),
        ({"confidence": 1.0}, r"confidence=1.0: must lie in \[0.5, 1\)"),
        ({"delta": 0.0}, r"delta=0.0"),
        ({"epsilon": -1.0}, r"epsilon=-1.0"),
        ({"delta": 0.5}, r"delta=0.5: the mechanism claims epsilon 0"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    mechanism = claim(bg.identity(4), bg.FixedEpochs(4, 2), epsilon=1.0)
    with pytest.raises(ValueError, match=message):
        audit.examine(mechanism, **{"delta": DELTA, **options})


def test_foreign_subjects_are_refused():
    mechanism = claim(bg.identity(4), bg.FixedEpochs(4, 2))
    with pytest.raises(ValueError, match=r"subject.steps=6: must equal the claim's steps=4"):
        examine(mechanism, audit.Replay(claim(bg.identity(6), bg.FixedEpochs(6, 2))))
    with pytest.raises(ValueError, match=r"grad_sample_mode='magic'"):
        audit.Training(mechanism, "magic")
    with pytest.raises(ValueError, match=r"clip_norm=0.0"):
        audit.Training(mechanism, clip_norm=0.0)
    long = bg.Mechanism(bg.lambda_cgd(5000, 0.9), bg.FixedEpochs(5000, 2), 1.0)
    with pytest.raises(bg.Unsupported, match=r"audit.*lambda_cgd.*5000"):
        audit.examine(long, delta=DELTA)


def test_progress_is_told():
    told = []
    mechanism = claim(bg.identity(4), bg.FixedEpochs(4, 2))
    examine(mechanism, repetitions=5000, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (5000, 5000)


def test_the_documented_example_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(code, {})
    first, second, third = (line.split() for line in capsys.readouterr().out.splitlines())
    # at the default confidence one true claim in a thousand is refuted: too many to insist on it here
    assert second[0] == "refuted" and {first[0], third[0]} <= {"upheld", "weak", "refuted"}
