"""Early stopping on validation: where a run ends, what it counts for, and that growing keeps the digest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import coterie as ct
from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import find_scope
from coterie.cli.app import app
from coterie.evidence.reader import Evidence, read_notes
from coterie.evidence.records import STOPPED, LaneKey
from coterie.evidence.verify import digest
from coterie.run.lanes import EarlyStopping

DATA = "synthetic(0,0,clients=6,validation=0.3)"
METHODS = ["fedavg", "ifca(groups=2)"]
SETTINGS: dict[str, Any] = {"data": DATA, "lr": 0.3, "seeds": (0, 1), "patience": 2}


@given(st.lists(st.one_of(st.just(float("nan")), st.integers(0, 5).map(float)), max_size=20), st.integers(1, 4))
def test_a_watch_counts_rounds_since_the_best(scores: list[float], patience: int) -> None:
    watch = EarlyStopping(patience)
    for round_, score in enumerate(scores):
        watch.record_score(round_, score)
        known = [value for value in scores[: round_ + 1] if value == value]
        since = len(known) - 1 - known.index(max(known)) if known else 0  # the first of equals is the best
        assert watch.since == since
        assert watch.over == (since >= patience)


def stops(evidence: Evidence) -> dict[LaneKey, int]:
    return {key: end.round_ for key, end in evidence.ends().items() if end.status == STOPPED}


def test_a_run_stops_where_its_validation_says_and_nowhere_else() -> None:
    long = ct.study(METHODS, rounds=14, **{**SETTINGS, "patience": None})
    found = ct.study(METHODS, rounds=14, **SETTINGS)
    assert not found.problems
    whole, cut = long.evidence.frame("rounds"), found.evidence.frame("rounds")
    told = stops(found.evidence)
    assert told  # otherwise this shows nothing
    for (method, seed), lane in whole.groupby(["method", "seed"], observed=True):
        watch, expected = EarlyStopping(2), 14
        for round_, score in zip(lane["round"], lane["validation"], strict=True):
            watch.record_score(round_, score)
            if watch.over:
                expected = round_
                break
        own = cut[(cut["method"] == method) & (cut["seed"] == seed)]
        assert own["round"].max() == expected
        assert told.get(LaneKey(0, str(method), int(str(seed))), 14) == expected
        assert (own["validation"].to_numpy() == lane["validation"].to_numpy()[: expected + 1]).all()
    notes = {(key, round_): value for key, round_, value in read_notes(found.evidence, "stopped_early")}
    assert {(key, round_) for key, round_ in told.items()} == set(notes)
    assert all(value == round_ - 2 for (_, round_), value in notes.items())


def test_it_scores_as_in_its_last_round_and_costs_nothing_more() -> None:
    found = ct.study(METHODS, rounds=14, **SETTINGS)
    records = read_records(found.evidence)
    scope = find_scope(records)
    assert (scope.last, len(scope.seeds)) == (14, 2)
    ((label, seed), last) = next(iter(records.early.items()))
    m, s = records.place(label), records.settings.seeds.index(seed)
    assert (records.accuracy[m, s, last:] == records.accuracy[m, s, last]).all()
    assert (records.costs["steps"][m, s, last + 1 :] == 0).all()
    assert records.costs["steps"][m, s, last] > 0
    own = found.scores[(found.scores["method"] == label) & (found.scores["seed"] == seed)].iloc[0]
    assert own["final"] == records.accuracy[m, s, last]
    assert own["last10"] == pytest.approx(np.mean(records.accuracy[m, s, 5:15]))
    assert found.rounds.groupby(["method", "seed"], observed=True)["round"].max()[label, seed] == last  # no round that was not run
    steps = records.costs["steps"][m][:, 1:]
    ran = [steps[i, : records.early.get((label, each), 14)] for i, each in enumerate(records.settings.seeds)]
    assert found.table()["steps/round"][label] == pytest.approx(np.concatenate(ran).mean())
    assert ct.get_bundle(found, "client-0", "fedavg").models.shape[0] == 1  # it has a model to give


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("pieces", [(4, 14), (7, 8, 14)])
def test_growing_by_rounds_gives_the_digest_of_one_run(tmp_path: Path, every: int, pieces: tuple[int, ...]) -> None:
    settings = {**SETTINGS, "evaluate_every": every, "seeds": (0,)}
    for rounds in pieces:
        ct.study(METHODS, rounds=rounds, out=tmp_path / "grown", resume=True, **settings)
    whole = ct.study(METHODS, rounds=14, **settings)
    grown = Evidence.open(tmp_path / "grown")
    assert stops(grown) == stops(whole.evidence)
    assert digest(grown) == digest(whole.evidence)


def test_resuming_by_the_folder_and_exporting(tmp_path: Path) -> None:
    runner, out = CliRunner(), tmp_path / "s"
    words = ["run", "fedavg", "--data", DATA, "--lr", "0.3", "--rounds", "6", "--patience", "1", "--out", str(out)]
    ran = runner.invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "stopped early in round" in " ".join(ran.output.split())
    assert runner.invoke(app, ["resume", str(out), "--rounds", "9"]).exit_code == 0
    assert runner.invoke(app, ["verify", str(out)]).exit_code == 0
    done = runner.invoke(app, ["export", str(out), "--all", "--out", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("synthetic(0,0,clients=4)", "watches clients' validation parts"),
        ("digits/rotated(clients=4,groups=2,validation=0.2)/drift(at=2)", "may change from round to round"),
    ],
)
def test_what_it_cannot_go_by_is_refused(data: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ct.UserError, match=told):
        ct.study("fedavg", data=data, rounds=3, patience=2, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_comparison_counts_every_run(tmp_path: Path) -> None:
    comparison = ct.compare(METHODS[1:], out=tmp_path / "c", rounds=8, draws=2, controls=False, **SETTINGS)
    (findings,) = comparison.federations
    assert findings.scope.last == 8
    assert all(finding.missing == 0 for finding in findings.methods.values())
