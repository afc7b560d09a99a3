"""rivals.md and its figure, made from the small tables of results/rivals/ alone; `--check` exits with 1 if they are not up to date.

python studies/rivals_page.py [--check]

Gains, intervals, tests, ranks and regrets are computed here again: the interval over draws from the scores of each draw, with that over
test clients beside it, and the outcome by the rules of `coterie compare`, corrected over the methods of a world and stage. What is not in
the tables is listed as not run.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from rivals import DRAWS, FIRST, METHODS, WORLDS

from coterie.analysis.draws import Gap
from coterie.analysis.verdict_rules import MARGIN, Outcome, choose_test, decide_outcome
from coterie.statistics import (
    Interval,
    Ranking,
    Sources,
    check_equivalence,
    compare_pairs,
    correct_holm,
    estimate_variance_components,
    rank_methods,
)
from coterie.statistics.intervals import compute_draw_interval

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER, PAGE = DOCS.parent / "results" / "rivals", DOCS / "explanation" / "rivals.md"
STAGES = {"served": "served", "tuned": "after 5 local epochs"}
MOST_MISSING = 0.1  # of the worlds: a method that lacks more is in no ranking
NAMES = {
    "fedavg": "FedAvg",
    "uniform": "FedAvg, uniform",
    "local": "alone",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "ditto": "Ditto",
    "fedsim": "FedSim",
    "fedgroup": "FedGroup",
    "fesem": "FeSEM",
    "fedex": "FedEx",
    "simprox": "SimProx",
    "ifca": "IFCA",
    "cfl": "CFL",
    "flhc": "FL+HC",
    "clove": "CLoVE",
    "fedem": "FedEM",
    "fedrc": "FedRC",
    "flux": "Flux",
    "feroma": "FEROMA",
    "fedfew": "FedFew",
    "cflgp": "CFL-GP",
    "pfedgraph": "pFedGraph",
    "fedgwc": "FedGWC",
    "apfl": "APFL",
    "fedala": "FedALA",
    "pacfl": "PACFL",
    "fedclust": "FedClust",
    "knn": "kNN-Per",
    "fedper": "FedPer",
    "auto": "auto",
}
# what the abstracts say
CLAIMS = {
    "clove": "finds the clusters in a few rounds, with accuracy at the state of the art",
    "fedem": "higher accuracy and fairness than the state of the art",
    "fedrc": "significantly ahead of other clustered methods where kinds of shift come together",
    "flux": "up to 23 points over the best baselines on average, at about FedAvg's cost",
    "feroma": "up to 12 points over the best baselines on average, at about FedAvg's cost",
    "fedfew": "consistently ahead of the state of the art with 3 models",
    "cflgp": "ahead of existing methods in speed, clustering and task performance",
    "pfedgraph": "consistently ahead of 14 baselines at all levels of heterogeneity",
    "fedgwc": "ahead of existing algorithms in clusters and accuracy",
}

HEAD = """\
# Which method wins?

{answer}
"""
FIGURE = """\
![Gains of every method with their intervals, world by world](../figures/rivals.svg)

A point is the gain over FedAvg of the same stage in points of accuracy, mean of the last ten rounds, over {draws} draws; filled: the model
that is served, hollow: the same after 5 local epochs. The interval (95 %) is the wider of those over draws and over test clients.

Every number and word is made from [scores](../../results/rivals/scores.csv) and the tables beside them by
`python studies/rivals_page.py`. To compare the same methods on your own data: `coterie compare @rivals --data DATA --stages`.
"""
PROTOCOL = """\
## Protocol

`studies/rivals.py` declares it, and was fixed before any comparison.

