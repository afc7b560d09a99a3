"""How cost grows: with clients in a round, lanes, parameters; and on the server with clients' parameters."""

import tracemalloc
from itertools import pairwise

import numpy as np

from benchmarks.timing import heading, median, row, timed, verdict
from benchmarks.workloads import NEVER, PAPER, Images, Workload, unwatched
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.grouping.kmeans import kmeans
from coterie.grouping.similarity import compute_coordinates, compute_cosines, compute_gram
from coterie.methods.fedavg import FedAvg
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes


def clients(images: Images) -> None:
    """Rounds of FedAvg, 6 samples a client and 20 epochs, through the driver; evaluation off."""
    world = World.from_spec(images.divided("iid(clients=10000)"), "mclr")
    engine = BatchedEngine(world)
    heading("clients in a round (MCLR, 10,000 clients of 6 samples, E=20)")
    row("clients", "ms a round", "us a client")
    for cohort in (10, 100, 1000, 10_000):
        workload = Workload("", world, PAPER, cohort, rounds=max(1, 200 // cohort))
        workload.ours(engine)
        seconds = float(np.median([workload.ours(engine)[0] for _ in range(3)])) / workload.rounds
        row(f"{cohort}", f"{seconds * 1e3:.2f}", f"{seconds / cohort * 1e6:.1f}")


def lanes(images: Images) -> None:
    """A round of many seeds at once, evaluation off."""
    world = World.from_spec(images.paper(), "mclr")
    engine = BatchedEngine(world)
    heading("lanes (MNIST powerlaw, MCLR, cohort 20, E=20; one round, evaluation off)")
    row("lanes", "ms a round", "ms a lane")
    for count in (1, 3, 10, 35, 100):
        plan = Workload("", world, PAPER, 20, 1).plan
        lanes_run = make_lanes([("fedavg", FedAvg())], list(range(count)), world.problem, plan)
        drive(lanes_run, engine, 0, unwatched)
        drive(lanes_run, engine, 1, unwatched)
        rounds = iter(range(2, NEVER))
        repeats = 9 if count < 10 else 5
        seconds = float(np.mean([timed(lambda: drive(lanes_run, engine, next(rounds), unwatched)) for _ in range(repeats)]))  # noqa: B023
        row(f"{count}", f"{seconds * 1e3:.1f}", f"{seconds / count * 1e3:.1f}")


def parameters(images: Images) -> None:
    """The same round for wider and wider networks."""
    federation = images.paper()
    heading("parameters (MNIST powerlaw, cohort 20, E=2; evaluation off)")
    row("model", "parameters", "us/step", "GFLOP/s")
    for model in ("mclr", "mlp(16)", "mlp(64)", "mlp(128)", "mlp(256)", "mlp(512)", "mlp(256,128)"):
        world = World.from_spec(federation, model)
        engine = BatchedEngine(world)
        workload = Workload("", world, PAPER.replace(epochs=2), 20, 1)
        workload.ours(engine)
        seconds = float(np.median([workload.ours(engine)[0] for _ in range(5)]))
        recorded = workload.recorded()
        weights = [a * b for a, b in pairwise(recorded.sizes)]
        samples_seen = sum(orders.numel() for cohort in recorded.rounds for orders in cohort)
        operations = samples_seen * (4 * sum(weights) + 2 * sum(weights[1:]))
        row(model, f"{world.model.layout.size}", f"{seconds / recorded.steps() * 1e6:.2f}", f"{operations / seconds / 1e9:.1f}")


def server(images: Images) -> None:
    """Similarity and grouping of 1000 clients: Gram matrix, cosines, principal coordinates, k-means into 5 groups."""
    heading("server: similarity and grouping of 1000 clients")
    draw = np.random.default_rng(0)
    stack = draw.standard_normal((1000, 100_000), dtype=np.float32)
    origin = stack[0].copy()

    def work(d: int) -> None:
        inner = compute_gram(stack[:, :d], origin[:d])
        compute_cosines(inner)
        kmeans(compute_coordinates(inner, 0.95), 5, np.random.default_rng(0))

    work(1000)
    row("parameters", "seconds", "Gram alone")
    for d in (25_000, 50_000, 100_000):
        seconds, alone = median(lambda: work(d), 3), median(lambda: compute_gram(stack[:, :d], origin[:d]), 3)  # noqa: B023
        row(f"{d}", f"{seconds:.2f}", f"{alone:.2f}")
    tracemalloc.start()
    work(stack.shape[1])
    more = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    verdict("100,000 parameters", seconds, 3.0, least=False, unit=" s")
    verdict("memory beyond the stack, as a share of it", more / stack.nbytes, 0.5, least=False, unit="")
