"""The recipes that can be redrawn, over twenty draws: what each method gains, by every source of error. Writes docs/explanation/draws.md.

python benchmarks/draws.py run OUT [--data-dir DIR] [--only NAME]
python benchmarks/draws.py write OUT docs/explanation/draws.md
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.verdict import write_verdict
from coterie.run.compare import compare

DRAWS = 20
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


def page(out: Path) -> Iterator[str]:
    """The whole page."""
    yield "# Over twenty draws\n"
    yield "What another draw of the data would show, beside what seeds and test clients alone say. Gains over FedAvg in points of accuracy,"
    yield "mean of the last ten evaluated rounds, with 95 % intervals; *decides* is the widest of those that a verdict has to survive"
    yield "(draws, test clients).\n"
    yield "```\npython benchmarks/draws.py run OUT --data-dir DATA && python benchmarks/draws.py write OUT docs/explanation/draws.md\n```"
    for name in RECIPES:
        if (out / name / "compare.json").exists():
            yield from _section(open_comparison(out / name))


def _section(comparison: Comparison) -> Iterator[str]:
    (found,) = comparison.federations
    records, plan = found.records, found.records.settings.plan
    train, test = int(records.train.sum()), int(records.test.sum())
    held = f"{len(records.ids):,} clients, {train:,} training and {test:,} test samples in the first draw"
    yield f"\n## `{found.data}`\n"
    yield f"{held}; {found.repetitions}; {plan.rounds} rounds, {plan.local.epochs} epochs, rate {plan.local.lr:g}.\n"
    yield "| method | gain | over draws | over seeds | over test clients | decides | variance from draws | outcome |"
    yield "|" + " --- |" * 8
    for label, finding in found.methods.items():
        if label != found.roles.baseline:
            yield _row(found, label, finding)
    yield ""
    yield from (f"- {write_verdict(found, found.methods[label])}" for label in found.roles.methods)


def _row(found: Findings, label: str, finding: Finding) -> str:
    known, gap = finding.gap.sources.estimated, finding.gap
    spans = [
        f"{100 * known[n].low:+z.1f} to {100 * known[n].high:+z.1f}" if n in known else "-" for n in ("draws", "seeds", "test clients")
    ]
    share = gap.spread.shares.get("draws", np.nan) if np.isfinite(gap.spread.rest) else np.nan
    told = f"{100 * share:.0f} %" if np.isfinite(share) else "-"
    outcome = finding.outcome if label in found.roles.methods else f"({found.roles.of[label]})"
    widest = f"{100 * gap.low:+z.1f} to {100 * gap.high:+z.1f}"
    return f"| `{label}` | {100 * gap.mean:+z.1f} | {' | '.join(spans)} | {widest} | {told} | {outcome} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("out", type=Path)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", action="append", default=[])
    said = parser.parse_args()
    if said.what == "run":
        run(said.out, said.data_dir, said.only)
    else:
        said.page.write_text("\n".join(page(said.out)) + "\n")


if __name__ == "__main__":
    main()
