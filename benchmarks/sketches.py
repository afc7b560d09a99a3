"""How much of grouping survives when clients send sketches: agreement with the true groups and accuracy against r, and against epsilon.

python -m benchmarks.sketches rotated labelswap --seeds 10 > lines.jsonl      # a line for each data set, method, seed, r and epsilon
python -m benchmarks.sketches mnist --seeds 10 >> lines.jsonl
python -m benchmarks.sketches --figure lines.jsonl  # docs/figures/sketches.svg, and the table of docs/reference/leaks-measured.md

Noise is accounted by Opacus for all that one client sends for grouping: one sketch in FedGroup, one a round in FedSim, two in inspect.
What is trained afterwards leaves as it is, and is in no epsilon.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.data.catalogue import load
from coterie.deploy.site.ledger import calibrate_noise
from coterie.inspect import InspectPlan, inspect_data

DELTA = 1e-5
CLIP = 0.01  # shorter than any gradient or update here: all are cut to one length, and noise is as loud for everybody
SIZES = (8, 16, 32, 64, 128, 256)
EPSILONS = (2, 8, 32, 128, 512)
R = 64  # of the sketches that are noised
PLAN = ct.Plan(rounds=20, cohort=20, local=ct.Local(epochs=20, batch_size=10, lr=0.1), evaluate_every=10)
DATA = {
    "rotated": ("digits/rotated(clients=40,groups=4)", PLAN),
    "labelswap": ("digits/labelswap(clients=40,groups=4)", PLAN),
    "mnist": ("mnist/powerlaw", replace(PLAN, local=replace(PLAN.local, lr=0.03))),
}
METHODS = {  # by name: the settings, and how many sketches a client sends at most
    "fedsim": ("fedsim(clusters=4", PLAN.rounds),
    "fedgroup": ("fedgroup(groups=4,pretrain=100,start_from=w0", 1),
    "fesem": ("fesem(groups=4,warmup=50,assign_on=sketch", 0),  # sends its models anyway: what is short is the server's memory
}


def specs(small: bool) -> dict[str, dict[str, Any]]:
    """Every method to run, with what its line records."""
    found: dict[str, dict[str, Any]] = {}
    for name, (begin, releases) in METHODS.items():
        full = begin.replace(",assign_on=sketch", "")
        if small:
            full, begin = (text.replace("pretrain=100", "pretrain=5").replace(",warmup=50", "") for text in (full, begin))
        found[f"{full})"] = {"method": name, "r": None, "epsilon": None}
        for r in (16, 64, 256) if small else SIZES:
            found[f"{begin},sketch={r})"] = {"method": name, "r": r, "epsilon": None}
        for epsilon in () if small or not releases else EPSILONS:
            noise = round(calibrate_noise(epsilon, DELTA, releases), 4)
            found[f"{begin},sketch={R},sketch_clip={CLIP},sketch_noise={noise})"] = {"method": name, "r": R, "epsilon": epsilon}
    return found


def measured(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """A line for each run."""
    (spec, plan), small = DATA[name], name == "mnist"
    table = specs(small)
    scores = ct.study(list(table), data=spec, plan=plan, seeds=range(seeds)).scores
    for row in scores.to_dict("records"):
        yield {"data": name, **table[row["method"]], "seed": int(row["seed"]), "accuracy": float(row["final"]), "ari": float(row["ari"])}
    for seed in range(0 if small else seeds):
        yield from _inspected(name, spec, seed)


def _inspected(name: str, spec: str, seed: int) -> Iterator[dict[str, Any]]:
    """The groups that inspecting finds, without label counts and without a pilot."""
    federation = load(spec, 0)
    cases: list[tuple[int | None, int | None]] = [(None, None), (16, None), (64, None), (256, None), (R, 8), (R, 512)]
    for r, epsilon in cases:
        plan = InspectPlan(labels=False, pilot=None, references=19, sketch=r)
        if epsilon is not None:
            plan = replace(plan, sketch_clip=CLIP, sketch_noise=calibrate_noise(epsilon, DELTA, 2))
        found = inspect_data(federation, seed=seed, plan=plan)
        assert federation.groups is not None
        truth = [federation.groups[federation.ids.index(client)] for client in found.ids]
        agreement = adjusted_rand_score(truth, found.groups.labels) if found.groups.distinct else 0.0
        yield {"data": name, "method": "inspect", "r": r, "epsilon": epsilon, "seed": seed, "accuracy": None, "ari": float(agreement)}


def main() -> None:
    """Print lines, or make the figure and the table of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="*", choices=[*DATA, []])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--figure", type=Path)
    said = parser.parse_args()
    if said.figure is not None:
        from benchmarks.sketches_figure import write_page

        write_page([json.loads(line) for line in said.figure.read_text().splitlines()])
        return
    for name in said.data:
        for line in measured(name, said.seeds):
            print(json.dumps(line))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
