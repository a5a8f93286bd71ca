"""The ledger: all that a run's guarantee rests on, without anything secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bluegrad
from bluegrad import accounting
from bluegrad._files import write_atomically
from bluegrad.mechanism import Mechanism
from bluegrad.training.optimizer import CorrelatedNoise

_NOT_COVERED = (
    "choices made by looking at the same data (architecture, hyperparameters, early stopping), test accuracy, "
    "training loss and the count of non-finite gradients that are shown while training, and runs before this one"
)


def entries(mechanism: Mechanism, optimizer: CorrelatedNoise, delta: float) -> dict[str, Any]:
    """Plain data (JSON) about a run: the mechanism, its guarantee, and what was done so far.

    Args:
        mechanism: what is accounted.
        optimizer: what was done.
        delta: failure probability of the guarantee to state.

    Returns:
        A dictionary without keys, seeds or data.
    """
    bound = accounting.epsilon(mechanism, delta=delta)
    return {
        "format": "bluegrad-ledger-1",
        "bluegrad": bluegrad.__version__,
        "guarantee": {
            "epsilon": float(bound),
            "delta": delta,
            "law": bound.law,
            "method": bound.method,
            "failure_probability": bound.failure_probability,
            "neighbours": mechanism.participation.describe()["neighbours"],
            "covers": "the weights after every step, all of them together",
            "does_not_cover": _NOT_COVERED,
        },
        "mechanism": mechanism.describe(),
        "fingerprint": mechanism.fingerprint,
        "clip_norm": optimizer.stream.clip_norm,
        "noise_standard_deviation": mechanism.noise_scale(optimizer.stream.clip_norm),
        "noise_generator": optimizer.stream.generator,
        "examples": optimizer.batches.size,
        "expected_batch_size": optimizer.batches.expected_batch_size,
        "steps_planned": mechanism.steps,
        "steps_taken": optimizer.steps_taken,
    }


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write a ledger as JSON, whole or not at all.

    Raises:
        OSError: the file can't be written.
    """
    text = json.dumps(content, indent=2, sort_keys=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
