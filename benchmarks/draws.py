"""The recipes that can be redrawn, over twenty draws: what each method gains, by every source of error.

python benchmarks/draws.py run OUT [--data-dir DIR] [--only NAME]
python benchmarks/draws.py write OUT   # results/draws/gains.csv, then docs/explanation/draws.md and its figure
python benchmarks/draws.py page        # the page and its figure again, from results/draws/gains.csv
"""

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.draws import Gap
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.verdict import format_signed
from coterie.run.compare import compare

ROOT = Path(__file__).resolve().parents[1]
TABLE, PAGE = ROOT / "results" / "draws" / "gains.csv", ROOT / "docs" / "explanation" / "draws.md"
DRAWS = 20
STABLE = 0.5  # adjusted Rand index of two draws' groups above which they are called stable
Recipe = dict[str, Any]
RECIPES: dict[str, Recipe] = {
    "heart": {"data": "heart", "methods": ["fesem(groups=2)", "fedgroup(groups=2)"], "seeds": (0, 1, 2), "rounds": 50},
    "synthetic": {
        "data": "synthetic(1,1,clients=100)",
        "methods": ["fedgroup(groups=5)", "fesem(groups=5)", "fedsim(clusters=5)"],
        "seeds": (0,),
        "rounds": 50,
        "cohort": 20,
        "epochs": 20,
        "lr": 0.01,
        "evaluate_every": 5,
    },
    "goodreads": {
        "data": "goodreads/natural(test=0.2)",
        "methods": ["fedsim(clusters=5)"],
        "seeds": (0,),
        "rounds": 30,
        "cohort": 20,
        "epochs": 20,
        "lr": 0.01,
    },
    "writers": {
        "data": "qmnist/natural(clients=100,test=0.2)",
        "methods": ["fesem(groups=4)", "ifca(groups=4)"],
        "seeds": (0,),
        "rounds": 30,
        "epochs": 5,
        "lr": 0.003,
        "evaluate_every": 3,
    },
    "femnist": {
        "data": "femnist/natural(clients=60,test=0.2)",
        "methods": ["fesem(groups=4)", "fedgroup(groups=5)"],
        "seeds": (0,),
        "rounds": 30,
        "epochs": 5,
        "lr": 0.003,
        "evaluate_every": 3,
    },
    "mnist": {
        "data": "mnist/powerlaw",
        "methods": ["fedsim(clusters=5)", "fedgroup(groups=3)"],
        "seeds": (0,),
        "rounds": 30,
        "cohort": 20,
        "epochs": 20,
        "lr": 0.03,
        "evaluate_every": 3,
    },
}


def run(out: Path, data_dir: Path | None, only: list[str]) -> None:
    """What is not yet there; a recipe whose data are missing is left out."""
    for name, recipe in RECIPES.items():
        if not only or name in only:
            settings = {key: value for key, value in recipe.items() if key != "methods"}
            compare(recipe["methods"], out=out / name, draws=DRAWS, data_dir=data_dir, resume=True, **settings)


def measure(out: Path) -> pd.DataFrame:
    """Every method of every recipe: a row each, in points with one digit."""
    found = [open_comparison(out / name) for name in RECIPES if (out / name / "compare.json").exists()]
    return pd.DataFrame([row for comparison in found for row in _measure_federation(comparison)])


def _measure_federation(comparison: Comparison) -> Iterator[dict[str, Any]]:
    (found,) = comparison.federations
    records, plan = found.records, found.records.settings.plan
    base = {"data": found.data, "clients": len(records.ids), "train": int(records.train.sum()), "test": int(records.test.sum())}
    base |= {"repetitions": str(found.repetitions), "rounds": plan.rounds, "epochs": plan.local.epochs, "rate": f"{plan.local.lr:g}"}
    for label, finding in found.methods.items():
        if label != found.roles.baseline:
            yield (
                base | {"method": label, "role": found.roles.of[label]} | _measure_gap(finding.gap) | _measure_method(found, label, finding)
            )


