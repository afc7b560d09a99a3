"""Studies that keep rows of a sample of their clients: what they tell of everybody is what all rows tell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis import metrics
from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import DECILE_TITLES
from coterie.cli.console import PlainConsole
from coterie.cli.tables import print_result
from coterie.core.asks import Evaluated
from coterie.core.roster import Roster, select_evaluated
from coterie.core.tasks import CLASSIFICATION
from coterie.evidence.records import DECILES, SUMMARY_COLUMNS, summarize_population
from coterie.evidence.verify import digest
from coterie.report import write_report

DATA = "synthetic(0,0,clients=12)"
METHODS = ["fedavg", "ifca(groups=2)"]
KEYS = ["method", "seed", "round", "client"]


def run(method: str | list[str] = METHODS, /, **more: Any) -> ct.Result:
    options: dict[str, Any] = {"data": DATA, "rounds": 2, "seeds": [0, 1]} | more
    return ct.study(method, **options)


def whole_and_kept(data: str, keep: int, **more: Any) -> tuple[ct.Result, ct.Result]:
    return run("fedavg", data=data, **more), run("fedavg", data=data, keep_clients=keep, **more)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[ct.Result, ct.Result]:
    return run(), run(keep_clients=5, out=tmp_path_factory.mktemp("kept") / "study")


def test_scores_are_everybodys_and_rows_a_samples(both: tuple[ct.Result, ct.Result]) -> None:
    everybody, some = both
    whole, part = (result.clients.set_index(KEYS).sort_index() for result in both)
    assert len(part) == len(whole) * 5 // 12
    same = [name for name in whole.columns if name in part.columns]
    assert whole.loc[part.index, same].equals(part[same])
    for name in ("accuracy", "accuracy_macro", "worst", "bottom_decile", "loss"):
        np.testing.assert_allclose(everybody.rounds[name], some.rounds[name], rtol=1e-12)
    assert everybody.table()["final"].tolist() == some.table()["final"].tolist()
    assert set(some.groups["client"]) == set(part.index.get_level_values("client"))
    assert everybody.spread is None
    assert everybody.remarks == []
    assert len(some.remarks) == 1
    assert some.remarks[0].startswith("Rows are kept of 5 of 12 clients, drawn by their ids: accuracy, its mean, ")


def test_quantiles_are_those_of_all_rows(both: tuple[ct.Result, ct.Result]) -> None:
    everybody, some = both
    rows = everybody.clients
    hits = rows.filter(like="hits_").sum(axis=1)
    rows["own"] = hits / everybody.evidence.tested[rows["client"]]
    lanes = rows.groupby(KEYS[:3], observed=True)["own"]
    told = some.evidence.frame("rounds").set_index(KEYS[:3])
    for at, name in enumerate(DECILES):
        expected = lanes.quantile(at / 10)
        np.testing.assert_allclose(told.loc[expected.index, name], expected, rtol=1e-12, atol=1e-15)
    assert set(told["everybody"]) == {12.0}
    assert some.spread is not None
    last = told.xs(2, level="round").groupby("method", observed=True)[list(DECILES)].mean()
    np.testing.assert_allclose(some.spread.loc[METHODS], last.loc[METHODS], rtol=1e-12)
    assert list(some.spread.columns) == list(DECILE_TITLES)


def test_they_are_shown_and_in_the_report(both: tuple[ct.Result, ct.Result], capsys: pytest.CaptureFixture[str]) -> None:
    some = both[1]
    print_result(some, PlainConsole(), details=True)
    assert "method lowest 10 % 30 % median 70 % 90 % highest" in " ".join(capsys.readouterr().out.split())
    assert some.spread is not None
    assert json.loads(json.dumps(some.as_json(None)))["methods"]["fedavg"]["tenths"] == list(some.spread.loc["fedavg"])
    assert "tenths" not in both[0].as_json(None)["methods"]["fedavg"]
    assert some.evidence.folder is not None
    made = write_report(some.evidence.folder)
    assert "Rows are kept of 5 of 12 clients" in made.page.read_text(encoding="utf-8")
    table = next(path for path in made.tables if path.name == "spread.csv")
    told = pd.read_csv(table).set_index("label")
    np.testing.assert_allclose(told.loc[METHODS, list(DECILE_TITLES)], some.spread.loc[METHODS], rtol=1e-12)


def test_on_disk_as_in_memory_and_the_same_when_gone_on_with(both: tuple[ct.Result, ct.Result], tmp_path: Path) -> None:
    in_memory = run(keep_clients=5)
    assert digest(in_memory.evidence) == digest(both[1].evidence) != digest(both[0].evidence)
    run(keep_clients=5, rounds=1, out=tmp_path / "study")
    grown = run(keep_clients=5, out=tmp_path / "study", resume=True)
    assert digest(grown.evidence) == digest(both[1].evidence)


def test_rounds_that_were_the_last_once_tell_nothing_of_everybody(tmp_path: Path) -> None:
    run(keep_clients=5, rounds=3, evaluate_every=2, out=tmp_path / "study")
    grown = run(keep_clients=5, rounds=4, evaluate_every=2, out=tmp_path / "study", resume=True)
    told = grown.evidence.frame("rounds").set_index("round")
    assert told.loc[[1, 3], ["everybody", *SUMMARY_COLUMNS]].isna().all(axis=None)
    assert told.loc[[0, 2, 4], ["everybody", *SUMMARY_COLUMNS]].notna().all(axis=None)
    assert digest(grown.evidence) == digest(run(keep_clients=5, rounds=4, evaluate_every=2).evidence)


def test_hostile_clients_count_in_nothing() -> None:
    results = run(attack="signflip(share=0.3)"), run(attack="signflip(share=0.3)", keep_clients=5)
    for name in ("accuracy", "accuracy_macro", "worst", "bottom_decile", "loss"):
        np.testing.assert_allclose(results[0].rounds[name], results[1].rounds[name], rtol=1e-12)
    assert set(results[1].evidence.frame("rounds")["everybody"]) == {8.0}


def test_beside_a_sample_that_is_evaluated() -> None:
    some = run(evaluate_clients=8, keep_clients=5)
    looked = run(evaluate_clients=8)
    np.testing.assert_allclose(some.rounds["accuracy"], looked.rounds["accuracy"], rtol=1e-12)
    assert some.clients["client"].nunique() == 5
    assert some.remarks[0].startswith("Scores are of 8 of 12 clients")
    assert run(evaluate_clients=5, keep_clients=8).spread is None  # rows of all that are evaluated


def test_another_metric_is_of_the_sample(both: tuple[ct.Result, ct.Result]) -> None:
    records = read_records(both[1].evidence, "f1")
    assert records.population == {}
    assert records.accuracy.shape == (2, 2, 3)
    assert np.isfinite(records.accuracy).all()


@pytest.mark.parametrize("clients", [0, 1])
def test_a_sample_of_one_is_refused(clients: int) -> None:
    with pytest.raises(UserError, match="keep_clients"):
        run(keep_clients=clients)


def test_stopping_early_does_not_mind_a_sample() -> None:
    data = "synthetic(0,0,clients=12,validation=0.2)"
    whole, some = whole_and_kept(data, 5, rounds=6, patience=1)
    np.testing.assert_allclose(whole.rounds["accuracy"], some.rounds["accuracy"], rtol=1e-12)
    assert whole.table()["final"].tolist() == some.table()["final"].tolist()
    assert some.spread is not None
    assert some.spread.notna().all(axis=None)
    assert not run("fedavg", data=data, rounds=6, patience=1, evaluate_clients=5).problems


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=40).filter(lambda sizes: sum(sizes) > 0),
    seed=st.integers(0, 999),
    hostile=st.integers(0, 3),
)
def test_numbers_of_everybody_are_the_analysis_own(sizes: list[int], seed: int, hostile: int) -> None:
    rng, n = np.random.default_rng(seed), len(sizes)
    actual = np.stack([rng.multinomial(size, [0.3, 0.3, 0.4]) for size in sizes])
    hits = rng.binomial(actual, 0.6)
    loss = np.where(np.array(sizes) > 0, rng.random(n), np.nan)
    judged = Evaluated(np.arange(n), hits, actual, actual, loss, np.full(n, np.nan))
    out = rng.permutation(n)[: min(hostile, n - 1)]
    found = summarize_population(judged, CLASSIFICATION, out)
    there = np.array([size > 0 and i not in out for i, size in enumerate(sizes)])
    if not there.any():
        assert found is None
        return
    own, tested = hits.sum(axis=1)[there], actual.sum(axis=1)[there]
    values = metrics.ratio(own, tested)
    assert found is not None
    assert found.clients == there.sum()
    assert found.score == own.sum() / tested.sum()
    assert found.macro == pytest.approx(float(metrics.mean(values)), rel=1e-12)
    assert found.bottom_decile == pytest.approx(float(metrics.bottom_decile(values)), rel=1e-12)
    assert found.deciles[0] == float(metrics.worst(values))
    assert found.deciles[-1] == values.max()
    assert found.loss == pytest.approx(np.average(loss[there], weights=tested), rel=1e-12)


def test_the_sample_is_that_which_would_be_evaluated(both: tuple[ct.Result, ct.Result]) -> None:
    roster = Roster.from_sizes(both[1].evidence.ids, np.ones(12, np.int64))
    assert sorted(set(both[1].clients["client"])) == select_evaluated(roster, 5).tolist()


@pytest.mark.parametrize("data", ["linear(regression,clients=6,samples=20)", "linear(multilabel,clients=6,samples=20)"])
def test_other_tasks_tell_of_everybody_by_their_own_score(data: str) -> None:
    whole, some = whole_and_kept(data, 3, lr=0.1)
    np.testing.assert_allclose(some.rounds.iloc[:, 4:8].astype(float), whole.rounds.iloc[:, 4:8].astype(float), rtol=1e-9)
    np.testing.assert_allclose(some.rounds["loss"], whole.rounds["loss"], rtol=1e-9)


def test_rows_of_clients_that_took_no_part_are_all_kept() -> None:
    whole, some = whole_and_kept("digits/rotated(clients=10,groups=2)/unseen(0.3)", 3, rounds=1)
    assert some.table()[["final", "unseen"]].to_numpy().tolist() == whole.table()[["final", "unseen"]].to_numpy().tolist()
    unseen = [result.evidence.select_unseen() for result in (whole, some)]
    assert [0 if own is None else len(own.frame("clients")) for own in unseen] == [12, 12]
