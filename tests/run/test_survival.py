"""Survival times the whole way: files of sites, study, metrics, page, bundle, predictions and a new client."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.record_reader import read_records
from coterie.core.survival import compute_kaplan_meier
from coterie.deploy.bundle.export import find_study, load_served_models
from coterie.deploy.bundle.files import HEAD_FILE, read_bundle, write_bundle
from coterie.deploy.bundle.rows import calibrate_intervals
from coterie.evidence.reader import Evidence
from coterie.report.report import write_report


def write_sites(folder: Path, sites: int = 3, rows: int = 24) -> Path:
    """Files in which older patients die sooner."""
    for site in range(sites):
        rng = np.random.default_rng(site)
        age = rng.uniform(30, 90, rows).round()
        days = (400 * np.exp(-age / 30) * rng.exponential(size=rows)).round(1) + 0.5
        pd.DataFrame({"age": age, "days": days, "died": (rng.random(rows) < 0.8).astype(int)}).to_csv(folder / f"s{site}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_sites(tmp_path_factory.mktemp("sites"))
    out = tmp_path_factory.mktemp("study") / "out"
    data = f"csv('{folder}',time=days,event=died,intervals=4,scale=standard)/natural(test=0.3)"
    ct.compare(["fedavg", "fedgroup(groups=2)"], data=data, out=out, rounds=3, seeds=[0], lr=0.3, controls=False)
    return out


def test_scores_are_those_of_the_samples_pooled(found: Path) -> None:
    records = read_records(Evidence.open(find_study(found)))
    evidence = records.evidence
    assert (evidence.task, records.metric.name, len(evidence.grid)) == ("survival", "ipa", 5)
    rows = evidence.frame("clients").query("round == 3 and method == @records.settings.methods[0]")
    reference, pairs, events = (evidence.get_roster_column(f"target_{name}") for name in ("brier", "pairs", "events"))
    assert records.accuracy[0, 0, -1] == pytest.approx(1 - rows["brier_error"].sum() / reference.sum())
    last = {name: values[0, 0, -1] for name, values in records.by_round().items()}
    assert last["concordance"] == pytest.approx(rows["concordant_pairs"].sum() / pairs.sum())
    assert last["brier"] == pytest.approx(rows["brier_error"].sum() / records.test.sum())
    assert last["calibration"] == pytest.approx(events.sum() / rows["expected_events"].sum())
    by_client = read_records(evidence, "concordance")
    assert by_client.accuracy[0, 0, -1] == pytest.approx((rows["concordant_pairs"].to_numpy() / pairs).mean())
    assert evidence.exits.sum() == 72  # all parts


def test_the_page_draws_curves_of_clients_and_groups(found: Path) -> None:
    write_report(found)
    page = (found / "report.html").read_text()
    spec = json.loads(page.partition('id="kaplan-meier"')[2].partition('json">')[2].partition("</script>")[0])
    rows = next(iter(spec["datasets"].values())) if "datasets" in spec else spec["data"]["values"]
    evidence = Evidence.open(find_study(found))
    whole = [row["survival"] for row in rows if row["who"] == "all clients"]
    np.testing.assert_allclose(whole, 100 * compute_kaplan_meier(evidence.exits.sum(axis=0)), atol=0.006)
    assert {row["panel"] for row in rows} == {"Clients", "FedGroup"}
    assert {row["who"] for row in rows} >= {"s0", "s1", "s2", "group 0"}
    assert (found / "tables" / "survival-by-client.csv").exists()


def test_a_bundle_predicts_survival_on_its_grid(found: Path, tmp_path: Path) -> None:
    made = load_served_models(find_study(found), "fedgroup(groups=2)").bundle(["s1"])
    write_bundle(made, tmp_path / "b")
    read = read_bundle(tmp_path / "b")
    assert read.task == made.task
    curves = read.predict(pd.DataFrame({"age": [40, 60, 85]}))
    assert curves.shape == (3, 4)
    assert (np.diff(curves, axis=1) <= 0).all()
    assert curves[0, -1] > curves[2, -1]
    rows = pd.DataFrame({"days": [3.0, 1e6], "died": [1, 0]}).to_numpy(np.float64)
    by_interval = calibrate_intervals(curves[:2], rows, read.task)
    first = np.searchsorted(read.task.grid, 3.0) - 1
    assert [one["events"] for one in by_interval] == [float(j == first) for j in range(4)]
    hazards = 1 - curves / np.concatenate([np.ones((3, 1)), curves[:, :-1]], axis=1)
    expected = hazards[1] + hazards[0] * (np.arange(4) <= first)
    np.testing.assert_allclose([one["expected"] for one in by_interval], expected)
    head = tmp_path / "b" / HEAD_FILE
    stored = json.loads(head.read_text())
    stored["task"]["grid"] = stored["task"]["grid"][:-1]
    head.write_text(json.dumps(stored))
    with pytest.raises(UserError, match="grid"):
        read_bundle(tmp_path / "b")