def _measure_gap(gap: Gap) -> dict[str, str]:
    """The gain, its interval over each source of error, the one that decides, and the variance from draws, in %."""
    known = gap.sources.estimated
    row = {"gain": format_signed(gap.mean), **_measure_interval("", gap)}
    for name, column in (("draws", "draws"), ("seeds", "seeds"), ("test clients", "clients")):
        row |= _measure_interval(f"{column}_", known[name]) if name in known else {}
    share = gap.spread.shares.get("draws", np.nan) if np.isfinite(gap.spread.rest) else np.nan
    return row | ({"draws_share": f"{100 * share:.0f}"} if np.isfinite(share) else {})


def _measure_method(found: Findings, label: str, finding: Finding) -> dict[str, str]:
    """Of a method under test: its outcome, its last round, clients that lose, similarity, what does clearly better, its groups."""
    if label not in found.roles.methods:
        return {}
    tail, quality, losers = found.records.rounds[found.scope.tail], finding.group_quality, finding.fairness
    row = {"outcome": finding.outcome, "scored": f"{tail[0]} to {tail[-1]}", "final": format_signed(finding.over_baseline["final"].mean)}
    row |= {"lower": f"{100 * losers.worse:.0f}"}
    row |= {"clearly": f"{losers.clearly_worse:g}", "tested": f"{losers.tested:g}"} if losers.tested > 0 else {}
    similarity = finding.decomposition.step("similarity") if finding.decomposition is not None else None
    gaps = {"similarity": similarity.gain if similarity is not None else None}
    for name, rival in (("alone", found.roles.first("local")), ("finetuned", found.roles.first("finetuned"))):
        gap = found.gap(rival, label) if rival is not None else None
        gaps |= {name: gap if gap is not None and gap.low > 0 else None}  # only what does clearly better
    oracle = found.roles.controls.get(label, {}).get("oracle")
    gaps |= {"oracle": found.gap(oracle, label) if oracle is not None else None}
    for name, gap in gaps.items():
        row |= {name: format_signed(gap.mean), **_measure_interval(f"{name}_", gap)} if gap is not None else {}
    if quality is not None:
        known = {
            "true": quality.ari.mean if quality.ari is not None else np.nan,
            "seeds": quality.between_seeds,
            "draws": quality.between_draws,
        }
        row |= {f"agreement_{name}": f"{value:.2f}" for name, value in known.items() if np.isfinite(value)}
        row |= {"collapse": f"{100 * quality.collapse_rate:.0f}"} if quality.collapse_rate > 0 else {}
    return row


def _measure_interval(prefix: str, interval: Any) -> dict[str, str]:
    return {f"{prefix}low": format_signed(interval.low), f"{prefix}high": format_signed(interval.high)}


