"""Every peer on the same work: one thread a side, all sides by turns in one run, the fastest of several turns, accuracy beside time.

The fastest of short turns is hardly changed by other work on the machine; the median of `training` needs a machine of its own. A run with
`--results` writes results/peers/training.csv, which the table of README.md is made from.
"""

import csv
import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.peers.process import ROOT, Peer
from benchmarks.peers.recorded import Compiled, Loaders, Plain, Recorded
from benchmarks.timing import Run, apart, by_turns, heading, row
from benchmarks.training import SAME, Pythons
from benchmarks.workloads import PAPER, Images, Workload
from coterie.core.arrays import Floats
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import limit_torch_threads
from coterie.engines.world import World

RESULTS = ROOT / "results" / "peers" / "training.csv"
TURNS = 15
OURS = "Coterie"
WORKERS = {"pfl": "pfl-research 0.6", "cfla": "CFLA 1.0.4", "flower": "Flower 1.41, simulation"}


def peers(images: Images, pythons: Pythons) -> None:
    """Softmax regression on MNIST, 20 clients, five epochs."""
    world = World.from_spec(images.paper(), "mclr")
    compare_peers(Workload("MNIST powerlaw, MCLR, cohort 20, E=5, B=10, 1 round", world, PAPER.replace(epochs=5), 20, 1), pythons)


def compare_peers(workload: Workload, pythons: Pythons) -> None:
    """Time the sides by turns, see that all trained the same model, print a table and write it where asked."""
    recorded = workload.recorded()
    steps, start = recorded.steps(), recorded.start.numpy()
    heading(f"{workload.name}: {steps} client steps, one thread a side, the fastest of {TURNS} turns")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        times = by_turns(make_sides(workload, recorded, pythons, folder, stack), TURNS)
    ours, rows = min(times[OURS].seconds), list[dict[str, Any]]()
    row("side", "us/step", "times ours", "accuracy, %", "model apart")
    for name, side in times.items():
        difference, fastest = apart(side.model, times[OURS].model, start), min(side.seconds)
        found = {
            "us": f"{fastest / steps * 1e6:.3g}",
            "times": f"{fastest / ours:.3g}",
            "accuracy": f"{100 * score(workload, side.model):.2f}",
        }
        row(name, *found.values(), f"{difference:.1e}")
        rows.append({"side": name, "steps": steps, **found, "apart": f"{difference:.1e}", "load": f"{os.getloadavg()[0]:.1f}"})
        if difference > SAME:
            raise RuntimeError(f"{name} trained another model than we did: the comparison does not hold")
    if pythons.results:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def make_sides(workload: Workload, recorded: Recorded, pythons: Pythons, folder: Path, stack: ExitStack) -> dict[str, Run]:
    """Ours, three forms of a loop in PyTorch, and the peers that have an environment."""
    engine = BatchedEngine(workload.world, threads=1)
    loops: dict[str, Plain | Loaders] = {
        "plain PyTorch": Plain(recorded),
        "plain PyTorch, torch.compile": Compiled(recorded),
        "DataLoader form": Loaders(recorded),
    }
    found: dict[str, Run] = {OURS: lambda: workload.ours(engine)}
    found |= {name: on_one_thread(loop.run) for name, loop in loops.items()}
    path = folder / "recorded.pt"
    recorded.save(path)
    for peer, name in WORKERS.items():
        python = getattr(pythons, peer)
        if python:
            found[name] = stack.enter_context(Peer(python, f"benchmarks.peers.{peer}_worker", path)).run
        else:
            print(f"   not run: {name} (no environment for it)")
    return found


def on_one_thread(run: Run) -> Run:
    """The same on one of torch's threads."""

    def limited() -> tuple[float, Floats]:
        with limit_torch_threads(1):
            return run()

    return limited


def score(workload: Workload, model: Floats) -> float:
    """The share of all clients' test samples that softmax regression with these weights gets right."""
    federation = workload.world.federation
    x = federation.x[federation.test.indices].reshape(federation.test.indices.size, -1)
    outputs = len(federation.classes)
    weights, biases = model[: x.shape[1] * outputs].reshape(outputs, -1), model[x.shape[1] * outputs :]
    return float(np.mean((x @ weights.T + biases).argmax(axis=1) == federation.y[federation.test.indices]))


def make_table(rows: list[dict[str, str]]) -> list[str]:
    """The table of README.md: ratios alone, because times depend on what else the machine does."""
    lines = ["| side | time, Coterie = 1 | accuracy, % |", "| --- | ---: | ---: |"]
    return lines + [f"| {own['side']} | {own['times']} | {own['accuracy']} |" for own in rows]
