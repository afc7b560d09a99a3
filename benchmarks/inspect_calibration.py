"""How often `coterie inspect` is right: the tables and power curves of docs/reference/inspect-calibration.md.

    python -m benchmarks.inspect_calibration --seeds 0-99 [--only 'rotated;iid'] [--power] [--no-labels] [--data-dir DIR]
    python -m benchmarks.inspect_calibration --figure docs/figures/inspect-power.svg --lines power.jsonl

One JSON object a line: a federation, the number of draws of it, how often each of the three questions was answered with yes (at .05), how
often distinct groups came with their right number, and the mean agreement with the true groups. Every seed is another draw of the data and
another random model. The second form draws the power curves from the lines that --power printed before.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.made_federations import Gaussians
from coterie.core.plan import Plan
from coterie.core.rng import make_generator, make_key
from coterie.data.catalogue import load
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.evidence.settings import parse_seeds
from coterie.grouping.structure import StructureResult, find_groups
from coterie.grouping.structure_views import Probes
from coterie.inspect.differences import compare_halves, compare_halves_by_class
from coterie.methods.client_probes import ask_probes
from coterie.run.driver import run_script

Spec = str | Gaussians
SCENARIOS: dict[str, Spec] = {
    "rotated": "digits/rotated(clients=40,groups=4)",
    "labelswap": "digits/labelswap(clients=20,groups=4)",
    "labelswap, 40 clients": "digits/labelswap(clients=40,groups=4)",
    "labelsubset": "digits/labelsubset(clients=20,groups=4)",
    "labelsubset, 40 clients": "digits/labelsubset(clients=40,groups=4)",
    "iid": "digits/iid(clients=40)",
    "dirichlet(.1)": "digits/dirichlet(alpha=0.1,clients=40)",
    "dirichlet(.3)": "digits/dirichlet(alpha=0.3,clients=40)",
    "dirichlet(1)": "digits/dirichlet(alpha=1,clients=40)",
    "synthetic(0,0)": "synthetic(0,0,clients=100)",
    "t3, 2 directions": Gaussians(clients=40, groups=0, tails="t3", directions=2, shift=2.0),
    "t3, 20 directions": Gaussians(clients=40, groups=0, tails="t3", shift=2.0),
    "t3, lognormal sizes": Gaussians(clients=40, groups=0, tails="t3", directions=2, shift=2.0, sizes="lognormal"),
    "normal, lognormal sizes": Gaussians(clients=40, groups=0, directions=2, shift=2.0, sizes="lognormal"),
    "groups, one far": Gaussians(clients=40, far=4.0, shift=1.5),
    "groups, lognormal sizes": Gaussians(clients=40, shift=1.5, sizes="lognormal"),
    "synthetic, three label orders": "synthetic(iid,clients=300)/labelswap(groups=3)",
}
POWERLAW: dict[str, Spec] = {"powerlaw": "mnist/powerlaw(clients=1000)"}
POWER_DIGITS: dict[str, Spec] = {
    **{f"rotated, {n} clients": f"digits/rotated(clients={n},groups=4)" for n in (8, 12, 20, 80, 160)},
    **{f"labelswap, {n} clients": f"digits/labelswap(clients={n},groups=4)" for n in (8, 12, 28, 80)},
    **{f"labelswap, {p} pair(s)": f"digits/labelswap(clients=40,groups=2,pairs={p})" for p in (1, 2, 3, 5)},
    **{f"rotated, {g} groups": f"digits/rotated(clients=40,groups={g})" for g in (2, 6, 8, 10)},
}
# The digits are shared out, so more clients have fewer samples. Gaussian classes vary one thing at a time: clients, samples, shift.
POWER_MADE: dict[str, Spec] = {
    **{f"gaussian, {n} clients": Gaussians(clients=n) for n in (12, 24, 48, 96)},
    **{f"gaussian, {m} samples": Gaussians(samples=m) for m in (10, 20, 80, 160)},
    **{f"gaussian, shift {d}": Gaussians(shift=d) for d in (0.0, 0.5, 0.75, 1.0, 1.5, 2.0)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--only", default="")
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--no-labels", action="store_true", help="as if label counts must not leave the clients")
    parser.add_argument("--figure", type=Path, help="draw the power curves into this file")
    parser.add_argument("--lines", type=Path, help="what --power printed, for --figure")
    options = parser.parse_args()
    if options.figure:
        from benchmarks.inspect_power import power_figure

        power_figure(options.lines, options.figure)
        return
    known = {**POWER_DIGITS, **POWER_MADE} if options.power else {**SCENARIOS, **(POWERLAW if options.data_dir else {})}
    wanted = options.only.split(";") if options.only else list(known)
    for name in wanted:
        print(json.dumps(row(name, known[name], parse_seeds(options.seeds), options.data_dir, not options.no_labels)), flush=True)


def row(name: str, spec: Spec, seeds: tuple[int, ...], data_dir: Path | None, labels: bool) -> dict[str, Any]:
    began, found = perf_counter(), [one(spec, seed, data_dir, labels) for seed in seeds]
    print(f"{name}: {(perf_counter() - began) / len(seeds):.2f} s a seed", file=sys.stderr)
    return {
        "name": name,
        "spec": spec if isinstance(spec, str) else asdict(spec),
        "seeds": len(seeds),
        **{yes: sum(f[yes] for f in found) for yes in ("differ", "beyond_labels", "distinct", "company", "right_number")},
        "numbers": dict(sorted(Counter(f["k"] for f in found if f["distinct"]).items())),
        "ari": round(float(np.mean(known)), 3) if (known := [f["ari"] for f in found if f["ari"] is not None]) else None,
        "samples": round(float(np.mean([f["samples"] for f in found])), 1),
        "left_out": round(float(np.mean([f["left_out"] for f in found])), 1),
    }


def one(spec: Spec, seed: int, data_dir: Path | None, labels: bool) -> dict[str, Any]:
    federation = load(spec, seed, data_dir) if isinstance(spec, str) else spec.draw(seed)
    world = World.from_spec(federation, "mclr")
    problem = world.problem
    ctx = problem.context(Plan(), seed, 0)
    script = ask_probes(problem.initial(seed)(), problem.roster.clients, len(federation.classes), ctx, labels=labels)
    with BatchedEngine(world, "cpu", 1) as engine:
        probes: Probes = run_script(script, engine, seed=seed)
    rng = make_generator(make_key(seed, "calibration"))
    first, second, groups = compare_halves(probes, rng), compare_halves_by_class(probes, rng), find_groups(probes, rng)
    true = federation.groups[probes.clients] if federation.groups is not None else None
    return {
        "differ": first.p <= 0.05,
        "beyond_labels": second.p <= 0.05,
        "distinct": groups.distinct,
        "company": groups.p_company <= 0.05,
        "k": groups.k,
        "right_number": _right(groups, true),
        "ari": adjusted_rand_score(true, groups.labels) if true is not None else None,
        "samples": float(problem.roster.sizes.mean()),
        "left_out": len(probes.left_out),
    }


def _right(groups: StructureResult, true: Any) -> bool:
    return groups.distinct and true is not None and groups.k == len(np.unique(true))


if __name__ == "__main__":
    main()
