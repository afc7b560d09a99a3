"""Faults of data that training would not show: what is found, how severe it is, where, and what it costs."""

import json
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.checks import Finding, check_before_use, check_data, describe_scale_problem, raise_on_severe
from coterie.data.readers.table_files import Row
from data.trial_files import LABEL, OUTLIER_LINE, trial_frame, write_sites

READY = f"label={LABEL},categories=onehot,impute=median,missing='?'"


def found(findings: list[Finding], kind: str) -> Finding:
    (finding,) = [each for each in findings if each.kind == kind]
    return finding


def federation(frame: pd.DataFrame, **more: Any) -> ct.Federation:
    return ct.Federation.from_frame(frame, **{"client": "site", "label": LABEL, "categories": "onehot", "impute": "mean", **more})


def people(rows: int = 400, sites: int = 4) -> pd.DataFrame:
    return trial_frame(0, rows).assign(site=np.array([f"site_{i:02}" for i in range(sites)])[np.arange(rows) % sites])


def test_clean_data_have_no_findings(tmp_path: Path) -> None:
    assert check_data(load(f"csv('{write_sites(tmp_path)}',{READY})")) == []
    assert check_data(people(), label=LABEL, client="site") == []


def test_trial_files_are_found_out_by_site_column_and_line(tmp_path: Path) -> None:
    faults = {"site_02": ("order", "outlier"), "site_03": ("missing_class", "empty_column"), "site_05": ("tiny",)}
    findings = check_data(load(f"csv('{write_sites(tmp_path, faults, sites=7)}',{READY})"))
    assert [each.severity for each in findings] == sorted((each.severity for each in findings), key=("severe", "warning", "note").index)
    outlier = found(findings, "outlier")
    assert outlier.severity == "severe"
    assert (outlier.clients, outlier.columns, outlier.rows) == (("site_02",), ("mean_x",), (Row("site_02.csv", OUTLIER_LINE),))
    assert f"holds 1e+12 in line {OUTLIER_LINE} of site_02.csv" in outlier.sentence
    assert "scale=robust" in outlier.advice
    empty = found(findings, "empty at some clients")
    assert (empty.severity, empty.clients, empty.columns) == ("warning", ("site_03",), ("age",))
    assert (found(findings, "tiny client").clients, found(findings, "missing class").clients) == (("site_05",), ("site_03",))
    assert "class 'walk'" in found(findings, "missing class").sentence
    assert len(findings) == 4
    assert json.loads(json.dumps(outlier.as_json()))["rows"] == [{"file": "site_02.csv", "row": OUTLIER_LINE}]


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_a_value_that_flattens_its_column_is_no_matter_of_scale(scale: str) -> None:
    frame = people()
    frame.loc[7, "energy"] = 1e12
    made = federation(frame, scale=scale)
    said = describe_scale_problem(made)
    assert said is not None
    assert "holds 1e+12 in row 7" in said
    assert "scale=robust" in said
    assert "scale=standard would flatten the others" in said
    robust = federation(frame, scale="robust")
    assert describe_scale_problem(robust) is None
    assert found(check_data(robust), "outlier").severity == "warning"
    others = robust.x[np.arange(400) != 7, 2]
    assert others.std() > 0.3  # the column is as it was for everybody else
    assert np.abs(robust.x).max() <= 10


def test_heavy_tails_and_rare_events_are_no_outliers() -> None:
    frame, rng = people(2000), np.random.default_rng(1)
    frame["income"] = np.exp(rng.normal(10, 1.5, 2000))
    frame["visits"] = (rng.random(2000) < 0.01) * 5.0
    frame["counts"] = rng.poisson(0.02, 2000)
    assert not [each for each in check_data(federation(frame)) if each.severity == "severe"]


