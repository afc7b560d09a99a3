"""The figure of benchmarks/README.md shows the speeds and targets of its tables."""

from collections import Counter
from pathlib import Path

import pytest

speed_figure = pytest.importorskip("benchmarks.speed_figure")
FIGURE = (Path(__file__).parents[1] / "docs" / "figures" / "speed.svg").read_text(encoding="utf-8")


def test_every_speed_and_target_is_drawn_once() -> None:
    speeds, targets = speed_figure.read_speeds()
    assert {row["place"] for row in speeds} == set(speed_figure.TABLES)
    assert {row["precision"] for row in speeds} == set(speed_figure.PRECISIONS)
    marks = Counter(f"{row['times']:g}; workload: {row['workload']}" for row in (*speeds, *targets))
    assert len(marks) > 20
    assert {mark: FIGURE.count(f"plain PyTorch loop: {mark}") for mark in marks} == marks
