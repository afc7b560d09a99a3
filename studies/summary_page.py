"""docs/results/README.md, studies.md and forest.svg, made from the scores in results/ alone.

python studies/summary_page.py            # writes them
python studies/summary_page.py --check    # reports whether the two pages are up to date
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie._util.formatting import Markup, format_markdown_table
from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.claims import OPPOSITE, ClaimResult, compute_claim_numbers
from coterie.reproduce.figures import METHOD_COLOURS, get_method
from coterie.reproduce.rejudge import ReproductionResult, rejudge

ROOT = Path(__file__).resolve().parents[1]
PAGES, DATA, STUDIES = ROOT / "docs" / "results", ROOT / "results", ROOT / "studies"
PAPERS = ("FedSim", "FedEx", "SimProx", "FedGroup", "FeSEM")
VERDICTS = ("replicates", "holds in our variant", OPPOSITE, "inconclusive", "not run")
UNIFORM, RANDOM, SHUFFLED = "uniform weights", "random groups", "its weights shuffled"
UNIFORM_ROW, MEAN = "fedavg(weighting=uniform)", "FedSim gains over FedAvg, mean over rounds"


@dataclass(frozen=True)
class Pick:
    """A claim of the forest plot, and the row whose gain over the same baseline is its decisive control."""

    label: str
    study: str
    says: str
    control: str
    row: str
    why_not: str = ""  # why it cannot be compared with the paper's number


PICKS = (
    Pick("FedSim: MNIST, softmax", "fedsim_table4_mnist", MEAN, UNIFORM, UNIFORM_ROW),
    Pick(
        "FedSim: authors' synthetic(0,0), softmax",
        "fedsim_table7",
        "(0,0), the authors' own data: FedSim minus FedAvg, mean over rounds",
        UNIFORM,
        UNIFORM_ROW,
    ),
    Pick(
        "FedSim: Fed-Goodreads, softmax",
        "fedsim_table4_goodreads",
        "FedSim gains over FedAvg, mean over rounds",
        UNIFORM,
        UNIFORM_ROW,
    ),
    Pick("FedSim: MNIST, CNN", "fedsim_table4_mnist", f"CNN: {MEAN}", UNIFORM, UNIFORM_ROW),
    Pick(
        "FedSim: FEMNIST letters, softmax",
        "fedsim_table4_other",
        "Letters: FedSim gains over FedAvg, mean over rounds",
        UNIFORM,
        UNIFORM_ROW,
    ),
    Pick(
        "FedSim: LEAF's FEMNIST writers, softmax",
        "fedsim_table4_other",
        "Our own row, LEAF FEMNIST: FedSim gains over FedAvg, mean over rounds (paper, on its own FEMNIST)",
        UNIFORM,
        UNIFORM_ROW,
        "another FEMNIST than the paper's",
    ),
    Pick(
        "FedEx: MNIST in shards, CNN",
        "fedex_tables",
        "Shards, CNN: FedEx with 3 experts is below FedAvg",
        RANDOM,
        "fedex(groups=3,assign=random) | online",
    ),
    Pick(
        "SimProx: Banking77, head on MiniLM",
        "simprox_banking77",
        "Head: SimProx beats FedAvg (their Eq. 1) after 50 rounds",
        SHUFFLED,
        "simprox(shuffled=true) | global",
    ),
    Pick(
        "FedGroup: MNIST, MLP",
        "fedgroup_table3",
        "mnist mlp: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=3,assign=random)",
    ),
    Pick(
        "FedGroup: synthetic(1,1), softmax",
        "fedgroup_table3",
        "synthetic: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=5,assign=random)",
    ),
    Pick(
        "FedGroup: FEMNIST letters, MLP",
        "fedgroup_table3",
        "femnist letters mlp: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=5,assign=random)",
    ),
    Pick(
        "FedGroup: Sent140, LSTM",
        "fedgroup_table3",
        "sent140 lstm: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=5,assign=random)",
        "50 of 200 rounds; FedAvg does not exceed the majority class",
    ),
    Pick(
        "FeSEM(3): FEMNIST writers, softmax",
        "fesem_table2",
        "FEMNIST writers, MCLR, our own row: FeSEM(3) beats FedAvg",
        RANDOM,
        "fesem(groups=3,assign=random)",
    ),
    Pick(
        "FeSEM(3): FEMNIST writers, CNN",
        "fesem_table2",
        "FEMNIST, CNN: FeSEM(3) beats FedAvg",
        RANDOM,
        "fesem(groups=3,assign=random)",
        "10 of 100 rounds, 38 % accuracy",
    ),
    Pick(
        "IFCA: rotated MNIST, MLP",
        "ifca_rotated_mnist",
        "MLP-200: IFCA beats one global model",
        RANDOM,
        "ifca(groups=4,assign=random)+restarts",
    ),
)


@cache
def load_outcomes() -> dict[str, ReproductionResult]:
    """Every study with scores, judged from them."""
    names = [name for name in sorted(list_studies(STUDIES)) if (DATA / f"{name}.csv").is_file()]
    return {name: rejudge(read_reproduction(find_study(name, STUDIES)), DATA / f"{name}.csv") for name in names}


def find_result(study: str, says: str) -> ClaimResult:
    """A claim or control by its text."""
    return next(one for one in load_outcomes()[study].result.results if one.claim.says == says)


def compute_control_gain(pick: Pick) -> float:
    """The control's mean gain over the claim's baseline, by the claim's score and over the seeds that both have."""
    claim = find_result(pick.study, pick.says).claim
    return float(np.mean(compute_claim_numbers(claim.model_copy(update={"one": pick.row}), load_outcomes()[pick.study].values)))


