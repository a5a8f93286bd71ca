"""Noise shared out among processes: the parts are the noise, bit for bit, whoever draws them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bluegrad as bg
from bluegrad.noise.stream import Shard
from noise_streams import EVERY, LONG, flat, stream

KEY = bg.NoiseKey.from_hex("0123456789abcdef" * 2)


def shards(strategy, ranks, **options):
    return [stream(strategy, key=KEY, shard=Shard(rank, ranks), **options) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 40])
@pytest.mark.parametrize("make", EVERY)
def test_parts_add_up_to_the_whole_bit_for_bit(make, ranks):
    strategy = make()
    whole, parts = stream(strategy, key=KEY), shards(strategy, ranks)
    for _ in range(min(strategy.steps, 8)):
        expected = flat(whole.next())
        drawn = [flat(part.next()) for part in parts]
        assert (sum(drawn) == expected).all()
        assert (sum((x != 0.0).astype(int) for x in drawn) <= 1).all(), "an element is one process's"


@pytest.mark.parametrize("name", LONG)
def test_another_number_of_processes_goes_on_with_the_noise(name):
    """What processes save together is what one would save, and any number of them continues from it."""
    strategy = LONG[name]()
    whole, parts = stream(strategy, key=KEY), shards(strategy, 3)
    for _ in range(strategy.steps // 2):
        whole.next(), [part.next() for part in parts]
    state = whole.state_dict()
    saved = [part._source.buffers() for part in parts]
    for leaf, arrays in enumerate(state["buffers"]):
        for row, array in enumerate(arrays):
            assert (np.concatenate([buffers[leaf][row] for buffers in saved]) == array.numpy()).all()
    continued = shards(strategy, 2)
    for part in continued:
        part.load_state_dict(state)
    for _ in range(3):
        assert (sum(flat(part.next()) for part in continued) == flat(whole.next())).all()


def test_a_part_keeps_a_part_of_the_history():
    strategy = bg.square_root(bg.PrefixSum(40))
    parts = shards(strategy, 4)
    sizes = [sum(rows.size for rows in part._source._rows) for part in parts]
    whole = sum(rows.size for rows in stream(strategy, key=KEY)._source._rows)
    assert sum(sizes) == whole and max(sizes) < 0.4 * whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_dtypes_and_layouts_have_the_same_parts(dtype):
    mechanism = bg.Mechanism(bg.lambda_cgd(6, 0.5), bg.SinglePass(6), noise_multiplier=1.0)
    like = torch.zeros(6, 4, dtype=dtype).T  # not contiguous
    streams = [
        bg.NoiseStream(mechanism, [like], clip_norm=1.0, key=KEY, shard=Shard(rank, ranks))
        for rank, ranks in ((0, 1), (0, 2), (1, 2))
    ]
    for _ in range(6):
        out = [torch.zeros(6, 4, dtype=dtype).T for _ in streams]
        for part, tensor in zip(streams, out):
            part.add_to([tensor])
        assert (out[0] == out[1] + out[2]).all() and out[0].abs().min() > 0.0
