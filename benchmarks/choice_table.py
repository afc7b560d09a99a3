"""How many groups does every method find by itself, and what does it cost or gain? The tables of docs/howto/choose-groups.md.

    python -m benchmarks.choice_table --seeds 0-99 [--cohort 20] [--only 'iid;rotated'] > choice.jsonl
    python -m benchmarks.choice_table --table choice.jsonl

One JSON object a line: a federation and a draw of it, and of every method with `auto` the number of groups it chose and its accuracy less
that of FedAvg. Every seed is another draw of the data and another random model. The second form makes tables of such lines.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import coterie as ct
from coterie.evidence.reader import read_notes
from coterie.evidence.settings import parse_seeds
from coterie.grouping import structure as asked
from coterie.grouping.structure import StructureResult, find_groups
from coterie.grouping.structure_views import Probes

METHODS = (
    "fedgroup(groups=auto)",
    "fesem(groups=auto)",
    "ifca(groups=auto)",
    "flhc(groups=auto)",
    "fedex(groups=auto,combiner=own)",
    "fedsim(clusters=auto)",
)
FEDERATIONS = {
    "iid": ("digits/iid(clients=40)", 1),
    "dirichlet(.1)": ("digits/dirichlet(alpha=0.1,clients=40)", 1),
    "dirichlet(.3)": ("digits/dirichlet(alpha=0.3,clients=40)", 1),
    "dirichlet(1)": ("digits/dirichlet(alpha=1,clients=40)", 1),
    "rotated": ("digits/rotated(clients=40,groups=4)", 4),
    "labelswap": ("digits/labelswap(clients=40,groups=4)", 4),
    "labelsubset": ("digits/labelsubset(clients=40,groups=4)", 4),
}
LOCAL = ct.Local(epochs=5, lr=0.1)
ROUNDS = 20


def remembering() -> Callable[..., StructureResult]:
    """`find_groups` for methods that ask the same clients the same question: they share the answer, which takes most of the time."""
    known: dict[tuple[bytes, str, int], StructureResult] = {}

    def remembered(probes: Probes, rng: np.random.Generator, most: int) -> StructureResult:
        question = (probes.vectors.tobytes() + probes.counts.tobytes(), str(rng.bit_generator.state), most)
        if question not in known:
            known[question] = find_groups(probes, rng, most=most)
        return known[question]

    return remembered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--cohort", type=int, help="clients asked to train in a round; all, if nothing is said")
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path, help="make tables of the lines in this file")
    options = parser.parse_args()
    if options.table:
        print(tables([json.loads(line) for line in options.table.read_text().splitlines()]))
        return
    for name in options.only.split(";") if options.only else FEDERATIONS:
        for seed in parse_seeds(options.seeds):
            print(json.dumps({"federation": name, "seed": seed, "cohort": options.cohort, **one(name, seed, options.cohort)}), flush=True)


def one(name: str, seed: int, cohort: int | None) -> dict[str, Any]:
    """By method: the number of groups chosen, and the gain over FedAvg in points."""
    plan = ct.Plan(rounds=ROUNDS, cohort=cohort, local=LOCAL)
    with patch.object(asked, "groups_of", remembering()):
        result = ct.study(["fedavg", *METHODS], data=FEDERATIONS[name][0], data_seed=seed, seeds=[seed], plan=plan)
    final = result.scores.set_index("method")["final"]
    chosen = {key.method: choice["k"] for key, _, choice in read_notes(result.evidence, "choice")}
    return {method: {"k": chosen[method], "gain": 100 * (final[method] - final["fedavg"])} for method in METHODS}


def tables(lines: list[dict[str, Any]]) -> str:
    """Right numbers of groups, then gains, in Markdown: a row a federation, a column a method."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_name[line["federation"]].append(line)
    head = ["federation", "groups", "draws", *(f"`{method}`" for method in METHODS)]
    counted, gained = [], []
    for name, drawn in by_name.items():
        true = FEDERATIONS[name][1]
        first = [name, str(true), str(len(drawn))]
        counted.append([*first, *(str(sum(line[m]["k"] == true for line in drawn)) for m in METHODS)])
        gained.append([*first, *(_mean([line[m]["gain"] for line in drawn]) for m in METHODS)])
    return f"Draws with the right number of groups:\n\n{_table(head, counted)}\n\nGain over FedAvg, points:\n\n{_table(head, gained)}"


def _mean(gains: list[float]) -> str:
    """The mean and twice its standard error."""
    return f"{np.mean(gains):+.1f} ± {2 * np.std(gains, ddof=1) / np.sqrt(len(gains)):.1f}" if len(gains) > 1 else f"{gains[0]:+.1f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows))


if __name__ == "__main__":
    main()
