"""rivals.md, rivals-measured.md and their figure, from the small tables of results/rivals/ alone; `--check` exits with 1 if they are stale.

python studies/rivals_page.py [--check]

What is not in the tables is listed as not run.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from rivals import DRAWS, FIRST, METHODS, WORLDS
from rivals_claims import ORDERINGS
from rivals_claims import WORLDS as CLAIM_WORLDS
from rivals_measured import format_span, mark_table, render_measured
from rivals_number import DRAWS as NUMBER_DRAWS
from rivals_number import TRUE_NUMBERS
from rivals_scores import NAMES, STAGES, Tables
from scipy import stats

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, MEASURED = DOCS / "explanation" / "rivals.md", DOCS / "reference" / "rivals-measured.md"
LARGE_LOSS = 30  # points
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

FIGURE = """\
![Gain over FedAvg of every method in every world](../figures/rivals.svg)

A number is the gain over FedAvg of the same stage in points of accuracy, mean of the last ten rounds over {draws} draws. Colours show gains
that are significantly better or worse; grey is neither, empty was not run. [World by world](../reference/rivals-measured.md) has the
intervals (95 %, the wider of those over draws and over test clients), clients that lose, random groups and equal bytes.

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
| ranked † | methods that ran in at least half of the worlds, over the worlds that all of them ran in |

† Set with the scores of ten worlds known; before, a method had to have run in nine of ten worlds.
"""


def render_page(tables: Tables) -> Iterator[str]:
    """The whole page."""
    yield f"# Which method wins?\n\n{_answer(tables)}\n"
    if tables.accuracies:
        yield FIGURE.format(draws=tables.draws)
        yield from _ranks(tables)
        yield from _claims(tables)
        yield from _orderings(tables)
        yield from _number(tables)
        yield from _costs(tables)
    yield PROTOCOL.format(first=FIRST, last=FIRST + DRAWS - 1).rstrip()


def _answer(tables: Tables) -> str:
    """The title's question, from the ranks and regrets."""
    parts = []
    for stage, title in STAGES.items():
        ranking, worlds, _ = tables.compute_ranking(stage)
        if ranking is None:
            continue
        order = np.argsort(ranking.ranks)
        first = ranking.methods[int(order[0])]
        close = [ranking.methods[int(i)] for i in order[1:] if ranking.ranks[int(i)] - ranking.ranks[int(order[0])] < ranking.difference]
        ties = f"; {len(close)} of the other {len(order) - 1} are not distinguished from it" if close else ", ahead of all others"
        regrets = {name: float(own.mean()) for name, own in tables.compute_regrets(stage).items() if name in ranking.methods}
        least = min(regrets, key=lambda name: regrets[name])
        parts.append(
            f"Of models {title}, {NAMES[first]} has the best mean rank over {len(worlds)} of {len(WORLDS)} declared worlds{ties}. "
            f"{NAMES[least]} has the lowest mean regret, {100 * regrets[least]:.1f} points."
        )
    if parts:
        counts = {title: _count_outcomes(tables, stage) for stage, title in STAGES.items()}
        shares = " and ".join(f"{own['better']} of {sum(own.values())} of models {title}" for title, own in counts.items())
        parts.append(f"Of the comparisons with FedAvg, {shares} end as better.")
    if parts and "auto" in set(tables.scores["method"]):
        parts.append("[auto](auto.md) chooses its stage and is compared with the best of both on its own page.")
    return fill(" ".join(parts), 138) or "No world has been run yet: this page has the protocol, and the tables follow."


def _count_outcomes(tables: Tables, stage: str, method: str | None = None) -> Counter[str]:
    """How often methods, or one, are better, same, worse or undecided against FedAvg."""
    words = [
        one.outcome if one.outcome in ("better", "same", "worse") else "undecided"
        for (_, at), found in tables.judged.items()
        for name, one in found.items()
        if at == stage and method in (None, name)
    ]
    return Counter(words)


