"""The figures of `benchmarks/page_figures.py` show the numbers of the tables that they are drawn from."""

import re
from pathlib import Path

import pytest

from benchmarks import page_figures
from coterie.report.figure import Figure

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def read_marks(path: Path) -> list[str]:
    """What each mark of a drawing stands for, as Vega describes it."""
    return sorted(re.findall(r'aria-label="([^"]*)" role="graphics-symbol"', path.read_text(encoding="utf-8")))


def test_a_table_is_read_by_its_mark(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| a |\n| --- |\n| 0 |\n\n<!-- second -->\nWords.\n\n| a | b |\n| --- | ---: |\n| `x` | 1 |\n| y | **2** |\n\n| c |\n")
    assert page_figures.read_table(page, "<!-- second -->") == [{"a": "`x`", "b": "1"}, {"a": "y", "b": "**2**"}]


@pytest.mark.parametrize("name", page_figures.FIGURES)
def test_a_figure_shows_its_tables(name: str, tmp_path: Path) -> None:
    Figure(name, "", "", page_figures.FIGURES[name](), several=True).save(tmp_path, "svg")
    drawn = read_marks(FIGURES / f"{name}.svg")
    assert len(drawn) > 10
    assert drawn == read_marks(tmp_path / f"{name}.svg"), "run python -m benchmarks.page_figures"
