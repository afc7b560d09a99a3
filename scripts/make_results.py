"""Make every page of docs/results again from the scores in results/: studies' pages with their figures, SimProx's order, the figure of
known groups, future work, the summary with its forest plot, and the sentences of README.md. Runs no study.

    python scripts/make_results.py            # writes what has changed
    python scripts/make_results.py --check    # names the texts that are not up to date; draws nothing
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.figures import render_svg
from coterie.reproduce.page import list_figures, render_page, write_page
from coterie.reproduce.rejudge import rejudge
from coterie.reproduce.study_files import load_study_code

ROOT = Path(__file__).resolve().parents[1]
STUDIES, RESULTS, PAGES = ROOT / "studies", ROOT / "results", ROOT / "docs" / "results"


def list_scores() -> list[Path]:
    """The scores of every study that has any."""
    return [path for name in sorted(list_studies(STUDIES)) if (path := RESULTS / f"{name}.csv").is_file()]


def make_study_text(scores: Path) -> str:
    """A study's page, with the figures that it has now."""
    outcome = rejudge(read_reproduction(find_study(scores.stem, STUDIES)), scores)
    return "\n".join(render_page(outcome, list_figures(outcome, PAGES), "", data="../../results/")) + "\n"


def make_texts() -> Iterator[tuple[Path, str]]:
    """Every text that is made from scores, and what it should be."""
    yield from ((PAGES / f"{scores.stem}.md", make_study_text(scores)) for scores in list_scores())
    order = load_study_code("simprox_order")
    yield order.PAGE, order.render_order()
    future = load_study_code("future_work")
    yield future.PAGE, "\n".join(future.render_page()) + "\n"
    yield from load_study_code("summary_page").render_pages().items()


def list_stale() -> list[str]:
    """The texts that are not what the scores give."""
    return [str(path.relative_to(ROOT)) for path, text in make_texts() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def write_results() -> None:
    """Everything, with figures."""
    import altair

    for scores in list_scores():
        outcome = rejudge(read_reproduction(find_study(scores.stem, STUDIES)), scores)
        print(write_page(outcome, PAGES, "", RESULTS).relative_to(ROOT), flush=True)
    groups: ModuleType = load_study_code("groups_found")
    groups.PAGE.with_suffix(".svg").write_text(render_svg(groups.draw_figure(altair)), encoding="utf-8")
    load_study_code("simprox_order").main()
    load_study_code("future_work").main()
    load_study_code("summary_page").main()


def main() -> None:
    """Write, or check."""
    if sys.argv[1:] == ["--check"]:
        stale = list_stale()
        sys.exit(f"not up to date, run make results: {', '.join(stale)}" if stale else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    write_results()


if __name__ == "__main__":
    main()
