"""Which task a label asks for, and a regression's target in the units of training."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.joining import add_newcomers
from coterie.data.labels import encode_label_columns
from coterie.data.sources.linear import linear


@pytest.mark.parametrize(
    ("column", "task"),
    [
        (["yes", "no"], "classification"),
        ([True, False], "classification"),
        ([1, 2, 3], "classification"),
        (["1", "2.0"], "classification"),
        ([0.5, 1.0], "regression"),
        (["3", "3.25"], "regression"),
        (["3.5", "n/a"], "classification"),
        (list(range(20)), "classification"),
    ],
)
def test_the_label_says_what_is_asked_for(column: list[object], task: str) -> None:
    assert encode_label_columns([column], ["y"], "auto", "here").task == task


def test_what_is_unclear_is_refused_and_can_be_said() -> None:
    many = list(range(21))
    with pytest.raises(UserError, match=r"'age' holds 21 different whole numbers.*set task=classification or task=regression\."):
        encode_label_columns([many], ["age"], "auto", "people.csv")
    said = encode_label_columns([many], ["age"], "regression", "people.csv")
    assert (said.y.tolist(), said.classes, said.task) == (many, ("age",), "regression")
    assert len(encode_label_columns([many], ["age"], "classification", "people.csv").classes) == 21
    with pytest.raises(UserError, match=r"row 1 has 'x' in the target 'age'"):
        encode_label_columns([["1", "x"]], ["age"], "regression", "people.csv")
    with pytest.raises(UserError, match=r"row 0 has 'inf' in the target"):
        encode_label_columns([["inf", "1.5"]], ["age"], "regression", "people.csv")
    with pytest.raises(UserError, match=r"task='ranking' is none of"):
        encode_label_columns([many], ["age"], "ranking", "people.csv")


def test_several_columns_of_marks_are_several_labels() -> None:
    found = encode_label_columns([["0", "1"], ["yes", "no"], ["True", "False"]], ["a", "b", "c"], "auto", "here")
    assert (found.y.tolist(), found.y.dtype.name, found.classes, found.task) == (
        [[0, 1, 1], [1, 0, 0]],
        "uint8",
        ("a", "b", "c"),
        "multilabel",
    )
    with pytest.raises(UserError, match=r"row 1 has '2' in the label 'b': where there are several labels, each is 0 or 1\."):
        encode_label_columns([[0, 1], [1, 2]], ["a", "b"], "auto", "here")
    with pytest.raises(UserError, match=r"a regression has one label column, not a, b\."):
        encode_label_columns([[0, 1], [1, 2]], ["a", "b"], "regression", "here")


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"site": list("aabb") * 6, "x": np.arange(24.0), "price": np.arange(24) * 2.5, "u": [0, 1] * 12, "v": [1, 0, 0, 1] * 6}
    )


def test_targets_are_standardised_by_all_clients_training_parts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    frame().drop(columns=["u", "v"]).to_csv(path, index=False)
    made = load(f"csv('{path}',label=price,client=site)")
    raw = frame()["price"].to_numpy()
    train = raw[made.train.indices]
    assert (made.task.name, made.classes, made.y.dtype.name) == ("regression", ("price",), "float32")
    assert (made.task.mean, made.task.deviation) == pytest.approx((train.mean(), train.std()))
    np.testing.assert_allclose(made.task.in_units(made.y), raw, atol=1e-4)
    again = load(f"csv('{path}',label=price,client=site)", 0)  # from the cache
    assert again.task == made.task
    assert load(f"csv('{path}',label=price,client=site)", 1).task != made.task  # another split, other training parts


def test_frames_arrays_and_data_sets_alike() -> None:
    table = frame()
    numbers = ct.Federation.from_frame(table[["site", "x", "price"]], client="site", label="price")
    marks = ct.Federation.from_frame(table[["site", "x", "u", "v"]], client="site", label=["u", "v"])
    assert (numbers.task.name, marks.task.name, marks.classes, marks.y.shape) == ("regression", "multilabel", ("u", "v"), (24, 2))
    x, site = table[["x"]].to_numpy(), table["site"].to_numpy()
    arrays = ct.Federation.from_arrays(x, table["price"].to_numpy(), site)
    assert arrays.y.tolist() == numbers.y.tolist()
    assert ct.Federation.from_arrays(x, table[["u", "v"]].to_numpy(), site, classes=["u", "v"]).y.tolist() == marks.y.tolist()
    pairs = {str(name): [(row[["x"]].to_numpy(float), row["price"]) for _, row in own.iterrows()] for name, own in table.groupby("site")}
    assert ct.Federation.from_datasets(pairs).task.name == "regression"
    assert ct.Federation.from_arrays(x, np.arange(24) % 3, site).task.counts_classes
    assert ct.Federation.from_arrays(x, np.arange(24), site, task="regression").task.name == "regression"
    assert ct.Federation.from_arrays(x, np.arange(24), site).task.counts_classes  # 0, 1, 2, ...: numbers of classes
    with pytest.raises(UserError, match="24 different whole numbers"):
        ct.Federation.from_arrays(x, 3 * np.arange(24), site)


def test_what_cannot_be_learned_or_divided_is_refused(tmp_path: Path) -> None:
    table = frame()[["site", "x", "price"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    spec = f"csv('{tmp_path / 't.csv'}',label=price,client=site)"
    with pytest.raises(UserError, match=r"'dirichlet' goes by classes, and 'csv' is a regression: use natural"):
        load(f"{spec}/dirichlet(0.5,clients=2)")
    with pytest.raises(UserError, match="'labelswap' goes by classes"):
        load("linear/labelswap")
    with pytest.raises(UserError, match="the same label in every row"):
        ct.Federation.from_frame(table.assign(price=2.5), client="site", label="price")
    assert load(f"{spec}/iid(clients=3)").task.name == "regression"
    flipped = load("linear(clients=4)/outliers(share=0.25)")
    plain = load("linear(clients=4)")
    changed = np.flatnonzero(flipped.y != plain.y)
    np.testing.assert_array_equal(flipped.y[changed], -plain.y[changed])
    assert set(changed) <= set(plain.train.indices)


def test_newcomers_come_in_the_units_of_the_others() -> None:
    known, new = linear(clients=4), linear(clients=6, _data_seed=1)
    new = new.replace(ids=tuple(f"new-{i}" for i in range(6)))
    both = add_newcomers(known, new)
    np.testing.assert_allclose(both.task.in_units(both.y[len(known.y) :]), new.task.in_units(new.y), atol=1e-4)
    with pytest.raises(UserError, match="they are a multilabel task, the others a regression"):
        add_newcomers(known, linear("multilabel", clients=2, labels=1).replace(ids=("p", "q"), classes=("target",)))


def test_made_up_groups_have_models_of_their_own() -> None:
    """Least squares on two clients of one group gives the same weights, on two of different groups others."""
    made = linear(clients=4, groups=2, noise=0.01, samples=60)
    fits = [np.linalg.lstsq(made.x[own], made.y[own] * made.task.deviation + made.task.mean - 50, rcond=None)[0] for own in made.train]
    assert np.abs(fits[0] - fits[2]).max() < 1 < np.abs(fits[0] - fits[1]).max()
    assert made.groups is not None
    assert made.groups.tolist() == [0, 1, 0, 1]
    assert linear(clients=5, _data_seed=3).x[:10].tolist() == linear(clients=2, _data_seed=3).x[:10].tolist()


def test_targets_are_not_fitted_on_clients_that_take_no_part(tmp_path: Path) -> None:
    table = pd.concat([frame()[["site", "x", "price"]].assign(site=f"s{i}", price=frame()["price"] + 100 * i) for i in range(4)])
    table.to_csv(tmp_path / "t.csv", index=False)
    for spec in ("linear(clients=6)", f"csv('{tmp_path / 't.csv'}',label=price,client=site)"):
        made = load(f"{spec}/unseen(0.25)")
        train = made.task.in_units(made.y[np.concatenate([made.train[client] for client in range(made.participants)])])
        assert made.participants < len(made)
        assert (made.task.mean, made.task.deviation) == pytest.approx((train.mean(), train.std()), rel=1e-5)
    found = ct.study("fedavg", data="linear(clients=6,samples=20)", rounds=1, unseen=0.25)
    assert np.isfinite(found.scores["unseen"]).all()
