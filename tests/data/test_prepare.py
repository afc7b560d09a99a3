"""Tables with text columns, gaps and unlike scales: what is made of them, from whose rows, and the same again at prediction."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import coterie as ct
from coterie._util.errors import Notice, UserError
from coterie.data.catalogue import load
from coterie.data.checks import describe_scale_problem
from coterie.data.column_statistics import compute_quantiles
from coterie.data.columns import Columns, TableColumn
from coterie.data.prepare import ALL_CLIENTS, Preparation, PrepOptions, get_preparation
from coterie.deploy.bundle.export import load_served_models
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.bundle.rows import read_rows

NUMBERS = Columns((TableColumn("a"), TableColumn("b")))
BOTH = PrepOptions(scale="standard", impute="mean", categories="onehot")


def people(path: Path, rows: int = 60) -> Path:
    """Two sites, a text column, gaps, and incomes a thousand times as large as ages."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "site": np.array(["north", "south"])[np.arange(rows) % 2],
            "age": rng.integers(20, 80, rows).astype(float),
            "income": rng.normal(50_000, 20_000, rows).round(),
            "job": rng.choice(["nurse", "smith", "clerk"], rows),
            "row": np.arange(rows),
        }
    )
    frame["ill"] = np.where(frame["age"] + 10 * (frame["job"] == "smith") > 55, "yes", "no")
    frame.loc[3, "age"] = np.nan
    frame.loc[5, "job"] = None
    frame.to_csv(path, index=False)
    return path


def spec(path: Path, more: str = "scale=standard,impute=mean,categories=onehot") -> str:
    return f"csv('{path}',label=ill,client=site,drop=row,{more})"


def test_statistics_of_all_clients_by_hand() -> None:
    rows = {"x": np.array([[1.0, np.nan], [3.0, 10.0]]), "y": np.array([[8.0, 30.0]])}
    made = Preparation.fit(NUMBERS, BOTH, rows)
    found = made.scalings[ALL_CLIENTS]
    assert found.mean.tolist() == [4.0, 20.0]  # (1 + 3 + 8) / 3 and (10 + 30) / 2, the gap left out
    assert found.deviation == pytest.approx([np.sqrt((9 + 1 + 16) / 3), 10.0])
    assert made.apply(np.array([[4.0, np.nan]]), None).tolist() == [[0.0, 0.0]]  # a gap is the mean, and the mean is 0
    own = Preparation.fit(NUMBERS, PrepOptions(scale="standard", impute="mean", statistics="client"), rows)
    assert own.scalings["x"].mean.tolist() == [2.0, 10.0]
    assert own.apply(np.array([[9.0, np.nan]]), "y").tolist() == [[0.0, 0.0]]  # one row: constant, so 0
    with pytest.raises(UserError, match="How client 'z' scales its rows is not known"):
        own.apply(np.zeros((1, 2)), "z")


@settings(max_examples=30, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 12), st.just(2)), elements=st.floats(-1e9, 1e9)), st.integers(1, 4))
def test_sums_over_clients_are_the_statistics_of_all_rows(rows: np.ndarray, clients: int) -> None:
    pieces = {str(i): rows[i::clients] for i in range(clients)}
    found = Preparation.fit(NUMBERS, BOTH, pieces).scalings[ALL_CLIENTS]
    size = max(np.abs(rows).max(), 1.0)
    assert found.mean == pytest.approx(rows.mean(0), abs=1e-9 * size)
    assert found.deviation == pytest.approx(rows.std(0), abs=1e-6 * size)


def test_quantiles_of_all_clients_by_hand() -> None:
    rows = {"x": np.array([[1.0, np.nan], [3.0, 10.0], [2.0, 10.0]]), "y": np.array([[8.0, 30.0], [1e12, 0.0]])}
    made = Preparation.fit(NUMBERS, PrepOptions(scale="robust", impute="median"), rows)
    found = made.scalings[ALL_CLIENTS]
    assert found.mean.tolist() == [3.0, 10.0]  # of 1 2 3 8 1e12 and of 0 10 10 30: the least that half of them do not exceed
    assert found.deviation.tolist() == [6.0, 10.0]  # 8 - 2 and 10 - 0
    assert made.apply(np.array([[9.0, np.nan], [1e12, -1e12]]), None).tolist() == [[1.0, 0.0], [10.0, -10.0]]  # far out is limited
    mixed = Preparation.fit(NUMBERS, PrepOptions(scale="robust", impute="mean"), rows)
    assert mixed.apply(np.array([[3.0, np.nan]]), None).tolist() == [[0.0, 0.25]]  # the mean is 12.5
    own = Preparation.fit(NUMBERS, PrepOptions(impute="median", statistics="client"), rows)
    assert own.apply(np.array([[np.nan, np.nan]]), "x").tolist() == [[2.0, 10.0]]
    half = Preparation.fit(NUMBERS, PrepOptions(scale="robust"), {"x": np.array([[0.0, 1.0]] * 9 + [[1.0, 1.0]])})
    assert half.scalings[ALL_CLIENTS].deviation == pytest.approx([0.3, 0.0])  # the quartiles are equal: the deviation is left


