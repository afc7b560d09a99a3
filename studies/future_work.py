"""docs/results/future_work.md and future_work.svg: what the papers leave to future work, answered from the scores in results/ alone.

python studies/future_work.py            # writes them
python studies/future_work.py --check    # reports whether the page is up to date
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie._util.formatting import Markup, format_markdown_table
from coterie.reproduce import find_study, read_reproduction
from coterie.reproduce.claims import ClaimResult
from coterie.reproduce.figures import METHOD_COLOURS, get_method
from coterie.reproduce.rejudge import ReproductionResult, judge_declared, rejudge

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA, STUDIES = ROOT / "docs" / "results" / "future_work.md", ROOT / "results", ROOT / "studies"


@dataclass(frozen=True)
class Answer:
    """A paper's open point in its own words, and the claim that is its main answer."""

    paper: str
    words: str
    study: str
    says: str


ANSWERS = (
    Answer("FedSim", "dynamically switch aggregation methods", "fedsim_switch", "MNIST: switching beats FedSim, mean over rounds"),
    Answer(
        "FedSim",
        "change n_clusters dynamically",
        "fedsim_switch",
        "MNIST: a number of clusters by the gap statistic in each round beats five",
    ),
    Answer(
        "SimProx",
        "reduce the computational complexity of the similarity calculation",
        "simprox_pairs",
        "Landmarks are within a tenth of a point of all pairs, last ten evaluations",
    ),
    Answer(
        "SimProx",
        "reduce the computational complexity of the similarity calculation",
        "simprox_pairs",
        "1,000 clients, 101,770 numbers: landmarks take less of the server's time than all pairs (ms a round)",
    ),
    Answer(
        "FedGroup",
        "the new device can join the training at any time",
        "fedgroup_newcomers",
        "Newcomers with labels: FedGroup beats FedAvg",
    ),
    Answer("FeSEM", "robustness to outliers", "fesem_attacks", "Updates times -10: FeSEM loses accuracy"),
    Answer(
        "FeSEM",
        "usually requires the full participation of all clients",
        "fesem_attacks",
        "FeSEM loses accuracy when a tenth of the writers take part in a round",
    ),
    Answer(
        "FedEx",
        "vastly different clusters of clients [...] would lead to better performance",
        "fedex_clusters",
        "Rotated digits: FedEx beats FedAvg after the last round",
    ),
)
TITLES = {
    "fedsim_switch": "FedSim: switching, and clusters chosen in each round",
    "simprox_pairs": "SimProx: landmarks and sketches",
    "fedgroup_newcomers": "FedGroup: newcomers",
    "fesem_attacks": "FeSEM: attacks and partial participation",
    "fedex_clusters": "FedEx: clusters that differ",
}


@cache
def load_outcome(name: str) -> ReproductionResult | None:
    """A study, judged from its scores; None where it has none."""
    scores = DATA / f"{name}.csv"
    return rejudge(read_reproduction(find_study(name, STUDIES)), scores) if scores.is_file() else None


def find_result(study: str, says: str) -> ClaimResult:
    """A claim by its text; without scores, not run."""
    outcome = load_outcome(study) or judge_declared(read_reproduction(find_study(study, STUDIES)))
    return next(one for one in outcome.result.results if one.claim.says == says)


def format_interval(one: ClaimResult) -> str:
    """The number and its interval."""
    return f"{one.ours:+.2f} ({one.low:+.2f} to {one.high:+.2f})" if isfinite(one.ours) else "–"


