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


@pytest.mark.parametrize("make", [lambda: bg.toeplitz([1.0, 0.5], 6), lambda: bg.tree_aggregation(6).prefix(5),
                                  lambda: bg.column_normalized(bg.lambda_cgd(6, 0.5))])  # fmt: skip
def test_flipped_and_lost_bytes_are_refused_or_harmless(make, tmp_path):
    """Whatever numpy and zipfile raise on the way."""
    path, rng = tmp_path / "c.npz", np.random.default_rng(0)
    whole = bg.save_strategy(make(), path).read_bytes()
    places = [*range(30), *range(len(whole) - 120, len(whole)), *rng.integers(len(whole), size=100)]
    for place in places:  # headers, directory, the rest
        for value in (0, 8, 255):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            _refused_or_the_same(path, make())
        path.write_bytes(whole[:place])
        _refused_or_the_same(path, make())


def _refused_or_the_same(path, strategy):
    try:
        again = bg.load_strategy(path)
    except ValueError:
        return
    assert again.describe() == strategy.describe() and (again.dense() == strategy.dense()).all()


def _rewritten(path, strategy, change, save=np.savez):
    """The strategy's file with its arrays changed, and the digest of what they are now."""
    from bluegrad.strategy.storage import _digest

    with np.load(bg.save_strategy(strategy, path)) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    arrays = {name: change(x) for name, x in arrays.items()}
    meta["digest"] = _digest(arrays)
    save(path, meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)
    return path


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_, ">f8"])
def test_numbers_of_another_kind_are_refused(kind, tmp_path):
    path = _rewritten(tmp_path / "c.npz", bg.dense(np.tri(4)), lambda x: x.astype(kind))
    with pytest.raises(ValueError, match="is damaged"):
        bg.load_strategy(path)


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(tmp_path):
    path = _rewritten(tmp_path / "c.npz", bg.dense(np.tri(4)), np.array, np.savez_compressed)
    with pytest.raises(ValueError, match="isn't a strategy file"):
        bg.load_strategy(path)


@pytest.mark.parametrize("make", [bg.toeplitz, bg.banded_inverse_toeplitz])
def test_coefficients_other_than_those_described_are_refused(make, tmp_path):
    """Equal descriptions are equal mechanisms: noise would go on under another strategy's name."""
    path = _rewritten(tmp_path / "c.npz", make([1.0, 0.5], 6), lambda x: x * [1.0, 0.5])
    with pytest.raises(ValueError, match="describes another strategy"):
        bg.load_strategy(path)
    short = make([1.0, 0.5, 0.25, 0.125], 6).prefix(3)
    again = bg.load_strategy(bg.save_strategy(short, path))
    assert again.describe() == short.describe() and (again.dense() == short.dense()).all()