@settings(max_examples=30, deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 12), st.just(2)), elements=st.floats(-(2.0**99), 2.0**99, width=32)), st.integers(1, 4))
def test_counts_over_clients_are_the_quantiles_of_all_rows(rows: np.ndarray, clients: int) -> None:
    pieces = [rows[i::clients].astype(np.float64) for i in range(clients)]
    for share in (0.25, 0.5, 0.75):
        assert compute_quantiles(pieces, (share,))[0].tolist() == np.quantile(rows, share, axis=0, method="inverted_cdf").tolist()


def test_the_most_frequent_word_and_number_stand_for_gaps() -> None:
    columns = Columns((TableColumn("job", ("nurse", "smith")), TableColumn("code"), TableColumn("pay")))
    x = np.array([[1, 0, 3, 1.5], [0, 1, 3, 2.5], [0, 0, np.nan, np.nan]])
    y = np.array([[0, 1, 7, 9.5], [0, 1, 3, 2.0]])
    many = {"x": np.c_[np.repeat(x, 80, axis=0)[:, :3], np.arange(240.0)], "y": y}  # pay has more values than anybody should list
    made = Preparation.fit(columns, PrepOptions(impute="most_frequent", categories="onehot"), many)
    gap = np.array([[0, 0, np.nan, np.nan], [1, 0, 7, 4]])
    assert made.apply(gap, None).tolist() == [[0, 1, 3, 118], [1, 0, 7, 4]]
    again = Preparation.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.apply(gap, None).tolist() == made.apply(gap, None).tolist()
    mean = Preparation.fit(columns, PrepOptions(impute="mean", categories="onehot"), many)
    assert mean.apply(gap, None)[0, :2].tolist() == [0, 0]  # no other way fills words


@pytest.mark.parametrize("how", ["impute=median,scale=robust", "impute=most_frequent,scale=standard"])
def test_other_ways_leave_no_gaps_and_travel_with_a_bundle(tmp_path: Path, how: str) -> None:
    path = people(tmp_path / "t.csv")
    made = load(spec(path, f"categories=onehot,{how}"))
    assert not np.isnan(made.x).any()
    ct.study("fedavg", data=made.name, rounds=1, out=tmp_path / "run")
    found = load_served_models(tmp_path / "run", "fedavg")
    write_bundle(found.bundle(["south"]), tmp_path / "b")
    frame = pd.read_csv(path)
    own = frame.index[frame["site"] == "south"]
    expected = found.federation.x[own]
    assert read_bundle(tmp_path / "b").preparation is not None
    frame.loc[own].to_csv(tmp_path / "new.csv", index=False)
    assert np.array_equal(read_rows(tmp_path / "new.csv", read_bundle(tmp_path / "b"), "ill").x, expected)


