"""How `inspect` came to its rule: pilots and whole studies on made-up federations, none of which is judged by it elsewhere.

    python studies/inspect_rule.py run OUT [--draws 4] [--workers 2]     # a line of JSON for each federation
    python studies/inspect_rule.py choose OUT                            # every setting of the rule, by its mean distance to the best way

Each federation is run as Natural-12 is (20 rounds of 3 epochs at FedAvg's best rate on validation parts of the same draw); the truth is the
test accuracy of one model, fine-tuned, alone, and the better of FedGroup and IFCA. The pilot is run at every rate and for 10 and 20 rounds.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.core.local import Local
from coterie.inspect import InspectPlan, PilotPlan, inspect_data
from coterie.methods.catalogue import build
from coterie.run.execution import Execution
from coterie.run.tuning import choose_rates

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FIRST = 60  # the first draw
WAYS = ("one", "tuned", "alone", "groups")
SPECS = (
    *(f"digits/{how}" for how in ("iid(clients=20)", "rotated(clients=20,groups=2)", "rotated(clients=40,groups=4)")),
    *(f"digits/{how}" for how in ("labelswap(clients=20,groups=2)", "dirichlet(clients=20,alpha=0.5)", "dirichlet(clients=40,alpha=0.1)")),
    *(f"digits/{how}" for how in ("rotated(clients=6,groups=2)", "dirichlet(clients=6,alpha=0.5)")),
    *(
        "synthetic(iid,clients=30)",
        "synthetic(0,0,clients=30)",
        "synthetic(1,1,clients=30)",
        "synthetic(iid,clients=20)/labelswap(groups=2)",
    ),
)
# clients, samples a client, features; deviation of intercepts and of slopes, groups of slopes
SHAPES = ((6, 150, 12), (15, 120, 30), (50, 80, 20), (90, 300, 11), (200, 14, 60), (400, 60, 5))
SHIFTS = ((0.0, 0.0, 0), (0.7, 0.0, 0), (0.7, 0.3, 0), (0.3, 0.0, 3), (1.5, 0.6, 0))


def mixed(seed: int, shape: tuple[int, int, int], shift: tuple[float, float, int], validation: float = 0.0) -> ct.Federation:
    """Binary outcomes with intercepts and slopes of each client's own; half of the samples judge."""
    (clients, samples, d), (intercepts, slopes, groups) = shape, shift
    rng = np.random.default_rng(seed * 1000 + clients + d)
    sizes = np.maximum(12, rng.lognormal(np.log(samples), 0.5, clients).astype(int))
    common, own = rng.normal(size=d) / np.sqrt(d) * 2, rng.normal(size=(max(groups, 1), d)) / np.sqrt(d) * 2
    xs, ys = [], []
    for client in range(clients):
        weights = common + slopes * rng.normal(size=d) / np.sqrt(d) * 2 + (own[client % groups] if groups else 0)
        intercept, n = intercepts * rng.normal(), 2 * int(sizes[client])
        x = rng.normal(size=(n, d))
        xs.append(x)
        ys.append((rng.uniform(size=n) < 1 / (1 + np.exp(-(x @ weights + intercept)))).astype(int))
    names = np.repeat([f"c{client}" for client in range(clients)], [len(y) for y in ys])
    parts: dict[str, Any] = {"test": 0.5, "data_seed": seed} | ({"validation": validation} if validation else {})
    return ct.Federation.from_arrays(
        np.concatenate(xs).astype(np.float32), np.concatenate(ys), list(names), name=f"{shape} {shift}", **parts
    )


