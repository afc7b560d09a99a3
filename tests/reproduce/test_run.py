"""A small study run for real: parts, redrawn data, measurements, resumption, pages and the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.method import Context
from coterie.evidence.folder import MemorySource
from coterie.evidence.reader import Evidence
from coterie.evidence.records import DIVERGED, LaneEnd
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedsim import FedSim
from coterie.methods.local_only import LocalOnly
from coterie.reproduce import read_reproduction
from coterie.reproduce.page import write_page
from coterie.reproduce.rejudge import ReproductionResult, reproduce
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import StudyPart
from coterie.reproduce.values import read_values
from coterie.run.result import Result
from coterie.run.study import study
from coterie.testing import worlds

SMALL = Path(__file__).parent / "small.toml"


def test_claims_are_judged_and_missing_data_said(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, _ = carried
    found = {result.claim.says: result for result in outcome.result.results}
    assert found["FedAvg beats nothing at all"].outcome == "replicates"
    assert found["FedAvg is perfect"].outcome == "opposite sign in our variant"  # not declared as the paper's own row
    assert (found["MNIST is here"].outcome, found["Secrets are told"].outcome) == ("not run", "not run")
    assert found["Similar clusters differ from random ones by less than 100 points"].outcome == "significant"
    assert outcome.result.counts["not run"] == 2
    assert "MNIST is missing" in outcome.result.sentence
    assert "data not available: secret" in outcome.result.sentence
    assert outcome.seeds == 6


def test_scores_are_those_of_the_evidence(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, out = carried
    values = outcome.values["fixed"]
    result = Result(Evidence.open(out / "fixed" / "rounds"))
    expected = result.scores[result.scores["method"] == "fedavg"].set_index("seed")
    for score in ("final", "last10", "mean", "macro", "worst"):
        assert values.of("fedavg", score) == pytest.approx((100 * expected[score]).to_dict())
    curves = result.rounds[(result.rounds["method"] == "fedavg") & (result.rounds["round"] >= 1)]
    highest = 100 * curves.groupby("seed")["accuracy"].max()
    assert values.of("fedavg", "max") == pytest.approx(highest.to_dict())
    assert set(values.of("local", "final")) == set(range(6))
    assert not values.of("local", "mean")  # judged after the last round only
    moved = curves.groupby("seed")["discrepancy"].mean()
    assert values.of("fedavg", "discrepancy") == pytest.approx(moved.to_dict())
    assert 1 <= values.mean("fedsim(clusters=2)", "components") <= 3  # of four gradients, centred


def test_a_part_may_have_costly_controls_of_its_own(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, out = carried
    assert (out / "fixed" / "last").is_dir()
    assert (out / "redrawn" / "seed-0" / "rounds").is_dir()
    assert not (out / "redrawn" / "seed-0" / "last").exists()
    assert not outcome.values["redrawn"].of("local", "final")


def test_the_memory_of_a_wave_can_be_said(tmp_path: Path) -> None:
    """Where a GPU was too small, `reproduce` told users of an option that it did not have."""
    said = [str(SMALL), "--part", "fixed", "--seeds", "0", "--rounds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["reproduce", *said, "--memory", "0.5"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "fixed" / "rounds" / "execution.json").read_text(encoding="utf-8"))["memory"] == 0.5
    refused = CliRunner().invoke(app, ["reproduce", *said, "--memory", "0"])
    assert isinstance(refused.exception, UserError)
    assert "memory" in str(refused.exception)


def test_a_run_that_ended_early_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five draws of a control had failed, and all that was said of it was a smaller number of draws."""
    serve = LocalOnly.serve

    def failing(self: LocalOnly, state: Any, clients: Any, ctx: Context) -> Any:
        if ctx.seed == 1:
            raise RuntimeError("on purpose\nand on a second line")
        return serve(self, state, clients, ctx)

    monkeypatch.setattr(LocalOnly, "serve", failing)
    said = [str(SMALL), "--part", "fixed", "--seeds", "0-1", "--rounds", "2", "--out", str(tmp_path / "out"), "--page", str(tmp_path)]
    done = CliRunner().invoke(app, ["reproduce", *said])
    assert done.exit_code == 0, done.output
    told = "local, seed 1 (`failed in round 0: RuntimeError: on purpose`)."
    assert f"Ended early, and without scores: fixed, {told}" in " ".join(done.output.split())
    page = tmp_path / "small.md"
    assert f"Ended early, without scores: fixed: {told}" in page.read_text(encoding="utf-8")
    again = CliRunner().invoke(app, ["reproduce", str(SMALL), "--from", str(tmp_path / "small.csv"), "--page", str(tmp_path / "again")])
    assert f"fixed, {told}" in " ".join(again.output.split())
    assert told in (tmp_path / "again" / "small.md").read_text(encoding="utf-8")


