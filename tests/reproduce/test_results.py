"""The pages of results say what their scores say: every claims table and verdict is made again from the files of results/."""

import re
from pathlib import Path

import numpy as np
import pytest

from coterie.analysis.groups import fit_sample_slope
from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.page import render_page, render_verdict
from coterie.reproduce.rejudge import ReproductionResult, rejudge

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
DATA = "../../results/"  # from a page
CONTROLS = re.compile(r"\]\(([\w-]+-controls\.svg)\)")
RESULTS = [path for name in sorted(list_studies(ROOT / "studies")) if (path := ROOT / "results" / f"{name}.csv").is_file()]
WEIGHED = [path for path in RESULTS if path.with_name(f"{path.stem}-weights.csv").is_file()]


def again(scores: Path) -> ReproductionResult:
    return rejudge(read_reproduction(find_study(scores.stem, ROOT / "studies")), scores)


@pytest.mark.parametrize("scores", RESULTS, ids=lambda path: path.stem)
def test_a_page_is_what_its_scores_give(scores: Path) -> None:
    outcome, page = again(scores), (PAGES / f"{scores.stem}.md").read_text()
    assert f"\n**Verdict: {outcome.result.sentence}.**\n\n" + "\n".join(render_verdict(outcome, CONTROLS.findall(page))) + "\n" in page


@pytest.mark.parametrize("scores", RESULTS, ids=lambda path: path.stem)
def test_a_page_says_what_its_study_file_says_today(scores: Path) -> None:
    """`coterie reproduce NAME --from results/NAME.csv --page docs/results --scores results` writes it."""
    page = (PAGES / f"{scores.stem}.md").read_text()
    figures = re.findall(r"\]\(([\w-]+\.svg)\)", page)
    made = "\n".join(render_page(again(scores), figures, "", data=DATA)) + "\n"
    assert page == made


@pytest.mark.parametrize("scores", RESULTS, ids=lambda path: path.stem)
def test_curves_end_where_the_scores_do(scores: Path) -> None:
    """The last point of the curves, of every seed or the mean of them, is the score after the last round."""
    for part, values in again(scores).values.items():
        for method, seeds in values.curves.items():
            final = values.of(method, "final")
            assert {seed: curve[-1] for seed, curve in seeds.items()} == pytest.approx({seed: final[seed] for seed in seeds}, abs=0.006), (
                part
            )
        for method, (_, mean) in values.means.items():
            assert mean[-1] == pytest.approx(values.mean(method, "final"), abs=0.011), (part, method)


@pytest.mark.parametrize("scores", WEIGHED, ids=lambda path: path.stem)
def test_weights_give_their_scores(scores: Path) -> None:
    """How uneven SimProx's weights are, and how they follow samples, comes out again from the weights of every round, which are drawn."""
    for values in again(scores).values.values():
        for method, seeds in values.weights.items():
            flat = {seed: np.mean([one.weights.max() / one.weights.min() for one in rounds]) for seed, rounds in seeds.items()}
            assert flat == pytest.approx(values.of(method, "flatness"), rel=1e-3)
            slopes = {seed: fit_sample_slope(rounds) for seed, rounds in seeds.items()}
            assert slopes == pytest.approx(values.of(method, "by_samples"), abs=1e-3)
    figure = f"]({scores.stem}-weights.svg)"
    assert figure in (PAGES / f"{scores.stem}.md").read_text()
    assert (PAGES / f"{scores.stem}-weights.svg").is_file()


def test_pages_show_what_is_kept_and_say_what_is_not() -> None:
    for scores in RESULTS:
        outcome, page = again(scores), (PAGES / f"{scores.stem}.md").read_text()
        assert outcome.kept is not None
        for run in outcome.runs:
            if not run.why_not:
                made = outcome.kept.parts[run.part.name].made
                parts = page.split("## Parts")[1].split("## Reproduce")[0]
                line = next((line for line in parts.splitlines() if line.startswith(f"| {run.part.name} |")), "")
                assert (f"`{made.commit[:12]}`" if made else "not recorded") in line + parts.strip().splitlines()[0]
        figure = PAGES / f"{scores.stem}-curves.svg"
        assert figure.is_file() == (f"]({figure.name})" in page)