def _get_source(outcome: ReproductionResult) -> str:
    return outcome.study.paper.partition(" (")[0] if outcome.study.has_paper else "a question of our own"


def count_verdicts() -> dict[str, Counter[str]]:
    """By paper, how many of its claims came to which verdict."""
    counts: dict[str, Counter[str]] = {}
    for outcome in load_outcomes().values():
        counts.setdefault(_get_source(outcome), Counter()).update(one.verdict for one in outcome.result.claims)
    return counts


def count_simprox() -> tuple[int, int, int]:
    """Federations and models on which SimProx is compared with uniform weights; significantly ahead; behind."""
    best: dict[tuple[str, str], str] = {}
    for name, outcome in load_outcomes().items():
        for one in outcome.result.results:
            claim = one.claim
            pair = (claim.one.partition(" | ")[0], claim.two.partition(" | ")[0])
            if pair == ("simprox", UNIFORM_ROW) and claim.direction > 0 and one.outcome != "not run":
                best.setdefault((name, claim.part), one.verdict)
    found = Counter(best.values())
    return (
        len(best),
        found["holds in our variant"] + found["replicates"] + found["significant"],
        found[OPPOSITE] + found["opposite significant"],
    )


def make_forest_rows() -> list[dict[str, Any]]:
    """What is drawn of every pick."""
    rows = []
    for pick in PICKS:
        one = find_result(pick.study, pick.says)
        colour = METHOD_COLOURS[get_method(one.claim.one)]
        state = "not comparable" if pick.why_not else "variant" if one.variant else "as printed"
        text = f"{one.ours:+.1f} ({one.low:+.1f} to {one.high:+.1f})"
        numbers = {"paper": one.claim.paper, "ours": one.ours, "low": one.low, "high": one.high, "control": compute_control_gain(pick)}
        fill = colour if state == "as printed" else "white"
        rows.append({"label": pick.label, "state": state, "colour": colour, "fill": fill, "text": text, "against": pick.control, **numbers})
    return rows


