"""docs/results/README.md, studies.md, forest.svg and the sentence of README.md, made from the scores in results/ alone.

python studies/summary_page.py            # writes them
python studies/summary_page.py --check    # reports whether the texts are up to date
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from coterie._util.formatting import Markup, format_markdown_table
from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.claims import ACCURACIES, AGREES, OPPOSITE, ClaimResult, collect_sources, compute_claim_numbers
from coterie.reproduce.figures import CROSS, MARKS, METHOD_COLOURS, choose_mark, get_method, render_svg
from coterie.reproduce.page import describe_tolerance
from coterie.reproduce.rejudge import ReproductionResult, judge_declared, rejudge
from coterie.reproduce.study_files import Claim

ROOT = Path(__file__).resolve().parents[1]
PAGES, DATA, STUDIES = ROOT / "docs" / "results", ROOT / "results", ROOT / "studies"
PAPERS = ("FedSim", "FedEx", "SimProx", "FedGroup", "FeSEM")
OUTCOMES = ("agrees", "opposite", "inconclusive", "not comparable", "not run")  # of the totals
ROWS = ("as printed", "variant")
FRONT, BEGIN, END = ROOT / "README.md", "<!-- results -->", "<!-- /results -->"
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
    ),
    Pick(
        "FedEx (updates): MNIST in shards, CNN",
        "fedex_tables",
        "Shards, CNN: FedEx with 3 experts is below FedAvg",
        RANDOM,
        "fedex(groups=3,assign=random) | online",
    ),
    Pick(
        "SimProx equals FedAvg: Banking77, MiniLM",
        "simprox_banking77",
        'Head: SimProx and FedAvg (their Eq. 1) "perform very similarly" (Section IV-C; Table 3 has +0.6): within a point after 50 rounds '
        "(written down after the scores)",
        SHUFFLED,
        "simprox(shuffled=true) | global",
    ),
    Pick(
        "FedGroup (our rules): MNIST, MLP",
        "fedgroup_table3",
        "mnist mlp: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=3,assign=random)",
    ),
    Pick(
        "FedGroup (our rules): synthetic(1,1), softmax",
        "fedgroup_table3",
        "synthetic: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=5,assign=random)",
    ),
    Pick(
        "FedGroup (our rules): FEMNIST letters, MLP",
        "fedgroup_table3",
        "femnist letters mlp: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=5,assign=random)",
    ),
    Pick(
        "FedGroup (our rules): Sent140, LSTM",
        "fedgroup_table3",
        "sent140 lstm: FedGroup beats FedAvg (highest accuracy)",
        RANDOM,
        "fedgroup(groups=5,assign=random)",
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


@cache
def load_declared() -> dict[str, ReproductionResult]:
    """Every study without scores: its claims are not run."""
    files = list_studies(STUDIES)
    return {name: judge_declared(read_reproduction(files[name])) for name in sorted(files) if name not in load_outcomes()}


def find_result(study: str, says: str) -> ClaimResult:
    """A claim or control by its text."""
    return next(one for one in load_outcomes()[study].result.results if one.claim.says == says)


class Gain(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{round(self.mean, 2) + 0:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def compute_control_gain(pick: Pick) -> Gain:
    """The control's gain over the claim's baseline, by the claim's score, with its interval over the seeds or draws that both have."""
    outcome, claim = load_outcomes()[pick.study], find_result(pick.study, pick.says).claim
    own = claim.model_copy(update={"one": pick.row, "says": ""})  # intervals over test clients are kept of claims alone
    numbers = compute_claim_numbers(own, outcome.values)
    widest = collect_sources(own, numbers, outcome.values, redrawn=outcome.study.part(claim.part).redrawn).widest
    return Gain(float(numbers.mean()), *((nan, nan) if widest is None else (widest[1].low, widest[1].high)))


def judge_control(pick: Pick) -> str:
    """Whether the method beats its decisive control: by the claim or control of the study that tests it."""
    claim = find_result(pick.study, pick.says).claim
    tested = [one for one in load_outcomes()[pick.study].result.results if _tests_control(one.claim, claim, pick.row)]
    found = {one.outcome for one in sorted(tested, key=lambda one: one.claim.exploratory)[:1]}
    if not found - {"not run", "not comparable"}:
        return "not tested"
    return "yes" if found & {"significant", *AGREES} else "no: it is ahead" if found & {"opposite significant", *OPPOSITE} else "no"


def _tests_control(other: Claim, claim: Claim, row: str) -> bool:
    same = (other.part, other.one, other.two) == (claim.part, claim.one, row)
    return same and other.kind == "difference" and other.direction > 0 and other.score in ACCURACIES