| setting | value |
| --- | --- |
| model | softmax regression; a CNN in the network worlds |
| training | 40 rounds of one local epoch in batches of 10; a method that trains k models on a visit has 40 / k rounds: equal client steps |
| tuning | 6 settings a method, world and stage, on validation parts of draws 90 to 92: 4 learning rates, then 2 more settings or rates |
| groups | the number is not known: 4, 2 or 8, chosen by tuning |
| stages | *served*: what the server sends; *after 5 local epochs*: the same, fine-tuned, and methods that serve what clients trained |
| repetitions | draws {first} to {last}, a seed each |
| *better* | the interval excludes 0 and p < .05 after Holm's correction over the methods of a world and stage |
| *worse* / *same* | the interval is below 0 / the difference is significantly within a point |
"""


# These choose for each federation whether clients train on: to compare them with methods of one stage would be a comparison across stages.
CHOOSE_STAGE = ("auto",)


@dataclass(frozen=True)
class Judged:
    """One method against FedAvg in one world, at one stage."""

    method: str
    gap: Gap
    outcome: Outcome
    worse: float  # share of clients clearly worse off than under FedAvg
    lower: float  # share of clients with a lower score, which may be chance


@dataclass(frozen=True)
class Tables:
    """The small tables."""

    scores: pd.DataFrame
    gains: pd.DataFrame
    costs: pd.DataFrame
    worlds: pd.DataFrame
    not_run: pd.DataFrame

    @classmethod
    def read(cls, folder: Path = FOLDER) -> "Tables":
        names = ("scores", "gains", "costs", "worlds", "not_run")
        paths = [folder / f"{name}.csv" for name in names]
        return cls(*(pd.read_csv(path, keep_default_na=False, na_values=["nan"]) if path.exists() else pd.DataFrame() for path in paths))

    @cached_property
    def accuracies(self) -> dict[tuple[str, str, str, str], np.ndarray]:
        """By world, method, stage and control: (draws,) shares."""
        return self._select("d")

    @cached_property
    def at_equal_bytes(self) -> dict[tuple[str, str, str, str], np.ndarray]:
        return self._select("b")

    def _select(self, letter: str) -> dict[tuple[str, str, str, str], np.ndarray]:
        if self.scores.empty:
            return {}
        columns = [name for name in self.scores.columns if name[0] == letter and name[1:].isdigit()]
        keys = self.scores[["world", "method", "stage", "control"]].astype(str).itertuples(index=False, name=None)
        rows = zip(keys, self.scores[columns].to_numpy(dtype=float) / 100, strict=True)
        return {tuple(key): row for key, row in rows if key[1] not in CHOOSE_STAGE}

    @property
    def draws(self) -> int:
        return max((len(own) for own in self.accuracies.values()), default=DRAWS)

    def list_worlds(self) -> list[str]:
        """Those with FedAvg's score at some stage."""
        return [name for name in WORLDS if any((name, "fedavg", stage, "") in self.accuracies for stage in STAGES)]

    def list_methods(self, stage: str, world: str | None = None) -> list[str]:
        found = {key[1] for key in self.accuracies if key[2] == stage and not key[3] and world in (None, key[0])}
        return [name for name in METHODS if name in found]

    @cached_property
    def _errors(self) -> dict[tuple[str, str, str, str], dict[str, Any]]:
        rows = [] if self.gains.empty else self.gains.to_dict("records")
        return {(row["world"], row["method"], row["stage"], row["against"]): row for row in rows}

    def get_row(self, world: str, method: str, stage: str, against: str) -> dict[str, Any]:
        """What was computed from single clients."""
        return self._errors.get((world, method, stage, against), {})

    def gap(self, world: str, method: str, stage: str, against: str = "fedavg") -> Gap | None:
        """A method minus FedAvg, clients alone, or its own random groups."""
        other = (world, method, stage, "random") if against == "random" else (world, against, stage, "")
        if other not in self.accuracies:
            return None
        differences = (self.accuracies[world, method, stage, ""] - self.accuracies[other])[:, None]
        row = self.get_row(world, method, stage, against)
        clients: Interval | str = "no interval over test clients"
        if row:
            clients = Interval(row["mean"], row["error"], row["degrees"], row["over"], bound=bool(row["bound"]))
        sources = Sources("a seed for each draw", compute_draw_interval(differences, shared=False), clients)
        return Gap(compare_pairs(differences[:, 0]), sources, estimate_variance_components(differences, shared=False))

    @cached_property
    def judged(self) -> dict[tuple[str, str], dict[str, Judged]]:
        """By world and stage, the methods but FedAvg."""
        return {(world, stage): self._judge(world, stage) for world in self.list_worlds() for stage in STAGES}

    def _judge(self, world: str, stage: str) -> dict[str, Judged]:
        names = [name for name in self.list_methods(stage, world) if name != "fedavg"]
        gaps = {name: gap for name in names if (gap := self.gap(world, name, stage)) is not None}
        test = choose_test(self.draws, len(gaps))
        corrected = dict(zip(gaps, correct_holm([gap.get_p_value(test) for gap in gaps.values()]), strict=True))
        found = {}
        for name, gap in gaps.items():
            same, row = check_equivalence(gap.sources, MARGIN), self.get_row(world, name, stage, "fedavg")
            outcome = decide_outcome(gap, corrected[name], len(gaps), same, test)
            found[name] = Judged(name, gap, outcome, float(row.get("worse", np.nan)), float(row.get("lower", np.nan)))
        return found

    def compute_ranking(self, stage: str, *, equal_bytes: bool = False) -> tuple[Ranking | None, list[str], list[str]]:
        """Mean ranks over the worlds that all ranked methods ran in; these worlds; and the methods that ran in too few."""
        table = self.at_equal_bytes if equal_bytes else self.accuracies
        worlds = [name for name in self.list_worlds() if (name, "fedavg", stage, "") in table]
        methods = self.list_methods(stage)
        count = {name: sum((world, name, stage, "") in table for world in worlds) for name in methods}
        ranked = [name for name in methods if count[name] >= (1 - MOST_MISSING) * len(worlds)]
        common = [world for world in worlds if all((world, name, stage, "") in table for name in ranked)]
        if not common or not ranked:
            return None, common, [name for name in methods if name not in ranked]
        scores = np.array([[table[world, name, stage, ""].mean() for name in ranked] for world in common])
        return rank_methods(scores, ranked), common, [name for name in methods if name not in ranked]

    def compute_regrets(self, stage: str) -> dict[str, np.ndarray]:
        """By method: (worlds it ran in,) points behind the best method of the stage."""
        found: dict[str, list[float]] = {}
        for world in self.list_worlds():
            means = {name: float(self.accuracies[world, name, stage, ""].mean()) for name in self.list_methods(stage, world)}
            for name, mean in means.items():
                found.setdefault(name, []).append(max(means.values()) - mean)
        return {name: np.array(own) for name, own in found.items()}


