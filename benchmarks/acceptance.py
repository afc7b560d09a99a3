"""Are honest clients ever refused? Counts refusals by the default limits over studies in which nobody is hostile.

    python benchmarks/acceptance.py [--rounds 10] [--seeds 0-1] [--data-dir DIR]

Every method of the catalogue on each federation; beside the refusals, the farthest that any client moved in medians of its cohort: the
bound (`norm_bound`) has to lie above it with a margin.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.core.asks import Train
from coterie.core.limits import FEW, moved_by
from coterie.engines.engine import Stamped
from coterie.evidence.settings import parse_seeds
from coterie.methods.catalogue import methods
from coterie.run.lanes import Lane

FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits/iid(clients=20)": {},
    "digits/rotated(clients=40,groups=4)": {"model": "mlp(64)", "epochs": 5, "lr": 0.1},
    "digits/labelswap(clients=20,groups=4)": {"epochs": 5},
    "digits/dirichlet(0.1,clients=20)": {"epochs": 5, "stragglers": 0.3, "dropout": 0.1},
    "heart": {"epochs": 5},
    "synthetic(1,1)": {"cohort": 10, "epochs": 20, "lr": 0.01},
    "mnist/powerlaw": {"cohort": 20, "epochs": 5, "lr": 0.03},
}
LIMITS = ("MISCOUNTED", "TOO_FAR")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--data", default=";".join(FEDERATIONS))
    given = parser.parse_args()
    print("| federation | replies to training | refused | farthest, in medians | by |\n| --- | ---: | ---: | ---: | --- |")
    for name in given.data.split(";"):
        ratios = watch()
        chosen = [method for method in methods if not (name.startswith("mnist") and method in ("flhc", "robust", "fedex"))]
        result = ct.study(
            chosen,
            data=name,
            seeds=parse_seeds(given.seeds),
            rounds=given.rounds,
            evaluate_every=given.rounds,
            data_dir=given.data_dir,
            **FEDERATIONS[name],
        )
        refused = int(result.evidence.frame("absences")["why"].isin(LIMITS).sum())
        worst = max(ratios, key=lambda label: ratios[label][1])
        print(f"| {name} | {sum(n for n, _ in ratios.values()):,} | {refused} | {ratios[worst][1]:.1f} | {worst} |", flush=True)


def watch() -> dict[str, tuple[int, float]]:
    """By method, how many replies to training there were, and the farthest; filled while studies run."""
    found: dict[str, tuple[int, float]] = {}
    plain = getattr(watch, "plain", Lane.answered)
    watch.plain = plain  # type: ignore[attr-defined]

    def answered(lane: Lane, sent: Stamped, reply: Any) -> Any:
        ask = sent.ask
        if isinstance(ask, Train) and not ask.alone and len(reply) >= FEW:
            moved = np.concatenate(list(moved_by(ask, reply)))
            count, most = found.get(lane.label, (0, 0.0))
            ratio = float(moved.max() / np.median(moved)) if np.median(moved) > 0 else 0.0
            found[lane.label] = (count + len(reply), max(most, ratio))
        return plain(lane, sent, reply)

    Lane.answered = answered  # type: ignore[assignment, method-assign]
    return found


if __name__ == "__main__":
    main()