def _get_source(outcome: ReproductionResult) -> str:
    return outcome.study.paper.partition(" (")[0] if outcome.study.has_paper else "a question of our own"


def name_outcome(one: ClaimResult) -> str:
    """The column of the totals."""
    return "agrees" if one.outcome in AGREES else "opposite" if one.outcome in OPPOSITE else one.outcome


def list_claims() -> dict[str, list[ClaimResult]]:
    """By paper, all of its claims."""
    found: dict[str, list[ClaimResult]] = {}
    for outcome in (*load_outcomes().values(), *load_declared().values()):
        found.setdefault(_get_source(outcome), []).extend(outcome.result.claims)
    return found


def count_outcomes(claims: Iterable[ClaimResult]) -> dict[str, Counter[str]]:
    """As printed and in a variant: how many came to which outcome; of those that agree, of how many the paper has a number, and of how
    many of these it is in our interval."""
    counts: dict[str, Counter[str]] = {row: Counter() for row in ROWS}
    for one in claims:
        own = counts["variant" if one.variant else "as printed"]
        own.update(["claims", name_outcome(one)])
        if one.outcome in AGREES and one.covers is not None:
            own.update(["numbered", *(["covered"] if one.covers else [])])
    return counts


def list_simprox() -> dict[tuple[str, str], ClaimResult]:
    """By study and part, how SimProx compares with uniform weights."""
    found: dict[tuple[str, str], ClaimResult] = {}
    for name, outcome in load_outcomes().items():
        for one in outcome.result.results:
            claim = one.claim
            pair = (claim.one.partition(" | ")[0], claim.two.partition(" | ")[0])
            if pair == ("simprox", UNIFORM_ROW) and claim.direction > 0 and one.outcome != "not run":
                found.setdefault((name, claim.part), one)
    return found


def describe_simprox() -> str:
    """The counts, in a sentence; a dagger for what was decided after the scores."""
    found = list(list_simprox().values())
    compared = [one for one in found if one.outcome != "not comparable"]
    ahead = [one for one in compared if one.outcome in (*AGREES, "significant")]
    behind = [one for one in compared if one.outcome in (*OPPOSITE, "opposite significant")]
    late = sum(one.claim.exploratory for one in behind)
    dagger = f" ({late} of them †)" if late else ""
    return (
        f"SimProx is significantly ahead of uniform weights on {len(ahead)} of {len(compared)} comparable federations, behind on "
        f"{len(behind)}{dagger}."
    )


def make_forest_rows() -> list[dict[str, Any]]:
    """What is drawn of every pick."""
    rows = []
    for pick in PICKS:
        one, control = find_result(pick.study, pick.says), compute_control_gain(pick)
        colour, mark = METHOD_COLOURS[get_method(one.claim.one)], choose_mark(one)
        text = f"{one.ours:+.1f} ({one.low:+.1f} to {one.high:+.1f})"
        numbers = {"paper": one.claim.paper, "ours": one.ours, "low": one.low, "high": one.high}
        numbers |= {"control": control.mean, "control_low": control.low, "control_high": control.high}
        symbol, is_filled, _ = MARKS[mark]
        drawn = {"state": mark, "symbol": symbol, "colour": colour, "fill": colour if is_filled else "white"}
        rows.append({"label": name_pick(pick), "text": text, "against": pick.control, **drawn, **numbers})
    return rows


def name_pick(pick: Pick) -> str:
    """Its label, with a dagger where the claim is exploratory."""
    return f"{pick.label} †" if find_result(pick.study, pick.says).claim.exploratory else pick.label


DARK, GREY, STEP = "#333333", "#9A9A9A", 27
LEGEND = (  # shape, fill and text
    ("diamond", DARK, "paper"),
    ("circle", DARK, "ours, as printed"),
    ("square", DARK, "ours, variant"),
    (CROSS, "white", "ours, not comparable"),
    ("circle", "white", "decisive control"),
)


