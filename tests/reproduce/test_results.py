"""The pages of results say what their scores say: every claims table and verdict is made again from the files beside it."""

from pathlib import Path

import pytest

from coterie.reproduce import find, read_reproduction
from coterie.reproduce.again import judge_again
from coterie.reproduce.page import verdict_lines
from coterie.reproduce.reproduced import Reproduced

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs" / "results").glob("*.csv"))


def again(scores: Path) -> Reproduced:
    return judge_again(read_reproduction(find(scores.stem, ROOT / "studies")), scores)


@pytest.mark.parametrize("scores", RESULTS, ids=lambda path: path.stem)
def test_a_page_is_what_its_scores_give(scores: Path) -> None:
    outcome, page = again(scores), scores.with_suffix(".md").read_text()
    assert f"\n**Verdict: {outcome.result.sentence}.**\n\n" + "\n".join(verdict_lines(outcome)) + "\n" in page
    assert f"| [{scores.stem}]({scores.stem}.md) |" in (ROOT / "docs" / "results" / "README.md").read_text()


def test_the_summary_has_the_verdicts_of_the_pages() -> None:
    summary = (ROOT / "docs" / "results" / "README.md").read_text().splitlines()
    for scores in RESULTS:
        verdict = again(scores).result.sentence.partition(" (")[0]
        row = next(line for line in summary if f"]({scores.stem}.md) |" in line)
        assert f"| {verdict} |" in row, scores.stem
