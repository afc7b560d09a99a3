"""The reference page of the comparison, world by world; made from the small tables of results/rivals/ by `rivals_page.py`."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from rivals import METHODS, WORLDS
from rivals_scores import NAMES, STAGES, Judged, Tables

from coterie.analysis.draws import Gap

HEAD = """\
# Which method wins? World by world

What [Which method wins?](../explanation/rivals.md) is made of: every gain over FedAvg of the same stage, clients, controls,
scores at equal bytes, the worlds, and what was not run. Made from [scores](../../results/rivals/scores.csv) and the tables beside them by
`python studies/rivals_page.py`.
"""


def render_measured(tables: Tables) -> Iterator[str]:
    """The whole page."""
    yield HEAD
    if tables.accuracies:
        yield from _kinds(tables)
        yield from _gains(tables)
        yield from _clients(tables)
        yield from _controls(tables)
        yield from _bytes(tables)
    yield from _worlds(tables)
    yield from _not_run(tables)


def _gains(tables: Tables) -> Iterator[str]:
    yield "## Gains with intervals\n"
    yield (
        "Points over FedAvg of the same stage (95 % interval, the wider of those over draws and over test clients), and the outcome after "
        "Holm's correction.\n"
    )
    lines = [f"| world | method | {' | '.join(STAGES.values())} |", "| --- | --- | --- | --- |"]
    for world in tables.list_worlds():
        found = [tables.judged[world, stage] for stage in STAGES]
        for name in METHODS:
            cells = [_describe(own.get(name)) for own in found]
            if any(cell != "-" for cell in cells):
                lines += [f"| {world} | {NAMES[name]} | {' | '.join(cells)} |"]
    yield from mark_table("gains", lines)


def _describe(one: Judged | None) -> str:
    return "-" if one is None else f"{format_span(one.gap)} {one.outcome}"


def _clients(tables: Tables) -> Iterator[str]:
    yield "## Clients that lose\n"
    yield (
        "Mean share of clients, in %, over the worlds of a method: with a lower score than under FedAvg of the same stage, which may be "
        "chance; clearly worse off; and clearly worse off than alone.\n"
    )
    lines = ["| method | stage | worlds | lower | clearly worse off | than alone |", "|" + " --- |" * 6]
    for stage, title in STAGES.items():
        for name in tables.list_methods(stage):
            judged = [found[name] for (_, at), found in tables.judged.items() if at == stage and name in found]
            if judged:
                alone = [tables.get_row(world, name, stage, "local").get("worse", np.nan) for world in tables.list_worlds()]
                shares = [
                    format_mean_share([one.lower for one in judged]),
                    format_mean_share([one.worse for one in judged]),
                    format_mean_share(alone),
                ]
                lines += [f"| {NAMES[name]} | {title} | {len(judged)} | {' | '.join(shares)} |"]
    yield from mark_table("clients", lines)


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
        yield from mark_table(f"kinds {stage}", lines)


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
    yield from mark_table("controls", lines)


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
    yield from mark_table("bytes", lines)


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
    yield from mark_table("worlds", lines)


def _not_run(tables: Tables) -> Iterator[str]:
    if tables.not_run.empty:
        return
    yield "## What was not run\n"
    lines = ["| method | stage | worlds | why |", "| --- | --- | --- | --- |"]
    for row in tables.not_run.to_dict("records"):
        worlds = str(row["worlds"]).split()
        listed = "all" if len(worlds) == len(WORLDS) else f"{len(worlds)}: {', '.join(worlds[:3])}{', ...' if len(worlds) > 3 else ''}"
        lines += [f"| {NAMES[row['method']]} | {row['stage'] or 'both'} | {listed} | {row['why']} |"]
    yield "\n".join(mark_table("not run", lines)).rstrip()


def mark_table(name: str, lines: Iterable[str]) -> Iterator[str]:
    """A generated table between its marks."""
    yield f"<!-- {name} -->"
    yield from lines
    yield f"<!-- /{name} -->\n"


def format_span(gap: Gap) -> str:
    """Points with their interval."""
    return f"{100 * gap.mean:+z.1f} ({100 * gap.low:+z.1f} to {100 * gap.high:+z.1f})"


def format_mean_share(values: Sequence[float]) -> str:
    """In percent, of those that are known."""
    known = [float(value) for value in values if np.isfinite(value)]
    return f"{100 * np.mean(known):.0f}" if known else "-"
