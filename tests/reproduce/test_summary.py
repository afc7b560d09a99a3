"""The summary is what the scores give; its sub-pages have every table and figure of the five papers, and every study."""

import re
from collections import Counter
from pathlib import Path

import pytest

from coterie.reproduce import list_studies
from study_scripts import script

ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "results", ROOT / "docs" / "results"
SUMMARY = (PAGES / "README.md").read_text()
ITEM_TABLE = (PAGES / "items.md").read_text()
STUDY_TABLE = (PAGES / "studies.md").read_text()
NOT_STUDIES = ("README", "explanations", "items", "studies", "cite", "simprox_order", "groups_found")
summary = script("summary_page")
ROMAN = ("I", "II", "III")
ITEMS = [
    *(("FedSim", f"Table {n}") for n in range(1, 8)),
    *(("FedSim", f"Figure {n}") for n in range(1, 11)),
    *(("FedEx", f"Table {n}") for n in range(1, 3)),
    *(("FedEx", f"Figure {n}") for n in range(1, 4)),
    *(("SimProx", f"Table {n}") for n in range(1, 5)),
    *(("SimProx", f"Figure {n}") for n in range(1, 7)),
    *(("FedGroup", f"Table {n}") for n in ROMAN),
    *(("FedGroup", f"Figure {n}") for n in range(1, 6)),
    *(("FeSEM", f"Table {n}") for n in range(1, 4)),
    *(("FeSEM", f"Figure {n}") for n in range(1, 6)),
]
QUOTED = re.compile(r"([+-]?\d+\.\d+) to ([+-]?\d+\.\d+)(?=[,);])")  # an interval: its ends, within or at the end of brackets
PRINTED = re.compile(r"\| [+-]?\d+\.\d+ \(([+-]?\d+\.\d+) to ([+-]?\d+\.\d+)\) (?=\|)")  # cells share their bars
REASONS = ("no result: ", "data not available")


@pytest.mark.parametrize(("paper", "item"), ITEMS)
def test_every_table_and_figure_has_a_page_or_a_reason(paper: str, item: str) -> None:
    rows = [line for line in ITEM_TABLE.splitlines() if line.startswith(f"| {paper} | {item} |")]
    assert len(rows) == 1
    told = rows[0].strip("| ").split(" | ")[-1]
    pages = [name for name in re.findall(r"\]\((\w+)\.md\)", told) if (RESULTS / f"{name}.csv").is_file()]
    assert pages or told.startswith(REASONS)
    studies = set(re.findall(r"`(\w+)`", told))
    assert studies <= set(list_studies(ROOT / "studies"))


def test_every_study_is_in_the_list() -> None:
    """With its page where it has scores, else named as declared."""
    for name in list_studies(ROOT / "studies"):
        if (RESULTS / f"{name}.csv").is_file():
            assert f"| [{name}]({name}.md) |" in STUDY_TABLE
        else:
            assert f"`{name}`" in SUMMARY
            assert f"`{name}`" in ITEM_TABLE


def test_the_pages_are_what_the_scores_give() -> None:
    for path, text in summary.render_pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run python studies/summary_page.py for {path.name}"


def test_the_summary_fits_two_minutes() -> None:
    """An abstract of at most 150 words, then the plot, then a table of at most 12 rows of values."""
    abstract, rest = SUMMARY.split("**Abstract.** ")[1].split("\n\n", 1)
    assert len(abstract.split()) <= 150
    assert rest.startswith("![")
    assert rest.index("](forest.svg)") < rest.index("| claim |") < rest.index("## Definitions")
    rows = [line for line in rest.split("## Definitions")[0].splitlines() if line.startswith("| [")]
    assert 10 <= len(rows) <= 12
    assert max(len(cell.split()) for row in rows for cell in re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row).split(" | ")) <= 6
    assert rest.split("## Definitions")[1].split("## ")[0].count("\n- **") == 6
    assert len(re.findall(r"^\d\. ", rest.split("## What an author would object to")[1], re.MULTILINE)) == 5
    assert len(SUMMARY.split()) < 1200


def test_the_forest_has_each_pick_in_its_state() -> None:
    rows = {row["label"]: row for row in summary.make_forest_rows()}
    assert 12 <= len(rows) == len(summary.PICKS) <= 16
    assert {row["state"] for row in rows.values()} == {"as printed", "variant", "not comparable"}
    for pick in summary.PICKS:
        one, row = summary.find_result(pick.study, pick.says), rows[pick.label]
        assert (row["state"] == "not comparable") == bool(pick.why_not)
        assert (row["state"] == "as printed") == (not one.variant and not pick.why_not)
        assert (row["fill"] == row["colour"]) == (row["state"] == "as printed")
        assert row["low"] <= row["ours"] <= row["high"]
    drawn = (PAGES / "forest.svg").read_text()
    assert all(label.replace("'", "&#39;") in drawn or label in drawn for label in rows)


