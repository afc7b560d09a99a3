"""Survival times at real sites: one grid and one curve from counts, the same training as in simulation, and what a site may disclose."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.analysis.record_reader import read_records
from coterie.core.asks import DataPart, Evaluated
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.survival import compute_kaplan_meier, count_exits
from coterie.core.tasks import Task
from coterie.data.agreed_schema import AgreedColumn, AgreedSchema, format_agreed_schema, read_agreed_schema
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.bundle.rows import read_rows
from coterie.deploy.server.times import choose_edges
from coterie.deploy.site.audit import verify_audit
from coterie.deploy.site.disclosure import Discloser, RoundingContext
from coterie.deploy.site.policy import Policy
from coterie.deploy.site.times import combine_rare, round_up
from coterie.deploy.table_answers import EventTimes
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings
from coterie.report.report import write_report
from coterie.run.execution import Execution
from coterie.run.study import Study
from deploy.different_tables import SITES, TableFed
from deploy.ordering import APPROVING_POLICY

EXACT = APPROVING_POLICY.replace("rounding = 3", "rounding = 1").replace("minimum_samples = 10", "minimum_samples = 1")
SCHEMA = AgreedSchema("days", (), (AgreedColumn("age"),), event="died", grid=(20.0, 60.0, 120.0))
METHODS = ("fedavg", "fedgroup(groups=2)")


def make_patients(seed: int, rows: int) -> pd.DataFrame:
    """Older patients die sooner, at every second site twice as fast."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(30, 90, rows).round()
    days = (400 * np.exp(-age / 30) * rng.exponential(size=rows) / (1 + seed % 2)).round(1) + 0.5
    return pd.DataFrame({"age": age, "days": days, "died": (rng.random(rows) < 0.7).astype(int)})


@dataclass
class TimeFed(TableFed):
    """A federation within this process, whose sites have survival times."""

    label: str = "time=days,event=died,intervals=3"
    prepares: tuple[str, ...] = ("SummarizeTable", "CountTimes")

    def write_files(self) -> dict[str, Path]:
        files = {site: self.folder / "data" / f"{site}.csv" for site in SITES}
        (self.folder / "data").mkdir(parents=True)
        for seed, file in enumerate(files.values()):
            make_patients(seed, self.rows).to_csv(file, index=False)
        return files

    def agree(self, schema: AgreedSchema = SCHEMA) -> None:
        (self.folder / "schema.toml").write_text(format_agreed_schema(schema))

    def simulate(self, out: Path, grid: tuple[float, ...]) -> Evidence:
        data = f"csv('{self.folder / 'data'}',time=days,event=died,grid={list(grid)},scale=standard)/natural"
        settings = Settings(methods=METHODS, data=data, plan=Plan(rounds=2, local=Local(epochs=2, lr=0.1)))
        Study.prepare(settings).run(out=out, execution=Execution(engine="loop"))
        return Evidence.open(out)


def change_file(fed: TimeFed, site: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_csv(fed.files[site])).to_csv(fed.files[site], index=False)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> TimeFed:
    made = TimeFed(tmp_path_factory.mktemp("times"), EXACT)
    made.agree()
    return made


@pytest.fixture(scope="module")
def trained(fed: TimeFed) -> Path:
    return fed.launch(methods=METHODS)


def test_sites_train_what_the_simulation_trains(fed: TimeFed, trained: Path, tmp_path: Path) -> None:
    evidence, simulated = Evidence.open(trained / "study"), fed.simulate(tmp_path / "out", SCHEMA.grid)
    assert fed.reported == []
    assert (evidence.task, evidence.grid) == ("survival", simulated.grid)
    frames = [own.frame("clients") for own in (evidence, simulated)]
    frames = [frame.assign(client=np.array(own.ids)[frame["client"]]) for frame, own in zip(frames, (evidence, simulated), strict=True)]
    for column in ("loss", "brier_error", "concordant_pairs", "expected_events"):
        ours, theirs = (frame.sort_values(["method", "round", "client"])[column].to_numpy() for frame in frames)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=column)
    scores, expected = (read_records(own).by_round() for own in (evidence, simulated))
    assert {"ipa", "concordance", "brier", "calibration"} <= {*scores, read_records(evidence).metric.name}
    for name, values in scores.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, err_msg=name)