def _ranks(tables: Tables) -> Iterator[str]:
    yield "## Ranks, regret and outcomes\n"
    rankings = {stage: tables.compute_ranking(stage) for stage in STAGES}
    for stage, (ranking, worlds, _) in rankings.items():
        if ranking is None:
            yield f"Models {STAGES[stage]}: too few methods or worlds for a ranking.\n"
        else:
            p = "< .001" if ranking.p < 0.001 else f"= {ranking.p:.3f}"
            yield (
                f"Models {STAGES[stage]}: {len(ranking.methods)} methods in {len(worlds)} worlds, critical difference of mean ranks "
                f"{ranking.difference:.1f} (Nemenyi, 5 %), Friedman's p {p}.\n"
            )
    yield (
        "Rank 1 is best; in bold, ranks that are not distinguished from the best. Regret: mean points behind the best method of the stage. "
        "Outcomes: worlds in which a method is better / same / worse than FedAvg / undecided.\n"
    )
    columns = [f"{stage}: {what}" for stage in ("served", "tuned") for what in ("rank", "regret", "outcomes")]
    lines = [f"| method | {' | '.join(columns)} |", "|" + " --- |" * 7]
    keys: dict[str, float] = {}
    cells: dict[str, list[str]] = {}
    for stage, (ranking, _, _) in rankings.items():
        ranks = {} if ranking is None else dict(zip(ranking.methods, ranking.ranks, strict=True))
        regrets = tables.compute_regrets(stage)
        for name in METHODS:
            if name not in tables.list_methods("served") + tables.list_methods("tuned"):
                continue
            rank, counts = ranks.get(name), _count_outcomes(tables, stage, name)
            text = "-" if rank is None else f"{rank:.1f}"
            if rank is not None and ranking is not None and rank - min(ranking.ranks) < ranking.difference:
                text = f"**{text}**"
            outcomes = " / ".join(str(counts[word]) for word in ("better", "same", "worse", "undecided")) if counts else "-"
            regret = f"{100 * regrets[name].mean():.1f}" if rank is not None else "-"
            cells.setdefault(name, []).extend([text, regret, outcomes])
            keys[name] = keys.get(name, 0.0) + (rank if rank is not None else 100.0)
    lines += [f"| {NAMES[name]} | {' | '.join(cells[name])} |" for name in sorted(cells, key=lambda name: keys[name])]
    yield from mark_table("ranks", lines)
    if failed := _list_failures(tables):
        yield (
            fill(
                f"More than {LARGE_LOSS} points below FedAvg of the same stage: {failed}. A setting is chosen "
                "on validation parts, with a fifth of the training samples set aside; on all samples a visit has more steps.",
                138,
            )
            + "\n"
        )


def _list_failures(tables: Tables) -> str:
    """The methods with their chosen settings that lose most of their accuracy, by world."""
    chosen = {
        (row["world"], row["method"], row["stage"]): f"`{row['spec']}` at rate {row['rate']:g}" for row in tables.costs.to_dict("records")
    }
    found: dict[tuple[str, str], list[str]] = {}
    for (world, stage), own in tables.judged.items():
        for name, one in own.items():
            if 100 * one.gap.mean < -LARGE_LOSS and (world, name, stage) in chosen:
                found.setdefault((chosen[world, name, stage], STAGES[stage]), []).append(world)
    return "; ".join(f"{setting}, {title} ({', '.join(worlds)})" for (setting, title), worlds in found.items())


def _claims(tables: Tables) -> Iterator[str]:
    yield "## Each claim beside our number\n"
    yield "Gain over FedAvg of the same stage in worlds of the kind that a method's paper is about. Claims are those of the abstracts.\n"
    lines = ["| method | its paper claims | world | served | after 5 local epochs |", "| --- | --- | --- | --- | --- |"]
    for name, claim in CLAIMS.items():
        for world in METHODS[name].home:
            found = [tables.judged.get((world, stage), {}).get(name) for stage in STAGES]
            cells = ["not run" if one is None else f"{format_span(one.gap)} {one.outcome}" for one in found]
            lines += [f"| {NAMES[name]} | {claim} | {world} | {' | '.join(cells)} |"]
    yield from mark_table("claims", lines)