def draw_forest(alt: Any) -> Any:
    """A row for each claim: gain over the baseline in points, and below it the control's."""
    data = pd.DataFrame(make_forest_rows())
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelLimit=320, labelFontSize=12, ticks=False, domain=False, labelPadding=8))
    base = alt.Chart(data).encode(y=y)
    title = "method minus baseline, points of accuracy (95 % interval); positive: the method is better"
    x = alt.X("low:Q", title=title, scale=alt.Scale(nice=False, padding=10))
    colour, stroke = alt.Color("colour:N", scale=None), alt.Stroke("colour:N", scale=None)
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#666666").encode(x="x:Q")
    lower = {"yOffset": 7}
    spread = base.mark_rule(strokeWidth=1.5, color=GREY, **lower).encode(x="control_low:Q", x2="control_high:Q")
    control = base.mark_point(shape="circle", size=45, fill="white", stroke=GREY, strokeWidth=1.5, opacity=1, **lower).encode(x="control:Q")
    paper = base.mark_point(shape="diamond", filled=True, size=80, color=DARK, opacity=1).encode(x="paper:Q")
    span = base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q", color=colour)
    mean = base.mark_point(size=90, strokeWidth=2, opacity=1).encode(
        x="ours:Q", shape=alt.Shape("symbol:N", scale=None), stroke=stroke, fill=alt.Fill("fill:N", scale=None)
    )
    plot = alt.layer(zero, spread, control, span, mean, paper).properties(width=420, height=alt.Step(STEP))
    columns = [_draw_column(alt, data, name, title) for name, title in (("text", "ours (95 % CI)"), ("against", "control"))]
    joined = alt.hconcat(plot, *columns, spacing=10)
    return alt.vconcat(_draw_legend(alt), joined, spacing=12, background="white").configure_view(stroke=None)


def _draw_column(alt: Any, data: pd.DataFrame, name: str, title: str) -> Any:
    y = alt.Y("label:N", sort=None, axis=None)
    text = alt.Chart(data, title=alt.TitleParams(title, fontSize=11, anchor="start")).mark_text(align="left", fontSize=11)
    return text.encode(y=y, text=f"{name}:N", x=alt.value(0)).properties(width=125, height=alt.Step(STEP))


def _draw_legend(alt: Any) -> Any:
    data = pd.DataFrame([{"at": place, "shape": shape, "fill": fill, "text": text} for place, (shape, fill, text) in enumerate(LEGEND)])
    data["edge"] = [GREY if text == "decisive control" else DARK for text in data["text"]]
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
    yield f"![{len(PICKS)} claims: the paper's number, ours, and the decisive control](forest.svg)\n"
    crossed = [(pick, one) for pick in PICKS if (one := find_result(pick.study, pick.says)).outcome == "not comparable"]
    if crossed:
        yield f"Not comparable † (crosses): {'; '.join(f'{name_pick(pick)} ({one.why_not})' for pick, one in crossed)}.\n"
    yield from render_table()
    yield DEFINITIONS
    yield from render_totals()
    yield render_hypothesis()
    yield OBJECTIONS
    yield LINKS


def make_abstract() -> str:
    """At most 150 words, every number from the scores; what was written down after them has a dagger."""
    totals = count_outcomes(one for paper in PAPERS for one in list_claims()[paper])
    printed, variant = totals["as printed"], totals["variant"]
    mlp = next(pick for pick in PICKS if pick.label == "FedGroup (our rules): MNIST, MLP")
    tuned = find_result("fedgroup_table3", "mnist mlp: FedGroup beats FedAvg with fine-tuning (after the last round)")
    known = find_result("ifca_rotated_mnist", "MLP-200: IFCA beats FedAvg with fine-tuning")
    return (
        f"We re-implemented five papers on federated clients that resemble each other and examined {sum_counts(totals, 'claims')} of their "
        "claims beside controls that most of them lack. "
        f"Of {count_run(printed)} run as printed, {printed['agrees']} agree, "
        f"{printed['covered']} of {printed['numbered']} with the paper's number in our interval; {printed['opposite']} are contradicted. "
        f"Of {count_run(variant)} run in a variant, {variant['agrees']} agree ({variant['covered']} of {variant['numbered']}), "
        f"{variant['opposite']} have the opposite sign, {variant['inconclusive']} are inconclusive, {variant['not comparable']} not "
        "comparable †. "
        f"On MNIST, FedSim gains {_tell_gain(PICKS[0])}, uniform weights {compute_control_gain(PICKS[0]).mean:.1f}; "
        f"FedGroup by our rules {_tell_gain(mlp)}, random groups {compute_control_gain(mlp).mean:+.1f}; FedGroup minus fine-tuning is "
        f"{tuned.ours:+.1f}{_mark(tuned)}. "
        f"{describe_simprox()} "
        f"On rotated MNIST, IFCA (a sixth paper) is {known.ours:.1f}{_mark(known)} ahead of fine-tuning. "
        "Most intervals are over seeds on one split: they do not rank methods on other data."
    )


def sum_counts(counts: Mapping[str, Counter[str]], word: str) -> int:
    """Of both rows."""
    return sum(counts[row][word] for row in ROWS)


