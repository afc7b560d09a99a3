"""The table and counts of docs/results/simprox_order.md, from the scores of every seed in results/: does SimProx's order hold?

python studies/simprox_order.py    # writes them between their marks, and the figure; the words around them are not touched

Differences are SimProx's (or, in one column, uniform FedAvg's) over the same seeds or draws, with a 95 % Student interval over them
alone; the verdicts, with test clients and corrections, are on the studies' own pages.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from coterie._util.formatting import Markup, format_markdown_table
from coterie.reproduce.claims import OPPOSITE, ClaimResult
from coterie.reproduce.figures import MARKS, METHOD_COLOURS, render_svg
from coterie.reproduce.rejudge import read_scores
from coterie.reproduce.study_files import load_study_code
from coterie.statistics import compute_interval

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results" / "simprox_order.md"
BEGIN, END = "<!-- order -->", "<!-- /order -->"
BEGIN_COUNTS, END_COUNTS = "<!-- counts -->", "<!-- /counts -->"
UNIFORM = "fedavg(weighting=uniform)"
AGAINST = {
    "uniform FedAvg": ("simprox", UNIFORM),
    "FedAvg by samples": ("simprox", "fedavg"),
    "FedProx": ("simprox", "fedprox(mu=0.01)"),
    "SimAgg": ("simprox", "simagg"),
    "its weights shuffled": ("simprox", "simprox(shuffled=true)"),
    "lambda 0": ("simprox", "simprox(lambda0=0)"),
    "*uniform FedAvg minus FedAvg by samples*": (UNIFORM, "fedavg"),
}


class Federation(NamedTuple):
    """A part of a study, and by which score it is judged there."""

    title: str
    study: str
    part: str
    score: str
    central: bool  # whether the model is judged on the server's own test set


FEDERATIONS = (
    Federation("MNIST, softmax regression", "simprox_mnist", "mnist", "last10", central=True),
    Federation("CIFAR-10, ResNet-18", "simprox_cifar", "cifar10 reduced", "last10", central=True),
    Federation("CIFAR-10, DenseNet-121", "simprox_cifar", "cifar10 densenet reduced", "last10", central=True),
    Federation("CIFAR-10, frozen features", "simprox_cifar", "cifar10 frozen", "last10", central=True),
    Federation("Banking77, head", "simprox_banking77", "head", "last10", central=True),
    Federation("Banking77, adapters", "simprox_banking77", "lora", "last10", central=True),
    Federation("Banking77, whole encoder", "simprox_banking77", "full", "last10", central=True),
    Federation("Banking77, hashed words", "simprox_banking77", "words", "last10", central=True),
    Federation("CrisisMMD, text, Dirichlet", "simprox_medic", "text dirichlet", "mean", central=False),
    Federation("CrisisMMD, image, Dirichlet", "simprox_medic", "image dirichlet", "mean", central=False),
    Federation("CrisisMMD, fusion, Dirichlet", "simprox_medic", "fusion dirichlet", "mean", central=False),
    Federation("CrisisMMD, hashed words", "simprox_medic", "crisismmd", "mean", central=False),
    Federation("CrisisMMD, text, by event", "simprox_medic", "text events", "mean", central=False),
    Federation("CrisisMMD, image, by event", "simprox_medic", "image events", "mean", central=False),
    Federation("CrisisMMD, fusion, by event", "simprox_medic", "fusion events", "mean", central=False),
)


def order_lines(results: Path = RESULTS) -> Iterator[str]:
    """A row for each federation that was run."""
    names = [name if name.startswith("*") else f"- {name}" for name in AGAINST]
    header = ["", "SimProx %", *names, "largest over smallest weight", "by samples"]
    rows = filter(None, (_row(federation, results) for federation in FEDERATIONS))
    yield from format_markdown_table([Markup(cell) for cell in header], ([Markup(cell) for cell in row] for row in rows))


def _row(federation: Federation, results: Path) -> list[str] | None:
    path = results / f"{federation.study}.csv"
    if not path.is_file():
        return None
    table = read_scores(path)
    table = table[table["part"] == federation.part].set_index(["method", "seed"])
    if table.empty:
        return None
    scores = table[federation.score].unstack("method")
    suffix = " | global" if federation.central else ""
    cells = [_difference(scores, one + suffix, two + suffix) for one, two in AGAINST.values()]
    weights = table.loc["simprox"]
    flat = [f"{weights[name].mean():.2f}" if name in weights and weights[name].notna().any() else "" for name in ("flatness", "by_samples")]
    link = f"[{federation.title}]({federation.study}.md)"
    return [f"{link}, {len(scores)}", f"{scores['simprox' + suffix].mean():.1f}", *cells, *flat]


def _difference(scores: pd.DataFrame, one: str, two: str) -> str:
    if two not in scores:
        return ""
    found = (scores[one] - scores[two]).dropna().to_numpy(np.float64)
    low, high = compute_interval(found)
    return f"{found.mean():+.2f} ({low:+.2f} to {high:+.2f})"


def find_verdict(federation: Federation) -> ClaimResult:
    """How SimProx compares with uniform weights there, by the study's own page."""
    found: dict[tuple[str, str], ClaimResult] = load_study_code("summary_page").list_simprox()
    return found[federation.study, federation.part]


