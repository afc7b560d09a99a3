"""The tables of peers in benchmarks/README.md are those of the files in results/peers; README.md's features are those of their page."""

import csv
from pathlib import Path

import pytest

from benchmarks import peer_example
from benchmarks.page_figures import read_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "README.md"
FEATURES = ROOT / "docs" / "reference" / "peers.md"


def read_marked(name: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(f"<!-- {name} -->") : text.index(f"<!-- /{name} -->")].splitlines()[1:]


def test_the_example_is_that_of_the_results() -> None:
    rows = peer_example.read_rows(peer_example.RESULTS)
    assert {row["side"] for row in rows} == {"CFLA", "Coterie"}
    assert read_marked("example") == peer_example.make_table(rows)


def test_the_times_are_those_of_the_results() -> None:
    side_by_side = pytest.importorskip("benchmarks.side_by_side")
    with side_by_side.RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert read_marked("peers") == side_by_side.make_table(rows)
    ours = float(rows[0]["us"])
    assert rows[0]["side"] == side_by_side.OURS
    for row in rows:
        assert float(row["times"]) == pytest.approx(float(row["us"]) / ours, rel=0.02)
        assert float(row["apart"]) < 1e-3


def test_features_of_the_readme_are_those_of_their_page() -> None:
    """Cells of the short table may be shorter, never others."""
    long = {row[""]: row for row in read_table(FEATURES, "# Beside other tools")}
    short = {row[""]: row for row in read_table(ROOT / "README.md", "## Beside other tools")}
    assert 1 < len(short) <= 8
    renamed = {
        "intervals and a verdict": "intervals and a verdict over seeds and draws",
        "clients vectorised in one pass": "clients of a simulation",
    }
    for feature, cells in short.items():
        whole = long[renamed.get(feature, feature)]
        assert cells.keys() == whole.keys()
        for tool, cell in cells.items():
            if feature == "clients vectorised in one pass":
                assert (cell == "yes") is ("vectorised" in whole[tool])
            elif tool:
                first = cell.removesuffix(", …").split(", ")[0]
                assert first in whole[tool].replace("SecAgg, SecAgg+", "SecAgg+"), (feature, tool)
