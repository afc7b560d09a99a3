"""One study, every view: a number is the same wherever it is shown, and equals what the raw tables say.

The expected numbers are worked out here from the evidence's tables with nothing but pandas and scikit-learn. In the study some clients are
in no group at the end, one run diverges midway and one method diverges at once: what used to be counted differently from view to view.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

from coterie.analysis.comparison import Comparison, open_comparison
from coterie.cli.app import app
from coterie.core.method import Context, Round
from coterie.core.plan import Plan
from coterie.core.states import Models
from coterie.evidence import Evidence
from coterie.evidence.records import DIVERGED
from coterie.methods import catalogue
from coterie.methods.fedavg import FedAvg
from coterie.report import write_report
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import StudyPart
from coterie.reproduce.values import PartValues, read_values
from coterie.run.compare import add_controls
from coterie.run.result import Result

SEEDS, ROUNDS, RUNAWAY, AT_ONCE = (0, 1, 2), 11, "runaway", "fedavg+rate(lr=1e+38)"
LAST = 10  # rounds in "last 10"
SHOWN = ("final", "last10", "mean", "worst", "macro", "ari")


class Runaway(FedAvg):
    """FedAvg that learns at an absurd rate from round 5 on, in one seed."""

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        wild = Context(**{**vars(ctx), "plan": Plan(cohort=ctx.plan.cohort, local=ctx.plan.local.replace(lr=1e38))})
        return super().round(state, wild if ctx.seed == 1 and ctx.round_ >= 5 else ctx)


@dataclass(frozen=True)
class Views:
    """The folder of the study, and what commands said about it."""

    folder: Path
    run_json: dict[str, Any]
    show: str
    show_json: dict[str, Any]

    @property
    def result(self) -> Result:
        return Result(Evidence.open(self.folder))


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Views]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue.methods, "_entries", catalogue.methods._entries | {RUNAWAY: Runaway})
        tested = [(spec, catalogue.build(spec)) for spec in ("fedgroup(groups=2,alpha=1,pretrain=5)", "fedsim(clusters=2)")]
        labels = [label for label, _ in add_controls(tested, known_groups=True, finetune=1)]
        folder = tmp_path_factory.mktemp("equal") / "study"
        options = f"--rounds {ROUNDS} --cohort 2 --epochs 1 --lr 0.1 --seeds 0-2 --json".split()
        data = ["--data", "digits/rotated(clients=8,groups=2)", "--out", str(folder)]
        run, show, again = (
            CliRunner().invoke(app, arguments, env={"COLUMNS": "240"}, catch_exceptions=False)
            for arguments in (
                ["run", *labels, RUNAWAY, AT_ONCE, *data, *options],
                ["show", str(folder), "--details"],
                ["show", str(folder), "--json"],
            )
        )
        yield Views(folder, json.loads(run.stdout.splitlines()[-1]), show.stdout, json.loads(again.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def expected(views: Views) -> pd.DataFrame:
    """A row for each method and seed, from the raw tables; nan for a run that did not reach the last round."""
    evidence = Evidence.open(views.folder)
    clients, actual = evidence.frame("clients"), evidence.actual.sum(axis=1)
    clients["right"] = clients[[f"hits_{c}" for c in range(evidence.classes)]].sum(axis=1)
    clients["share"] = clients["right"] / actual[clients["client"]]
    groups, clusters = evidence.frame("groups"), evidence.frame("clusters")
    truth = evidence.roster["group"].to_numpy()
    rows = []
    for label in evidence.settings.methods:
        for seed in evidence.settings.seeds:
            own = clients[(clients["method"] == label) & (clients["seed"] == seed) & (clients["round"] >= 1)]
            curve = own.groupby("round")["right"].sum() / actual.sum()
            row = {"method": label, "seed": seed} | dict.fromkeys(SHOWN, np.nan)
            if len(curve) == ROUNDS:
                last = own[own["round"] == ROUNDS]["share"]
                row |= {"final": curve[ROUNDS], "last10": curve.iloc[-LAST:].mean(), "mean": curve.mean()}
                row |= {"worst": last.min(), "macro": last.mean(), "ari": np.nan}
                kept = groups[(groups["method"] == label) & (groups["seed"] == seed) & (groups["round"] == ROUNDS) & (groups["group"] >= 0)]
                if len(kept):
                    row["ari"] = adjusted_rand_score(truth[kept["client"]], kept["group"])
                of_round = clusters[(clusters["method"] == label) & (clusters["seed"] == seed)]
                if len(of_round):
                    row["ari"] = np.mean([adjusted_rand_score(truth[t["client"]], t["cluster"]) for _, t in of_round.groupby("round")])
            rows.append(row)
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def means(expected: pd.DataFrame) -> pd.DataFrame:
    """A row for each method: the mean over the seeds that have a score, and how many have."""
    lanes = expected.groupby("method", sort=False)
    return lanes[list(SHOWN)].mean().assign(seeds=lanes["final"].count())


def close(one: Any, two: Any) -> bool:
    """Equal up to the last bits; what is not defined (nan, null) equals what is not defined."""
    return bool(np.isclose(np.nan if one is None else one, np.nan if two is None else two, rtol=1e-12, atol=1e-12, equal_nan=True))


def assert_shown(shown: dict[str, dict[str, Any]], means: pd.DataFrame, *names: str) -> None:
    """Every method is there, and its numbers are the expected ones."""
    assert list(shown) == list(means.index)
    for label, row in means.iterrows():
        own = {"seeds": shown[str(label)].get("runs"), **shown[str(label)]}  # where draws may be several, runs are counted
        for name in (*names, "seeds"):
            assert close(own[name], row[name]), f"{label} {name}: {own[name]} instead of {row[name]}"


def test_the_study_has_what_used_to_differ(views: Views, expected: pd.DataFrame, means: pd.DataFrame) -> None:
    groups = Evidence.open(views.folder).frame("groups")
    ended = groups[(groups["round"] == ROUNDS) & (groups["method"] == "fedgroup(groups=2,alpha=1,pretrain=5)")]
    assert (ended["group"] == -1).any()  # somebody is in no group to the end
    assert means["seeds"].to_dict() == {label: 0 if label == AT_ONCE else 2 if label == RUNAWAY else 3 for label in means.index}
    assert means.loc[AT_ONCE, list(SHOWN)].isna().all()
    grouped = means.index[means["ari"].notna()]
    assert len(grouped) == 8  # both methods with their random groups, those of similar sizes and the true ones
    clients = Evidence.open(views.folder).frame("clients")
    assert clients[(clients["method"] == RUNAWAY) & (clients["seed"] == 1)]["round"].max() == 4  # it was evaluated, and yet has no score
    assert expected[(expected["method"] == RUNAWAY) & (expected["seed"] == 1)][list(SHOWN)].isna().all(axis=None)


def test_the_result_shows_them(views: Views, expected: pd.DataFrame, means: pd.DataFrame) -> None:
    lanes = views.result.scores.assign(method=lambda frame: frame["method"].astype(str)).set_index(["method", "seed"])
    assert len(lanes) == len(expected)  # runs without a score stay in the table
    for row in expected.to_dict("records"):
        for name in SHOWN:
            assert close(lanes[name][row["method"], row["seed"]], row[name]), f"{row['method']}, seed {row['seed']}: {name}"
    assert_shown(views.result.table().to_dict("index"), means, *SHOWN)  # type: ignore[arg-type]
    assert set(views.result.rounds["round"]) == set(range(ROUNDS + 1))


def test_the_commands_print_them(views: Views, means: pd.DataFrame) -> None:
    for told in (views.run_json, views.show_json):
        assert_shown(told["methods"], means, "final", "last10", "mean", "ari")
    assert views.run_json["methods"] == views.show_json["methods"]
    assert views.run_json["problems"] == views.show_json["problems"]
    head, *body = (re.split(r"\s{2,}", line.strip()) for line in views.show.splitlines())
    head, *body = [cells for cells in (head, *body) if len(cells) > 5]
    table = {cells[0]: dict(zip(head, cells, strict=True)) for cells in body}
    assert list(table) == list(means.index)
    for label, row in means.iterrows():
        for name, title in (("final", "final"), ("last10", "last 10"), ("mean", "mean"), ("worst", "worst")):
            assert table[str(label)][title] == ("–" if np.isnan(row[name]) else f"{100 * row[name]:.1f}")
        assert table[str(label)]["ARI"] == ("–" if np.isnan(row["ari"]) else f"{row['ari']:.3g}")
        assert table[str(label)]["seeds"] == f"{row['seeds']:.0f}"


def test_the_comparison_shows_them(views: Views, means: pd.DataFrame) -> None:
    comparison = open_comparison(views.folder)
    assert_shown(comparison.table().set_index("method").to_dict("index"), means, "final", "last10", "mean", "worst", "ari")  # type: ignore[arg-type]
    plain = json.loads(json.dumps(comparison.as_json(), allow_nan=False))
    assert_shown({row["method"]: row for row in plain["table"]}, means, "final", "last10", "mean", "worst", "ari")


def test_the_report_writes_them(views: Views, means: pd.DataFrame) -> None:
    made = write_report(views.folder)
    tables = {path.stem: pd.read_csv(path).set_index("label") for path in made.tables if path.suffix == ".csv"}
    assert_shown(tables["scores"].to_dict("index"), means, "final", "last10", "mean")  # type: ignore[arg-type]
    for label, worst in means["worst"].items():
        assert close(tables["fairness"]["worst"][str(label)], worst)
    assert tables["grouping"]["ari"].to_dict() == pytest.approx(means["ari"].dropna().to_dict(), rel=1e-12)


def test_a_reproduction_counts_with_them(views: Views, expected: pd.DataFrame) -> None:
    values: PartValues = read_values(PartRun(StudyPart(), studies=(Evidence.open(views.folder),)), None)
    for label, lanes in expected.groupby("method", sort=False):
        for name in SHOWN:
            own = lanes.set_index("seed")[name].dropna() * (1 if name == "ari" else 100)
            assert values.of(str(label), name) == pytest.approx(own.to_dict(), rel=1e-12)
        assert set(values.curves.get(str(label), {})) == set(lanes[lanes["final"].notna()]["seed"])


def named(comparison: Comparison) -> dict[tuple[str, int], str]:
    (found,) = comparison.federations
    return {(label, seed): said for label, finding in found.methods.items() for (_, seed), said in finding.stopped.items()}


def test_runs_that_diverged_are_named_wherever_problems_are(views: Views) -> None:
    where = {(RUNAWAY, 1): 4} | {(AT_ONCE, seed): 0 for seed in SEEDS}  # the last complete round
    said = {lane: f"diverged in round {last + 1} no client sent a finite model" for lane, last in where.items()}
    found = {(key.method, key.seed): end for key, end in views.result.problems.items()}
    assert {lane: (end.status, end.round_) for lane, end in found.items()} == {lane: (DIVERGED, last) for lane, last in where.items()}
    assert {lane: str(end) for lane, end in found.items()} == said
    for told in (views.run_json, views.show_json):
        assert {(one["method"], one["seed"]): one["round"] for one in told["problems"]} == where
        assert {f"{one['status']} {one['reason']}" for one in told["problems"]} == set(said.values())
    for (label, seed), words in said.items():
        assert f"{label}, seed {seed}: {words}" in views.show
    comparison = open_comparison(views.folder)
    assert named(comparison) == said
    (verdicts,) = comparison.verdicts().values()
    assert any(
        RUNAWAY in sentence and "1 of 3 pairs of runs are left out" in sentence and said[RUNAWAY, 1] in sentence for sentence in verdicts
    )
    assert any(sentence.startswith("fedavg+rate(") and "cannot be judged: in no run" in sentence for sentence in verdicts)
    page = write_report(views.folder).page.read_text(encoding="utf-8")
    assert "1 of 3 pairs of runs did not finish and are not counted (" in page
    assert page.count('<tr class="unjudged" tabindex="0">') == 1  # the one that always diverges: no gain, and no mark in the plot
    assert "cannot be judged: in no run did both it and " in page


def test_the_last_evaluated_round_of_a_run_that_diverged_is_not_its_final_score(views: Views, means: pd.DataFrame) -> None:
    clients = Evidence.open(views.folder).frame("clients")
    actual = Evidence.open(views.folder).actual.sum()
    right = clients[clients["method"] == RUNAWAY].assign(right=lambda frame: frame.filter(regex=r"^hits_").sum(axis=1))
    last = [lane[lane["round"] == lane["round"].max()]["right"].sum() / actual for _, lane in right.groupby("seed")]
    assert np.mean(last) != pytest.approx(means.loc[RUNAWAY, "final"])  # what a view would show that took it for one


def test_a_study_in_which_everything_diverges_at_once_is_shown_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    words = ["run", AT_ONCE, "fedprox(mu=1e+38)", "--data", "digits/rotated(clients=4,groups=2)", "--rounds", "3", "--out", str(folder)]
    run = CliRunner().invoke(app, [*words, "--seeds", "0-1"], env={"COLUMNS": "240"}, catch_exceptions=False)
    show = CliRunner().invoke(app, ["show", str(folder)], env={"COLUMNS": "240"}, catch_exceptions=False)
    result = Result(Evidence.open(folder))
    table = result.table()
    assert list(table.index) == [AT_ONCE, "fedprox(mu=1e+38)"]
    assert table[["final", "±", "last10", "mean", "macro", "worst", "loss"]].isna().all(axis=None)
    assert table["seeds"].tolist() == [0, 0]
    assert len(result.problems) == 4
    for label in table.index:
        for told in (run.stdout, show.stdout):
            (row,) = [line.split() for line in told.splitlines() if line.startswith(f"{label} ")]
            assert row[1:5] == ["–"] * 4
            assert f"{label}, seed 1: diverged in round 1" in told
    (verdicts,) = open_comparison(folder).verdicts().values()
    assert any("cannot be judged" in sentence for sentence in verdicts)
    assert write_report(folder).faults == ()