def run_one(job: tuple[Any, int]) -> dict[str, Any]:
    """A federation: the truth, and the pilot at every rate."""
    world, draw = job
    spec = isinstance(world, str)
    data = ct.load(world, draw) if spec else mixed(draw, *world)
    held = (ct.load(world.replace(")", ",validation=0.2)", 1), draw) if world.startswith("digits") else None) if spec else None
    held = mixed(draw, *world, validation=0.2) if not spec else held
    execution = Execution(threads=1)
    plan: dict[str, Any] = {"rounds": 20, "epochs": 3, "seeds": [0], "execution": execution} | ({"cohort": 50} if len(data) > 100 else {})
    rate = 0.1
    if held is not None:
        tried = ct.study([f"fedavg+rate(lr={each})" for each in RATES], data=held, **plan)
        rate = choose_rates(tried.evidence, [("fedavg", build("fedavg"))], RATES)["fedavg"].chosen
    k = 2 if len(data) < 10 else 4
    methods = ["fedavg", "fedavg+finetune(epochs=5)", "local", f"fedgroup(groups={k})", f"ifca(groups={k})"]
    one, tuned, alone, *grouped = ct.study(methods, data=data, lr=rate, **plan).table()["last10"].tolist()
    rows = []
    for (rounds, epochs), each in product(((10, 2), (20, 3)), RATES):
        pilot = PilotPlan(rounds=rounds, local=Local(epochs=epochs), randoms=19 if rounds == 10 else 1, rates=(each,))
        found = inspect_data(data, plan=InspectPlan(references=19, pilot=pilot), execution=execution, watch=lambda *told: None).pilot
        assert found is not None
        assert found.ways is not None
        scores = {way: found.ways.score(way) for way in found.ways.credits}
        rows.append({"rounds": rounds, "rate": each, "score": scores, "p_random": found.p_random})
    truth = {"one": one, "tuned": tuned, "alone": alone, "groups": max(grouped)}
    return {"world": str(world), "draw": draw, "clients": len(data), "rows": rows, "test": truth}


def pick(found: dict[str, Any], rounds: int, flat: float, margin: float, rates: tuple[float, ...]) -> str:
    """The way that a setting of the rule recommends."""
    rows = {row["rate"]: row for row in found["rows"] if row["rounds"] == rounds and row["rate"] in rates}
    best = max(row["score"]["one"] for row in rows.values())
    rate = min(rate for rate, row in rows.items() if row["score"]["one"] >= best - flat)
    chance = next(row["p_random"] for row in found["rows"] if row["rounds"] == 10 and row["rate"] == rate)
    known = [way for way in WAYS if way != "groups" or chance <= 0.2 or found["clients"] < 8]
    scores = rows[rate]["score"]
    return next(way for way in known if scores[way] >= max(scores[each] for each in known) - margin)


def choose(out: Path) -> None:
    """Print the settings, the best first, and always doing the same."""
    found = [json.loads(line) for line in (out / "worlds.jsonl").read_text().splitlines()]

    def judged(ways: list[str]) -> tuple[float, float]:
        behind = np.array([max(each["test"].values()) - each["test"][way] for each, way in zip(found, ways, strict=True)])
        return 100 * float(behind.mean()), float(np.mean(behind <= 0.005))

    settings = product((10, 20), (0.0, 0.005, 0.01, 0.02), (0.0, 0.0025, 0.005), ((0.01, 0.1, 1.0, 3.0), RATES))
    table = sorted((*judged([pick(each, *setting) for each in found]), str(setting)) for setting in settings)
    print("points behind, share right, (rounds, flat, margin, rates)")
    for row in table:
        print(f"{row[0]:.2f} {row[1]:.2f} {row[2]}")
    for way in WAYS:
        print("{:.2f} {:.2f} always {}".format(*judged([way] * len(found)), way))


def main() -> None:
    """Run, or choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "choose"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.what == "choose":
        return choose(args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    worlds: list[Any] = [*SPECS, *product(SHAPES, SHIFTS)]
    jobs = [(world, draw) for draw in range(FIRST, FIRST + args.draws) for world in worlds]
    with ProcessPoolExecutor(args.workers) as pool, (args.out / "worlds.jsonl").open("a") as file:
        for found in pool.map(run_one, jobs):
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(found["world"], found["draw"], flush=True)
    return None


if __name__ == "__main__":
    main()