@pytest.mark.parametrize(
    "change",
    [
        {"wishes": {"scale": "magic", "impute": "mean", "categories": "none", "drop": [], "statistics": "federated"}},
        {"scalings": {"": {"mean": [0.0, 0.0], "deviation": [1.0, 1.0], "fill": [0.0]}}},
        {"scalings": {"": {"mean": [0.0, 0.0], "deviation": [1.0, 1.0], "bound": -1.0}}},
        {"scalings": {"": {"mean": [0.0, 0.0]}}},
    ],
)
def test_a_preparation_that_was_tampered_with_is_refused(change: dict[str, object]) -> None:
    made = Preparation.fit(NUMBERS, BOTH, {"x": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"cannot use scale='magic'|statistics that are|a scaling without"):
        Preparation.from_dict({**made.to_dict(), **change})


def test_words_become_indicators_and_unknown_ones_none() -> None:
    frame = pd.DataFrame({"job": ["smith", "nurse", None, "smith "], "age": [1, 2, 3, 4]})
    columns = Columns.from_frame(frame, "it", onehot=True)
    assert columns.features == ("job=nurse", "job=smith", "age")
    assert columns.encode(frame, "it").tolist() == [[0, 1, 1], [1, 0, 2], [0, 0, 3], [0, 1, 4]]
    new = pd.DataFrame({"age": ["7"], "job": ["pilot"], "more": [0]})
    with pytest.warns(Notice, match=r"^it: 1 of 1 rows hold 'pilot' in column 'job', which training did not know: taken for gaps\.$"):
        assert columns.encode(new, "it").tolist() == [[0, 0, 7]]
    with pytest.raises(UserError, match="lacks the column 'job'"):
        columns.encode(new.drop(columns="job"), "it")
    with pytest.raises(UserError, match="'old', which is no number, in row 0, column 'age'"):
        columns.encode(new.assign(age="old", job="nurse"), "it")


def test_a_preparation_survives_as_json() -> None:
    rows = {"x": np.array([[1.1, 7.0], [3.0, 1e9 / 3]])}
    made = Preparation.fit(NUMBERS, BOTH, rows)
    again = Preparation.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.apply(rows["x"], None).tobytes() == made.apply(rows["x"], None).tobytes()
    assert again.wishes == BOTH
    with pytest.raises(ValueError, match="not of 2 features"):
        Preparation.from_dict({**made.to_dict(), "scalings": {"": {"mean": [1.0], "deviation": [1.0]}}})


@pytest.mark.parametrize("whose", ["federated", "client"])
def test_test_rows_have_no_part_in_the_statistics(tmp_path: Path, whose: str) -> None:
    made = load(spec(people(tmp_path / "t.csv"), f"scale=standard,impute=mean,categories=onehot,statistics={whose}") + "/natural(test=0.5)")
    assert made.provenance["features"] == ["age", "income", "job=clerk", "job=nurse", "job=smith"]
    train = made.x[np.concatenate(list(made.train))] if whose == "federated" else made.x[made.train[1]]
    assert train[:, :2].mean(0) == pytest.approx([0, 0], abs=0.05)  # of the ages, a gap was filled with the mean
    assert train[:, 1].std() == pytest.approx(1, abs=1e-5)
    tests = made.x[np.concatenate(list(made.test))]
    assert abs(tests[:, 1].mean()) > 1e-4
    assert not np.isnan(made.x).any()
    assert set(np.unique(made.x[:, 2:])) == {0.0, 1.0}
    found = get_preparation(made)
    assert found is not None
    assert set(found.scalings) == ({ALL_CLIENTS} if whose == "federated" else {"north", "south"})


def test_what_is_lacking_is_said_with_its_remedy(tmp_path: Path) -> None:
    path = people(tmp_path / "t.csv")
    with pytest.raises(UserError, match="column 'job' does not hold numbers: set categories=onehot, drop it with drop="):
        load(spec(path, "scale=standard"))
    for more in ("categories=onehot", "categories=onehot,scale=standard"):
        with pytest.raises(UserError, match=r"line 5 of t\.csv has no number in column 'age': fill it in or drop it, or set impute=mean"):
            load(spec(path, more))
    with pytest.raises(UserError, match=r"line 5 of t\.csv has no number in column 'age': fill it in or drop it, or set impute=mean"):
        load(f"csv('{path}',label=ill,client=site,drop=(job,row))")
    with pytest.raises(UserError, match="has no dropped column 'jib': did you mean 'job'"):
        load(f"csv('{path}',label=ill,client=site,drop=jib)")


def test_unlike_scales_are_warned_of_and_scaling_ends_it(tmp_path: Path) -> None:
    path = people(tmp_path / "t.csv")
    raw, scaled = spec(path, "impute=mean,categories=onehot"), spec(path)
    said = describe_scale_problem(load(raw))
    assert said is not None
    assert "'income' by" in said
    assert "scale=standard" in said
    assert describe_scale_problem(load(scaled)) is None
    assert describe_scale_problem(load("heart")) is None
    with pytest.warns(UserWarning, match="differ in scale by a factor of"):
        ct.study("fedavg", data=raw, rounds=1)
    told: list[str] = []

    class Listening(ct.Callback):
        def on_notice(self, sentence: str) -> None:
            told.append(sentence)

    ct.study("fedavg", data=raw, rounds=1, callbacks=[Listening()])
    assert told == [said]


@pytest.mark.parametrize("whose", ["federated", "client"])
def test_a_bundle_prepares_rows_as_training_did(tmp_path: Path, whose: str) -> None:
    path = people(tmp_path / "t.csv")
    text = spec(path, f"scale=standard,impute=mean,categories=onehot,statistics={whose}")
    ct.study("fedavg", data=text, rounds=2, out=tmp_path / "run")
    found = load_served_models(tmp_path / "run", "fedavg")
    write_bundle(found.bundle(["south"]), tmp_path / "b")
    bundle = read_bundle(tmp_path / "b")
    frame = pd.read_csv(path)
    own = frame.index[frame["site"] == "south"]
    expected = bundle.answer(found.federation.x[own], "south").probabilities
    assert np.array_equal(bundle.predict_proba(frame.loc[own]), expected)
    assert np.array_equal(bundle.predict(frame.loc[own]), bundle.classes_[expected.argmax(1)])
    frame.loc[own].to_csv(tmp_path / "new.csv", index=False)
    assert np.array_equal(read_rows(tmp_path / "new.csv", bundle, "ill").x, found.federation.x[own])
    assert bundle.preparation is not None
    assert "north" not in bundle.preparation.scalings  # nobody else's statistics go along
