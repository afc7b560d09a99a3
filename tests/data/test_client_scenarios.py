"""Scenarios of single clients: unseen clients, on whose data nothing is fitted, and evaluation on the data set's own test samples."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.client_scenarios import add_unseen, move_unseen_last, official_test
from coterie.data.content import hash_contents
from coterie.data.federation import Samples, draw_unseen_clients
from coterie.data.partitions import iid, shards


def test_a_share_of_clients_stands_last_and_everybody_keeps_what_it_holds() -> None:
    whole, made = load("digits/rotated(clients=20)"), load("digits/rotated(clients=20)/unseen(0.2)")
    assert (made.participants, made.unseen, len(made)) == (16, 4, 20)
    assert sorted(made.ids) == sorted(whole.ids)
    for client, name in enumerate(made.ids):
        before = whole.ids.index(name)
        assert (made.train[client] == whole.train[before]).all()
        assert (made.test[client] == whole.test[before]).all()
        assert made.groups is not None
        assert whole.groups is not None
        assert made.groups[client] == whole.groups[before]
    assert made.provenance["unseen"] == "4 of 20 clients take no part in training"


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_who_takes_no_part_depends_on_names_and_the_data_seed_alone(n: int, share: float, seed: int) -> None:
    ids = tuple(f"site {i}" for i in range(n))
    count = max(round(share * n), 1)
    if count == n:
        with pytest.raises(UserError, match="none of"):
            draw_unseen_clients(ids, share, seed)
        return
    apart = draw_unseen_clients(ids, share, seed)
    assert len(apart) == count
    turned = draw_unseen_clients(ids[::-1], share, seed)
    assert {ids[i] for i in apart} == {ids[::-1][i] for i in turned}


def test_another_draw_leaves_others_out() -> None:
    apart = [set(load("digits/iid(clients=30)/unseen(0.2)", seed).ids[-6:]) for seed in range(4)]
    assert len({frozenset(names) for names in apart}) > 1


def _frame() -> pd.DataFrame:
    rows = [(f"site {site}", 10.0 * site + row, row % 2) for site in range(10) for row in range(10)]
    return pd.DataFrame(rows, columns=["site", "age", "ill"])


@pytest.mark.parametrize("statistics", ["federated", "client"])
def test_statistics_are_of_those_who_take_part(statistics: str) -> None:
    frame = _frame()
    made = ct.Federation.from_frame(frame, client="site", label="ill", scale="standard", statistics=statistics, unseen=0.2)
    assert made.unseen == 2
    raw = frame["age"].to_numpy()
    trained = raw[np.concatenate([made.train[client] for client in range(made.participants)])]
    mean, deviation = trained.mean(), trained.std()
    if statistics == "client":  # a newcomer scales by its own rows, and nobody else's
        own = raw[made.train[9]]
        mean, deviation = own.mean(), own.std()
    rows = made.train[9]
    np.testing.assert_allclose(made.x[rows, 0], (raw[rows] - mean) / deviation, rtol=1e-5, atol=1e-6)


def test_a_spec_of_a_table_fits_on_those_who_take_part(tmp_path: Path) -> None:
    path = f"{tmp_path}/rows.csv"
    _frame().to_csv(path, index=False)
    made = load(f"csv({path!r},label=ill,client=site,scale=standard)/unseen(0.2)")
    trained = np.concatenate([made.train[client] for client in range(made.participants)])
    assert abs(float(made.x[trained, 0].mean())) < 1e-5
    assert abs(float(made.x[np.concatenate([*made.train]), 0].mean())) > 0.01


def test_features_that_were_prepared_with_everybody_are_refused() -> None:
    made = ct.Federation.from_frame(_frame(), client="site", label="ill", scale="standard")
    with pytest.raises(UserError, match="where it is made"):
        add_unseen(made, 0.2)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="share of the clients"):
        add_unseen("digits/rotated", share)


def test_it_is_said_once() -> None:
    made = ct.Federation.from_frame(_frame(), client="site", label="ill", unseen=0.2)
    with pytest.raises(UserError, match="name their share once"):
        move_unseen_last(made, 0.2)


def test_a_drift_goes_with_it_in_either_order() -> None:
    before, after = (
        load(f"digits/rotated(clients=10,groups=2)/{steps}") for steps in ("unseen(0.2)/drift(at=2)", "drift(at=2)/unseen(0.2)")
    )
    assert before.ids == after.ids
    assert hash_contents(before) == hash_contents(after)
    assert before.at_round(2).ids == before.ids


def test_the_hash_of_the_data_tells_who_takes_part() -> None:
    made = load("digits/iid(clients=10)/unseen(0.2)")
    assert hash_contents(made) != hash_contents(made.replace(unseen=0))


def samples(central: bool = True) -> Samples:
    """60 samples of three classes, and 12 more as the server's test set, whose features are negative."""
    y = np.repeat(np.arange(3), 20)
    own = (-np.arange(1, 13, dtype=np.float32)[:, None], np.tile(np.arange(3), 4))
    return Samples("some", np.arange(60, dtype=np.float32)[:, None], y, ("0", "1", "2"), own if central else None)


def test_everything_trains_and_test_parts_are_the_sets_own_of_a_clients_classes() -> None:
    before = shards(samples(), clients=6, per_client=1, test=0.0)
    made = official_test(before)
    assert made.train.indices.tolist() == before.train.indices.tolist()
    assert made.train.sizes.tolist() == [10] * 6
    for client in range(6):  # one class a client, two clients a class, four test samples of a class
        assert set(made.y[made.test[client]]) == set(made.y[made.train[client]])
        assert len(made.test[client]) == 2
        assert (made.x[made.test[client]] < 0).all()
    assert len(np.unique(made.test.indices)) == 12
    assert made.central is before.central


def test_other_draws_deal_other_test_samples() -> None:
    parts = [official_test(shards(samples(), clients=6, per_client=1, test=0.0), _data_seed=seed).test.indices.tolist() for seed in (0, 1)]
    assert parts[0] != parts[1]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="give the partition test=0"):
        official_test(iid(samples(), clients=3, test=0.1))
    with pytest.raises(UserError, match="no test set of its own at the server"):
        official_test(iid(samples(central=False), clients=3, test=0.0))
