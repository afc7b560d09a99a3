"""Samples that are drawn: the same whether they are held or mapped, and no more of them than was asked for."""

from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.content import hash_contents


def test_mapped_samples_are_those_that_are_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = load("synthetic(1,1,clients=7,validation=0.1)", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("coterie.data.store.IN_MEMORY", 1)
    mapped = load("synthetic(1,1,clients=7,validation=0.1)", 3)
    assert isinstance(mapped.x, np.memmap)
    assert hash_contents(mapped) == hash_contents(held)
    times = [path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")]
    again = load("synthetic(1,1,clients=7,validation=0.1)", 3)
    assert hash_contents(again) == hash_contents(held)
    assert [path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")] == times  # drawn once
    assert hash_contents(load("synthetic(1,1,clients=7)", 4)) != hash_contents(held)


def test_a_study_of_mapped_samples_finds_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found() -> object:
        return ct.study("fedavg", data="synthetic(0,0,clients=4,most=20)", rounds=1).table()["final"].tolist()

    held = found()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("coterie.data.store.IN_MEMORY", 1)
    assert found() == held


def test_no_client_has_more_than_most_and_they_are_the_first_of_those_it_would_have() -> None:
    whole, some = load("synthetic(0,0,clients=5)", 0), load("synthetic(0,0,clients=5,most=30)", 0)
    for client in range(5):
        mine = np.concatenate([some.train[client], some.test[client]])
        theirs = np.concatenate([whole.train[client], whole.test[client]])[:30]
        assert len(mine) == 30
        np.testing.assert_array_equal(some.x[mine], whole.x[theirs])
        np.testing.assert_array_equal(some.y[mine], whole.y[theirs])
    assert some.name == "synthetic(0,0,clients=5,most=30)"
    with pytest.raises(UserError, match="most=1 should be 2 or more"):
        load("synthetic(0,0,most=1)", 0)
