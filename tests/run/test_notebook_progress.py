"""In a notebook: the tutorial on tables goes its whole way in a real kernel, progress is shown without a warning, and objects are brief."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.run.callbacks import make_watchers

nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "own-table.md"


def outputs(cells: list[str], folder: Path) -> list[list[Any]]:
    """What each cell shows when a fresh kernel runs them all."""
    return executed(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), folder)


def executed(notebook: Any, folder: Path) -> list[list[Any]]:
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert not [out for cell in shown for out in cell if out.get("name") == "stderr" or out.output_type == "error"]
    return shown


def text(shown: list[Any]) -> str:
    return "".join(out.get("text") or out["data"].get("text/plain", "") + "\n" for out in shown).rstrip("\n")


def test_the_tutorial_on_tables_goes_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    shown = {cell: text(found) for cell, found in zip(cells, outputs(cells, tmp_path), strict=True)}
    inspected, compared, groups, predicted, placed = (
        next(found for cell, found in shown.items() if call in cell)
        for call in ("ct.inspect_data", "coterie show", "result.groups", "coterie predict", "coterie place")
    )
    assert "2 distinct groups" in inspected
    assert "FedGroup beats FedAvg by +" in compared
    by_clinic = dict(re.findall(r"clinic_(\d+)\s+(\d)", groups))
    assert len(by_clinic) == 12
    assert len({by_clinic[str(c)] for c in range(0, 12, 2)}) == len({by_clinic[str(c)] for c in range(1, 12, 2)}) == 1
    assert by_clinic["0"] != by_clinic["1"]
    assert predicted.count(f"group {by_clinic['3']}") == 6  # five rows and the sentence below
    assert f"clinic_13 gets group {by_clinic['1']}" in placed  # an odd one is placed with the odd


def test_progress_and_short_words(tmp_path: Path) -> None:
    study = 'result = ct.study("fedavg", data="digits/iid(clients=3)", rounds=3)'
    run, silent, shown, named, compared = outputs(
        ["import coterie as ct\n" + study, study[:-1] + ", callbacks=[])", "result", 'ct.load("heart")', _comparison()], tmp_path
    )
    assert "4 of 4 rounds of all methods and seeds" in run[0]["data"]["text/html"]
    assert silent == []
    assert "<Result on" in text(shown)
    assert "<td>" in shown[0]["data"]["text/html"]
    assert text(named) == "<Federation 'heart': 4 clients, 591 training and 149 test samples of shape (13,), 2 classes>"
    assert "<li>" in compared[-1]["data"]["text/html"]


def _comparison() -> str:
    return 'ct.compare(["fedsim(clusters=2)"], data="digits/iid(clients=4)", rounds=1, seeds=[0], controls=False, out="compared")'


def test_only_a_notebook_is_shown_progress_unasked() -> None:
    assert make_watchers(None) == []
    mine = ct.Callback()
    assert make_watchers([mine]) == [mine]


def test_a_comparison_in_few_columns(tmp_path: Path) -> None:
    settings = {"rounds": 1, "seeds": [0], "controls": False, "out": tmp_path / "compared"}
    found = ct.compare(["fedsim(clusters=2)"], data=["digits/iid(clients=4)", "digits/iid(clients=5)"], **settings)  # type: ignore[arg-type]
    short, whole = found.summary(), found.table()
    assert list(short) == ["data", "method", "role", "outcome", "score", "gain", "low", "high"]
    assert short["score"].tolist() == pytest.approx((100 * whole["last10"]).round(1).tolist())
    assert short[short["role"] == "baseline"][["outcome", "gain"]].isin(["", float("nan")]).all(axis=None)
    assert repr(found).startswith("<Comparison>\ndigits/iid(clients=4)\n  One seed cannot test")