def read_gains(path: Path = TABLE) -> pd.DataFrame:
    """The table as text, as it is printed."""
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def page(table: pd.DataFrame) -> Iterator[str]:
    """The whole page."""
    tested = table[table["role"] == "method"]
    counts = Counter(tested["outcome"])
    better = tested[tested["outcome"] == "better"]
    gain, part, low = (_to_numbers(better[name]) for name in ("gain", "similarity", "similarity_low"))
    similar, simpler = ((low > 0) & (part >= gain / 2)).sum(), ((tested["alone"] != "") | (tested["finetuned"] != "")).sum()
    yield "# What twenty draws of the data show\n"
    yield fill(f"""Would another draw of the data give the same verdicts? Over twenty draws of {table["data"].nunique()} federations,
        {counts["better"]} of {len(tested)} tests find a grouping method better than FedAvg, {counts["worse"]} worse, and
        {counts["unclear"]} are inconclusive. In {similar} of the {counts["better"]} gains at least half is from similarity. In {simpler} of
        {len(tested)} tests training alone or fine-tuned FedAvg does clearly better than the grouping method.""")
    yield "![Gains over FedAvg with the interval that decides, by federation](../figures/draws.svg)\n"
    yield fill("""Gains over FedAvg in points of accuracy, mean of the last ten evaluated rounds, with the 95 % interval that decides: the
        widest of those over draws and over test clients. Colours are verdicts. Grey: simpler ways, and each method with random groups of
        the same sizes (among clients of similar size, where sizes differ).""")
    yield "```\npython benchmarks/draws.py run OUT --data-dir DATA && python benchmarks/draws.py write OUT\n```\n"
    yield "## Every method under test\n"
    yield fill("""*Similarity*: gain over these random groups. *Alone* and *fine-tuned*: by how much these do better than the method, where
        the interval excludes 0. *Lower*: share of clients that score lower than under FedAvg. [gains.csv](../../results/draws/gains.csv)
        has all intervals, the gain after the last round, clients clearly worse off, true groups, and agreement and collapse of groups.""")
    yield "<!-- methods -->"
    yield "| federation | method | gain | verdict | similarity | alone | fine-tuned | lower, % |"
    yield "| --- | --- | --- | --- | --- | --- | --- | ---: |"
    for row in tested.to_dict("records"):
        cells = [_format_span(row, ""), row["outcome"], *(_format_span(row, name) for name in ("similarity", "alone", "finetuned"))]
        yield f"| `{row['data']}` | `{row['method']}` | {' | '.join(cells)} | {row['lower']} |"
    yield "<!-- /methods -->\n"
    yield "## Which source of error is largest\n"
    yield from _sources(tested)
    yield "## The designs\n"
    yield "<!-- designs -->"
    yield "| federation | clients | train / test samples | repetitions | rounds | epochs | rate | scored rounds |"
    yield "| --- | ---: | --- | --- | ---: | ---: | ---: | --- |"
    for row in tested.drop_duplicates("data").to_dict("records"):
        sizes = f"{int(row['clients']):,} | {int(row['train']):,} / {int(row['test']):,}"
        yield f"| `{row['data']}` | {sizes} | {row['repetitions']} | {row['rounds']} | {row['epochs']} | {row['rate']} | {row['scored']} |"
    yield "<!-- /designs -->\n"
    yield "Counts are of the first draw. Ten rounds are scored; where the range is longer, every third or fifth round is evaluated."


def _sources(tested: pd.DataFrame) -> Iterator[str]:
    """Widths of the intervals over each source, and how stable groups are."""
    width = {name: _to_numbers(tested[f"{name}_high"]) - _to_numbers(tested[f"{name}_low"]) for name in ("draws", "seeds", "clients")}
    seeded = width["seeds"].notna()
    over = (width["clients"] / width["draws"]).groupby(tested["data"], sort=False).mean()
    shares, agreed = tested.loc[seeded, "draws_share"].astype(float), _to_numbers(tested["agreement_draws"]).dropna()
    low, named = agreed[agreed < STABLE], ", ".join(f"`{data}`" for data in tested.loc[seeded, "data"].unique())
    gained = (tested.loc[low.index, "outcome"] == "better").sum()
    yield fill(f"""- **Draws, not seeds.** With several seeds a draw ({named}), the interval over seeds is
        {100 * (width["seeds"] / width["draws"])[seeded].mean():.0f} % as wide as that over draws, and {shares.min():.0f} % of the variance
        of the gains is from draws.""").rstrip()
    wide = ", ".join(f"`{data}` {ratio:.1f}" for data, ratio in over.items())
    yield fill(f"""- **Test clients decide where samples are few.** Width of the interval over test clients, in widths of that over draws:
        {wide}.""").rstrip()
    if low.empty:
        return
    yield fill(f"""- **Gains do not need stable groups.** In {len(low)} of {len(agreed)} tests with the same clients in all draws, the
        groups of two draws agree to {low.max():.2f} or less (adjusted Rand index); {gained} of these {len(low)} are gains.""")