def test_nor_is_a_part_whose_runs_all_ended_early_one_that_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, state: Any, ctx: Context) -> Any:
        raise RuntimeError("on `purpose` " + 300 * "x")

    for method in (FedAvg, FedSim):
        monkeypatch.setattr(method, "round", failing)
    said = [str(SMALL), "--seeds", "0", "--rounds", "2", "--out", str(tmp_path / "out"), "--page", str(tmp_path)]
    done = CliRunner().invoke(app, ["reproduce", *said, "--part", "redrawn", "--part", "pni", "--json"])
    assert done.exit_code == 0, done.output
    early = json.loads(done.output.splitlines()[-1])["early"]["redrawn"]
    assert len(early) == 3
    assert early[0].startswith("fedavg, seed 0 (`failed in round 1: RuntimeError: on 'purpose' xxx")
    assert early[0].endswith("xxx...`)")
    again = CliRunner().invoke(app, ["reproduce", str(SMALL), "--from", str(tmp_path / "small.csv"), "--page", str(tmp_path / "again")])
    assert "redrawn, fedavg, seed 0" in " ".join(again.output.split())
    assert "not run: all its runs ended early" in (tmp_path / "again" / "small.md").read_text(encoding="utf-8")


def test_a_lane_that_did_not_reach_the_end_has_no_scores() -> None:
    evidence = study("fedavg", data=worlds.make_federation(), rounds=2).evidence
    planned = replace(evidence.settings, plan=replace(evidence.settings.plan, rounds=3))
    assert isinstance(evidence.source, MemorySource)
    ends = {key: LaneEnd(2, DIVERGED, "in round 3 no client sent a finite model") for key in evidence.ends()}
    short = replace(evidence, settings=planned, source=replace(evidence.source, lanes=ends))  # as if it had diverged in the last round
    found = [read_values(PartRun(StudyPart(), studies=(each,)), None) for each in (evidence, short)]
    assert [values.rows for values in found] == [["fedavg", "fedavg | global"], []]
    assert not found[1].curves


def test_clients_with_many_test_samples_are_counted_right() -> None:
    result = study("fedavg", data="digits/iid(clients=2,test=0.5)", rounds=2, epochs=5)  # some 400 of 449 right: 40,000 is beyond 16 bits
    values = read_values(PartRun(StudyPart(), studies=(result.evidence,)), None)
    scores = result.scores.iloc[0]
    assert values.of("fedavg", "macro")[0] == pytest.approx(100 * scores["macro"])
    assert values.of("fedavg", "worst")[0] == pytest.approx(100 * scores["worst"])


def test_redrawn_data_differ_from_seed_to_seed(carried: tuple[ReproductionResult, Path]) -> None:
    _, out = carried
    sizes = [Evidence.open(out / "redrawn" / f"seed-{seed}" / "rounds").roster["train"].to_pylist() for seed in range(6)]
    assert len({tuple(row) for row in sizes}) == 6


def test_measurements(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, _ = carried
    assert len(outcome.values["pni"].of("pni", "literal")) == 6
    assert all(0 <= value <= 1 for value in outcome.values["ternary"].of("distances", "r2").values())


def test_what_is_there_is_not_run_again(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, out = carried
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    again = reproduce(read_reproduction(SMALL), out=out, data_dir=out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")} == before
    assert again.values["fixed"].numbers == outcome.values["fixed"].numbers


def test_the_page_shows_ours_beside_theirs(carried: tuple[ReproductionResult, Path], tmp_path: Path) -> None:
    outcome, _ = carried
    path = write_page(outcome, tmp_path, "coterie reproduce small")
    page = path.read_text()
    ours = outcome.values["fixed"].mean("fedavg", "final")
    assert f"| fixed | `fedavg` | {ours:.1f} (12.5) |" in page
    assert "not run: data not available: secret" in page
    assert f"**Verdict: {outcome.result.sentence}.**" in page
    assert "- Not covered by the intervals: other splits of the data (" in page
    assert "not declared as the paper's own row." in page
    frame = pd.read_csv(tmp_path / "small.csv")
    own = frame[(frame["part"] == "fixed") & (frame["method"] == "fedavg")]
    assert np.allclose(own["final"], list(outcome.values["fixed"].of("fedavg", "final").values()), atol=1e-4)


def test_the_command(tmp_path: Path) -> None:
    runner = CliRunner()
    options = ["--out", str(tmp_path / "out"), "--page", str(tmp_path), "--data-dir", str(tmp_path), "--seeds", "0-1", "--json"]
    done = runner.invoke(app, ["reproduce", str(SMALL), *options])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1])
    assert {word: n for word, n in said["verdict"].items() if n} == {"inconclusive": 3, "not run": 2}
    assert [claim["repetitions"] for claim in said["claims"]] == [2, 2, 2, 2, 2, 0, 0, 2]
    assert said["claims"][0]["p"] is None
    assert said["claims"][0]["variant"] == "2 of 6 seeds"
    assert (tmp_path / "small.md").read_text().count("--seeds 0-1") == 1


def test_the_list(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL.read_text())
    done = CliRunner().invoke(app, ["reproduce", "--list", "--studies", str(tmp_path)])
    assert done.exit_code == 0
    assert "small" in done.stdout
    assert "Nobody, Table 0" in done.stdout
