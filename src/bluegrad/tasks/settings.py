"""What a training run of the command line is asked to do; saved beside its results."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from bluegrad import _checks, accounting
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey
from bluegrad.tasks.laws import Sampling
from bluegrad.tasks.mechanisms import build_strategy, check_name, choose_law


@dataclass(frozen=True)
class Settings:
    """All options of a run; plain values, checked here.

    Raises:
        ValueError: an option out of range, named with its value, rule and fix.
    """

    mechanism: str = "lambda-cgd"
    parameter: float | None = None
    epsilon: float = 8.0
    delta: float = 1e-5
    epochs: int = 10
    batch_size: int = 200
    lr: float = 1.0
    momentum: float = 0.0
    clip: float = 1.0
    seed: int = 0
    sampling: str = "fixed"
    period: int | None = None
    grad_sample_mode: str = "hooks"
    physical_batch_size: int = 250
    data: str | None = None
    test_data: str | None = None

    def __post_init__(self) -> None:
        check_name(self.mechanism)
        _checks.epsilon(self.epsilon)
        _checks.delta(self.delta)
        _checks.integer("epochs", self.epochs, minimum=1, fix="give the number of passes over the data")
        _checks.integer("batch_size", self.batch_size, minimum=1, fix="give the mean number of examples a step")
        _checks.real("lr", self.lr, low=0.0, low_open=True, fix="give the learning rate")
        _checks.real("momentum", self.momentum, low=0.0, high=1.0, high_open=True, fix="commonly 0 or 0.9")
        _checks.real("clip", self.clip, low=0.0, low_open=True, fix="give the norm that gradients are clipped to")
        _checks.integer("seed", self.seed, minimum=0, fix="it sets initial weights and data order, not the noise")
        Sampling(self.sampling, 1, 1, 2.0**-30, self.period)  # how many groups fit shows with the data
        _checks.choice("grad_sample_mode", self.grad_sample_mode, ("hooks", "functorch", "ghost"))
        _checks.integer("physical_batch_size", self.physical_batch_size, minimum=1, fix="give what fits in memory")
        if self.test_data is not None and self.data is None:
            raise _checks.fail("test_data", self.test_data, "goes with data of your own", "give data as well")

    def batches(self, examples: int) -> Sampling:
        """How `examples` examples are drawn in `epochs` epochs of ceil(examples / batch_size) steps.

        Raises:
            ValueError: a batch larger than the data, or a period that doesn't fit.
        """
        if self.batch_size > examples:
            raise _checks.fail(
                "batch_size", self.batch_size, f"is larger than the data set of {examples} examples",
                "use a smaller batch",
            )  # fmt: skip
        steps = self.epochs * -(-examples // self.batch_size)
        return Sampling(self.sampling, steps, self.epochs, self.batch_size / examples, self.period)

    def build(self, examples: int) -> Mechanism:
        """The calibrated mechanism for this many examples.

        Raises:
            ValueError: see `batches` and `bluegrad.calibrate`.
            Unsupported: a law that isn't proved for the mechanism.
        """
        privacy = (self.epsilon, self.delta)
        law = choose_law(self.mechanism, self.parameter, self.batches(examples), privacy)
        c = build_strategy(self.mechanism, self.parameter, law, privacy)
        return accounting.calibrate(c, law, epsilon=self.epsilon, delta=self.delta)

    def sampling_key(self) -> NoiseKey | None:
        """Order of a fixed partition, from the seed: no guarantee rests on it. None (fresh) where one does."""
        if self.sampling != "fixed":
            return None
        return NoiseKey(hashlib.sha256(f"bluegrad data order {self.seed}".encode()).digest()[:16])