def page(tables: Tables) -> Iterator[str]:
    """The whole page."""
    yield HEAD.format(answer=_answer(tables))
    if tables.accuracies:
        yield FIGURE.format(draws=tables.draws)
        yield from _ranks(tables)
        yield from _regrets(tables)
        yield from _kinds(tables)
        yield from _claims(tables)
        yield from _controls(tables)
        yield from _bytes(tables)
        yield from _costs(tables)
    yield PROTOCOL.format(first=FIRST, last=FIRST + DRAWS - 1)
    yield from _worlds(tables)
    yield from _not_run(tables)


def _answer(tables: Tables) -> str:
    """The title's question in two sentences, from the ranks and regrets."""
    parts = []
    for stage, title in STAGES.items():
        ranking, worlds, _ = tables.compute_ranking(stage)
        if ranking is None:
            continue
        order = np.argsort(ranking.ranks)
        first = ranking.methods[int(order[0])]
        close = [ranking.methods[int(i)] for i in order[1:] if ranking.ranks[int(i)] - ranking.ranks[int(order[0])] < ranking.difference]
        ties = (
            f"; {len(close)} of the other {len(order) - 1} are within the critical difference"
            if close
            else ", beyond the critical difference"
        )
        best = min(
            ((name, float(own.mean())) for name, own in tables.compute_regrets(stage).items() if name in ranking.methods),
            key=lambda one: one[1],
        )
        parts.append(
            f"Of models {title}, {NAMES[first]} has the best mean rank over {len(worlds)} of {len(WORLDS)} declared worlds{ties}; "
            f"{NAMES[best[0]]} has the lowest mean regret, {100 * best[1]:.1f} points."
        )
    if parts and "auto" in set(tables.scores["method"]):
        parts.append("[auto](auto.md) chooses its stage and is compared with the best of both on its own page.")
    return fill(" ".join(parts), 138) or "No world has been run yet: this page has the protocol, and the tables follow."


def _mark(name: str, lines: Iterable[str]) -> Iterator[str]:
    """A generated table between its marks."""
    yield f"<!-- {name} -->"
    yield from lines
    yield f"<!-- /{name} -->\n"


