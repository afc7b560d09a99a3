"""The summary is what the scores give; its sub-pages have every table and figure of the five papers, and every study."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coterie.reproduce import list_studies
from coterie.reproduce.claims import NO_SCORES, ClaimResult
from coterie.reproduce.study_files import Claim
from study_scripts import script

ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "results", ROOT / "docs" / "results"
SUMMARY = (PAGES / "README.md").read_text()
ITEM_TABLE = (PAGES / "items.md").read_text()
STUDY_TABLE = (PAGES / "studies.md").read_text()
NOT_STUDIES = ("README", "explanations", "items", "studies", "cite", "simprox_order", "groups_found", "future_work")
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


def test_the_page_of_future_work_is_what_the_scores_give() -> None:
    page = script("future_work")
    assert page.PAGE.read_text(encoding="utf-8") == "\n".join(page.render_page()) + "\n", "run python studies/future_work.py"


def test_the_summary_fits_two_minutes() -> None:
    """An abstract of at most 150 words, then the plot, then a table of at most 12 rows of values."""
    abstract, rest = SUMMARY.split("**Abstract.** ")[1].split("\n\n", 1)
    assert len(abstract.split()) <= 150
    assert rest.startswith("![")
    assert rest.index("](forest.svg)") < rest.index("| claim |") < rest.index("## Definitions")
    rows = [line for line in rest.split("## Definitions")[0].splitlines() if line.startswith("| [")]
    assert 8 <= len(rows) <= 14
    assert max(len(cell.split()) for row in rows for cell in re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row).split(" | ")) <= 7
    assert rest.split("## Definitions")[1].split("## ")[0].count("\n- **") == 6
    assert len(re.findall(r"^\d\. ", rest.split("## What an author would object to")[1], re.MULTILINE)) == 5
    prose = [line for line in SUMMARY.splitlines() if not line.startswith("|")]
    assert sum(len(line.split()) for line in prose) < 1000


def test_the_forest_has_each_pick_in_its_state() -> None:
    rows = {row["label"]: row for row in summary.make_forest_rows()}
    assert 12 <= len(rows) == len(summary.PICKS) <= 16
    assert {row["state"] for row in rows.values()} == {"as printed", "variant", "not comparable"}
    for pick in summary.PICKS:
        one, row = summary.find_result(pick.study, pick.says), rows[summary.name_pick(pick)]
        assert (row["state"] == "not comparable") == (one.outcome == "not comparable")
        assert (row["symbol"] == "circle") == (row["state"] == "as printed") == (not one.variant and one.outcome != "not comparable")
        assert (row["fill"] == row["colour"]) == (row["state"] != "not comparable")  # what is hollow is a control
        assert row["low"] <= row["ours"] <= row["high"]
        assert row["control_low"] <= row["control"] <= row["control_high"]
        assert ("†" in row["label"]) == one.claim.exploratory
    drawn = (PAGES / "forest.svg").read_text()
    assert all(label.replace("'", "&#39;") in drawn or label in drawn for label in rows)


def test_a_controls_gain_is_over_the_claims_baseline() -> None:
    """What the method is ahead of its control is the difference of the two gains; its interval is Student's over the seeds."""
    first = summary.PICKS[0]
    ahead = summary.find_result(first.study, "FedSim beats FedAvg with uniform weights").ours
    gain = summary.compute_control_gain(first)
    assert summary.find_result(first.study, first.says).ours - gain.mean == pytest.approx(ahead)
    values = summary.load_outcomes()[first.study].values["mclr"]
    apart = np.array([values.of(first.row, "mean")[seed] - values.of("fedavg", "mean")[seed] for seed in range(35)])
    half = stats.t.ppf(0.975, 34) * apart.std(ddof=1) / 35**0.5
    assert (gain.low, gain.high) == pytest.approx((apart.mean() - half, apart.mean() + half))


def test_whether_a_control_is_beaten_is_the_studys_verdict() -> None:
    beaten = {pick.label: summary.judge_control(pick) for pick in summary.PICKS}
    assert beaten["FedSim: MNIST, softmax"] == "no"
    assert beaten["FedSim: MNIST, CNN"] == "no: it is ahead"
    assert beaten["FedGroup (our rules): MNIST, MLP"] == "yes"
    assert beaten["FedSim: authors' synthetic(0,0), softmax"] == "not tested"