def count_run(counts: Counter[str]) -> int:
    """Claims with scores: agreement is a share of these."""
    return counts["claims"] - counts["not run"]


def _mark(one: ClaimResult) -> str:
    return " †" if one.claim.exploratory else ""


def _tell_gain(pick: Pick) -> str:
    one = find_result(pick.study, pick.says)
    return f"{one.ours:.1f}{_mark(one)}"


def render_front() -> str:
    """The sentences of README.md, every number from the scores."""
    totals = count_outcomes(one for paper in PAPERS for one in list_claims()[paper])
    printed, variant = totals["as printed"], totals["variant"]
    first = find_result(PICKS[0].study, PICKS[0].says)
    return (
        f"[What holds of five papers](docs/results/README.md): of {count_run(printed)} claims run as printed, "
        f"{printed['agrees']} agree,\n{printed['opposite']} are contradicted; of {count_run(variant)} run in a variant, "
        f"{variant['agrees']} agree, {variant['opposite']} show the opposite, {variant['inconclusive']} are\ninconclusive and "
        f"{variant['not comparable']} not comparable. FedSim's gain on MNIST, for instance, replicates in sign: {first.ours:+.1f} points "
        f"(95 % CI\n{first.low:+.1f} to {first.high:+.1f}; paper {first.claim.paper:+.1f}), and uniform weights alone give "
        f"{compute_control_gain(PICKS[0]).mean:+.1f}."
    )


def fill_front(text: str) -> str:
    """README.md with these sentences between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{render_front()}\n{END}{rest.partition(END)[2]}"


def render_table() -> Iterator[str]:
    """The comparable claims, values only."""
    rows = []
    for pick in PICKS:
        one = find_result(pick.study, pick.says)
        if one.outcome == "not comparable":
            continue
        link, covers = Markup(f"[{name_pick(pick)}]({pick.study}.md)"), {True: "yes", False: "no", None: ""}[one.covers]
        ours, control = Gain(one.ours, one.low, one.high).text, f"{pick.control}: {compute_control_gain(pick).text}"
        paper = f"{one.claim.paper:+.2f}" if one.claim.claims == "sign" else describe_tolerance(one.claim)
        rows.append([link, paper, ours, covers, one.over, control, judge_control(pick), one.verdict])
    header = ["claim", "paper", "ours (95 % CI)", "paper in CI", "interval over", "decisive control (95 % CI)", "beaten", "verdict"]
    yield from format_markdown_table(header, rows)
    yield (
        "\nMethod minus baseline in points of accuracy; positive: the method is better. The baseline is FedAvg (SimProx: FedAvg with "
        "uniform weights, its own), and the control's gain is over the same baseline, with an interval over seeds or draws alone. "
        "*Beaten*: the method is significantly ahead of the control. `coterie reproduce NAME` runs the study behind a row."
    )


DEFINITIONS = """
## Definitions

- **As printed**: the paper's model, data, length and settings, run in full. **Variant**: anything else, such as softmax
  regression in place of a network, another data set, our draw of synthetic data, fewer rounds or seeds. MNIST divided again by
  the paper's recipe counts as printed.
- **Not comparable** †: a variant whose FedAvg is more than 15 points of accuracy below the paper's, a score that does not exceed
  the most frequent class, or another data set of the same name. It has no verdict.
