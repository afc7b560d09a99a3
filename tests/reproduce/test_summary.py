"""The summary has every table and figure of the five papers, with a page or the one reason why there is none, and every study."""

import re
from pathlib import Path

import pytest

from coterie.reproduce import list_studies

ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "results", ROOT / "docs" / "results"
SUMMARY = (PAGES / "README.md").read_text()
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
REASONS = ("no result: ", "not run: ", "data not to be had")


@pytest.mark.parametrize(("paper", "item"), ITEMS)
def test_every_table_and_figure_has_a_page_or_a_reason(paper: str, item: str) -> None:
    rows = [line for line in SUMMARY.splitlines() if line.startswith(f"| {paper} | {item} |")]
    assert len(rows) == 1
    told = rows[0].strip("| ").split(" | ")[-1]
    pages = [name for name in re.findall(r"\]\((\w+)\.md\)", told) if (RESULTS / f"{name}.csv").is_file()]
    assert pages or told.startswith(REASONS)
    studies = set(re.findall(r"`(\w+)`", told))
    assert studies <= set(list_studies(ROOT / "studies"))


def test_every_study_is_on_the_summary() -> None:
    """With its page where it has one, else among those that are written down only."""
    (written,) = re.findall(r"Written down and without a page so far: (.*)\.\n", SUMMARY)
    for name in list_studies(ROOT / "studies"):
        if (RESULTS / f"{name}.csv").is_file():
            assert f"| [{name}]({name}.md) |" in SUMMARY
        else:
            assert f"`{name}`" in written


def test_the_summary_opens_with_an_abstract_and_one_table() -> None:
    opening = SUMMARY.split("## ")[0]
    assert opening.startswith("# What holds\n\n**Abstract.** ")
    assert "| paper | claim | ours | weight-matched control | fine-tuning | best number of groups |" in opening
    assert "## Limits" in SUMMARY
    assert "```bibtex" in SUMMARY.split("## How to cite")[1]


def not_on_a_page(text: str) -> list[str]:
    """Intervals of a text that no page has, to the digits that are quoted and whichever way round the difference is told."""
    pages = [path.read_text() for path in PAGES.glob("*.md") if path.name != "README.md"]
    ends = [(float(low), float(high)) for page in pages for low, high in PRINTED.findall(page)]
    ends += [(-high, -low) for low, high in ends]
    lost = []
    for low, high in QUOTED.findall(text):
        half = 0.5 / 10 ** len(low.partition(".")[2]) + 1e-9
        if not any(abs(a - float(low)) <= half and abs(b - float(high)) <= half for a, b in ends):
            lost.append(f"{low} to {high}")
    return lost


def test_every_interval_of_the_summary_is_on_a_page() -> None:
    assert not_on_a_page(SUMMARY) == []
    assert not_on_a_page("FedSim gains (+5.60 to +6.56), loses (-6.56 to -5.60), (5.6 to 6.6, 35 seeds); not (+5.60 to +6.66).") == [
        "+5.60 to +6.66"
    ]


def test_nothing_that_was_withdrawn_is_said_elsewhere() -> None:
    """But in the paragraph that withdraws it."""
    withdrawn = ("all significant", "random centres do as well", "uniform weights are all of")
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        paragraphs = [text for text in path.read_text().split("\n\n") if not text.startswith("Withdrawn")]
        assert not [(path.name, words) for words in withdrawn for text in paragraphs if words in text]


@pytest.mark.parametrize("place", ["studies", "docs", "src"])
def test_papers_are_called_by_their_authors(place: str) -> None:
    """FeSEM's paper is Long et al.'s, and FedGroup's title is not that of the later paper on EDC."""
    for path in (ROOT / place).rglob("*.[mtp][doy]*"):
        if path.suffix in (".md", ".toml", ".py"):
            text = path.read_text()
            assert "FeSEM (Xie" not in text, path
            assert "Decomposed Data-Driven" not in text, path


def test_papers_are_cited_alike_in_both_places() -> None:
    """CITATION.cff has the five papers with the titles and authors of the summary's BibTeX."""
    citation = (ROOT / "CITATION.cff").read_text().split("references:")[1]
    bibtex = SUMMARY.split("## How to cite")[1]
    entries = [text for text in bibtex.split("\n@") if "2020ifca" not in text and "software" not in text and "title" in text]
    papers = citation.split("- type: ")[1:]
    assert len(papers) == len(entries) == 5
    for paper, entry in zip(papers, entries, strict=True):
        assert re.findall(r'title: "(.*)"', paper) == re.findall(r"title += \{(.*)\}", entry)
        names = [name.strip('"') for name in re.findall(r"family-names: ([^,]+),", paper)]
        assert names == [name.split(",")[0] for name in re.findall(r"author += \{(.*)\}", entry)[0].split(" and ")]
