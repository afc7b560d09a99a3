"""Which rule finds the number of groups? Four grouping methods with the rule of their own paper, and with ours. Written before its results.

python studies/rivals_number.py run        # adds the worlds that are not there to results/rivals/number.csv

The protocol, where it differs from that of `rivals.py`.

- Worlds: those of `rivals.py` with scores in which the number of groups is known: one (none, labels of each client), two, and four.
- Methods: IFCA and FedGroup, which the other papers compare with, and the two newer methods with a rule, CLoVE and CFL-GP.
- Rules. *own*: the paper's (`OWN`); the papers of IFCA and FedGroup take the number as given, so they have none. *structure*: the test of
  structure, asked once before training. *true*: the number that made the world. *tuned* is the entry of `rivals.py`: 4, 2 or 8 groups by
  validation.
- The learning rate of all rules is the one that `rivals.py` chose for the method in that world, with its number tuned. No rule is tuned.
- Stage: served. Draws 100 to 104, 40 rounds, at most 10 groups, the score and FedAvg of `rivals.py`.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rivals import FILES, FIRST, WORLDS, Piece

from coterie.analysis.scores import TAIL_ROUNDS
from coterie.evidence.reader import read_notes
from coterie.grouping.structure import StructureResult, find_groups
from coterie.grouping.structure_views import Probes
from coterie.methods import group_number
from coterie.methods.catalogue import build
from coterie.methods.wrapper import RateOverride

TRUE_NUMBERS = {"iid": 1, "rotation-4": 4, "concept-mild": 4, "rotation-2": 2, "labels-strong": 1}
DRAWS = range(FIRST, FIRST + 5)
METHODS = ("ifca", "fedgroup", "clove", "cflgp")
OWN = {"clove": "clove(groups=auto,most=10,choice=ward)", "cflgp": "cflgp(groups=auto,choice=silhouette)"}
RULES = ("own", "structure", "true")


def list_specs(world: str) -> Iterator[tuple[str, str, str]]:
    """Method, rule and spec."""
    for method in METHODS:
        for rule in RULES:
            if rule != "own":
                yield method, rule, f"{method}(groups={'auto,most=10' if rule == 'structure' else TRUE_NUMBERS[world]})"
            elif method in OWN:
                yield method, rule, OWN[method]


def read_rates(files: Path = FILES) -> dict[tuple[str, str], float]:
    """By world and method, the rate that the comparison chose for the model that is served."""
    with (files / "costs.csv").open(newline="", encoding="utf-8") as file:
        return {(row["world"], row["method"]): float(row["rate"]) for row in csv.DictReader(file) if row["stage"] == "served"}


def share_answers() -> Callable[..., StructureResult]:
    """The test of structure for methods that ask the same clients the same question at the same start: it is answered once."""
    known: dict[tuple[bytes, str, int], StructureResult] = {}

    def answer(probes: Probes, rng: np.random.Generator, most: int) -> StructureResult:
        question = (probes.vectors.tobytes() + probes.counts.tobytes(), str(rng.bit_generator.state), most)
        if question not in known:
            known[question] = find_groups(probes, rng, most=most)
        return known[question]

    return answer


def run_world(name: str, draws: range, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each method and rule: accuracies in percent and the numbers of groups, a column a draw."""
    rates, specs = read_rates(), list(list_specs(name))
    methods = {f"{method} {rule}": RateOverride(method=build(spec), lr=rates[name, method]) for method, rule, spec in specs}
    with patch.object(group_number, "find_groups", share_answers()):
        records, problems = Piece(name, "number", Path())._study(methods, WORLDS[name].data, draws, rounds)
    if problems:
        raise RuntimeError(f"{name}: {problems}")
    for method, rule, spec in specs:
        row: dict[str, Any] = {"world": name, "method": method, "rule": rule, "spec": spec, "rate": rates[name, method]}
        for draw, own in zip(draws, records, strict=True):
            label = f"{method} {rule}"
            row[f"d{draw}"] = f"{100 * float(own.accuracy[own.place(label), 0, -TAIL_ROUNDS:].mean()):.5f}"
            chosen = [choice["k"] for key, _, choice in read_notes(own.evidence, "choice", []) if key.method == label and choice]
            row[f"k{draw}"] = chosen[-1] if chosen else TRUE_NUMBERS[name]
        yield row


def main() -> None:
    """The command line."""
    if sys.argv[1:] != ["run"]:
        sys.exit(__doc__)
    path, rows = FILES / "number.csv", list[dict[str, Any]]()
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    for name in TRUE_NUMBERS:
        if any(row["world"] == name for row in rows):
            continue
        rows += list(run_world(name, DRAWS, WORLDS[name].rounds))
        print(f"{name} done", flush=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