def fill(text: str) -> str:
    """A paragraph in lines of 140 characters, and an empty line."""
    indent = "  " if text.startswith("- ") else ""
    lines = textwrap.wrap(" ".join(text.split()), 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _to_numbers(texts: "pd.Series[str]") -> "pd.Series[float]":
    return pd.to_numeric(texts, errors="coerce").astype(float)


def _format_span(row: dict[Any, Any], name: str) -> str:
    """A mean with its interval; a dash where there is none."""
    mean, prefix = (row[name], f"{name}_") if name else (row["gain"], "")
    if not mean:
        return "–"
    return f"{mean} ({row[f'{prefix}low']} to {row[f'{prefix}high']})" if row[f"{prefix}low"] else mean


def _choose_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Each method with its last random control, then the simpler ways."""
    names, rows = dict(zip(table["method"], table["role"], strict=True)), []
    for method in [name for name, role in names.items() if role == "method"]:
        title = method.partition("(")[0]
        controls = [name for name in names if name.startswith(f"{title}(") and "assign=" in name and "oracle" not in name]
        rows += [(method, method), *((name, f"{title}, random groups") for name in controls[-1:])]
    rows += [
        (name, title) for role, title in (("finetuned", "fine-tuned FedAvg"), ("local", "alone")) for name in names if names[name] == role
    ]
    known = table.set_index("method").to_dict("index")
    return [
        {"name": title, "outcome": known[name]["outcome"] or "simpler way or random groups"}
        | {column: float(known[name][column]) for column in ("gain", "low", "high")}
        for name, title in rows
    ]


def draw(table: pd.DataFrame) -> None:
    """The figure: a panel a federation, a line a method."""
    import altair as alt

    from coterie.report.figure import Figure
    from coterie.report.style import GREY, OKABE_ITO

    words = {"better": "blue", "worse": "vermillion", "unclear": "orange"}
    colours = alt.Scale(domain=[*words, "simpler way or random groups"], range=[*(OKABE_ITO[name] for name in words.values()), GREY])
    shapes = alt.Scale(domain=colours.domain, range=["circle", "triangle-down", "diamond", "square"])
    panels = []
    for data in table["data"].unique():
        rows: Any = _choose_rows(table[table["data"] == data])
        base = alt.Chart(alt.InlineData(values=rows)).encode(
            y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=260, labelOverlap=False)),
            color=alt.Color("outcome:N", scale=colours, legend=alt.Legend(columns=4)),
        )
        values: Any = [{"at": 0}]
        zero = alt.Chart(alt.InlineData(values=values)).mark_rule(color=GREY).encode(x=alt.X("at:Q", title="points over FedAvg"))
        bar = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
        dot = base.mark_point(filled=True, size=60, opacity=1).encode(x="gain:Q", shape=alt.Shape("outcome:N", scale=shapes))
        panels.append(alt.layer(zero, bar, dot).properties(width=230, height=19 * len(rows), title=alt.Title(data, frame="group")))
    lines = [alt.hconcat(*panels[place : place + 2]) for place in range(0, len(panels), 2)]
    chart = alt.vconcat(*lines).resolve_scale(color="shared", shape="shared")
    Figure("draws", "", "", chart, several=True).save(ROOT / "docs" / "figures", "svg")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write", "page"))
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    if given.what != "page" and given.out is None:
        parser.error(f"'{given.what}' needs the folder of the comparisons")
    if given.what == "run":
        run(given.out, given.data_dir, given.only)
        return
    if given.what == "write":
        columns = read_gains().columns
        measure(given.out).reindex(columns=columns).to_csv(TABLE, index=False)
    table = read_gains()
    PAGE.write_text("\n".join(page(table)) + "\n", encoding="utf-8")
    draw(table)


if __name__ == "__main__":
    main()