CROSS, TICK = "M-.8,-.8L.8,.8M.8,-.8L-.8,.8", "M-.2,-1L.2,-1L.2,1L-.2,1Z"
DARK, GREY, STEP = "#333333", "#9A9A9A", 25
LEGEND = (  # shape, fill and text
    ("diamond", DARK, "paper"),
    ("circle", DARK, "ours, as printed"),
    ("circle", "white", "ours, variant"),
    (CROSS, "white", "ours, not comparable"),
    (TICK, GREY, "decisive control"),
)


def draw_forest(alt: Any) -> Any:
    """A row for each claim: gain over the baseline in points."""
    data = pd.DataFrame(make_forest_rows())
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelLimit=320, labelFontSize=12, ticks=False, domain=False, labelPadding=8))
    base = alt.Chart(data).encode(y=y)
    x = alt.X("low:Q", title="gain over the paper's baseline, points of accuracy (95 % interval)", scale=alt.Scale(nice=False, padding=10))
    colour, stroke = alt.Color("colour:N", scale=None), alt.Stroke("colour:N", scale=None)
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#666666").encode(x="x:Q")
    control = base.mark_point(shape=TICK, size=220, fill=GREY, strokeWidth=0, opacity=1).encode(x="control:Q")
    paper = base.mark_point(shape="diamond", filled=True, size=80, color=DARK, opacity=1).encode(x="paper:Q")
    span = base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q", color=colour)
    seen = base.transform_filter("datum.state != 'not comparable'")
    mean = seen.mark_circle(size=100, strokeWidth=2, opacity=1).encode(x="ours:Q", stroke=stroke, fill=alt.Fill("fill:N", scale=None))
    crossed = base.transform_filter("datum.state == 'not comparable'").mark_point(shape=CROSS, size=150, strokeWidth=2.5, opacity=1)
    layers = [zero, control, span, mean, crossed.encode(x="ours:Q", color=colour), paper]
    plot = alt.layer(*layers).properties(width=420, height=alt.Step(STEP))
    columns = [_draw_column(alt, data, name, title) for name, title in (("text", "ours (95 % CI)"), ("against", "control"))]
    joined = alt.hconcat(plot, *columns, spacing=10)
    return alt.vconcat(_draw_legend(alt), joined, spacing=12, background="white").configure_view(stroke=None)


def _draw_column(alt: Any, data: pd.DataFrame, name: str, title: str) -> Any:
    y = alt.Y("label:N", sort=None, axis=None)
    text = alt.Chart(data, title=alt.TitleParams(title, fontSize=11, anchor="start")).mark_text(align="left", fontSize=11)
    return text.encode(y=y, text=f"{name}:N", x=alt.value(0)).properties(width=125, height=alt.Step(STEP))


def _draw_legend(alt: Any) -> Any:
    data = pd.DataFrame([{"at": place, "shape": shape, "fill": fill, "text": text} for place, (shape, fill, text) in enumerate(LEGEND)])
    data["edge"] = [GREY if shape == TICK else DARK for shape in data["shape"]]
    base = alt.Chart(data).encode(x=alt.X("at:O", axis=None))
    shapes = base.mark_point(size=90, opacity=1, xOffset=-62, strokeWidth=2).encode(
        shape=alt.Shape("shape:N", scale=None), fill=alt.Fill("fill:N", scale=None), stroke=alt.Stroke("edge:N", scale=None)
    )
    return (shapes + base.mark_text(align="left", xOffset=-50, fontSize=12).encode(text="text:N")).properties(
        width=alt.Step(150), height=20
    )


def render_summary() -> Iterator[str]:
    """docs/results/README.md."""
    yield "# Results\n"
    yield f"**Abstract.** {make_abstract()}\n"
    yield "![Fifteen claims: the paper's number, ours, and the decisive control](forest.svg)\n"
    crossed = "; ".join(f"{pick.label} ({pick.why_not})" for pick in PICKS if pick.why_not)
    yield f"Not comparable (crossed): {crossed}.\n"
    yield from render_table()
    yield DEFINITIONS
    yield from render_totals()
    yield OBJECTIONS
    yield LINKS


