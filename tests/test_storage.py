"""Strategies as files: every one comes back in every bit, and what isn't whole is refused."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest

import bluegrad as bg
from contracts.test_strategy_contract import EXAMPLES

EVERY = [pytest.param(make, id=f"{name}-{i}") for name, makes in EXAMPLES.items() for i, make in enumerate(makes)]


@pytest.mark.parametrize("make", EVERY)
def test_every_strategy_comes_back_bit_for_bit(make, tmp_path):
    strategy = make()
    bg.save_strategy(strategy, tmp_path / "c.npz")
    again = bg.load_strategy(tmp_path / "c.npz")
    assert type(again) is type(strategy) and repr(again) == repr(strategy)
    assert again.describe() == strategy.describe()
    assert (again.dense() == strategy.dense()).all() and (again.causal() == strategy.causal()).all()
    law = bg.SinglePass(strategy.steps)
    assert bg.Mechanism(again, law, 1.0).fingerprint == bg.Mechanism(strategy, law, 1.0).fingerprint


def test_the_record_of_an_optimisation_travels(tmp_path):
    @dataclass(frozen=True)
    class Record:
        loss: str
        value: float

    strategy = bg.lambda_cgd(10, 0.5)
    object.__setattr__(strategy, "optimization", Record("rmse", 1.25))
    bg.save_strategy(strategy, tmp_path / "c.npz")
    assert bg.load_strategy(tmp_path / "c.npz").optimization == {"loss": "rmse", "value": 1.25}


def rewrite(path, change):
    """The file with its metadata and arrays changed, the digest left or made right again by the change."""
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    change(meta, arrays)
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    np.savez(path, meta=text, **arrays)


def spoilt(meta, arrays):
    arrays["0.given"][1] += 1e-9


def renamed(meta, arrays):
    meta["levels"][0]["plain"]["parameters"]["lam"] = 0.4


def shortened(meta, arrays):
    meta["levels"][0]["plain"]["steps"] = 5


def without_noise(meta, arrays):
    del arrays["0.given_noise"]


@pytest.mark.parametrize(("change", "words"), [
    (spoilt, "damaged"), (without_noise, "damaged"), (renamed, "another strategy"), (shortened, "another strategy"),
    (lambda meta, arrays: meta.update(format="other"), "isn't a bluegrad-strategy-1 file"),
    (lambda meta, arrays: meta.update(levels=[]), "must not be empty"),
    (lambda meta, arrays: meta["levels"][0].update(kind="magic"), "lacks a part"),
    (lambda meta, arrays: meta["levels"][0].update(plain={}), "lacks a part"),
    (lambda meta, arrays: meta.pop("levels"), "lacks a part"),
])  # fmt: skip
def test_a_file_that_is_not_whole_is_refused(change, words, tmp_path):
    path = tmp_path / "c.npz"
    bg.save_strategy(bg.lambda_cgd(10, 0.5), path)
    rewrite(path, change)
    with pytest.raises(ValueError, match=words):
        bg.load_strategy(path)


def test_noise_that_is_not_the_inverse_is_refused(tmp_path):
    """Sensitivity from C and noise from another N: the guarantee would be about nothing."""
    from bluegrad.strategy import storage

    def forged(meta, arrays):
        arrays["0.given_noise"] = np.array([1.0, -0.4])
        meta["digest"] = storage._digest(arrays)

    path = tmp_path / "c.npz"
    bg.save_strategy(bg.lambda_cgd(10, 0.5), path)
    rewrite(path, forged)
    with pytest.raises(ValueError, match="isn't the inverse"):
        bg.load_strategy(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 half a zip"])
def test_what_is_no_archive_is_refused(content, tmp_path):
    path = tmp_path / "c.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="isn't a strategy file"):
        bg.load_strategy(path)


def test_an_archive_of_pickles_is_refused(tmp_path):
    path = tmp_path / "c.npz"
    np.savez(path, meta=np.array([{"format": "bluegrad-strategy-1"}], dtype=object))
    with pytest.raises(ValueError, match="isn't a strategy file"):
        bg.load_strategy(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("other.txt", "x")
    with pytest.raises(ValueError, match="isn't a strategy file"):
        bg.load_strategy(path)


def test_only_strategies_of_ours_are_saved(tmp_path):
    class Own(bg.Strategy):
        steps = 2

        def dense(self):
            return np.eye(2)

        def prefix(self, steps):
            return self

        def describe(self):
            return {"name": "own", "steps": 2}

    for what in (Own(), "C", None):
        with pytest.raises(ValueError, match="strategy="):
            bg.save_strategy(what, tmp_path / "c.npz")
    with pytest.raises(OSError, match="nowhere"):
        bg.save_strategy(bg.identity(2), tmp_path / "nowhere" / "c.npz")
    assert list(tmp_path.iterdir()) == []