def count_lines() -> Iterator[str]:
    """How many are ahead, behind and not comparable, with their names."""
    found = [(federation, find_verdict(federation)) for federation in FEDERATIONS]
    lost = [(one.title, own.claim.exploratory) for one, own in found if own.outcome in (*OPPOSITE, "opposite significant")]
    behind = [f"{title} †" if is_late else title for title, is_late in lost]
    left = [f"{one.title} ({own.why_not})" for one, own in found if own.outcome == "not comparable"]
    yield f"- {load_study_code('summary_page').describe_simprox()} All are variants. Behind: {'; '.join(behind) or 'none'}."
    yield f"- Not comparable: {'; '.join(left) or 'none'}."


def draw_order(alt: Any, results: Path = RESULTS) -> Any:
    """SimProx minus FedAvg with uniform weights, a row for each federation."""
    rows = []
    for federation in FEDERATIONS:
        mark = "not comparable" if find_verdict(federation).outcome == "not comparable" else "variant"
        table = read_scores(results / f"{federation.study}.csv")
        scores = table[table["part"] == federation.part].set_index(["method", "seed"])[federation.score].unstack("method")
        suffix = " | global" if federation.central else ""
        found = (scores["simprox" + suffix] - scores[UNIFORM + suffix]).dropna().to_numpy(np.float64)
        low, high = compute_interval(found)
        rows.append({"federation": federation.title, "ours": found.mean(), "low": low, "high": high, "symbol": MARKS[mark][0]})
    base = alt.Chart(pd.DataFrame(rows)).encode(y=alt.Y("federation:N", sort=None, title=None, axis=alt.Axis(labelLimit=300)))
    x = alt.X("low:Q", title="SimProx minus uniform weights, points of accuracy (95 % interval over draws or seeds; × not comparable)")
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#666666").encode(x="x:Q")
    span = base.mark_rule(strokeWidth=2, color=METHOD_COLOURS["simprox"]).encode(x=x, x2="high:Q")
    dots = base.mark_point(size=60, color=METHOD_COLOURS["simprox"], fill=METHOD_COLOURS["simprox"], strokeWidth=2, opacity=1)
    dots = dots.encode(x="ours:Q", shape=alt.Shape("symbol:N", scale=None))
    return (zero + span + dots).properties(width=420, height=alt.Step(22), background="white")


def render_order() -> str:
    """The page with what is between its marks made again."""
    text = PAGE.read_text(encoding="utf-8")
    for begin, end, lines in ((BEGIN_COUNTS, END_COUNTS, count_lines()), (BEGIN, END, order_lines())):
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, *lines, end + rest.partition(end)[2]])
    return text


def main() -> None:
    """Write the page and the figure."""
    import altair

    PAGE.write_text(render_order(), encoding="utf-8")
    PAGE.with_suffix(".svg").write_text(render_svg(draw_order(altair)), encoding="utf-8")


if __name__ == "__main__":
    main()
