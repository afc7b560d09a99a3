"""The page of twenty draws is what results/draws/gains.csv gives, and its counts are those of the table."""

from pathlib import Path

import pytest

from benchmarks import draws

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "draws.md").read_text(encoding="utf-8")
TABLE = draws.read_gains()


def test_the_page_is_what_its_table_gives() -> None:
    assert "\n".join(draws.page(TABLE)) + "\n" == PAGE


def test_the_table_is_of_the_recipes() -> None:
    tested = TABLE[TABLE["role"] == "method"]
    assert tested.groupby("data", sort=False)["method"].agg(list).to_dict() == {
        own["data"]: own["methods"] for own in draws.RECIPES.values()
    }
    assert tested.drop_duplicates("data")["rounds"].tolist() == [str(own["rounds"]) for own in draws.RECIPES.values()]


def test_what_decides_is_the_widest() -> None:
    low = TABLE[["draws_low", "clients_low"]].astype(float).min(axis=1)
    high = TABLE[["draws_high", "clients_high"]].astype(float).max(axis=1)
    assert TABLE["low"].astype(float).tolist() == pytest.approx(low.tolist(), abs=0.11)
    assert TABLE["high"].astype(float).tolist() == pytest.approx(high.tolist(), abs=0.11)


def test_the_first_paragraph_counts_the_table() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `") and "(" in line.split(" | ")[2]]
    assert f"{sum(row[3] == 'better' for row in rows)} of {len(rows)} tests" in " ".join(PAGE.split())
    simpler = sum(row[5] != "–" or row[6] != "–" for row in rows)
    assert f"In {simpler} of {len(rows)} tests training alone or fine-tuned" in " ".join(PAGE.split())


def test_the_figure_shows_every_method() -> None:
    drawn = (ROOT / "docs" / "figures" / "draws.svg").read_text(encoding="utf-8")
    for word in (*TABLE["data"], *TABLE[TABLE["role"] == "method"]["method"], "alone", "fine-tuned FedAvg"):
        assert f">{word}</text>" in drawn