def _orderings(tables: Tables) -> Iterator[str]:
    """An ordering of each paper, on small federations of its data."""
    yield "## An ordering of each paper\n"
    scores = {} if tables.claims.empty else {(row["world"], row["method"]): row for row in tables.claims.to_dict("records")}
    lines = [
        "| method | its paper | ahead of | our world | accuracy of both, % | difference (95 % interval) | ordering |",
        "|" + " --- |" * 7,
    ]
    outcomes: Counter[str] = Counter()
    for own in ORDERINGS:
        for other in own.behind:
            rows = [scores.get((own.world, name)) for name in (own.method, other)]
            if rows[0] is None or rows[1] is None:
                cells, word = ["-", "-"], "not run"
            else:
                ours, theirs = (_read_draws(row) for row in (rows[0], rows[1]))
                word, span = _judge_ordering(ours - theirs)
                cells = [f"{ours.mean():.1f}, {theirs.mean():.1f}", span]
            outcomes[word] += 1
            named = f"{NAMES[own.method]} | {own.paper} | {NAMES[other]} | {CLAIM_WORLDS[own.world].title}"
            lines += [f"| {named} | {' | '.join(cells)} | {word} |"]
    words = ", ".join(f"{word}: {count}" for word, count in outcomes.most_common())
    personal = list(dict.fromkeys(NAMES[own.method] for own in ORDERINGS if METHODS[own.method].personal))
    text = (
        "Small federations of the papers' data and kinds of shift, softmax regression, each method at its defaults, five draws; "
        "protocol: `studies/rivals_claims.py`. Networks, sizes and rounds differ from the papers', so an ordering that fails is no "
        f"proof against a paper. {', '.join(personal)} serve models that ended their training at the client, and FedAvg does not: as in "
        f"their papers, this comparison is across stages. Orderings by outcome: {words}."
    )
    yield fill(text, 138) + "\n"
    yield from mark_table("orderings", lines)


def _judge_ordering(gaps: np.ndarray) -> tuple[str, str]:
    """Whether an ordering holds, and the mean difference with its interval over draws."""
    if not gaps.any():
        return "identical", "+0.0"
    low, high = stats.t.interval(0.95, len(gaps) - 1, gaps.mean(), stats.sem(gaps))
    word = "holds" if low > 0 else "opposite" if high < 0 else "inconclusive"
    return word, f"{gaps.mean():+z.1f} ({low:+z.1f} to {high:+z.1f})"


def _read_draws(row: dict[str, Any]) -> np.ndarray:
    return np.array([float(value) for column, value in row.items() if column[0] == "d" and column[1:].isdigit()])


def _number(tables: Tables) -> Iterator[str]:
    """The same method with the number of groups by its own rule, by the test of structure, by validation, and known."""
    if tables.number.empty:
        return
    worlds = [name for name in TRUE_NUMBERS if name in set(tables.number["world"])]
    yield "## Which rule finds the number of groups?\n"
    lines = [
        f"| method | number of groups by | {' | '.join(f'{name} ({TRUE_NUMBERS[name]})' for name in worlds)} | mean |",
        "|" + " --- |" * (len(worlds) + 3),
    ]
    known = {(row["world"], row["method"], row["rule"]): row for row in tables.number.to_dict("records")}
    methods = list(dict.fromkeys(tables.number["method"]))
    means: dict[tuple[str, str], float] = {}
    for method in methods:
        for rule, title in (("own", "its own rule"), ("structure", "structure"), ("tuned", "validation"), ("true", "the truth")):
            cells, gains = [], []
            for world in worlds:
                row, base = known.get((world, method, rule)), tables.accuracies.get((world, "fedavg", "served", ""))
                tuned = tables.accuracies.get((world, method, "served", "")) if rule == "tuned" else None
                if base is None or (row is None and tuned is None):
                    continue
                scores = 100 * tuned if tuned is not None else _read_draws(row or {})
                gains.append(float((scores[: len(NUMBER_DRAWS)] - 100 * base[: len(NUMBER_DRAWS)]).mean()))
                cells.append(f"{gains[-1]:+z.1f}{_describe_numbers(row) if row is not None and rule != 'true' else ''}")
            if len(gains) == len(worlds):
                means[method, rule] = float(np.mean(gains))
                lines += [f"| {NAMES[method]} | {title} | {' | '.join(cells)} | {means[method, rule]:+z.1f} |"]
    both = [method for method in methods if (method, "own") in means]
    others = [name for name in TRUE_NUMBERS if name not in worlds]
    missing = f" Not run: {', '.join(others)}." if others else ""
    compared = "; ".join(
        f"{NAMES[method]} {means[method, 'structure']:+z.1f} by structure, {means[method, 'own']:+z.1f} by its own rule" for method in both
    )
    yield (
        fill(
            "Mean gain over FedAvg of models served, in points, and the number that a rule finds most often, with its share of the draws. "
            "IFCA and FedGroup have no rule of their own. All rules have the learning rate that was chosen with a number by validation; "
            f"protocol: `studies/rivals_number.py`. Over {len(worlds)} worlds, {len(NUMBER_DRAWS)} draws: {compared}.{missing}",
            138,
        )
        + "\n"
    )
    yield from mark_table("number", lines)