def make_abstract() -> str:
    """At most 150 words, every number from the scores."""
    totals = sum((counts for paper, counts in count_verdicts().items() if paper in PAPERS), Counter())
    fedsim, uniform = find_result(PICKS[0].study, PICKS[0].says), compute_control_gain(PICKS[0])
    mlp = next(pick for pick in PICKS if pick.label == "FedGroup: MNIST, MLP")
    group, random = find_result(mlp.study, mlp.says), compute_control_gain(mlp)
    tuned = find_result("fedgroup_table3", "mnist mlp: FedGroup beats FedAvg with fine-tuning (after the last round)")
    known = find_result("ifca_rotated_mnist", "MLP-200: IFCA beats FedAvg with fine-tuning")
    federations, ahead, behind = count_simprox()
    return (
        "We re-implemented five papers on federated clients that resemble each other and examined "
        f"{sum(totals.values())} of their claims beside controls that most of them lack: uniform weights, random groups, fine-tuning. "
        f"{totals['replicates']} claims replicate as printed; {totals['holds in our variant']} hold in a variant, often "
        f"softmax regression in place of a network; {totals[OPPOSITE]} have the opposite result there, {totals['inconclusive']} are "
        f"inconclusive and {totals['not run']} were not run. "
        "Gains over FedAvg mostly have the paper's sign; how much of them a control explains differs by method. "
        f"On MNIST, FedSim gains {fedsim.ours:.1f} points and uniform weights {uniform:.1f}; FedGroup gains {group.ours:.1f} and random "
        f"groups {random:+.1f}, and fine-tuning is {-tuned.ours:.1f} ahead of FedGroup. "
        f"SimProx is significantly ahead of uniform weights on {ahead} of {federations} federations, and behind on {behind} (one †). "
        f"On rotated MNIST, IFCA (a sixth paper) is {known.ours:.1f} ahead of fine-tuning. "
        "Most intervals are over seeds on one split: they do not rank methods on other data."
    )


def render_table() -> Iterator[str]:
    """The comparable claims, values only."""
    rows = []
    for pick in PICKS:
        one = find_result(pick.study, pick.says)
        if not pick.why_not:
            ours = f"{one.ours:+.2f} ({one.low:+.2f} to {one.high:+.2f})"
            control = f"{pick.control}: {round(compute_control_gain(pick), 2) + 0:+.2f}"
            rows.append([Markup(f"[{pick.label}]({pick.study}.md)"), f"{one.claim.paper:+.2f}", ours, control, one.over, one.verdict])
    yield from format_markdown_table(["claim", "paper", "ours (95 % CI)", "decisive control", "interval over", "verdict"], rows)
    yield (
        "\nPoints of accuracy over FedAvg (SimProx: over FedAvg with uniform weights, its own baseline). The control's gain is over the "
        "same baseline, by the same score. `coterie reproduce NAME` runs the study behind a row."
    )


DEFINITIONS = """
## Definitions

- **As printed**: the paper's model, data, length and settings, run in full. **Variant**: anything else, such as softmax
  regression in place of a network, another draw of the data, fewer rounds or seeds.
- **Not comparable**: a variant that has hardly learnt, or uses another federation. Its sign says nothing about the paper's
  number.
- **Significant**: one-sided p below 0.05 after Holm's correction over the study's claims, for every known source of error (draws
  or seeds, and test clients), with at least five runs. [Rules by kind of claim](../howto/reproduce.md#verdicts).
- **Verdict**: of the direction, not the size. *Replicates* (significant, as printed), *holds* or *opposite in our variant*
  (significant, with the paper's result or the opposite), *inconclusive* (neither; this is not evidence of no effect), *not run*.
- **Interval**: the widest 95 % interval of these sources. The column "interval over" names the source.
- **Control**: what the paper's explanation must beat. Controls are corrected apart and do not count in the totals. † marks what
  was decided after the scores were known (exploratory).
"""


