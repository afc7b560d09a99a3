"""A study without a paper has a page without a paper's column, row or side of 0; one with a paper has them."""

import re
from pathlib import Path

import pytest

from coterie.reproduce.claims import judge_claims
from coterie.reproduce.figures import draw_figures
from coterie.reproduce.page import render_page
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, StudyPart
from coterie.reproduce.values import PartValues
from made_studies import made_study

STUDY = {"methods": ["fedavg"], "data": "synthetic(0,0)", "seeds": "0-5", "rounds": 20}
CLAIMS = [
    Claim(says="one beats two", one="a", two="b", score="final", sign="+"),
    Claim(says="one has fifty", kind="at_least", one="a", score="final", paper=50.0, control=True),
]


def judged(paper: str) -> ReproductionResult:
    """Two methods, six seeds, a claim and a control."""
    part, values = StudyPart(variant="small"), PartValues()
    for seed in range(6):
        values.add("a", "final", seed, 60.0 + seed)
        values.add("b", "final", seed, 50.0 + seed / 2)
    study = made_study(STUDY, [part], CLAIMS, paper=paper, where="by hand", asks="Does it?")
    runs = [PartRun(part, settings=study.get_settings(part).settings)]
    return ReproductionResult(study, runs, {"all": values}, judge_claims(study, runs, {"all": values}))


def page(paper: str) -> list[str]:
    return "\n".join(render_page(judged(paper), [], "", data="")).splitlines()


def test_a_question_of_our_own_has_no_word_of_a_paper() -> None:
    lines = page("none: a question of our own")
    assert "A question of our own, by hand. Does it?" in lines
    assert "| claim | expected | found (95 % CI) | over | p | verdict |" in lines
    assert "| control | expected | found (95 % CI) | over | p | verdict |" in lines
    assert "## Protocol" in lines
    assert not [line for line in lines if re.search(r"\bpaper|\btheirs\b|replicates", line)]


def test_what_was_claimed_and_found_stays_in_its_table() -> None:
    ours, papers = page("none"), page("Somebody (2026)")
    row = next(line for line in papers if line.startswith("| one beats two |"))
    assert "| above 0 | +11.25 (" in row
    assert row in ours
    assert len(ours) == len(papers)
    assert "Somebody (2026), by hand. Does it?" in papers
    assert "## The paper's protocol" in papers
    assert "| control | paper | ours (95 % CI) | over | p | verdict |" in papers


def test_an_exploratory_claim_has_a_dagger_and_keeps_its_key() -> None:
    late = Claim(says="it (written down after the scores)", one="a", two="b")
    assert (late.label, late.exploratory) == ("it †", True)
    assert (CLAIMS[0].label, CLAIMS[0].exploratory) == (CLAIMS[0].says, False)


def test_the_page_begins_with_its_plot() -> None:
    lines = "\n".join(render_page(judged("Somebody (2026)"), ["t.svg", "t-curves.svg"], "", data="")).splitlines()
    places = [
        next(i for i, line in enumerate(lines) if text in line) for text in ("](t.svg)", "**Verdict", "| one beats two", "](t-curves.svg)")
    ]
    assert places == sorted(places)
    assert places[0] < 6


@pytest.mark.parametrize(("paper", "named"), [("none: ours", False), ("Somebody (2026)", True)])
def test_the_figure_has_a_diamond_of_a_paper_only_where_there_is_one(paper: str, named: bool, tmp_path: Path) -> None:
    claims, controls = (tmp_path / name for name in draw_figures(judged(paper), tmp_path))
    assert (claims.name, controls.name) == ("t.svg", "t-controls.svg")
    drawn = claims.read_text()
    assert ("■ variant, with 95 % interval" if named else "● found, with 95 % interval") in drawn
    assert "○ control, with 95 % interval" in controls.read_text()
    assert "prefers-color-scheme: dark" in drawn  # no white page at night
    assert "one beats two" in drawn
    assert "one has fifty" not in drawn
    assert ("the paper" in drawn) == named
