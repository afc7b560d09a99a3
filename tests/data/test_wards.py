"""Several sources at one site: joined by name, with one preparation; what differs is named with its ward."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.data.prepare import get_preparation
from coterie.data.wards import join_wards, merge_clients, parse_sources, plan_merges
from coterie.deploy.site.data import SiteSettings

HOW = "label=ill,scale=standard,impute=mean,categories=onehot"


def frame(seed: int, rows: int = 30, **changes: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(30, 80, rows).astype(float)
    age[:1] = np.nan
    made = {"age": age, "ward": np.where(np.arange(rows) % 2, "a", "b"), "ill": np.where(rng.random(rows) < 0.5, "yes", "no")}
    return pd.DataFrame({**made, **changes})


def settings(folder: Path, how: str = HOW, **frames: pd.DataFrame) -> SiteSettings:
    for name, one in frames.items():
        one.to_csv(folder / f"{name}.csv", index=False)
    wards = parse_sources([f"csv('{folder / f'{name}.csv'}',{how})" for name in frames])
    return SiteSettings(", ".join(wards), wards=wards)


def test_sources_are_named_by_themselves_or_by_their_file() -> None:
    assert parse_sources(["icu=csv(a.csv,label=ill)", "data/b.csv", "csv('c.csv.gz',label=ill)", "x = heart"]) == {
        "icu": "csv(a.csv,label=ill)",
        "b": "data/b.csv",
        "c": "csv('c.csv.gz',label=ill)",
        "x": "heart",
    }
    for sources, sentence in (
        (["heart"], r"The source 'heart' has no name: write NAME=heart\."),
        (["a=heart", "a=digits"], r"Two sources are called 'a': name each, as in a-1=heart\."),
        (["a+b=heart"], r"A ward cannot be called 'a\+b'"),
    ):
        with pytest.raises(UserError, match=sentence):
            parse_sources(sources)


def test_wards_are_prepared_as_one_table_with_a_column_of_clients(tmp_path: Path) -> None:
    """Of other orders of columns, too, and where a ward lacks a class or has a category of its own."""
    one, two = frame(1), frame(2, 20, ward="c")
    one.loc[:9, "ill"] = "maybe"
    made = settings(tmp_path, one=one, two=two[["ill", "ward", "age"]]).load("north")
    assert made.ids == ("north/one", "north/two")
    whole = pd.concat([one.assign(client="north/one"), two.assign(client="north/two")])
    whole.to_csv(tmp_path / "whole.csv", index=False)
    flat = load(f"csv('{tmp_path / 'whole.csv'}',{HOW},client=client)")
    assert made.classes == flat.classes
    for k in range(2):
        np.testing.assert_allclose(made.x[made.train[k]], flat.x[flat.train[k]], atol=1e-6)
        assert (made.y[made.test[k]] == flat.y[flat.test[k]]).all()
    (found,), (known,) = (get_preparation(each).scalings.values() for each in (made, flat))  # type: ignore[union-attr]
    np.testing.assert_allclose(found.mean, known.mean)


def test_a_wards_clients_stand_behind_its_name(tmp_path: Path) -> None:
    one = frame(1).assign(doctor=lambda rows: np.where(rows.index % 2, "x", "y"))
    one.to_csv(tmp_path / "one.csv", index=False)
    frame(2).to_csv(tmp_path / "two.csv", index=False)
    wards = {"one": f"csv('{tmp_path}/one.csv',{HOW},client=doctor)", "two": f"csv('{tmp_path}/two.csv',{HOW})"}
    made = SiteSettings("", wards=wards)
    assert made.load("north").ids == ("north/one/x", "north/one/y", "north/two")
    assert set(made.read_table("north").clients or ()) == {"north/one/x", "north/one/y", "north/two"}
    assert SiteSettings("", ("north/two",), wards=wards).load("north").ids == ("north/two",)
    with pytest.raises(UserError, match=r"have no client 'two': did you mean 'north/two'"):
        SiteSettings("", ("two",), wards=wards).load("north")


def test_samples_without_columns_are_joined_by_their_shape() -> None:
    rng = np.random.default_rng(0)
    a, b, wide = (
        Federation.from_arrays(rng.normal(size=(20, *shape)), np.arange(20) % 3, ["x"] * 10 + ["y"] * 10)
        for shape in ((4, 4), (4, 4), (5, 5))
    )
    made = join_wards("north", {"a": a, "b": b})
    assert made.ids == ("north/a/x", "north/a/y", "north/b/x", "north/b/y")
    assert (made.x[made.train[2]] == b.x[b.train[0]]).all()
    with pytest.raises(UserError, match=r"Ward 'wide' has samples of shape 5x5, ward 'a' 4x4\."):
        join_wards("north", {"a": a, "wide": wide})
    with pytest.raises(UserError, match=r"The wards 'a' and 'b' hold the same samples"):
        join_wards("north", {"a": a, "b": a})


FAULTS = {
    "a column of another name": (
        frame(2).rename(columns={"age": "aeg"}),
        HOW,
        r"Ward 'two' lacks the column 'age' of ward 'one': did you mean 'aeg'",
    ),
    "a column more": (
        frame(2, pulse=1.0),
        HOW,
        r"Ward 'two' has a column 'pulse' that ward 'one' does not know: drop it with drop='pulse'",
    ),
    "the same samples": (frame(1), HOW, r"The wards 'one' and 'two' hold the same samples: give each its own file\."),
    "no rows": (frame(2, 0), HOW, r"Ward 'two': .*two\.csv holds no samples"),
    "another preparation": (
        frame(2),
        "label=ill,impute=mean,categories=onehot",
        r"Ward 'two' is prepared with scale=none, ward 'one' with scale=standard",
    ),
    "words for numbers": (frame(2, age="old"), HOW, r"Ward 'two' has a category in column 'age', ward 'one' a number"),
    "validation parts": (frame(2), HOW, r"Ward 'two' has validation parts, unlike ward 'one'\."),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_differs_is_named_with_its_ward(fault: str, tmp_path: Path) -> None:
    second, how, sentence = FAULTS[fault]
    frame(1).to_csv(tmp_path / "one.csv", index=False)
    second.to_csv(tmp_path / "two.csv", index=False)
    more = "/natural(validation=0.2)" if fault == "validation parts" else ""
    wards = {"one": f"csv('{tmp_path}/one.csv',{HOW})", "two": f"csv('{tmp_path}/two.csv',{how}){more}"}
    with pytest.raises(UserError, match=sentence):
        SiteSettings("", wards=wards).load("north")
    if "column" in fault or fault in ("no rows", "the same samples"):
        with pytest.raises(UserError, match=sentence):
            SiteSettings("", wards=wards).read_table("north")


def test_another_label_is_named(tmp_path: Path) -> None:
    frame(1).to_csv(tmp_path / "one.csv", index=False)
    frame(2).to_csv(tmp_path / "two.csv", index=False)
    wards = {"one": f"csv('{tmp_path}/one.csv',label=ill)", "two": f"csv('{tmp_path}/two.csv',label=ward)"}
    with pytest.raises(UserError, match=r"Ward 'two' has the label 'ward', ward 'one' 'ill': name the same columns\."):
        SiteSettings("", wards=wards).read_table("north")


def test_small_clients_are_merged_with_the_next_smallest(tmp_path: Path) -> None:
    assert plan_merges({"a": 3, "b": 4, "c": 30}, 10) == dict.fromkeys(("a", "b", "c"), "a+b+c")
    assert plan_merges({"a": 3, "b": 8, "c": 30}, 10) == {"a": "a+b", "b": "a+b", "c": "c"}
    assert plan_merges({"a": 3}, 10) == {"a": "a"}
    many = plan_merges({f"n/{i}": 1 for i in range(9)}, 10)
    assert set(many.values()) == {"n/0+8 more"}
    held = settings(tmp_path, one=frame(1, 6), two=frame(2, 30), three=frame(3, 12)).load("north")
    into = plan_merges(dict(zip(held.ids, held.train.sizes.tolist(), strict=True)), 10)
    made = merge_clients(held, into)
    assert made.ids == ("north/one+three", "north/two")
    assert made.train.sizes.sum() == held.train.sizes.sum()
    assert set(made.train[0]) == {*held.train[0], *held.train[2]}
    own = settings(tmp_path, HOW + ",statistics=client", one=frame(1, 6), two=frame(2, 30)).load("north")
    with pytest.raises(UserError, match=r"cannot be merged where each is scaled by itself"):
        merge_clients(own, plan_merges(dict(zip(own.ids, own.train.sizes.tolist(), strict=True)), 10))
