"""Federations of tables and arrays in memory are split anew in every draw of a comparison, as a file would be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.content import hash_contents
from deploy.test_placement import people

SETTINGS: dict[str, Any] = {"rounds": 1, "draws": 3, "seeds": [0], "controls": False}
WISHES: dict[str, Any] = {"drop": "id", "categories": "onehot", "impute": "mean", "scale": "standard"}


def test_a_table_in_memory_is_drawn_as_its_file_is(tmp_path: Path) -> None:
    people(range(4)).to_csv(tmp_path / "people.csv", index=False)
    made = ct.Federation.from_frame(people(range(4)), client="site", label="ill", name="people", **WISHES)
    spec = f"csv('{tmp_path / 'people.csv'}',label=ill,client=site,{','.join(f'{k}={v}' for k, v in WISHES.items())})"
    assert made.redraw is not None
    for draw in (0, 1, 2):
        one, other = hash_contents(made.redraw(draw)), hash_contents(ct.load(spec, draw))
        assert {k: v for k, v in one.items() if k != "name"} == {k: v for k, v in other.items() if k != "name"}
    sources: tuple[ct.Federation | str, ...] = (made, spec)
    mine, theirs = (
        ct.compare(["fedsim(clusters=2)"], data=data, out=tmp_path / str(place), **SETTINGS).table() for place, data in enumerate(sources)
    )
    assert mine["last10"].tolist() == theirs["last10"].tolist()
    assert str(mine["repetitions"][0]) == "3 draws, 1 seed each"


def test_what_has_a_split_of_its_own_or_was_changed_is_not_drawn_again(tmp_path: Path) -> None:
    x, client = np.random.default_rng(0).normal(size=(24, 2)), ["a", "b", "c"] * 8
    split = ["train", "train", "test", "train"] * 6
    given = ct.Federation.from_arrays(x, np.arange(24) % 2, client, split=split)
    whole = ct.Federation.from_arrays(x, np.arange(24) % 2, client)
    changed = whole.replace(x=whole.x + 1)
    for data in (given, changed):
        with pytest.raises(UserError, match="cannot be redrawn"):
            ct.compare(["fedsim(clusters=2)"], data=data, out=tmp_path / "none", **SETTINGS)


def test_known_groups_stay_with_the_clients_in_every_draw(tmp_path: Path) -> None:
    frame = people(range(4)).assign(kind=["even" if site % 2 == 0 else "odd" for site in range(4) for _ in range(40)])
    by_column = ct.Federation.from_frame(frame, client="site", label="ill", groups="kind", **WISHES)
    by_name = ct.Federation.from_frame(
        frame.drop(columns="kind"), client="site", label="ill", groups={"s0": "even", "s1": "odd", "s2": "even", "s3": "odd"}, **WISHES
    )
    plain = ct.Federation.from_frame(frame.drop(columns="kind"), client="site", label="ill", **WISHES).replace(
        groups=np.array([0, 1, 0, 1])
    )
    for made in (by_column, by_name, plain):
        assert made.redraw is not None
        assert made.groups is not None
        assert made.groups.tolist() == made.redraw(1).groups.tolist() == [0, 1, 0, 1]  # type: ignore[union-attr]
        assert "kind" not in made.provenance["features"]
    methods = ct.compare("fedgroup(groups=2)", data=by_column, out=tmp_path / "known", rounds=1, draws=2, seeds=[0]).table()["method"]
    assert "fedgroup(groups=2,assign=oracle)" in set(methods)
    with pytest.raises(UserError, match="lack the client 's3'"):
        ct.Federation.from_frame(
            frame, client="site", label="ill", groups={"s0": 0, "s1": 1, "s2": 0}, drop=("id", "kind"), categories="onehot", impute="mean"
        )
