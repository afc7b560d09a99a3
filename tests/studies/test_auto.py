"""The study of admissions and the page of `auto`: numbers worked by hand, and the page against the tables beside it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study_scripts import script

admissions = script("auto_admissions")
ablations = script("auto_ablations")
page = script("auto_page")


def write_scores(folder: Path) -> None:
    """Two worlds of two draws, with FedAvg at both stages, a rival and a control; `auto` in the first."""
    rows = ["world,method,stage,control,d100,d101,b100,b101"]
    for name, stage, control, first, second in [
        ("fedavg", "served", "", 70, 72),
        ("fedavg", "tuned", "", 71, 73),
        ("ifca", "served", "", 80, 84),
        ("ifca", "served", "random", 99, 99),
        ("auto", "tuned", "", 78, 82),
    ]:
        rows.append(f"rotation,{name},{stage},{control},{first},{second},0,0")
    rows.append("iid,fedavg,served,,90,90,0,0")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.csv").write_text("\n".join(rows) + "\n")


def test_a_row_of_the_table_by_hand(tmp_path: Path) -> None:
    write_scores(tmp_path)
    text = page.make_page(page.read_worlds(tmp_path), None, None)
    # gains 8 and 10: 9 +- 12.706 * 1; the best is IFCA's 82, not its control's 99
    assert "| rotation | 71.0 | 72.0 | 80.0 | +9.0 (-3.7 to +21.7) | ifca 82.0 | 2.0 |" in text
    assert "mean regret to the best of all methods in hindsight is 2.00 points (target 0.5: missed)" in " ".join(text.split())
    assert "the worst 2.0 in rotation (target 2: met)" in " ".join(text.split())
    assert "Not run: `auto` in iid." in text


def test_what_is_not_run_is_named() -> None:
    text = page.make_page([], None, None)
    assert text.count("**Not run yet:**") == 4


def test_admissions_by_hand() -> None:
    table = pd.DataFrame(
        {
            "world": ["iid"] * 4,
            "draw": range(4),
            "fedavg": [90.0] * 4,
            "auto": [90.0, 89.4, 91.0, 89.6],
            "chosen": ["fedavg", "local", "fedavg+finetune(epochs=1)", "fedavg"],
            "gain": [0.0, 1, 1, 0],
            "p": [1.0, 0.1, 0.1, 1],
            "moved": [0, 40, 40, 2],
            "cost": [3.0, 4, 4, 3],
        }
    )
    text = page.make_page([], table, None)
    assert "| iid | 4 | 2 | 3 | 1 | +0.00 | -0.60 | 3.5 |" in text
    assert "Not run: 196 of 200 draws." in text


def test_ablations_by_hand() -> None:
    rows = [
        ("a", 200, "auto", 90.0, 3.5),
        ("a", 201, "auto", 92.0, 3.7),
        ("a", 200, "gate off", 89.0, 4.0),
        ("a", 201, "gate off", 91.4, 4.0),
    ]
    text = page.make_page([], None, None, pd.DataFrame(rows, columns=list(ablations.FIELDS)))
    assert "| auto | 91.0 | 3.6 |" in text
    assert "| gate off | -0.8 | 4.0 |" in text
    assert "mean over draws (a 2)" in " ".join(text.split())


def test_variants_are_measured_and_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablations, "WORLDS", {"iid": ("digits/iid(clients=10,test=0.3)", 0.5)})
    monkeypatch.setattr(ablations, "VARIANTS", {"FedAvg": "fedavg", "no groups": "auto(groups=false)"})
    found = ablations.measure("iid", 7, rounds=4)
    assert [row["variant"] for row in found] == ["FedAvg", "no groups"]
    assert found[0]["cost"] == 1
    (tmp_path / "iid-7.json").write_text(json.dumps(found))
    ablations.collect(tmp_path, tmp_path / "ablations.csv")
    assert pd.read_csv(tmp_path / "ablations.csv").to_dict("records") == found


def test_a_draw_is_measured_and_collected_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(admissions.WORLDS, "iid", "digits/iid(clients=12,test=0.3)")
    monkeypatch.setitem(admissions.PLAN, "rounds", 4)
    found = admissions.measure("iid", 7)
    assert set(found) == set(admissions.FIELDS)
    assert 0 < found["fedavg"] < 100
    assert found["cost"] > 1
    (tmp_path / "iid-1000.json").write_text(json.dumps(found))
    (tmp_path / "dirichlet-1000.json").write_text(json.dumps({**found, "world": "dirichlet"}))
    admissions.run(tmp_path, 1, 1.0, most=1)  # both are there
    admissions.collect(tmp_path, tmp_path / "admissions.csv")
    table = pd.read_csv(tmp_path / "admissions.csv")
    assert table["world"].tolist() == ["iid", "dirichlet"]
    assert np.isclose(table["auto"], found["auto"]).all()


def test_the_page_is_made_from_the_tables_beside_it() -> None:
    text = page.make_page(
        page.read_worlds(), page._read(page.ADMISSIONS), page._read(page.RIVALS / "costs.csv"), page._read(page.ABLATIONS)
    )
    assert page.PAGE.read_text(encoding="utf-8") == text