def _ranks(tables: Tables) -> Iterator[str]:
    yield "## Mean ranks\n"
    yield "Rank 1 is best. Methods whose ranks differ by less than the critical difference (Nemenyi, 5 %) are not distinguished.\n"
    for stage, title in STAGES.items():
        ranking, worlds, left_out = tables.compute_ranking(stage)
        if ranking is None:
            yield f"Models {title}: too few methods or worlds for a ranking.\n"
            continue
        yield f"Models {title}: {len(worlds)} worlds, critical difference {ranking.difference:.1f}, Friedman's p {_p(ranking.p)}.\n"
        lines = ["| method | mean rank | from the best |", "| --- | --- | --- |"]
        for place in np.argsort(ranking.ranks, kind="stable").tolist():
            is_close = ranking.ranks[place] - min(ranking.ranks) < ranking.difference
            word = "not distinguished" if is_close else "behind"
            lines += [f"| {NAMES[ranking.methods[place]]} | {ranking.ranks[place]:.1f} | {word} |"]
        yield from _mark(f"ranks {stage}", lines)
        if left_out:
            yield f"Not ranked, since they ran in too few worlds: {', '.join(NAMES[name] for name in left_out)}.\n"


def _regrets(tables: Tables) -> Iterator[str]:
    yield "## Regret, outcomes and clients\n"
    yield (
        "Regret: points behind the best method of the same stage. Outcomes against FedAvg: worlds in which a method is better, same, "
        "worse, or undecided. Clients: mean share that scores lower than under FedAvg, that is clearly worse off, and that is clearly "
        "worse off than alone.\n"
    )
    for stage, title in STAGES.items():
        regrets = tables.compute_regrets(stage)
        lines = [
            f"| {title} | worlds | mean regret | worst | better | same | worse | undecided | clients lower % | clearly % | than alone % |",
            "|" + " --- |" * 11,
        ]
        for name, own in sorted(regrets.items(), key=lambda one: float(one[1].mean())):
            judged = [found[name] for (_, at), found in tables.judged.items() if at == stage and name in found]
            counts = Counter(one.outcome for one in judged)
            undecided = len(judged) - sum(counts[word] for word in ("better", "same", "worse"))
            outcomes = [str(counts[word]) for word in ("better", "same", "worse")] + [str(undecided)]
            alone = [tables.get_row(world, name, stage, "local").get("worse", np.nan) for world in tables.list_worlds()]
            shares = [_percent([one.lower for one in judged]), _percent([one.worse for one in judged]), _percent(alone)]
            cells = [str(len(own)), f"{100 * own.mean():.1f}", f"{100 * own.max():.1f}", *(outcomes if judged else ["-"] * 4), *shares]
            lines += [f"| {NAMES[name]} | {' | '.join(cells)} |"]
        yield from _mark(f"regret {stage}", lines)


def _kinds(tables: Tables) -> Iterator[str]:
    """The mean gain in each kind of world."""
    yield "## Gains by kind of shift\n"
    yield "Mean gain over FedAvg of the same stage, in points, over the worlds of a kind. Bold: better in all of them.\n"
    kinds = list(dict.fromkeys(WORLDS[name].kind for name in tables.list_worlds()))
    for stage, title in STAGES.items():
        lines = [f"| {title} | {' | '.join(kinds)} |", "|" + " --- |" * (len(kinds) + 1)]
        for name in tables.list_methods(stage):
            if name == "fedavg":
                continue
            cells = []
            for kind in kinds:
                own = [
                    tables.judged[world, stage][name]
                    for world in tables.list_worlds()
                    if WORLDS[world].kind == kind and name in tables.judged[world, stage]
                ]
                text = f"{100 * np.mean([one.gap.mean for one in own]):+z.1f}" if own else "-"
                cells.append(f"**{text}**" if own and all(one.outcome == "better" for one in own) else text)
            lines += [f"| {NAMES[name]} | {' | '.join(cells)} |"]
        yield from _mark(f"kinds {stage}", lines)


def _claims(tables: Tables) -> Iterator[str]:
    yield "## Each claim beside our number\n"
    yield "Gain over FedAvg of the same stage in worlds of the kind that a method's paper is about. Claims are those of the abstracts.\n"
    lines = ["| method | its paper claims | world | served | after 5 local epochs |", "| --- | --- | --- | --- | --- |"]
    for name, claim in CLAIMS.items():
        for world in METHODS[name].home:
            cells = []
            for stage in STAGES:
                one = tables.judged.get((world, stage), {}).get(name)
                cells.append("not run" if one is None else f"{_span(one.gap)} {one.outcome}")
            lines += [f"| {NAMES[name]} | {claim} | {world} | {' | '.join(cells)} |"]
    yield from _mark("claims", lines)