def test_columns_that_nothing_can_be_learned_from() -> None:
    frame = people().assign(empty=np.nan, same=3, number=np.arange(400) // 4, near=np.arange(400) * 0.5)
    frame.loc[frame["site"] == "site_01", "age"] = 7
    findings = check_data(federation(frame))
    assert (found(findings, "empty column").severity, found(findings, "empty column").columns) == ("severe", ("empty",))
    assert (found(findings, "constant column").severity, found(findings, "constant column").columns) == ("warning", ("same",))
    assert (found(findings, "identifier").severity, found(findings, "identifier").columns) == ("warning", ("number",))
    assert (found(findings, "constant at some clients").severity, found(findings, "constant at some clients").clients) == (
        "note",
        ("site_01",),
    )
    assert len(findings) == 4


def test_a_column_that_tells_the_label_is_a_leak() -> None:
    frame = people()
    frame["ward"] = frame[LABEL].map({"sit": "A", "stand": "B", "walk": "C"})
    frame["score"] = frame[LABEL].map({"sit": 1.0, "stand": 5.0, "walk": 9.0}) + np.random.default_rng(0).normal(0, 0.5, 400)
    leaks = [each for each in check_data(federation(frame)) if each.kind == "label leak"]
    assert {(each.columns, each.severity) for each in leaks} == {(("ward",), "severe"), (("score",), "severe")}
    gaps = people()
    gaps["asked"] = np.where(gaps[LABEL] == "walk", np.nan, 1.0)  # only who does not walk is asked
    gaps = gaps[gaps[LABEL] != "sit"]
    assert found(check_data(federation(gaps)), "label leak").columns == ("asked",)
    amounts = people().assign(pounds=lambda t: 2.2 * t["energy"]).drop(columns=[LABEL])
    assert found(check_data(federation(amounts, label="energy", task="regression")), "label leak").columns == ("pounds",)


def test_copies_in_train_and_test_are_counted() -> None:
    frame = pd.concat([people(), people().iloc[:40]], ignore_index=True)
    copies = found(check_data(federation(frame)), "rows in train and test")
    assert copies.severity == "warning"
    assert copies.rows
    words = pd.DataFrame({"site": list("ab") * 200, "sex": list("fmmf") * 100, LABEL: list("xyxyy") * 80})
    assert found(check_data(federation(words)), "rows in train and test").severity == "note"  # there are four different rows in all


def test_one_class_for_nearly_all() -> None:
    frame = people(1000)
    frame[LABEL] = np.where(np.arange(1000) % 100 == 0, "ill", "well")
    findings = check_data(federation(frame))
    assert "99.0 % of training rows are of class 'well'" in found(findings, "class imbalance").sentence
    assert found(findings, "rare class").severity == "warning"
    stated = check_data(federation(people(), classes=["sit", "stand", "walk", "run"]))
    assert found(stated, "class without rows").severity == "warning"


def test_a_frame_is_checked_as_it_is() -> None:
    frame = people().assign(patient=[f"patient {i}" for i in range(400)], empty=None)
    frame.loc[5, "mean_x"] = 1e12
    findings = ct.check_data(frame, label=LABEL, client="site")
    assert {each.kind for each in findings} == {"empty column", "outlier", "identifier"}
    assert found(findings, "outlier").rows == (Row(None, 5),)
    assert ct.check_data(frame[["mean_x", "age"]])[0].kind == "outlier"
    with pytest.raises(UserError, match="has no label column 'activty': did you mean 'activity'"):
        ct.check_data(frame, label="activty")


def test_severe_findings_stop_unless_accepted(tmp_path: Path) -> None:
    frame = people().assign(empty=np.nan)
    made = federation(frame)
    with pytest.raises(UserError, match=r"Column 'empty' is empty at all clients.*accept=True"):
        check_before_use(made)
    assert check_before_use(made, accept=True)[0].startswith("Severe: Column 'empty'")
    raise_on_severe([], accept=False)
    with pytest.raises(UserError, match="Column 'empty' is empty"):
        ct.compare("fedavg", data=made, out=tmp_path / "c", rounds=1, seeds=[0], controls=False)
    assert not (tmp_path / "c").exists()
    done = ct.compare("fedavg", data=made, out=tmp_path / "c", rounds=1, seeds=[0], controls=False, accept=True)
    assert done is not None
    ct.compare("fedavg", data=made, out=tmp_path / "c", rounds=2, seeds=[0], controls=False, resume=True)  # what was accepted stays so


@pytest.mark.parametrize(
    "spec", ["heart", "digits/rotated", "digits/dirichlet(0.1,clients=20)", "synthetic", "linear", "linear(task=multilabel)"]
)
def test_data_that_come_with_the_package_have_no_severe_findings(spec: str) -> None:
    assert not [each for each in check_data(load(spec)) if each.severity == "severe"]


def test_a_hundred_thousand_rows_take_a_moment() -> None:
    rng, n = np.random.default_rng(0), 100_000
    table: dict[str, Any] = {f"c{i}": rng.normal(size=n) for i in range(12)} | {f"k{i}": rng.integers(0, 50, n) for i in range(6)}
    frame = pd.DataFrame({**table, "site": rng.integers(0, 20, n), LABEL: rng.choice(list("ab"), n)})
    made = federation(frame, scale="standard")
    began = process_time()
    assert check_data(made) == []
    assert process_time() - began < 5  # about 0.3 s on one core; a loop over cells would take a minute