def render_page() -> Iterator[str]:
    """The figure, a row for each answer, and the server's time."""
    yield "# Future work of the papers, evaluated\n"
    yield "![Every claim with its 95 % interval, by paper](future_work.svg)\n"
    rows = []
    for answer in ANSWERS:
        one = find_result(answer.study, answer.says)
        study = Markup(f"[{answer.study}]({answer.study}.md)") if load_outcome(answer.study) else f"{answer.study} (declared)"
        verdict = f"not run: {one.why_not}" if one.outcome == "not run" else one.verdict
        rows.append([answer.paper, f'"{answer.words}"', one.claim.says, format_interval(one), verdict, study])
    yield from format_markdown_table(["paper", "its words", "tested as", "found (95 % CI)", "verdict", "study"], rows)
    yield "\nFound: points of accuracy, or milliseconds. The study files were declared before they were run."
    if (pairs := load_outcome("simprox_pairs")) is not None:
        yield "\n## The server's time\n"
        yield "SimProx, milliseconds of the server a round, means over seeds; 64 landmarks of 1,000 clients, 16 of 100.\n"
        heads = ["clients a round", "numbers of a model", "all pairs", "landmarks", "sketches of 64"]
        yield from format_markdown_table(heads, list_times(pairs))
    yield "\n## Settings\n"
    yield "- FedSim: `switch`, `switch_margin`; `clusters=auto` with `choice=gap` or `silhouette` ([page](../reference/methods/fedsim.md))."
    yield "- SimProx: `pairs=landmarks` or `sketches`, `compared` ([page](../reference/methods/simprox.md))."
    yield "- Newcomers: `unseen(0.2)`, `unseen(0.2,labelled=false)`, `arrivals(0.5)` ([scenarios](../reference/partitions.md#scenarios))."
    yield "- Attacks and guards: `attack`, `+guard` ([reference](../reference/attacks.md))."


def list_times(pairs: ReproductionResult) -> Iterator[list[str]]:
    """Server milliseconds by part."""
    for part, clients, numbers, count in (("accuracy", "100", "7,850", 16), ("cost", "1,000", "101,770", 64)):
        values = pairs.values[part]
        names = ("simprox", f"simprox(pairs=landmarks,compared={count})", "simprox(pairs=sketches,compared=64)")
        means = [values.mean(name, "server_ms") for name in names]
        yield [clients, numbers, *(f"{mean:,.0f}" if np.isfinite(mean) else "–" for mean in means)]


def draw_figure(alt: Any) -> Any:
    """A panel for each study, with an axis of its own: a row for each claim in points."""
    panels = []
    for name, title in TITLES.items():
        outcome = load_outcome(name)
        shown = [one for one in outcome.result.claims if isfinite(one.ours) and one.claim.score != "server_ms"] if outcome else []
        if not shown:
            continue
        data = pd.DataFrame(
            {
                "label": one.claim.says,
                "ours": one.ours,
                "low": one.low,
                "high": one.high,
                "colour": METHOD_COLOURS.get(get_method(one.claim.one), "#333333"),
                "text": format_interval(one),
            }
            for one in shown
        )
        y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelLimit=520, labelFontSize=11, ticks=False, domain=False))
        base = alt.Chart(data).encode(y=y, color=alt.Color("colour:N", scale=None))
        x = alt.X("low:Q", title="points of accuracy", scale=alt.Scale(nice=False, padding=12))
        zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#666666").encode(x="x:Q")
        span, mean = base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q"), base.mark_circle(size=70, opacity=1).encode(x="ours:Q")
        plot = (zero + span + mean).properties(width=300, height=alt.Step(20), title=alt.TitleParams(title, anchor="start", fontSize=13))
        beside = alt.Chart(data).mark_text(align="left", fontSize=11).encode(y=alt.Y("label:N", sort=None, axis=None), text="text:N")
        panels.append(alt.hconcat(plot, beside.encode(x=alt.value(0)).properties(width=150, height=alt.Step(20)), spacing=8))
    return alt.vconcat(*panels, spacing=18, background="white").resolve_scale(x="independent").configure_view(stroke=None)


def main() -> None:
    """Write the page and the figure, or check the page."""
    text = "\n".join(render_page()) + "\n"
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else f"not up to date: run python studies/future_work.py for {PAGE.name}")
    PAGE.write_text(text, encoding="utf-8")
    import altair

    from coterie.reproduce.figures import render_svg

    PAGE.with_suffix(".svg").write_text(render_svg(draw_figure(altair)), encoding="utf-8")


if __name__ == "__main__":
    main()
