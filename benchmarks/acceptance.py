"""Are honest clients ever refused? Counts refusals by the default limits over studies without an attack.

    python benchmarks/acceptance.py [--rounds 10] [--seeds 0-1] [--data-dir DIR]

Every method of the catalogue on each federation; beside the refusals, the farthest that any client moved in medians of its cohort: the
bound (`norm_bound`) has to lie above it with a margin.
"""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.replies import FEW, compute_update_norms
from coterie.engines.batched import make_engine
from coterie.engines.engine import Engine, StampedAsk
from coterie.evidence.settings import Settings, parse_seeds
from coterie.methods.catalogue import methods
from coterie.run.study import Study

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
        chosen = [method for method in methods if not (name.startswith("mnist") and method in ("flhc", "robust", "fedex"))]
        rest = dict(FEDERATIONS[name])
        local = Local(**{field.name: rest.pop(field.name) for field in fields(Local) if field.name in rest})
        model = rest.pop("model", "mclr")
        plan = Plan(rounds=given.rounds, evaluate_every=given.rounds, local=local, **rest)
        settings = Settings(methods=tuple(chosen), data=name, model=model, seeds=parse_seeds(given.seeds), plan=plan)
        study = Study.prepare(settings, data_dir=given.data_dir)
        with WatchingEngine(make_engine(study.worlds)) as engine:
            evidence = study.run(engine=engine).evidence
        refused = int(evidence.frame("absences")["why"].isin(LIMITS).sum())
        worst = max(engine.farthest, key=lambda lane: engine.farthest[lane])
        print(f"| {name} | {engine.replies:,} | {refused} | {engine.farthest[worst]:.1f} | {study.lanes()[worst].label} |", flush=True)


class WatchingEngine(Engine):
    """Another engine, with how far clients moved in its replies to training."""

    name = "watching"

    def __init__(self, inner: Engine) -> None:
        self.inner, self.replies = inner, 0
        self.farthest: dict[int, float] = {}  # by lane, in medians of a cohort

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        replies = self.inner.run(asks)
        for stamped, reply in zip(asks, replies, strict=True):
            if isinstance(stamped.ask, Train) and not stamped.ask.alone and len(reply) >= FEW:
                moved = np.concatenate(list(compute_update_norms(stamped.ask, reply)))
                ratio = float(moved.max() / np.median(moved)) if np.median(moved) > 0 else 0.0
                self.farthest[stamped.lane] = max(self.farthest.get(stamped.lane, 0.0), ratio)
                self.replies += len(reply)
        return replies

    def prepare(self, local: Local) -> None:
        self.inner.prepare(local)

    def close(self) -> None:
        self.inner.close()


if __name__ == "__main__":
    main()
