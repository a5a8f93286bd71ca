"""The stream of every strategy: its law, resumption at any step, and the places where its history may live."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import bluegrad as bg
from bluegrad.noise import kernel
from bluegrad.noise.place import Device, Host, choose_places
from bluegrad.noise.source import choose_source
from noise_streams import EVERY, LONG, SHAPES, flat, stream


@pytest.mark.parametrize("make", EVERY)
def test_a_stream_is_the_causal_factor_times_its_raw_noise(make):
    strategy = make()
    ours = stream(strategy)
    scale = ours.mechanism.noise_scale(0.5)
    raw = np.array([
        np.concatenate([
            kernel.normals(bytes.fromhex("0123456789abcdef" * 2), step=t, leaf=leaf, start=0, count=int(np.prod(shape)))
            for leaf, shape in enumerate(SHAPES)
        ])
        for t in range(strategy.steps)
    ])  # fmt: skip
    expected = scale * strategy.causal() @ raw
    found = np.array([flat(ours.next()) for _ in range(strategy.steps)])
    assert found == pytest.approx(expected, abs=3e-5 * np.abs(expected).max())
    with pytest.raises(ValueError, match=f"steps={strategy.steps}"):
        ours.next()


@pytest.mark.parametrize("make", EVERY)
def test_a_stream_resumes_bit_for_bit_at_every_step(make):
    strategy = make()
    whole = stream(strategy)
    states, rows = [whole.state_dict()], []
    for _ in range(strategy.steps):
        rows.append(flat(whole.next()))
        states.append(whole.state_dict())
    for t in {0, 1, strategy.steps // 2, strategy.steps - 1, strategy.steps}:
        resumed = stream(strategy, key=bg.NoiseKey.generate())
        resumed.load_state_dict(states[t])
        for row in rows[t:]:
            assert (flat(resumed.next()) == row).all()


@pytest.mark.parametrize("name", LONG)
def test_the_numbers_do_not_depend_on_where_the_history_is(name, tmp_path):
    strategy = LONG[name]()
    streams = [stream(strategy, history=place) for place in ("host", "device", tmp_path, str(tmp_path))]
    for _ in range(strategy.steps):
        one, *others = [flat(s.next()) for s in streams]
        assert all((one == other).all() for other in others)
    assert os.listdir(tmp_path) == [], "noise is as secret as the data: no file may have a name"


@pytest.mark.parametrize("name", LONG)
def test_a_device_adds_the_same_numbers(name):
    strategy, sizes = LONG[name](), [40, 7]
    key = bg.NoiseKey.generate()
    host = choose_source(strategy, [range(size) for size in sizes], 2.0, key, [Host(), Host()])
    device = choose_source(strategy, [range(size) for size in sizes], 2.0, key, [Device(torch.device("cpu"))] * 2)
    for t in range(strategy.steps):
        for leaf, size in enumerate(sizes):
            one, other = np.ones(size, dtype=np.float32), torch.ones(size)
            host.add(one, t, leaf, 0)
            device.add(other, t, leaf, 0)
            assert (other.numpy() == one).all()
        host.finish(t)
        device.finish(t)
        if t == strategy.steps // 2:
            saved = device.buffers()
            assert [[x.dtype for x in leaf] for leaf in saved] == [[np.float32] * device.rows(t + 1)] * 2
            device = choose_source(
                strategy, [range(size) for size in sizes], 2.0, key, [Device(torch.device("cpu"))] * 2
            )
            device.restore(saved)


def test_a_stream_drops_noise_that_no_later_row_needs():
    strategy = bg.stamped(bg.square_root(bg.PrefixSum(20)), 50)
    ours = stream(strategy)
    assert max(rows.shape[0] for rows in ours._source._rows) == 20
    for _ in range(strategy.steps):
        ours.next()


@pytest.mark.parametrize("history", ["disk", 3, None, "no/such/folder"])
def test_an_unknown_history_is_refused(history):
    with pytest.raises(ValueError, match=r"history=.*existing folder"):
        stream(bg.tree_aggregation(4), history=history)


def test_a_history_beyond_the_machine_is_refused_before_training(tmp_path):
    strategy = bg.square_root(bg.PrefixSum(1 << 22))
    mechanism = bg.Mechanism(strategy, bg.SinglePass(strategy.steps), noise_multiplier=1.0)
    like = [torch.zeros(1).expand(1 << 24)]
    with pytest.raises(ValueError, match=r"history='host': needs .* GiB .*approximated"):
        bg.NoiseStream(mechanism, like, clip_norm=1.0, key=bg.NoiseKey.generate())
    with pytest.raises(OSError, match=r"space|large"):
        bg.NoiseStream(mechanism, like, clip_norm=1.0, key=bg.NoiseKey.generate(), history=tmp_path)
    assert os.listdir(tmp_path) == []


def test_places_follow_the_leaves():
    places = choose_places("device", [torch.device("cpu"), torch.device("meta")])
    assert [type(place).__name__ for place in places] == ["Host", "Device"]