def test_the_report_draws_the_curves_that_sites_report(fed: TimeFed, trained: Path) -> None:
    evidence = Evidence.open(trained / "study")
    site = fed.sites["north"].world
    assert site is not None
    own = site.federation
    np.testing.assert_array_equal(evidence.exits[0], count_exits(own.y[own.train.indices], 3))
    np.testing.assert_allclose(own.task.reference, compute_kaplan_meier(evidence.exits.sum(axis=0))[1:])
    write_report(trained / "study")
    page = (trained / "study" / "report.html").read_text()
    assert 'id="kaplan-meier"' in page
    assert "training samples" in page


def test_a_delivered_bundle_predicts_on_the_agreed_grid(fed: TimeFed, trained: Path, tmp_path: Path) -> None:
    bundle = read_bundle(fed.kit("south") / "bundles" / "first" / "fedavg")
    assert bundle.task.grid == (0.0, *SCHEMA.grid)
    (tmp_path / "new.csv").write_text("age\n35\n85\n")
    curves = bundle.answer(read_rows(tmp_path / "new.csv", bundle).x).classes
    assert curves.shape == (2, 3)
    assert curves[0, -1] > curves[1, -1]
    kept = read_bundle(trained / "bundles" / "fedavg")
    assert (kept.task, kept.classes) == (bundle.task, bundle.classes)


def test_a_run_is_resumed_on_its_grid_and_counts_are_asked_once(fed: TimeFed, trained: Path) -> None:
    before = json.loads((trained / "members.json").read_text())
    lines = (fed.kit("north") / "audit.jsonl").read_text().count("CountTimes")
    fed.launch(rounds=3, methods=METHODS)
    after = json.loads((trained / "members.json").read_text())
    assert (after["schema"], after["exits"]) == (before["schema"], before["exits"])
    assert (fed.kit("north") / "audit.jsonl").read_text().count("CountTimes") == lines
    assert verify_audit(fed.kit("north") / "audit.jsonl").faults == ()


def test_a_schema_is_proposed_and_sites_compute_the_grid(tmp_path: Path) -> None:
    """With default policies: names and units of the sites differ, rare counts are combined, and scores are rounded."""
    fed = TimeFed(tmp_path, rows=200)
    change_file(fed, "south", lambda frame: frame.assign(days=(frame["days"] / 30).round(3)))
    change_file(fed, "east", lambda frame: frame.rename(columns={"days": "time"}))
    settings = fed.kit("east") / "site.json"
    settings.write_text(settings.read_text().replace("time=days", "time=time"))
    folder = fed.order("schema", {"schema": None}, "schema")
    proposed = read_agreed_schema(folder / "proposal.toml")
    assert (proposed.label, proposed.event, proposed.intervals, proposed.classes) == ("days", "died", 10, ())
    assert "At south the middle value is" in (folder / "proposal.toml").read_text()
    fed.agree(replace(proposed, intervals=4))
    found = fed.order("schema", {"schema": replace(proposed, intervals=4).to_dict()}, "check")
    (finding,) = json.loads((found / "findings.json").read_text())["south"]
    assert "look 30" in finding["sentence"] or "times as small" in finding["sentence"]
    (fed.kit("south") / "mapping.toml").write_text("[columns.days]\nfactor = 30\n")
    evidence = Evidence.open(fed.launch() / "study")
    assert len(evidence.grid) == 5
    assert all(float(f"{edge:.2g}") == edge for edge in evidence.grid)
    counts = evidence.exits.reshape(-1)
    assert ((counts == 0) | (counts > 6)).all()  # 10, rounded to multiples of 3
    assert (counts % 3 == 0).all()
    rows = evidence.frame("clients").query("round == 2")
    assert len(rows) == 4
    assert (rows["samples"] % 3 == 0).all()
    assert (rows["target_events"] > 0).all()
    assert (rows["concordant_pairs"] <= rows["target_pairs"]).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.assign(days=-frame["days"]), "has 60 rows with times that are not above 0 in column 'days'"),
        (lambda frame: frame.assign(died=frame["died"] + 1), r"other values than 0 and 1 in the event 'died' \('2'\): write 1 where"),
        (lambda frame: frame.drop(columns="days"), "its data or its mapping.toml cannot be read"),
        (lambda frame: frame.assign(days=frame["days"].where(frame["days"] < 0)), "no row with the label 'days'"),
    ],
)
def test_a_site_whose_times_are_wrong_takes_no_part(change: Callable[[pd.DataFrame], pd.DataFrame], sentence: str, tmp_path: Path) -> None:
    fed = TimeFed(tmp_path, EXACT, rows=60)
    fed.agree()
    change_file(fed, "west", change)
    fed.launch(rounds=1, minimum=3)
    (fault,) = fed.reported
    assert fault.startswith("Site 'west' does not take part")
    assert re.search(sentence, fault)