- **Significant**: one-sided p below 0.05 after Holm's correction over the study's claims, for every known source of error (draws
  or seeds, and test clients), with at least five runs. [Rules by kind of claim](../howto/reproduce.md#verdicts).
- **Verdict**: of the sign; "0 ± 1" is a claim of no difference, within a point. *Replicates* (as printed; whether the paper's
  number is in our interval is added) or *holds in our variant*: significant. *Contradicted* (as printed) or *opposite sign in our
  variant* (of a tolerance or bound: *outside* it): the opposite is significant. *Inconclusive*: neither, which is not evidence of
  no effect.
- **Interval**: the widest 95 % interval of these sources. The column "interval over" names the source.
- **Control**: what the paper's explanation must beat. Controls are corrected apart and do not count in the totals. † marks what
  was decided after the scores were known (exploratory).
"""


def render_totals() -> Iterator[str]:
    """By paper, as printed and in a variant."""
    claims = list_claims()
    five = [one for paper in PAPERS for one in claims[paper]]
    named = {**{paper: claims[paper] for paper in PAPERS}, Markup("**five papers**"): five, **claims}
    rows = []
    for name, found in named.items():
        for row, own in count_outcomes(found).items():
            if own["claims"]:
                covered = f"{own['covered']} of {own['numbered']}" if own["numbered"] else ""
                numbers = [str(own["claims"]), str(own["agrees"]), covered, *(str(own[word]) for word in OUTCOMES[1:])]
                rows.append([name, row, *numbers])
    yield "## Totals\n"
    yield from format_markdown_table(["paper", "row", "claims", "agrees", "paper in CI", *OUTCOMES[1:]], rows)
    left = "; ".join(f"`{name}` ({_explain_missing(outcome)})" for name, outcome in load_declared().items())
    yield (
        "\n*Opposite*: contradicted as printed, opposite sign in a variant. *Paper in CI*: of those that agree and have a number. "
        f"Declared, without scores, all *not run*: {left}."
    )


def _explain_missing(outcome: ReproductionResult) -> str:
    """Why a study has no scores: what its parts need together, else what each lacks."""
    costs = [part.cost.split()[:3] for part in outcome.study.parts]
    if all(costs) and len({unit for _, unit, _ in costs}) == 1:
        return f"needs about {sum(int(minutes.replace(',', '')) for minutes, *_ in costs)} {costs[0][1]} minutes"
    return "; ".join(dict.fromkeys(run.why_not for run in outcome.runs))


def render_hypothesis() -> str:
    """What FedEx's paper leaves to future work, judged on clusters that differ."""
    rows = {"digits": "Rotated digits", "MNIST": "Rotated MNIST, MLP"}
    gains = [find_result("fedex_clusters", f"{row}: FedEx beats FedAvg after the last round") for row in rows.values()]
    served = [find_result("fedex_clusters", f"{row}: each client's own expert beats FedAvg") for row in rows.values()]
    return (
        "\n## A hypothesis of FedEx's paper\n\n"
        'The paper infers that "vastly different clusters of clients" with accurate experts "would lead to better performance by FedEx", '
        f"and leaves it to future work. On [rotated {' and '.join(rows)}](fedex_clusters.md), FedEx with its online layer minus FedAvg is "
        f"{' and '.join(_describe_gain(one) for one in gains)} points: {' and '.join(dict.fromkeys(one.verdict for one in gains))}. "
        f"With each client served by its own expert it is {' and '.join(_describe_gain(one) for one in served)}: the clusters help, the "
        "layer that combines their experts does not."
    )


def _describe_gain(one: ClaimResult) -> str:
    return Gain(one.ours, one.low, one.high).text


OBJECTIONS = """
## What an author would object to

1. Most rows are variants: softmax regression where the paper has a network, other draws of the data, fewer seeds.
2. Most networks ran for fewer rounds than printed; each study's page has the numbers. Those that hardly learnt are not
   comparable, by a threshold that was set with the scores known.
3. Most intervals are over seeds on one split of the data. Only `fedsim_table7_redrawn`, `fedsim_section52`, `fedsim_figure10`,
   most SimProx studies and most questions of our own redraw it.
4. Rates and numbers of groups are the papers', not tuned for each method. [FedEx minus FedAvg](fedex_tables.md) depends on the
   rate.
5. Some thresholds are ours ("nearly comparable": 1.4 times; "most rounds": 90 %). Random groups match group sizes; they match
   client sizes only for FedSim on MNIST and Fed-Goodreads.
"""
LINKS = """## More

- [Every study](studies.md) and [every table and figure of the papers](items.md)
- [What explains the gains, and what to use when](explanations.md)
- [Does SimProx's order hold?](simprox_order.md) and [are known groups found?](groups_found.md)
- [Future work of the papers, evaluated](future_work.md)
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
femnist_leak
groups_found
future_work
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
        rows.append([Markup(f"[{name}]({name}.md)"), f"{source}, {outcome.study.where}", outcome.result.tally, seeds])
    yield from format_markdown_table(["study", "source", "verdict", "seeds or draws"], rows)


def render_pages() -> Mapping[Path, str]:
    """Both pages, and the front page with its sentences."""
    return {
        PAGES / "README.md": "\n".join(render_summary()) + "\n",
        PAGES / "studies.md": "\n".join(render_studies()) + "\n",
        FRONT: fill_front(FRONT.read_text(encoding="utf-8")),
    }


def main() -> None:
    """Write the pages and the figure, or check the pages."""
    pages = render_pages()
    if "--check" in sys.argv[1:]:
        stale = [str(path.relative_to(ROOT)) for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
        sys.exit(f"not up to date, run make results: {', '.join(stale)}" if stale else 0)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    import altair

    (PAGES / "forest.svg").write_text(render_svg(draw_forest(altair)), encoding="utf-8")


if __name__ == "__main__":
    main()
