"""Federations of tables and arrays in memory are split anew in every draw of a comparison, as a file would be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.core.errors import UserError
from coterie.data.content import contents
from deploy.test_placing import people

SETTINGS: dict[str, Any] = {"rounds": 1, "draws": 3, "seeds": [0], "controls": False}
WISHES: dict[str, Any] = {"drop": "id", "categories": "onehot", "impute": "mean", "scale": "standard"}


def test_a_table_in_memory_is_drawn_as_its_file_is(tmp_path: Path) -> None:
    people(range(4)).to_csv(tmp_path / "people.csv", index=False)
    made = ct.Federation.from_frame(people(range(4)), client="site", label="ill", name="people", **WISHES)
    spec = f"csv('{tmp_path / 'people.csv'}',label=ill,client=site,{','.join(f'{k}={v}' for k, v in WISHES.items())})"
    assert made.redraw is not None
    for draw in (0, 1, 2):
        one, other = contents(made.redraw(draw)), contents(ct.load(spec, draw))
        assert {k: v for k, v in one.items() if k != "name"} == {k: v for k, v in other.items() if k != "name"}
    mine, theirs = (
        ct.compare(["fedsim(clusters=2)"], data=data, out=tmp_path / str(place), **SETTINGS).table()
        for place, data in enumerate((made, spec))
    )
    assert mine["last10"].tolist() == theirs["last10"].tolist()
    assert str(mine["repetitions"][0]) == "3 draws of 1 seed"


def test_what_has_a_split_of_its_own_or_was_changed_is_not_drawn_again(tmp_path: Path) -> None:
    x, client = np.random.default_rng(0).normal(size=(24, 2)), ["a", "b", "c"] * 8
    split = ["train", "train", "test", "train"] * 6
    given = ct.Federation.from_arrays(x, np.arange(24) % 2, client, split=split)
    changed = ct.Federation.from_arrays(x, np.arange(24) % 2, client).with_(groups=np.array([0, 1, 0]))
    for data in (given, changed):
        with pytest.raises(UserError, match="cannot be redrawn"):
            ct.compare(["fedsim(clusters=2)"], data=data, out=tmp_path / "none", **SETTINGS)
