"""Schemas: what sites must agree on, extracted, written down, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.prepare import get_preparation
from coterie.data.schema import SCHEMA, Schema, SchemaColumn, conform_federation
from coterie.deploy.site.data import load_site_data
from data.trial_files import CLASSES, COLUMNS, LABEL, PHONES, write_site

READY = "categories=onehot,impute=median,scale=robust,statistics=client,missing='?'"


def site(path: Path, *faults: str, more: str = READY, seed: int = 1) -> ct.Federation:
    return load_site_data(f"csv('{write_site(path, *faults, seed=seed)}',label={LABEL},{more})", site=path.stem)


def test_a_schema_names_what_a_table_holds(tmp_path: Path) -> None:
    found = Schema.from_federation(site(tmp_path / "a.csv"))
    assert [column.name for column in found.columns] == list(COLUMNS)
    assert found.columns[-1] == SchemaColumn("phone", "category", PHONES)
    assert {column.kind for column in found.columns[:-1]} == {"number"}
    assert (found.classes, found.label, found.task) == (CLASSES, (LABEL,), "classification")
    assert (found.scale, found.impute, found.statistics, found.missing) == ("robust", "median", "client", ("?",))
    assert found.features == ("mean_x", "mean_y", "energy", "age", "phone=HTC", "phone=Samsung", "phone=Sony")
    assert Schema.from_json(found.to_json()) == found


def test_every_federation_has_a_schema() -> None:
    heart = Schema.from_federation(load("heart"))
    assert heart.columns[0] == SchemaColumn("age")
    assert (heart.scale, heart.statistics) == ("standard", "client")
    digits = load("digits/iid(clients=4)")
    assert Schema.from_federation(digits) == Schema(classes=digits.classes, shape=(8, 8))
    assert conform_federation(digits, Schema.from_federation(digits)).x is digits.x
    with pytest.raises(UserError, match=r"has samples of shape 8x8, the federation 13 with the columns age, sex"):
        conform_federation(digits, Schema.from_federation(load("heart")))


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "{}", '{"columns": 3}', '{"columns": [{"name": "a", "kind": "picture", "categories": []}]}']
)
def test_what_is_no_schema_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a schema|Expecting value"):
        Schema.from_json(text)
    twice = {**Schema().to_dict(), "columns": [{"name": "a", "kind": "number", "categories": []}] * 2}
    with pytest.raises(ValueError, match="twice"):
        Schema.from_json(json.dumps(twice))


@pytest.mark.parametrize("more", [READY, "categories=onehot"])
def test_another_order_is_reordered_by_name(tmp_path: Path, more: str) -> None:
    one, other = site(tmp_path / "a.csv", more=more), site(tmp_path / "b" / "a.csv", "order", more=more)
    assert not np.array_equal(one.x, other.x)
    made = conform_federation(other, Schema.from_federation(one))
    assert np.array_equal(made.x, one.x)
    assert made.provenance["features"] == one.provenance["features"]
    assert Schema.from_federation(made) == Schema.from_federation(one)
    assert Schema.from_json(json.dumps(made.provenance[SCHEMA])) == Schema.from_federation(one)
    assert conform_federation(made, Schema.from_federation(one)).x is made.x  # nothing is left to do
    fitted, again = get_preparation(one), get_preparation(made)
    assert (fitted is None) == (again is None)
    if fitted is not None and again is not None:  # new rows are prepared as those of the site were
        frame = pd.read_csv(tmp_path / "a.csv")
        assert np.array_equal(fitted.rows(frame, "a", "it"), again.rows(frame, "a", "it"))


def test_what_a_site_lacks_is_no_obstacle(tmp_path: Path) -> None:
    whole = site(tmp_path / "a.csv")
    path = write_site(tmp_path / "b" / "a.csv", "missing_class", seed=1)
    frame = pd.read_csv(path)
    frame[frame["phone"] != "HTC"].to_csv(path, index=False)
    own = load_site_data(f"csv('{path}',label={LABEL},{READY})", site="a")
    assert own.classes == ("sit", "stand")
    made = conform_federation(own, Schema.from_federation(whole))
    assert made.classes == CLASSES
    assert made.input_shape == whole.input_shape
    assert not made.x[:, 4].any()  # no HTC here
    assert np.array_equal(made.x[:, [0, 1, 2, 3, 5, 6]], own.x)
    assert [made.classes[c] for c in made.y] == [own.classes[c] for c in own.y]


def test_class_numbers_are_the_schema_s(tmp_path: Path) -> None:
    own = site(tmp_path / "a.csv")
    turned = Schema.from_federation(own)
    turned = Schema.from_dict({**turned.to_dict(), "classes": ["walk", "run", "sit", "stand"]})
    made = conform_federation(own, turned)
    assert made.classes == ("walk", "run", "sit", "stand")
    assert [made.classes[c] for c in made.y] == [own.classes[c] for c in own.y]


def test_a_column_without_values_has_any_kind(tmp_path: Path) -> None:
    path = write_site(tmp_path / "b" / "a.csv")
    frame = pd.read_csv(path)
    frame["phone"] = np.nan
    frame.to_csv(path, index=False)
    made = conform_federation(
        load_site_data(f"csv('{path}',label={LABEL},{READY})", site="a"), Schema.from_federation(site(tmp_path / "a.csv"))
    )
    assert made.input_shape == (7,)
    assert not made.x[:, 4:].any()


@pytest.mark.parametrize(
    ("faults", "more", "sentence"),
    [
        (("misspelt",), READY, "lacks the column 'energy' of the federation: did you mean 'enregy'?"),
        (
            ("unknown_word",),
            READY,
            "has 'Pixel' in column 'phone', a word that the federation does not know: choose from HTC, Samsung, Sony.",
        ),
        ((), READY.replace("robust", "standard"), "is prepared with scale=standard, the federation with scale=robust: set scale=robust."),
        ((), READY.replace("median", "mean"), "is prepared with impute=mean, the federation with impute=median"),
        ((), f"{READY},drop=age", "lacks the column 'age' of the federation: add it."),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, faults: tuple[str, ...], more: str, sentence: str) -> None:
    schema = Schema.from_federation(site(tmp_path / "a.csv"))
    with pytest.raises(UserError) as error:
        conform_federation(site(tmp_path / "b.csv", *faults, more=more), schema)
    assert sentence in str(error.value)


def test_an_unknown_class_and_column_are_named(tmp_path: Path) -> None:
    schema = Schema.from_federation(site(tmp_path / "a.csv"))
    path = write_site(tmp_path / "b.csv")
    frame = pd.read_csv(path)
    for changed, sentence in (
        (frame.replace({LABEL: {"walk": "wolk"}}), "has a class 'wolk' that the federation does not know: did you mean 'walk'?"),
        (frame.assign(phone=1), "has a number in column 'phone', the federation a category: set columns= with 'phone:category'."),
        (frame.assign(ward=1.5), "has a column 'ward' that the federation does not know: drop it with drop='ward'."),
    ):
        changed.to_csv(path, index=False)
        with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
            conform_federation(load_site_data(f"csv('{path}',label={LABEL},{READY})", site="b"), schema)


def test_columns_and_classes_are_stated_by_hand(tmp_path: Path) -> None:
    stated = "columns=(age,'phone=HTC|Nokia|Samsung|Sony',energy),classes=(walk,sit,stand)"
    one = site(tmp_path / "a.csv", more=f"impute=median,{stated}")
    assert one.provenance["features"] == ["age", "phone=HTC", "phone=Nokia", "phone=Samsung", "phone=Sony", "energy"]
    assert one.classes == ("walk", "sit", "stand")
    lacking = site(tmp_path / "b.csv", "one_class", "order", more=f"impute=median,{stated}")  # refused without classes=
    assert Schema.from_federation(lacking) == Schema.from_federation(one)
    assert set(lacking.y.tolist()) == {1}
    for faults, words in (
        (("unknown_word",), "which is no word of column 'phone': choose from HTC, Nokia, Samsung, Sony."),
        (("misspelt",), "lacks the column 'energy' of columns=: did you mean 'enregy'"),
    ):
        with pytest.raises(UserError) as error:
            site(tmp_path / "c.csv", *faults, more=stated)
        assert words in str(error.value)
    with pytest.raises(UserError, match=r"has 'walk' in line \d+ of d.csv, which is no class of the label 'activity': choose from"):
        site(tmp_path / "d.csv", more="columns=(age,energy),classes=(sit,stand)")


def test_a_frame_states_them_as_a_mapping() -> None:
    frame = pd.DataFrame({"site": list("ab") * 4, "age": range(8), "code": [1, 2, 1, 1, 2, 1, 2, 2], "ill": ["no"] * 8})
    settings: dict[str, Any] = {"client": "site", "label": "ill", "classes": ["no", "yes"]}
    made = ct.Federation.from_frame(frame, columns={"code": "category", "age": "number"}, **settings)
    assert made.provenance["features"] == ["code=1", "code=2", "age"]
    made = ct.Federation.from_frame(frame, columns={"code": ["1", "2", "3"], "age": None}, **settings)
    assert made.provenance["features"] == ["code=1", "code=2", "code=3", "age"]
    assert made.classes == ("no", "yes")
    for columns, words in (({"code": "word"}, "'word'"), (["age", "age"], "names 'age' twice"), (["agee"], "did you mean 'age'")):
        with pytest.raises(UserError, match=words):
            ct.Federation.from_frame(frame, columns=columns, **settings)
    with pytest.raises(UserError, match="holds one class only"):
        ct.Federation.from_frame(frame, client="site", label="ill")


def test_texts_agree_on_how_words_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who,says,mood\n" + "".join(f"{'ab'[i % 2]},word {i},{i % 3 % 2}\n" for i in range(12)))
    one, other = (load(f"csv('{path}',label=mood,client=who,text=says,width={width})") for width in (32, 64))
    assert Schema.from_federation(one).columns == (SchemaColumn("says", "text"),)
    assert conform_federation(one, Schema.from_federation(one)).x is one.x
    with pytest.raises(UserError, match="makes features of texts in another way"):
        conform_federation(other, Schema.from_federation(one))