def test_totals_count_every_claim_once() -> None:
    """By paper, as printed or variant, in one of five outcomes; the table has these numbers."""
    claims = summary.list_claims()
    studies = {**summary.load_outcomes(), **summary.load_declared()}
    assert set(studies) == set(list_studies(ROOT / "studies"))  # what was declared and not run counts as not run
    assert sum(map(len, claims.values())) == sum(len(outcome.result.claims) for outcome in studies.values())
    assert {one.outcome for outcome in summary.load_declared().values() for one in outcome.result.claims} <= {"not run"}
    for name, found in claims.items():
        counts = summary.count_outcomes(found)
        assert sum(own["claims"] for own in counts.values()) == len(found)
        for row, own in counts.items():
            assert own["claims"] == sum(own[word] for word in summary.OUTCOMES)
            assert own["covered"] <= own["numbered"] <= own["agrees"]
            assert not own["claims"] or f"| {name} | {row} | {own['claims']} | {own['agrees']} |" in SUMMARY
    assert {one.outcome for found in claims.values() for one in found if not one.variant}.isdisjoint(
        {"holds in our variant", "opposite sign in our variant"}
    )
    assert {one.outcome for found in claims.values() for one in found if one.variant}.isdisjoint({"replicates", "contradicted"})


def test_every_row_that_was_not_run_states_why() -> None:
    """What is missing, or about how many minutes it needs and by which estimate."""
    for name, outcome in {**summary.load_outcomes(), **summary.load_declared()}.items():
        for run in outcome.runs:
            assert not run.why_not or re.match(r"(data|weights) not available: |needs about \d[\d,]* [CG]PU minutes \(", run.why_not), (
                name,
                run.part.name,
            )
        for one in outcome.result.results:
            assert one.outcome != "not run" or one.why_not != NO_SCORES, (name, one.claim.says)


def test_the_papers_own_row_is_counted_as_printed() -> None:
    claim = Claim(says="it", one="a", two="b", paper=2.0)
    own = ClaimResult(claim, "replicates", 1.0, 0.5, 2.5)
    other = ClaimResult(claim, "holds in our variant", 1.0, 0.5, 1.5, variant="other data")
    counts = summary.count_outcomes([own, other, own])
    assert counts["as printed"] == {"claims": 2, "agrees": 2, "numbered": 2, "covered": 2}
    assert counts["variant"] == {"claims": 1, "agrees": 1, "numbered": 1}


def test_the_front_page_has_no_other_numbers_of_results() -> None:
    """What stems from results is between the marks, which `test_the_pages_are_what_the_scores_give` compares."""
    text = summary.FRONT.read_text(encoding="utf-8")
    before, _, rest = text.partition(summary.BEGIN)
    inside, _, after = rest.partition(summary.END)
    assert not_on_a_page(inside) == []
    number = r"\d+ (?:claims?|agree|replicate|hold|points|inconclusive)\b|(?<!\w)[+-]\d+\.\d|\d(?:\.\d+)? to [+-]?\d"
    assert re.findall(number, before + after) == []


def test_what_was_written_down_late_has_a_dagger_in_the_abstract() -> None:
    late = [one for one in summary.list_simprox().values() if one.claim.exploratory]
    assert [one.claim.part for one in late if one.outcome != "not comparable"] == ["head", "image dirichlet"]
    abstract = SUMMARY.split("**Abstract.** ")[1].split("\n\n", 1)[0]
    behind = [one for one in late if one.outcome in ("opposite significant", "opposite sign in our variant")]
    assert f"({len(behind)} of them †)" in abstract
    assert "not comparable †" in abstract


def not_on_a_page(text: str) -> list[str]:
    """Intervals of a text that no page has, to the digits that are quoted, with the page's sign; nor are they a decisive control's."""
    pages = [path.read_text() for path in PAGES.glob("*.md") if path.stem not in NOT_STUDIES]
    ends = [(float(low), float(high)) for page in pages for low, high in PRINTED.findall(page)]
    ends += [(gain.low, gain.high) for gain in map(summary.compute_control_gain, summary.PICKS)]
    lost = []
    for low, high in QUOTED.findall(text):
        half = 0.5 / 10 ** len(low.partition(".")[2]) + 1e-9
        if not any(abs(a - float(low)) <= half and abs(b - float(high)) <= half for a, b in ends):
            lost.append(f"{low} to {high}")
    return lost


def test_every_interval_that_is_quoted_is_on_a_page() -> None:
    assert not_on_a_page(SUMMARY) == []
    assert not_on_a_page((PAGES / "explanations.md").read_text()) == []
    quoted = "FedSim gains (+5.60 to +6.56), (5.6 to 6.6, 35 seeds); not (+5.60 to +6.66), nor by another sign (-6.56 to -5.60)."
    assert not_on_a_page(quoted) == ["+5.60 to +6.66", "-6.56 to -5.60"]


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
