"""Streams of every strategy, for the tests of noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bluegrad as bg
from contracts.test_strategy_contract import EXAMPLES

SHAPES = [(3, 5), (1,), (2, 0), (33,)]
LONG = {
    "square root": lambda: bg.square_root(bg.PrefixSum(40)),
    "twenty bands of noise": lambda: bg.banded_inverse_toeplitz(np.linspace(1, -0.2, 20), 40),
    "restarted": lambda: bg.stamped(bg.square_root(bg.PrefixSum(20)), 2),
    "fourier": lambda: bg.fourier(40, decoder="optimal"),
    "tree": lambda: bg.tree_aggregation(40),
    "full tree": lambda: bg.tree_aggregation(40, decoder="full"),
    "buffered": lambda: bg.buffered_toeplitz(40, [0.99, 0.5], [0.1, 0.3]),
    "banded": lambda: bg.toeplitz([1.0, 0.5, 0.25], 40),
    "lambda": lambda: bg.column_normalized(bg.lambda_cgd(40, 0.9)),
}
EVERY = [pytest.param(make, id=f"{name}-{i}") for name, makes in EXAMPLES.items() for i, make in enumerate(makes)]


def stream(strategy: bg.Strategy, **options) -> bg.NoiseStream:
    mechanism = bg.Mechanism(strategy, bg.SinglePass(strategy.steps), noise_multiplier=1.5)
    key = options.pop("key", bg.NoiseKey.from_hex("0123456789abcdef" * 2))
    return bg.NoiseStream(mechanism, [torch.zeros(s) for s in SHAPES], clip_norm=0.5, key=key, **options)


def flat(noise: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([x.reshape(-1) for x in noise]).numpy()