def _controls(tables: Tables) -> Iterator[str]:
    """What similarity brings over random groups of the same sizes."""
    rows = []
    for stage in STAGES:
        for name in tables.list_methods(stage):
            gaps = {
                world: gap
                for world in tables.list_worlds()
                if (world, name, stage, "random") in tables.accuracies and (gap := tables.gap(world, name, stage, "random")) is not None
            }
            if gaps:
                ahead = sum(gap.low > 0 for gap in gaps.values())
                rows.append((name, stage, len(gaps), float(np.mean([gap.mean for gap in gaps.values()])), ahead))
    if not rows:
        return
    yield "## Against random groups\n"
    yield "Each grouping method with its groups' members drawn at random, of the same sizes. Worlds in which the interval excludes 0.\n"
    lines = ["| method | stage | worlds | mean gain over random groups | clearly ahead |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {NAMES[name]} | {STAGES[stage]} | {count} | {100 * mean:+z.1f} | {ahead} |" for name, stage, count, mean, ahead in rows]
    yield from _mark("controls", lines)


def _bytes(tables: Tables) -> Iterator[str]:
    yield "## At equal bytes\n"
    yield "Scores of the last ten rounds before a method has sent more bytes than FedAvg in its 40 rounds.\n"
    lines = ["| method | stage | mean rank | mean gain over FedAvg |", "| --- | --- | --- | --- |"]
    for stage, title in STAGES.items():
        ranking, worlds, _ = tables.compute_ranking(stage, equal_bytes=True)
        if ranking is None:
            continue
        table = tables.at_equal_bytes
        for place in np.argsort(ranking.ranks, kind="stable").tolist():
            name = ranking.methods[place]
            gain = np.mean([table[world, name, stage, ""].mean() - table[world, "fedavg", stage, ""].mean() for world in worlds])
            lines += [f"| {NAMES[name]} | {title} | {ranking.ranks[place]:.1f} | {100 * gain:+z.1f} |"]
    yield from _mark("bytes", lines)


def _costs(tables: Tables) -> Iterator[str]:
    yield "## Costs\n"
    yield "Of a whole run at the settings chosen, as multiples of FedAvg's (median over worlds); seconds of the server, median of a run.\n"
    frame = tables.costs.astype({"steps": float, "megabytes": float, "server_seconds": float})
    base = frame[frame["method"] == "fedavg"].set_index(["world", "stage"])
    lines = ["| method | client steps | bytes | passes over data | server seconds | rate at an edge % |", "|" + " --- |" * 6]
    for name in METHODS:
        own = frame[frame["method"] == name]
        own = own[[key in base.index for key in zip(own["world"], own["stage"], strict=True)]]
        if own.empty:
            continue
        same = base.loc[list(zip(own["world"], own["stage"], strict=True))]
        times = [f"× {np.median(own[column].to_numpy() / same[column].to_numpy()):.1f}" for column in ("steps", "megabytes", "passes")]
        edge = 100 * own["edge"].astype(float).mean()
        lines += [f"| {NAMES[name]} | {' | '.join(times)} | {np.median(own['server_seconds']):.2g} | {edge:.0f} |"]
    yield from _mark("costs", lines)


def _worlds(tables: Tables) -> Iterator[str]:
    yield "## The worlds\n"
    lines = ["| world | shift | data | model | clients | training / test samples | cohort | FedAvg %: served, tuned |", "|" + " --- |" * 8]
    known = {} if tables.worlds.empty else {row["world"]: row for row in tables.worlds.to_dict("records")}
    for name, world in WORLDS.items():
        row = known.get(name, {})
        base = [tables.accuracies.get((name, "fedavg", stage, "")) for stage in STAGES]
        scores = (
            ", ".join("-" if own is None else f"{100 * own.mean():.1f}" for own in base)
            if any(own is not None for own in base)
            else "not run"
        )
        sizes = f"{row.get('clients', '')} | {row.get('train', '')} / {row.get('test', '')}" if row.get("clients") else "- | -"
        shift = f"{world.kind}{f': {world.severity}' if world.severity else ''}"
        lines += [f"| {name} | {shift} | `{world.data}` | {world.model} | {sizes} | {world.cohort or 'all'} | {scores} |"]
    yield from _mark("worlds", lines)