def test_a_controls_gain_is_over_the_claims_baseline() -> None:
    """What the method is ahead of its control is the difference of the two gains."""
    first = summary.PICKS[0]
    ahead = summary.find_result(first.study, "FedSim beats FedAvg with uniform weights").ours
    assert summary.find_result(first.study, first.says).ours - summary.compute_control_gain(first) == pytest.approx(ahead)


def test_totals_are_those_of_the_studies() -> None:
    counts = summary.count_verdicts()
    assert sum(sum(found.values()) for found in counts.values()) == sum(
        len(outcome.result.claims) for outcome in summary.load_outcomes().values()
    )
    five: Counter[str] = sum((counts[paper] for paper in summary.PAPERS), Counter())
    assert f"| **five papers** | {sum(five.values())} | {five['replicates']} |" in SUMMARY
    assert summary.count_simprox()[0] == len(script("simprox_order").FEDERATIONS)


def not_on_a_page(text: str) -> list[str]:
    """Intervals of a text that no page has, to the digits that are quoted and whichever way round the difference is told."""
    pages = [path.read_text() for path in PAGES.glob("*.md") if path.stem not in NOT_STUDIES]
    ends = [(float(low), float(high)) for page in pages for low, high in PRINTED.findall(page)]
    ends += [(-high, -low) for low, high in ends]
    lost = []
    for low, high in QUOTED.findall(text):
        half = 0.5 / 10 ** len(low.partition(".")[2]) + 1e-9
        if not any(abs(a - float(low)) <= half and abs(b - float(high)) <= half for a, b in ends):
            lost.append(f"{low} to {high}")
    return lost


def test_every_interval_that_is_quoted_is_on_a_page() -> None:
    assert not_on_a_page(SUMMARY) == []
    assert not_on_a_page((PAGES / "explanations.md").read_text()) == []
    assert not_on_a_page("FedSim gains (+5.60 to +6.56), loses (-6.56 to -5.60), (5.6 to 6.6, 35 seeds); not (+5.60 to +6.66).") == [
        "+5.60 to +6.66"
    ]


BANNED = re.compile(r"\b(shown|told|right in 100|not to be had|dealt out|withdrawn|time there was|half hour|anew)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_pages_use_standard_words(page: Path) -> None:
    """Outside of tables, whose claims are as they were declared, and of what papers are quoted with."""
    prose = [re.sub(r'"[^"]*"', "", line) for line in page.read_text().splitlines() if not line.startswith("|")]
    assert BANNED.findall("\n".join(prose)) == []


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_pages_begin_with_a_plot(page: Path) -> None:
    if page.stem not in ("items", "studies", "cite"):
        before = page.read_text().split("![")[0]
        assert "|" not in before
        assert len(before.split()) <= 160


@pytest.mark.parametrize("place", ["studies", "docs", "src"])
def test_papers_are_called_by_their_authors(place: str) -> None:
    """FeSEM's paper is Long et al.'s, and FedGroup's title is not that of the later paper on EDC."""
    for path in (ROOT / place).rglob("*.[mtp][doy]*"):
        if path.suffix in (".md", ".toml", ".py"):
            text = path.read_text()
            assert "FeSEM (Xie" not in text, path
            assert "Decomposed Data-Driven" not in text, path


def test_papers_are_cited_alike_in_both_places() -> None:
    """CITATION.cff has the five papers with the titles and authors of cite.md's BibTeX."""
    citation = (ROOT / "CITATION.cff").read_text().split("references:")[1]
    bibtex = (PAGES / "cite.md").read_text()
    entries = [text for text in bibtex.split("\n@") if "2020ifca" not in text and "software" not in text and "title" in text]
    papers = citation.split("- type: ")[1:]
    assert len(papers) == len(entries) == 5
    for paper, entry in zip(papers, entries, strict=True):
        assert re.findall(r'title: "(.*)"', paper) == re.findall(r"title += \{(.*)\}", entry)
        names = [name.strip('"') for name in re.findall(r"family-names: ([^,]+),", paper)]
        assert names == [name.split(",")[0] for name in re.findall(r"author += \{(.*)\}", entry)[0].split(" and ")]
