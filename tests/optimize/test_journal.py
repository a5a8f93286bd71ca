"""An interrupted search continues where it was, and never from another search's values."""

from __future__ import annotations

import pytest

import bluegrad as bg
from bluegrad.optimize import Journal

N, LAW = 200, bg.FixedEpochs(200, 5)
SEARCHES = {
    "toeplitz": lambda **more: bg.optimize.toeplitz(bg.PrefixSum(N), LAW, 6, **more),
    "toeplitz, largest error": lambda **more: bg.optimize.toeplitz(bg.PrefixSum(N), LAW, 60, loss="max_error", **more),
    "buffered": lambda **more: bg.optimize.buffered_toeplitz(bg.PrefixSum(N), LAW, 2, **more),
    "banded": lambda **more: bg.optimize.banded(bg.PrefixSum(N), LAW, 5, **more),
    "banded inverse": lambda **more: bg.optimize.banded_inverse(bg.PrefixSum(N), LAW, 5, **more),
    "dense": lambda **more: bg.optimize.dense(bg.PrefixSum(N), LAW, tolerance=1e-9, **more),
}


class Stop(Exception):
    """What a user's interruption does to a search."""


def interrupted(search, path, after):
    calls = []

    def progress(*now):
        calls.append(now)
        if len(calls) > after:
            raise Stop

    with Journal(path) as journal, pytest.raises(Stop):
        search(progress=progress, journal=journal)
    return journal.computed


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("cut", [0, 1, 13, 40])
def test_a_search_continues_bit_for_bit(name, cut, tmp_path):
    search, path = SEARCHES[name], tmp_path / "search"
    whole = search()
    done = interrupted(search, path, after=9)
    assert done > 5
    if cut:  # killed in the middle of writing
        path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path) as journal:
        again = search(journal=journal)
    assert again.describe() == whole.describe()
    assert journal.replayed == done - (cut > 0) and journal.computed > 0
    with Journal(path) as journal:
        third = search(journal=journal)
    assert journal.computed == 0 and third.describe() == whole.describe()


def test_values_of_another_search_are_not_taken(tmp_path):
    path = tmp_path / "search"
    interrupted(SEARCHES["toeplitz"], path, after=5)
    others = [
        lambda j: bg.optimize.toeplitz(bg.Sgd(N, momentum=0.5), LAW, 6, journal=j),
        lambda j: bg.optimize.toeplitz(bg.PrefixSum(N), bg.FixedEpochs(N, 10), 6, journal=j),
        lambda j: bg.optimize.toeplitz(bg.PrefixSum(N), LAW, 6, loss="max_error", journal=j),
        lambda j: bg.optimize.toeplitz(bg.PrefixSum(N), LAW, 7, journal=j),
    ]
    for other in others:
        before = path.read_bytes()
        with Journal(path) as journal:
            found = other(journal)
        assert journal.replayed == 0
        assert found.describe() == other(None).describe()
        path.write_bytes(before)


def test_a_spoilt_value_is_computed_again(tmp_path):
    path = tmp_path / "search"
    interrupted(SEARCHES["toeplitz"], path, after=5)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with Journal(path) as journal:
        found = SEARCHES["toeplitz"](journal=journal)
    assert found.describe() == SEARCHES["toeplitz"]().describe() and journal.computed > 0


def test_what_is_no_journal_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(ValueError, match=r"path=.*isn't the journal of a search"):
        Journal(path)
    assert path.read_text() == "keep me"
    with pytest.raises(ValueError, match=r"journal='here'"):
        bg.optimize.toeplitz(bg.PrefixSum(4), bg.SinglePass(4), 2, journal="here")
    with pytest.raises(OSError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "search")
