"""What the server's own Python takes a lane and round, on a federation so small that training and evaluation take next to nothing.

    python -m benchmarks.host_work [--lanes 70] [--evaluate-every 1]
    python -m benchmarks.host_work --held [--data-dir DIR]

Seconds are the processor's, of all threads, the best of three: one lane, many, and the difference for each further lane. With --held,
of the rounds that are timed on a GPU (MNIST's thousand clients, cohorts of 20, nothing evaluated, models held as there) without their
training: clients send back what they were sent, and the copy counts.
"""

import argparse
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from benchmarks.studies import lanes_of_study
from benchmarks.timing import heading, row
from benchmarks.workloads import NEVER, PAPER, Images, Workload, unwatched
from coterie.core.arrays import Floats, Ints
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.engines.batched import BatchedEngine
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.jobs import TrainingJob
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.run.driver import drive
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.testing import worlds

ROUNDS, HELD_ROUNDS = 40, 10


def seconds(lanes: int, every: int) -> float:
    """Of a study of FedAvg with so many seeds, in memory: six clients, of which four take a step of softmax regression a round."""
    plan = Plan(rounds=ROUNDS, cohort=4, evaluate_every=every, local=Local(epochs=1, lr=0.1, max_steps=1))
    settings = Settings(methods=("fedavg",), data="tiny", seeds=tuple(range(lanes)), plan=plan)
    study = Study.prepare(settings, federation=worlds.make_federation())
    began = process_time()
    study.run(execution=Execution(threads=1))
    return process_time() - began


class Copying(BatchedEngine):
    """Trains nothing: every client sends back what it was sent."""

    def _fused(self, job: TrainingJob, kept: Any) -> tuple[Floats, Ints]:
        there = job.models[job.start]
        return DeviceVectors(torch.from_numpy(there), np.ones(len(there)), there).as_array(), job.steps()


def held_seconds(world: World, count: int) -> float:
    """Of rounds of so many lanes."""
    engine, lanes = Copying(world, threads=1, holds=True), lanes_of_study(world, range(-(-count // 2)), NEVER)[:count]
    for lane in lanes:
        lane.plan = Workload("", world, PAPER, 20, 1).plan
    drive(lanes, engine, 1, unwatched)
    began = process_time()
    drive(lanes, engine, 1 + HELD_ROUNDS, unwatched)
    return process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=70)
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    every, both = options.evaluate_every, (1, options.lanes)
    if options.held:
        world = World.from_spec(Images(options.data_dir).paper(), "mclr")
        one, many = (min(held_seconds(world, lanes) for _ in range(3)) / HELD_ROUNDS for lanes in both)
        heading("FedAvg and FedProx, 7,850 parameters, cohorts of 20 of 1000, nothing trained or evaluated; us of the processor")
    else:
        seconds(2, every)  # what is compiled and read at first use does not count
        one, many = (min(seconds(lanes, every) for _ in range(3)) / ROUNDS for lanes in both)
        heading(f"FedAvg, test, validation and central set evaluated every {every} rounds; us of the processor")
    row("", "a round of one", f"of {options.lanes}", "ratio", "a further lane")
    row("", f"{one * 1e6:.0f}", f"{many * 1e6:.0f}", f"{many / one:.1f}", f"{(many - one) / (options.lanes - 1) * 1e6:.0f}")


if __name__ == "__main__":
    main()
