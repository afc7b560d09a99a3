"""The pages of results say what their scores say: every claims table and verdict is made again from the files of results/."""

import re
from pathlib import Path

import numpy as np
import pytest

from coterie.analysis.groups import fit_sample_slope
from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.page import render_page
from coterie.reproduce.rejudge import ReproductionResult, rejudge
from study_scripts import script

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
DATA = "../../results/"  # from a page
RESULTS = [path for name in sorted(list_studies(ROOT / "studies")) if (path := ROOT / "results" / f"{name}.csv").is_file()]
WEIGHED = [path for path in RESULTS if path.with_name(f"{path.stem}-weights.csv").is_file()]


def again(scores: Path) -> ReproductionResult:
    return rejudge(read_reproduction(find_study(scores.stem, ROOT / "studies")), scores)


@pytest.mark.parametrize("scores", RESULTS, ids=lambda path: path.stem)
def test_a_page_is_what_its_scores_and_study_file_give(scores: Path) -> None:
    """`make results` writes it."""
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


@pytest.mark.parametrize("scores", RESULTS, ids=lambda path: path.stem)
def test_words_are_as_strong_as_the_evidence(scores: Path) -> None:
    """Contradicted only of a paper's own row; p of the side on which the interval lies; no verdict of what cannot be compared."""
    for one in again(scores).result.results:
        assert not (one.variant and one.outcome in ("replicates", "contradicted"))
        assert (one.outcome in ("not comparable", "not run")) == bool(one.why_not)
        if one.outcome == "not comparable":
            assert np.isnan(one.p)
        elif one.claim.kind == "difference" and one.claim.direction and np.isfinite(one.p) and (one.low > 0 or one.high < 0):
            assert one.opposite == (np.sign(one.ours) != one.claim.direction)


def test_one_command_makes_every_page() -> None:
    """`make results`; of its parts, those that take no time: each page is a test of its own above."""
    made = script("make_results", "scripts")
    assert [path.stem for path in made.list_scores()] == [path.stem for path in RESULTS]
    assert made.make_study_text(RESULTS[0]) == (PAGES / f"{RESULTS[0].stem}.md").read_text()
    order = script("simprox_order")
    assert order.render_order() == order.PAGE.read_text()
    figures = {path.name for path in PAGES.glob("*.svg")}
    drawn = {name for page in PAGES.glob("*.md") for name in re.findall(r"\]\(([\w-]+\.svg)\)", page.read_text())}
    assert figures == drawn
    assert all("prefers-color-scheme: dark" in (PAGES / name).read_text() for name in figures)