def _describe_numbers(row: dict[str, Any]) -> str:
    """The number that was found most often, with its share of the draws."""
    numbers = [int(value) for column, value in row.items() if column[0] == "k" and column[1:].isdigit()]
    number, times = Counter(numbers).most_common(1)[0]
    return f" ({number}: {100 * times / len(numbers):.0f} %)"


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
    yield from mark_table("costs", lines)


def draw(tables: Tables, folder: Path = DOCS / "figures") -> None:
    """The figure: a panel a stage, a row a world, a column a method; colours where a gain is significant."""
    import altair as alt

    from coterie.report.figure import Figure
    from coterie.report.style import OKABE_ITO

    worlds = tables.list_worlds()
    methods = [name for name in METHODS if any(name in found for found in tables.judged.values())]
    colours = {"better": OKABE_ITO["blue"], "worse": OKABE_ITO["vermillion"], "neither": "#DDDDDD"}
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    panels = []
    for stage, title in STAGES.items():
        rows: list[dict[str, Any]] = [
            {
                "world": world,
                "method": NAMES[name],
                "gain": round(100 * one.gap.mean, 1) + 0.0,
                "outcome": one.outcome if one.outcome in ("better", "worse") else "neither",
                "strength": min(0.25 + abs(100 * one.gap.mean) / 25, 1.0),
            }
            for world in worlds
            for name, one in tables.judged[world, stage].items()
        ]
        base = alt.Chart(alt.InlineData(values=rows)).encode(
            x=alt.X(
                "method:N",
                sort=[NAMES[name] for name in methods],
                scale=alt.Scale(domain=[NAMES[name] for name in methods]),
                axis=alt.Axis(orient="top", labelAngle=-50, title=None, ticks=False, domain=False, labelOverlap=False, labelFontSize=10),
            ),
            y=alt.Y(
                "world:N",
                sort=worlds,
                scale=alt.Scale(domain=worlds),
                axis=alt.Axis(title=None, ticks=False, domain=False, labelOverlap=False, labelFontSize=10, labelLimit=200),
            ),
        )
        cells = base.mark_rect(stroke="white").encode(
            color=alt.Color("outcome:N", scale=scale, legend=alt.Legend(title="against FedAvg", orient="bottom", columns=3)),
            opacity=alt.Opacity("strength:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None),
        )
        numbers = base.mark_text(fontSize=8.5, color="black").encode(text=alt.Text("gain:Q", format="+.0f"))
        panels.append(
            alt.layer(cells, numbers).properties(width=28 * max(len(methods), 3), height=17 * max(len(worlds), 3), title=f"Models {title}")
        )
    if worlds:
        Figure("rivals", "", "", alt.vconcat(*panels).resolve_scale(color="shared"), several=True).save(folder, "svg")


def main() -> None:
    """Write, or compare with what is there."""
    tables = Tables.read()
    texts = {PAGE: "\n".join(render_page(tables)) + "\n", MEASURED: "\n".join(render_measured(tables)) + "\n"}
    if "--check" in sys.argv:
        stale = [path.name for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
        if stale:
            sys.exit(f"{' and '.join(stale)}: not what results/rivals/ gives; run python studies/rivals_page.py")
        return
    draw(tables)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
