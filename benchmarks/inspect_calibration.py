"""How often `coterie inspect` is right: the tables and power curves of docs/inspect.md.

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
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from coterie.core.plan import Plan
from coterie.core.rng import generator, key
from coterie.data.catalogue import load
from coterie.data.federation import Federation, Parts
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.evidence.settings import parse_seeds
from coterie.grouping.choice.distinct import Grouped, groups_of
from coterie.grouping.choice.probes import Probes, probe
from coterie.inspect.differ import beyond_labels, differ
from coterie.run.drive import answer

Made = str | tuple[int, int, float]  # a spec, or clients, samples and shift of `gaussians`
SCENARIOS = {
    "rotated": "digits/rotated(clients=40,groups=4)",
    "labelswap": "digits/labelswap(clients=20,groups=4)",
    "labelswap, 40 clients": "digits/labelswap(clients=40,groups=4)",
    "labelsubset": "digits/labelsubset(clients=20,groups=4)",
    "labelsubset, 40 clients": "digits/labelsubset(clients=40,groups=4)",
    "iid": "digits/iid(clients=40)",
    "dirichlet(.1)": "digits/dirichlet(alpha=0.1,clients=40)",
    "dirichlet(.3)": "digits/dirichlet(alpha=0.3,clients=40)",
    "dirichlet(1)": "digits/dirichlet(alpha=1,clients=40)",
}
POWERLAW = {"powerlaw": "mnist/powerlaw(clients=1000)"}
POWER_DIGITS = {
    **{f"rotated, {n} clients": f"digits/rotated(clients={n},groups=4)" for n in (8, 12, 20, 80, 160)},
    **{f"labelswap, {n} clients": f"digits/labelswap(clients={n},groups=4)" for n in (8, 12, 28, 80)},
    **{f"labelswap, {p} pair(s)": f"digits/labelswap(clients=40,groups=2,pairs={p})" for p in (1, 2, 3, 5)},
    **{f"rotated, {g} groups": f"digits/rotated(clients=40,groups={g})" for g in (2, 6, 8, 10)},
}
# The digits are shared out, so more clients have fewer samples. Gaussian classes vary one thing at a time: clients, samples, shift.
POWER_MADE = {
    **{f"gaussian, {n} clients": (n, 40, 1.25) for n in (6, 12, 24, 48, 96)},
    **{f"gaussian, {m} samples": (24, m, 1.25) for m in (10, 20, 80, 160)},
    **{f"gaussian, shift {d}": (24, 40, d) for d in (0.0, 0.5, 0.75, 1.0, 1.5, 2.0)},
}
CLASSES, FEATURES, GROUPS = 5, 20, 3


def gaussians(clients: int, samples: int, shift: float, seed: int) -> Federation:
    """Three groups; in each, class c is a unit normal about a centre of its own, `shift` (a length) away from the class's common centre."""
    rng = generator(key(seed, "gaussians"))
    away = rng.standard_normal((GROUPS, CLASSES, FEATURES))
    away *= shift / np.linalg.norm(away, axis=2, keepdims=True)
    centres = 2 * rng.standard_normal((CLASSES, FEATURES)) + away
    groups = np.arange(clients) % GROUPS
    y = rng.integers(CLASSES, size=(clients, samples))
    x = centres[groups[:, None], y] + rng.standard_normal((clients, samples, FEATURES))
    rows = np.arange(clients * samples).reshape(clients, samples)
    return Federation(
        name="gaussians",
        x=x.reshape(-1, FEATURES).astype(np.float32),
        y=y.ravel().astype(np.int64),
        classes=tuple("abcde"),
        ids=tuple(f"client-{i}" for i in range(clients)),
        train=Parts.of(list(rows)),
        test=Parts.of(list(rows[:, :0])),
        groups=groups,
        data_seed=seed,
    )


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
    known: dict[str, Made] = {**POWER_DIGITS, **POWER_MADE} if options.power else {**SCENARIOS, **(POWERLAW if options.data_dir else {})}
    wanted = options.only.split(";") if options.only else list(known)
    for name in wanted:
        print(json.dumps(row(name, known[name], parse_seeds(options.seeds), options.data_dir, not options.no_labels)), flush=True)


def row(name: str, spec: Made, seeds: tuple[int, ...], data_dir: Path | None, labels: bool) -> dict[str, Any]:
    began, found = perf_counter(), [one(spec, seed, data_dir, labels) for seed in seeds]
    print(f"{name}: {(perf_counter() - began) / len(seeds):.2f} s a seed", file=sys.stderr)
    return {
        "name": name,
        "spec": spec,
        "seeds": len(seeds),
        **{yes: sum(f[yes] for f in found) for yes in ("differ", "beyond_labels", "distinct", "company", "right_number")},
        "numbers": dict(sorted(Counter(f["k"] for f in found if f["distinct"]).items())),
        "ari": round(float(np.mean(known)), 3) if (known := [f["ari"] for f in found if f["ari"] is not None]) else None,
        "samples": round(float(np.mean([f["samples"] for f in found])), 1),
        "left_out": round(float(np.mean([f["left_out"] for f in found])), 1),
    }


def one(spec: Made, seed: int, data_dir: Path | None, labels: bool) -> dict[str, Any]:
    federation = load(spec, seed, data_dir) if isinstance(spec, str) else gaussians(*spec, seed)
    world = World.of(federation, "mclr")
    problem = world.problem
    ctx = problem.context(Plan(), seed, 0)
    script = probe(problem.initial(seed)(), problem.roster.clients, len(federation.classes), ctx, labels=labels)
    with BatchedEngine(world, "cpu", 1) as engine:
        probes: Probes = answer(script, engine, seed=seed)
    rng = generator(key(seed, "calibration"))
    first, second, groups = differ(probes, rng), beyond_labels(probes, rng), groups_of(probes, rng)
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


def _right(groups: Grouped, true: Any) -> bool:
    return groups.distinct and true is not None and groups.k == len(np.unique(true))


if __name__ == "__main__":
    main()
