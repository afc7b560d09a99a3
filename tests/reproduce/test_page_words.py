"""A study without a paper has a page without a paper's column, row or side of 0; one with a paper has them."""

import re
from pathlib import Path
from typing import get_args

import pytest

from coterie.reproduce.claims import judge_claims
from coterie.reproduce.figures import draw_figures
from coterie.reproduce.page import OWN_WORDS, PAPER_WORDS, render_page
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, ClaimKind, StudyPart
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
    assert "| claim | claimed | found (95 % interval) | over | p | outcome |" in lines
    assert "| control | claimed | found (95 % interval) | over | p | outcome |" in lines
    assert "## all" in lines
    assert not [line for line in lines if re.search(r"\bpaper|\btheirs\b|replicates", line)]


def test_what_was_claimed_and_found_stays_in_its_table() -> None:
    ours, papers = page("none"), page("Somebody (2026)")
    row = next(line for line in papers if line.startswith("| one beats two |"))
    assert "| above 0 | +11.25 (" in row
    assert row in ours
    assert len(ours) == len(papers)
    assert "Somebody (2026), by hand. Does it?" in papers
    assert "## all: ours (theirs)" in papers
    assert "| control | theirs | ours (95 % interval) | over | p | outcome |" in papers


@pytest.mark.parametrize("kind", get_args(ClaimKind))
def test_rules_name_a_paper_where_there_is_one(kind: ClaimKind) -> None:
    assert "paper" not in OWN_WORDS.rule(kind)
    assert ("paper" in PAPER_WORDS.rule(kind)) == (kind not in ("at_least", "at_most"))
    assert "{" not in OWN_WORDS.rule(kind) + PAPER_WORDS.rule(kind)


@pytest.mark.parametrize(("paper", "named"), [("none: ours", False), ("Somebody (2026)", True)])
def test_the_figure_has_a_diamond_of_a_paper_only_where_there_is_one(paper: str, named: bool, tmp_path: Path) -> None:
    (name,) = draw_figures(judged(paper), tmp_path)
    drawn = (tmp_path / name).read_text()
    assert "ours with 95 % interval" in drawn
    assert ("the paper" in drawn) == named