def render_totals() -> Iterator[str]:
    """By paper and verdict."""
    counts = count_verdicts()
    five: Counter[str] = sum((counts[paper] for paper in PAPERS), Counter())
    named = {**{paper: counts[paper] for paper in PAPERS}, Markup("**five papers**"): five, **counts}
    rows = [[name, *map(str, [sum(found.values()), *(found[word] for word in VERDICTS)])] for name, found in named.items()]
    yield "## Totals\n"
    yield from format_markdown_table(["paper", "claims", *VERDICTS], rows)
    yield "\n`fesem_table3` (CelebA) is declared and not counted: its data are not available."


OBJECTIONS = """
## What an author would object to

1. Most rows are variants: softmax regression where the paper has a network, other draws of the data, fewer seeds.
2. Networks ran for fewer rounds than printed: FeSEM's CNN 10 of 100, FedSim's on letters 100 of 500, ResNet-18 16 of 100,
   DenseNet-121 4 of 100, FedGroup's LSTM 50 of 200.
3. Most intervals are over seeds on one split of the data. Only `fedsim_table7_redrawn`, `fedsim_section52`, `fedsim_figure10`,
   `lm_topics` and most SimProx studies redraw it.
4. Rates and numbers of groups are the papers', not tuned for each method. FedEx's loss to FedAvg depends on the rate: 10.8 points
   at 0.05, 5.4 at 0.005.
5. Some thresholds are ours ("nearly comparable": 1.4 times; "most rounds": 90 %). Random groups match group sizes; they match
   client sizes only for FedSim on MNIST and Fed-Goodreads.
"""
LINKS = """## More

- [Every study](studies.md) and [every table and figure of the papers](items.md)
- [What explains the gains, and what to use when](explanations.md)
- [Does SimProx's order hold?](simprox_order.md) and [are known groups found?](groups_found.md)
- [How to cite](cite.md) and [how to reproduce](../howto/reproduce.md); scores and provenance are in the folder `results/`

```{toctree}
:hidden:
:glob:

explanations
studies
items
fedsim*
fedex*
simprox*
fedgroup*
fesem*
ifca*
lm_topics
groups_found
cite
```"""


def render_studies() -> Iterator[str]:
    """docs/results/studies.md: a row for each study, by paper."""
    outcomes = load_outcomes()
    yield "# Every study\n"
    yield "Verdicts count the paper's claims; [definitions](README.md#definitions).\n"
    rows, known = [], list(PAPERS)
    for outcome in sorted(outcomes.values(), key=lambda one: (*known, _get_source(one)).index(_get_source(one))):
        name, source = outcome.study.name, _get_source(outcome)
        repetitions = sorted({one.repetitions for one in outcome.result.claims if one.repetitions})
        seeds = f"{repetitions[0]} to {repetitions[-1]}" if len(repetitions) > 1 else "".join(map(str, repetitions))
        rows.append([Markup(f"[{name}]({name}.md)"), f"{source}, {outcome.study.where}", outcome.result.sentence.partition(" (")[0], seeds])
    yield from format_markdown_table(["study", "source", "verdict", "seeds or draws"], rows)


def render_pages() -> Mapping[Path, str]:
    """Both pages."""
    return {
        PAGES / "README.md": "\n".join(render_summary()) + "\n",
        PAGES / "studies.md": "\n".join(render_studies()) + "\n",
    }


def main() -> None:
    """Write the pages and the figure, or check the pages."""
    pages = render_pages()
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
        sys.exit(f"not up to date, run python studies/summary_page.py: {', '.join(stale)}" if stale else 0)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    import altair

    draw_forest(altair).save(PAGES / "forest.svg")


if __name__ == "__main__":
    main()
