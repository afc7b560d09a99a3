"""What does each part of `auto` contribute? One part off at a time. Written before any of its results.

python studies/auto_ablations.py run OUT [--minutes 20]   # a file for a world and draw; one that is there is not run again
python studies/auto_ablations.py collect OUT              # results/auto/ablations.csv

The protocol: digits with 30 % test samples, softmax regression, 20 rounds of 2 local epochs in batches of 10, all clients in every round;
draws 200 and 201, which no other study uses, a seed each. The worlds have label swaps in four groups, three angles, label skew, and no
structure. The score is the accuracy over all test samples, mean of the last ten rounds; the cost is in client steps of FedAvg. Two draws of
four worlds show large contributions only.
"""

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import TAIL_ROUNDS
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution, make_plan
from coterie.run.study import Study

DRAWS = (200, 201)
WORLDS = {
    "label swaps": ("digits/labelswap(groups=4,pairs=1,clients=40,test=0.3)", 1.0),
    "three angles": ("digits/rotated(groups=3,clients=30,test=0.3)", 1.0),
    "label skew": ("digits/dirichlet(alpha=0.3,clients=40,test=0.3)", 1.0),
    "iid": ("digits/iid(clients=40,test=0.3)", 1.0),
}
VARIANTS = {
    "FedAvg": "fedavg",
    "auto": "auto",
    "gate off": "auto(level=1)",
    "4 folds": "auto(folds=4)",
    "one option for all clients": "auto(harm=0)",
    "no shrinkage": "auto(shrinkage=false)",
    "no continuum": "auto(continuum=false)",
    "no groups": "auto(groups=false)",
    "groups without refinement": "auto(refine=false)",
}
FILE = Path(__file__).resolve().parents[1] / "results" / "auto" / "ablations.csv"
FIELDS = ("world", "draw", "variant", "score", "cost")


def measure(world: str, draw: int, rounds: int = 20) -> list[dict[str, Any]]:
    """The score of every variant in percent, and its client steps in those of FedAvg."""
    data, rate = WORLDS[world]
    plan = make_plan({"rounds": rounds, "epochs": 2, "batch_size": 10, "lr": rate}, None, None)
    specs = tuple(VARIANTS.values())
    evidence = (
        Study.prepare(Settings(methods=specs, data=data, seeds=(0,), draws=(draw,), own_seeds=True, plan=plan))
        .run(execution=Execution(threads=1))
        .evidence
    )
    records = read_records(evidence.select_draw(draw))
    places = {name: records.place(spec) for name, spec in VARIANTS.items()}
    steps = {name: float(np.nansum(records.costs["steps"][place, 0])) for name, place in places.items()}
    return [
        {
            "world": world,
            "draw": draw,
            "variant": name,
            "score": round(100 * float(records.accuracy[place, 0, -TAIL_ROUNDS:].mean()), 4),
            "cost": round(steps[name] / steps["FedAvg"], 4),
        }
        for name, place in places.items()
    ]


def run(out: Path, minutes: float) -> None:
    """What is not there yet; after so many minutes nothing is started."""
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    for draw in DRAWS:
        for world in WORLDS:
            path = out / f"{world.replace(' ', '-')}-{draw}.json"
            if path.exists() or time.monotonic() > deadline:
                continue
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(measure(world, draw)), encoding="utf-8")
            draft.replace(path)
            print(path, flush=True)


def collect(out: Path, file: Path = FILE) -> None:
    """What is there as one table."""
    rows = [row for path in sorted(out.glob("*.json")) for row in json.loads(path.read_text(encoding="utf-8"))]
    order = list(WORLDS), list(VARIANTS)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (order[0].index(row["world"]), row["draw"], order[1].index(row["variant"]))))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "collect"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=1e6)
    args = parser.parse_args()
    if args.what == "run":
        run(args.out, args.minutes)
    else:
        collect(args.out)


if __name__ == "__main__":
    main()
