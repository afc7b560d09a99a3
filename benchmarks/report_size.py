"""How long and how large is the report of a large study? Made-up evidence of the real shape, then `coterie report` in a process of its own.

    python benchmarks/report_size.py --clients 1000 --seeds 35 --rounds 30

Prints seconds, the peak of memory, and the size of the page, beside the limits: 30 s, 1 GiB, 10 MiB.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from coterie.core.asks import Evaluated
from coterie.core.method import Notes
from coterie.core.mixing import Mixing
from coterie.core.plan import Plan
from coterie.evidence.records import Cost, LaneEnd, LaneKey, LaneProgress, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import make_tables
from coterie.evidence.writer import Writer
from coterie.run.environment import describe_environment

METHODS = {  # by spec: the accuracy that is made up for it, and its groups: lasting ones, those of a round, or none
    "fedavg": (0.70, ""),
    "fedavg(weighting=uniform)": (0.70, ""),
    "local": (0.66, ""),
    "fedavg+finetune(epochs=5)": (0.72, ""),
    "fedgroup(groups=5)": (0.78, "similar"),
    "fedgroup(groups=5,assign=random)": (0.69, "random"),
    "fesem(groups=5)": (0.76, "similar"),
    "fesem(groups=5,assign=random)": (0.69, "random"),
    "ifca(groups=5)": (0.77, "similar"),
    "fedsim(clusters=5)": (0.71, "passing"),
}
CLASSES, SEGMENT, WAVE = 10, 10, 5
LIMITS = {"seconds": 30.0, "gib": 1.0, "mib": 10.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=35)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="a new folder for the evidence and its report; a temporary one unless given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary) / "study"
        make_up(folder, given.clients, given.seeds, given.rounds, min(given.cohort, given.clients))
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "from coterie.cli import main; main()", "report", str(folder)], check=True)
        found = {
            "seconds": round(time.perf_counter() - began, 1),
            "cpu_seconds": round(
                resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, 1
            ),  # less than `seconds` where others use the machine
            "gib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20), 3),  # of the largest child, in KiB
            "mib": round((folder / "report.html").stat().st_size / (1 << 20), 2),
        }
    print(json.dumps({**vars(given), "keep": str(given.keep), "methods": len(METHODS), **found, "limits": LIMITS}))
    sys.exit(any(found[name] > limit for name, limit in LIMITS.items()))


def make_up(folder: Path, clients: int, seeds: int, rounds: int, cohort: int) -> None:
    """Evidence of a study that nobody ran."""
    rng = np.random.default_rng(0)
    settings = Settings(methods=tuple(METHODS), data="made-up", seeds=tuple(range(seeds)), plan=Plan(rounds=rounds, cohort=cohort))
    actual = rng.integers(0, 5, (clients, CLASSES))
    truth = np.arange(clients) % 5
    columns = {
        "id": [f"client {i:04d}" for i in range(clients)],
        "train": rng.integers(20, 200, clients).astype(np.int32),
        "group": truth.astype(np.int32),
    }
    roster = pa.table(columns | {f"actual_{c}": actual[:, c].astype(np.int32) for c in range(CLASSES)})
    writer = Writer.create(folder, settings, {"environment": describe_environment()}, {0: roster})
    for first in range(0, seeds, WAVE):
        keys = [LaneKey(0, method, seed) for seed in range(first, min(first + WAVE, seeds)) for method in METHODS]
        for begin in [0, *range(SEGMENT + 1, rounds + 1, SEGMENT)]:
            end = min(SEGMENT * (begin // SEGMENT + 1), rounds)
            records = [_record(key, t, rounds, actual, truth, cohort) for key in keys for t in range(begin, end + 1)]
            writer.segment([LaneProgress(key, begin, LaneEnd(end), None) for key in keys], make_tables(records, CLASSES))


def _record(key: LaneKey, t: int, rounds: int, actual: np.ndarray, truth: np.ndarray, cohort: int) -> RoundRecord:
    seed, method = key.seed, list(METHODS).index(key.method)
    level, kind = METHODS[key.method]
    rng = np.random.default_rng([seed, method, t])
    n = len(actual)
    accuracy = 0.1 + (level - 0.1 + 0.01 * np.random.default_rng(seed).standard_normal()) * (1 - np.exp(-5 * (t + 0.5) / rounds))
    hits = rng.binomial(actual, np.clip(accuracy, 0, 1))
    predicted = rng.permuted(actual, axis=1)
    judged = Evaluated(np.arange(n), hits, predicted, actual, rng.random(n), np.full(n, np.nan))
    members = np.sort(rng.choice(n, cohort, replace=False))
    steady = np.random.default_rng([seed, method])
    similar = np.where(steady.random(n) < 0.9, truth, steady.integers(0, 5, n))
    groups = {"similar": similar, "random": steady.integers(0, 5, n)}.get(kind)
    notes = Notes(clusters=(members, similar[members]) if kind == "passing" and t else None)
    if t and not key.method.startswith("local"):
        labels = np.zeros(cohort, dtype=np.int64) if groups is None else groups[members]
        notes.mixing = Mixing.within(members, labels, rng.integers(20, 200, cohort), 1 if groups is None else 5)
    cost = Cost(2 * cohort, 31400 * cohort, 31400 * cohort, float(cohort), 50 * cohort, 500 * cohort)
    seconds = {"server": 0.01, "clients": 0.1}
    return RoundRecord(key, t, cost, notes, groups=groups, discrepancy=0.1, evaluated=judged, seconds=seconds)


if __name__ == "__main__":
    main()
