"""An attack on studies and on what is opened: part of `make drill`. Ends with 1 where a trial went wrong, got stuck or left a traceback.

    python scripts/attack.py [--trials N] [--seed S] [--only KIND ...]

What is tried, and how each trial is judged, is in tests/attack_kinds.py and tests/attacking.py.
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"  # processes are forked: none may have threads
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from attack_kinds import KINDS, WEIGHTS  # noqa: E402
from attacking import Attack  # noqa: E402


def main() -> int:
    """So many trials, their kinds drawn by the seed; each kind at least once where there are enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(KINDS))
    options = parser.parse_args()
    chance = random.Random(options.seed)
    known = options.only or list(KINDS)
    drawn = known + chance.choices(list(KINDS), WEIGHTS, k=options.trials) if options.only is None else known * options.trials
    _import_what_commands_import()

    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(Path(folder) / "attack")
        for number, kind in enumerate(drawn[: options.trials]):
            attack.trial(KINDS[kind], f"{kind} {options.seed * 10**6 + number}")
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {options.trials}", end="", file=sys.stderr, flush=True)
    kinds = sorted(attack.outcomes)
    outcomes = ["right", "refused", *sorted({name for of in attack.outcomes.values() for name in of} - {"right", "refused"})]
    print("| attack | " + " | ".join(outcomes) + " |\n| --- |" + " ---: |" * len(outcomes))
    for kind in kinds:
        print(f"| {kind} | " + " | ".join(str(attack.outcomes[kind].get(name, 0)) for name in outcomes) + " |")
    for fault in attack.faults:
        print(fault)
    print(f"{attack.trials} trials, {len(attack.faults)} faults")
    return int(bool(attack.faults))


def _import_what_commands_import() -> None:
    """Once, here: what a command imports later than this is imported by every fork anew."""
    import numba  # noqa: F401
    import torch._dynamo  # noqa: F401  (by torch's optimisers, at the first step)


if __name__ == "__main__":
    sys.exit(main())