def _not_run(tables: Tables) -> Iterator[str]:
    if tables.not_run.empty:
        return
    yield "## What was not run\n"
    lines = ["| method | stage | worlds | why |", "| --- | --- | --- | --- |"]
    for row in tables.not_run.to_dict("records"):
        worlds = str(row["worlds"]).split()
        listed = "all" if len(worlds) == len(WORLDS) else f"{len(worlds)}: {', '.join(worlds[:3])}{', ...' if len(worlds) > 3 else ''}"
        lines += [f"| {NAMES[row['method']]} | {row['stage'] or 'both'} | {listed} | {row['why']} |"]
    yield "\n".join(_mark("not run", lines)).rstrip()


def _span(gap: Gap) -> str:
    return f"{100 * gap.mean:+z.1f} ({100 * gap.low:+z.1f} to {100 * gap.high:+z.1f})"


def _percent(values: Sequence[float]) -> str:
    known = [float(value) for value in values if np.isfinite(value)]
    return f"{100 * np.mean(known):.0f}" if known else "-"


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}"


def draw(tables: Tables, folder: Path = DOCS / "figures") -> None:
    """The figure: a panel a method, a line a world; filled served, hollow after local epochs."""
    import altair as alt

    from coterie.report.figure import Figure
    from coterie.report.style import GREY, OKABE_ITO

    rows: list[dict[str, Any]] = [
        {
            "world": world,
            "stage": STAGES[stage],
            "method": name,
            "gain": 100 * one.gap.mean,
            "low": 100 * one.gap.low,
            "high": 100 * one.gap.high,
        }
        | {"outcome": one.outcome if one.outcome in ("better", "worse", "same") else "unclear"}
        for (world, stage), found in tables.judged.items()
        for name, one in found.items()
    ]
    words = ["better", "worse", "same", "unclear"]
    colour = alt.Scale(domain=words, range=[OKABE_ITO["blue"], OKABE_ITO["vermillion"], OKABE_ITO["green"], GREY])
    marks = alt.Scale(domain=list(STAGES.values()), range=["circle", "diamond"])
    panels = []
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    worlds, columns = tables.list_worlds(), 5
    values = [value for row in rows for value in (row["low"], row["high"])] or [-1.0, 1.0]
    low, high = (float(np.percentile(values, share)) for share in (1, 99))
    for place, name in enumerate(methods):
        own: Any = [row for row in rows if row["method"] == name]
        labels = alt.Axis(labels=place % columns == 0, ticks=False, domain=False, labelOverlap=False, labelFontSize=9)
        base = alt.Chart(alt.InlineData(values=own)).encode(
            y=alt.Y("world:N", sort=worlds, title=None, axis=labels, scale=alt.Scale(domain=worlds)),
            color=alt.Color("outcome:N", scale=colour, legend=alt.Legend(columns=4)),
            yOffset=alt.YOffset("stage:N", scale=alt.Scale(domain=list(STAGES.values()), paddingOuter=0.4)),
        )
        across = alt.X("gain:Q", title="points over FedAvg", scale=alt.Scale(domain=[low, high], clamp=True))
        zero = alt.Chart(alt.InlineData(values=[{"at": 0}])).mark_rule(color=GREY).encode(x="at:Q")
        bar = base.mark_rule(strokeWidth=1.2).encode(
            x=alt.X("low:Q", title="points over FedAvg", scale=alt.Scale(domain=[low, high], clamp=True)), x2="high:Q"
        )
        dot = base.mark_point(size=22, opacity=1).encode(
            x=across,
            shape=alt.Shape("stage:N", scale=marks, legend=alt.Legend(columns=2)),
            fill=alt.Fill("fill:N", scale=None, legend=None),
        )
        for row in own:
            row["fill"] = dict(zip(words, colour.range, strict=True))[row["outcome"]] if row["stage"] == STAGES["served"] else "white"
        title = alt.Title(NAMES[name], frame="group")
        panels.append(alt.layer(zero, bar, dot).properties(width=150, height=13 * max(len(worlds), 3), title=title))
    if panels:
        chart = alt.concat(*panels, columns=columns).resolve_scale(color="shared", shape="shared")
        Figure("rivals", "", "", chart, several=True).save(folder, "svg")


def main() -> None:
    """Write, or compare with what is there."""
    tables = Tables.read()
    text = "\n".join(page(tables)) + "\n"
    if "--check" in sys.argv:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/explanation/rivals.md is not what results/rivals/ gives: run python studies/rivals_page.py")
        return
    draw(tables)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
