"""Whole studies: lanes against separate runs, memory, and what writing evidence costs."""

import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from benchmarks.peers.process import ROOT
from benchmarks.timing import REPEATS, heading, median, row, timed, verdict
from benchmarks.workloads import PAPER, Images, unwatched
from coterie.core.plan import Plan
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneProgress, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import make_roster_table, make_tables
from coterie.evidence.writer import Writer
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.run.driver import drive
from coterie.run.lanes import Lane, make_lanes
from coterie.run.waves import split_into_waves

SEEDS, SEGMENT = range(35), 10
METHODS = (("fedavg", FedAvg()), ("fedprox(mu=1)", FedProx(mu=1)))


def lanes_of_study(world: World, seeds: range, rounds: int, methods: int = 2, cohort: int = 20, epochs: int = 20) -> list[Lane]:
    plan = Plan(rounds=rounds, cohort=cohort, local=PAPER.replace(epochs=epochs), evaluate_every=1)
    return make_lanes(list(METHODS[:methods]), list(seeds), world.problem, plan)


def lanes(images: Images) -> None:
    """35 seeds as lanes of one study, and as 35 studies one after the other, in one warm process: starting one costs them nothing."""
    rounds = 2
    world = World.from_spec(images.paper(), "mclr")
    engine = BatchedEngine(world)
    heading(f"MNIST powerlaw, MCLR, 35 seeds, {rounds} rounds, evaluated each round")

    def drive_seeds(seeds: range, methods: int) -> None:
        drive(lanes_of_study(world, seeds, rounds, methods), engine, rounds, unwatched)

    def separately(methods: int) -> None:
        for seed in SEEDS:
            drive_seeds(range(seed, seed + 1), methods)

    drive_seeds(SEEDS[:1], 2)
    row("seconds", "as lanes", "separate runs")
    for methods, names in enumerate(("FedAvg", "FedAvg and FedProx"), start=1):
        pairs = [(timed(partial(drive_seeds, SEEDS, methods)), timed(partial(separately, methods))) for _ in range(REPEATS)]
        one, many = np.median(pairs, axis=0)
        row(names, f"{one:.2f}", f"{many:.2f}")
        if methods == 1:  # a run of two methods is two lanes already, which fill two cores by themselves
            verdict("lanes / separate runs", one / many, 0.8, least=False)


def memory(images: Images) -> None:
    """The most memory a process ever held while it ran 35 lanes on 1000 clients, loading and compiling included."""
    heading("peak memory: 1000 MNIST clients, 35 lanes, MCLR")
    for cohort, epochs in ((20, 20), (1000, 1)):
        command = [sys.executable, "-m", "benchmarks.studies", str(cohort), str(epochs)]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        verdict(f"cohort {cohort}, E={epochs}", float(told.split()[-1]), 4.0, least=False, unit=" GiB")


def evidence(images: Images) -> None:
    """What writing costs beside the rounds themselves, timed apart segment by segment, and how long the result takes to open."""
    rounds = 30
    world = World.from_spec(images.paper(), "mclr")
    engine = BatchedEngine(world)
    plan = Plan(rounds=rounds, cohort=20, local=PAPER, evaluate_every=1)
    heading(f"evidence of 1000 clients x 35 seeds x {rounds} rounds")
    lanes_run = lanes_of_study(world, SEEDS, rounds, methods=1)
    settings = Settings(methods=("fedavg",), data="mnist/powerlaw", seeds=tuple(SEEDS), plan=plan)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        writer = Writer.create(out, settings, {}, {0: make_roster_table(world.federation)})
        drive(lanes_run, engine, 0, unwatched)
        running = writing = 0.0
        for last in range(SEGMENT, rounds + 1, SEGMENT):
            records: list[RoundRecord] = []
            begin = perf_counter()
            drive(lanes_run, engine, last, lambda _, record: records.append(record))  # noqa: B023
            running += perf_counter() - begin
            begin = perf_counter()
            ended = [LaneProgress(lane.key, last - SEGMENT + 1, lane.end, lane.state) for lane in lanes_run]
            writer.segment(ended, make_tables(records, 10))
            writing += perf_counter() - begin
        size = sum(path.stat().st_size for path in out.rglob("*.parquet")) / 1e6
        row("rounds", f"{running:.2f} s")
        row("writing", f"{writing:.2f} s", f"{size:.0f} MB")
        verdict("writing / rounds", 100 * writing / running, 5, least=False, unit=" %")
        opening = median(lambda: Evidence.open(out).frame("clients"), 3)
        verdict("opening the clients' table in pandas", opening, 2.0, least=False, unit=" s")


def _remember(cohort: int, epochs: int) -> None:
    world = World.from_spec(Images(None).paper(), "mclr")
    lanes_run = lanes_of_study(world, SEEDS, 2, methods=1, cohort=cohort, epochs=epochs)
    engine = BatchedEngine(world)
    for wave in split_into_waves(lanes_run, 2 << 30):  # a study's default budget
        drive(wave, engine, 2, unwatched)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)


if __name__ == "__main__":
    _remember(int(sys.argv[1]), int(sys.argv[2]))
