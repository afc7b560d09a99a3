"""`ct.plot`: the numbers of the table, as a chart."""

from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.analysis.comparison import compare_evidence

SMALL = "synthetic(0,0,clients=4)"


def drawn(chart: Any) -> list[dict[str, Any]]:
    """The rows of all data sets in a chart that hold an accuracy."""
    tree = chart.to_dict()
    return [row for rows in tree["datasets"].values() for row in rows if "accuracy" in row]


@pytest.mark.parametrize("methods", [["fedavg"], ["fedprox(mu=1)", "fedgroup(groups=2)"]], ids=len)
def test_a_result_is_drawn(methods: list[str], tmp_path: Path) -> None:
    result = ct.study(methods, data=SMALL, rounds=2, max_steps=1, seeds=range(2))
    rows = drawn(ct.plot(result))
    last = {row["method"]: row["accuracy"] for row in rows if row["round"] == 2}
    assert sorted(last.values()) == pytest.approx(sorted(100 * result.table()["final"]), abs=0.01)


def test_federations_are_drawn_one_below_the_other() -> None:
    results = [ct.study("fedavg", data=data, rounds=1, max_steps=1) for data in (SMALL, "synthetic(0,0,clients=5)")]
    comparison = compare_evidence([result.evidence for result in results])
    tree = ct.plot(comparison).to_dict()
    assert [chart["title"] for chart in tree["vconcat"]] == [SMALL, "synthetic(0,0,clients=5)"]