def test_a_site_without_events_trains_and_is_mentioned(tmp_path: Path) -> None:
    fed = TimeFed(tmp_path, EXACT)
    fed.agree()
    change_file(fed, "west", lambda frame: frame.assign(died=0))
    evidence = Evidence.open(fed.launch(rounds=1) / "study")
    assert fed.reported == ["No event at west: such a client trains, but has no concordance index."]
    rows = evidence.frame("clients").query("round == 1")
    assert (rows["target_pairs"].to_numpy() > 0).tolist() == [True, True, True, False]


def test_what_cannot_be_a_grid_is_refused_in_one_sentence(tmp_path: Path) -> None:
    fed = TimeFed(tmp_path, rows=20)
    fed.agree(replace(SCHEMA, grid=(), intervals=10))
    with pytest.raises(UserError, match="too few for 10 intervals: set 'intervals' to 4 or fewer"):
        fed.launch()
    fed.agree(replace(SCHEMA, grid=(0.1,)))
    with pytest.raises(UserError, match=r"No site reports counts|hold no event before 0.1, the end of the grid"):
        fed.launch("second")
    fed.order("schema", {"schema": None}, "schema")
    (fed.folder / "schema.toml").unlink()
    with pytest.raises(UserError, match="makes it a survival task, which sites do not train by their own description: agree on a schema"):
        fed.launch("third")


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"classes": ["a", "b"]}, "has both 'event' and 'classes'"),
        ({"grid": [20, 10]}, "each above the one before"),
        ({"grid": [float("nan")]}, "numbers above 0"),
        ({"intervals": 3}, "stand where there is no 'grid'"),
        ({"intervals": 10**6, "grid": []}, "from 1 to 1000"),
        ({"typical": -1}, "a usual time"),
        ({"event": "age"}, "uses the name 'age' twice"),
        ({"event": None, "grid": []}, "two or more classes"),
        ({"event": None, "classes": ["a", "b"]}, "'grid' is for survival times"),
    ],
)
def test_a_wrong_schema_of_times_is_refused_in_one_sentence(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        AgreedSchema.from_dict({**SCHEMA.to_dict(), **tree}, "schema.toml")
    assert AgreedSchema.from_dict(SCHEMA.to_dict(), "schema.toml") == SCHEMA


def test_a_site_that_aggregates_reports_one_curve(tmp_path: Path) -> None:
    fed = TimeFed(tmp_path, EXACT.replace("aggregate = false", "aggregate = true"))
    change_file(fed, "west", lambda frame: frame.assign(ward=["a", "b"] * 30))
    settings = fed.kit("west") / "site.json"
    settings.write_text(settings.read_text().replace("time=days", "client=ward,time=days"))
    fed.agree()
    run = fed.launch(rounds=1)
    assert fed.reported == ["One reply for all clients of the site (aggregate): east, north, south, west."]
    evidence = Evidence.open(run / "study")
    world = fed.sites["west"].world
    assert world is not None
    own = world.federation
    assert own.ids == ("a", "b")
    np.testing.assert_array_equal(evidence.exits[evidence.ids.index("west")], count_exits(own.y[own.train.indices], 3))
    assert len(evidence.frame("clients").query("round == 1")) == 4
    assert not re.search(r'"client": ?"[ab]"', (run / "members.json").read_text())


# what may leave


def test_rare_counts_are_combined_with_the_interval_beside_them() -> None:
    assert combine_rare(np.array([4, 8, 0, 12, 3]), 10) is not None
    for counts in np.random.default_rng(0).integers(0, 14, (200, 6)):
        made = combine_rare(counts, 10)
        if made is None:
            assert 0 < counts.sum() < 10
        else:
            assert made.sum() == counts.sum()
            assert ((made == 0) | (made >= 10)).all()
    assert round_up(np.array([8.3, 271, 0.1, 90, 1000.5], dtype=np.float32)) == [8.3, 280.0, 0.1, 90.0, 1100.0]


def test_edges_lie_where_equal_shares_of_all_events_are() -> None:
    found = [EventTimes((10.0, 20.0), (10, 10)), EventTimes((20.0, 30.0), (10, 10))]
    assert choose_edges(found, 2) == (0.0, 20.0, 30.0)
    assert choose_edges(found, 1) == (0.0, 30.0)
    with pytest.raises(UserError, match="40 events at 3 times, too few for 4 intervals: set 'intervals' to 3"):
        choose_edges(found, 4)
    with pytest.raises(UserError, match="No site reports enough events"):
        choose_edges([EventTimes((), ())], 2)


def disclose(sums: list[float], model: int = 0, part: DataPart = "test", **policy: Any) -> list[float]:
    """The sums of one client as they leave."""
    discloser = Discloser(Policy(**policy), "00" * 32, 3, Task("survival"))
    nothing = np.zeros((1, 0), dtype=np.int64)
    reply = Evaluated(np.zeros(1, np.int64), nothing, nothing, nothing, np.ones(1), np.ones(1), sums=np.array([sums]))
    question = RoundingContext(f"Evaluate {part}", ["data"], np.array([int(sums[0])]), [[str(model).encode()]])
    found = discloser.disclose_reply(reply, part, question)
    assert isinstance(found, Evaluated)
    return list(found.sums[0])


def test_sums_leave_rounded_to_what_a_few_samples_can_change() -> None:
    sums = [20.0, 4.1, 61.0, 9.7, 4.4, 100.0, 11.0]  # samples, Brier, right pairs, expected, Brier of the curve, pairs, events
    assert disclose(sums, rounding=1) == pytest.approx(sums)
    found = np.array([disclose(sums, model) for model in range(400)])
    samples = found[:, 0]
    assert set(samples) <= {18.0, 21.0}
    means = found[:, [1, 3, 4, 6]] / samples[:, None]
    steps = means / (np.array([1.0, 2.0, 1.0, 1.0]) * 3 / 20)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
    np.testing.assert_allclose(means.mean(axis=0)[:2], np.array([4.1, 9.7]) / 20, atol=0.03)  # random rounding keeps the mean
    assert {tuple(row) for row in found[:, [0, 4, 5, 6]].tolist()} == {tuple(found[0, [0, 4, 5, 6]].tolist())}  # no model changes these
    assert (found[:, 2] <= found[:, 5]).all()
    withheld = disclose(sums, sample_counts=False, class_counts=False)
    assert (withheld[0], withheld[5]) == (100.0, 100.0)
    assert withheld[3] == withheld[6] == 0.0
    assert disclose(sums, part="train")[6] == 0.0
    assert disclose([20.0, 4.1, 0.0, 9.7, 4.4, 0.0, 0.0])[5] == 0.0  # no pairs
