"""How often does `auto` admit what does not help? 100 draws without structure, 100 of label skew. Written before any of its results.

python studies/auto_admissions.py run OUT [--jobs 16] [--minutes 7] [--most 100]   # a file a draw; one that is there is not run again
python studies/auto_admissions.py collect OUT                                      # results/auto/admissions.csv

The protocol: digits in 40 clients with 30 % test samples, softmax regression, 20 rounds of 3 local epochs in batches of 10 at rate 0.1,
all clients in every round; draws 1000 to 1099, which no other study uses, a seed each. `iid` has no structure at all: whatever is
admitted is admitted falsely. `dirichlet(alpha=1)` has label skew and no groups; an admission is false where it costs. The score is the
accuracy over all test samples, mean of the last ten rounds. An admission is costly where `auto` is more than half a point below FedAvg;
the target is at most 5 of 100.
"""

import argparse
import csv
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import TAIL_ROUNDS
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution, make_plan
from coterie.run.study import Study

FIRST, DRAWS = 1000, 100
WORLDS = {"iid": "digits/iid(clients=40,test=0.3)", "dirichlet": "digits/dirichlet(alpha=1,clients=40,test=0.3)"}
METHODS = ("fedavg", "auto")
PLAN: dict[str, Any] = {"rounds": 20, "epochs": 3, "batch_size": 10, "lr": 0.1}
FILE = Path(__file__).resolve().parents[1] / "results" / "auto" / "admissions.csv"
FIELDS = ("world", "draw", "fedavg", "auto", "chosen", "gain", "p", "moved", "cost")


def measure(world: str, draw: int) -> dict[str, Any]:
    """Scores of FedAvg and auto in percent, what was decided, how many clients left FedAvg's model, and the cost in FedAvg's steps."""
    settings = Settings(methods=METHODS, data=WORLDS[world], seeds=(0,), draws=(draw,), own_seeds=True, plan=make_plan(PLAN, None, None))
    evidence = Study.prepare(settings).run(execution=Execution(threads=1)).evidence
    records = read_records(evidence.select_draw(draw))
    notes = evidence.table("notes").to_pylist()
    [decided] = [json.loads(note["value"]) for note in notes if note["name"] == "auto"]
    places = {name: records.place(name) for name in METHODS}
    steps = {name: float(np.nansum(records.costs["steps"][place, 0])) for name, place in places.items()}
    return {
        "world": world,
        "draw": draw,
        **{name: round(100 * float(records.accuracy[place, 0, -TAIL_ROUNDS:].mean()), 5) for name, place in places.items()},
        "chosen": decided["chosen"],
        "gain": round(100 * decided["gain"], 5),
        "p": round(decided["p"], 5),
        "moved": sum(option["clients"] for option in decided["options"] if option["option"] != "fedavg"),
        "cost": round(steps["auto"] / steps["fedavg"], 4),
    }


def run_piece(world: str, draw: int, out: Path) -> Path:
    """One draw, under its name only when it is complete."""
    path = out / f"{world}-{draw}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(measure(world, draw)), encoding="utf-8")
    draft.replace(path)
    return path


def run(out: Path, jobs: int, minutes: float, most: int) -> None:
    """What is not there yet, draws in turn over worlds; after so many minutes none is started."""
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    left = iter([(w, d) for d in range(FIRST, FIRST + most) for w in WORLDS if not (out / f"{w}-{d}.json").exists()])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: set[Any] = set()
        while True:
            while len(running) < jobs and time.monotonic() < deadline and (piece := next(left, None)) is not None:
                running.add(pool.submit(run_piece, *piece, out))
            if not running:
                break
            done = next(as_completed(running))
            running.discard(done)
            print(done.result(), flush=True)


def collect(out: Path, file: Path = FILE) -> None:
    """The draws that are there as one table."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (list(WORLDS).index(row["world"]), row["draw"])))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "collect"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--most", type=int, default=DRAWS)
    args = parser.parse_args()
    if args.what == "run":
        run(args.out, args.jobs, args.minutes, args.most)
    else:
        collect(args.out)


if __name__ == "__main__":
    main()
