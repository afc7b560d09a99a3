"""Does an ordering of each rival's own paper hold here? Small federations of the papers' data and kinds of shift. Written before results.

python studies/rivals_claims.py DATA_DIR [--methods NAME,NAME]     # adds to results/rivals/claims.csv what is not there

The protocol.

- Worlds: `WORLDS`. Handwritten digits are those of MNIST, writers as clients (QMNIST): turned, with swapped labels, or two classes
  a group; and FEMNIST's writers. 40 clients, softmax regression, 20 rounds of one local epoch in batches of 10, all clients in each round.
- Settings: each method's defaults, with the number of groups that made the world where it takes one. One learning rate a world for all:
  the best for FedAvg in the comparison of natural federations. Nothing is tuned.
- Score: accuracy over all test samples of the model that the method serves, mean of the last ten rounds; draws 200 to 204, a seed each.
- An ordering holds where the mean difference is above 0 and its 95 % interval over draws excludes 0; it is opposite where the interval is
  below 0.
- What differs from all papers: their networks (here softmax regression), sizes and rounds. A failed ordering is no proof against a paper.
"""

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivals import BATCH, FILES

from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import TAIL_ROUNDS
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.methods.wrapper import RateOverride
from coterie.run.execution import Execution, make_plan
from coterie.run.study import Study

DRAWS = tuple(range(200, 205))
ROUNDS = 20


@dataclass(frozen=True)
class World:
    """Data of the papers' kind."""

    title: str
    data: str
    rate: float
    specs: dict[str, str]  # by method


_WRITERS = "qmnist/natural(clients=40,test=0.3)"
WORLDS = {
    "rotated": World(
        "MNIST, four angles",
        f"{_WRITERS}/rotated(groups=4)",
        0.1,
        {name: f"{name}(groups=4)" for name in ("ifca", "clove", "cflgp")} | {name: name for name in ("fedavg", "flux", "feroma")},
    ),
    "swapped": World(
        "MNIST, labels swapped in four ways",
        f"{_WRITERS}/labelswap(groups=4)",
        0.1,
        {"fedavg": "fedavg", "ifca": "ifca(groups=4)", "fedem": "fedem(groups=4)", "fedrc": "fedrc(groups=4)"},
    ),
    "classes": World(
        "MNIST, two classes a group",
        f"{_WRITERS}/labelsubset(groups=5)",
        0.1,
        {name: name for name in ("fedavg", "local", "pacfl", "fedfew", "pfedgraph", "apfl", "fedala")} | {"fedclust": "fedclust(groups=5)"},
    ),
    "writers": World(
        "FEMNIST, 40 writers",
        "femnist/natural(clients=40,test=0.3)",
        3.0,
        {name: name for name in ("fedavg", "local", "fedem", "fedgwc")} | {"knn": "fedavg+knn"},
    ),
}


@dataclass(frozen=True)
class Ordering:
    """What a paper reports: a method ahead of others in such a world."""

    method: str
    world: str
    behind: tuple[str, ...]
    paper: str  # its words, or its numbers


ORDERINGS = (
    Ordering("clove", "rotated", ("fedavg", "ifca"), "ahead of clustered and personalised methods"),
    Ordering("cflgp", "rotated", ("fedavg", "ifca"), "ahead of existing clustered methods"),
    Ordering("flux", "rotated", ("fedavg",), "up to 23 points over the best baselines"),
    Ordering("feroma", "rotated", ("fedavg",), "up to 12 points over the best baselines"),
    Ordering("fedrc", "swapped", ("fedavg", "fedem"), "ahead of other clustered methods"),
    Ordering("fedfew", "classes", ("fedavg",), "ahead with 3 models"),
    Ordering("pfedgraph", "classes", ("fedavg", "local"), "ahead of 14 baselines"),
    Ordering("apfl", "classes", ("fedavg", "local"), "ahead of the global and of local models"),
    Ordering("fedala", "classes", ("fedavg",), "up to 3.3 points over 11 baselines"),
    Ordering("pacfl", "classes", ("fedavg",), "ahead of global models and clustered methods"),
    Ordering("fedclust", "classes", ("fedavg",), "up to 45 % higher accuracy"),
    Ordering("fedem", "writers", ("fedavg", "local"), "higher accuracy than the state of the art"),
    Ordering("fedgwc", "writers", ("fedavg",), "ahead of existing algorithms"),
    Ordering("knn", "writers", ("fedavg", "local"), "ahead of FedAvg and of local models"),
)


def run(world: World, method: str, data_dir: Path | None, draws: tuple[int, ...] = DRAWS, rounds: int = ROUNDS) -> list[float]:
    """Accuracy in percent, of each draw."""
    plan = make_plan({"rounds": rounds, "epochs": 1, "batch_size": BATCH, "cohort": None}, None, None)
    settings = Settings(methods=(method,), data=world.data, model="mclr", seeds=(0,), draws=draws, own_seeds=True, plan=plan)
    study = Study.prepare(settings, data_dir=data_dir, methods=[RateOverride(method=build(world.specs[method]), lr=world.rate)])
    result = study.run(execution=Execution(threads=1))
    records = [read_records(result.evidence.select_draw(draw)) for draw in draws]
    return [100 * float(own.accuracy[own.place(method), 0, -TAIL_ROUNDS:].mean()) for own in records]


def main() -> None:
    """The command line: a row is written when its draws are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--methods", default="")
    args = parser.parse_args()
    path, wanted = FILES / "claims.csv", set(filter(None, args.methods.split(",")))
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    for name, world in WORLDS.items():
        for method in world.specs:
            if any((row["world"], row["method"]) == (name, method) for row in rows) or (wanted and method not in wanted):
                continue
            scores = run(world, method, args.data_dir)
            rows.append({"world": name, "method": method, "spec": world.specs[method], "rate": world.rate})
            rows[-1] |= {f"d{draw}": f"{score:.5f}" for draw, score in zip(DRAWS, scores, strict=True)}
            print(name, method, f"{sum(scores) / len(scores):.2f}", flush=True)
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                table.writeheader()
                table.writerows(rows)


if __name__ == "__main__":
    main()
