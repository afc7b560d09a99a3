"""Microseconds a client step of every side, on the same cohorts and batches."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.process import Peer
from benchmarks.peers.recorded import Loaders, Plain, Recorded
from benchmarks.timing import Run, Times, apart, by_turns, heading, product_gflops, row, spread, verdict
from benchmarks.workloads import PAPER, Forced, Images, Workload
from coterie.core.arrays import Floats
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import limit_torch_threads
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World

PFL = "benchmarks.peers.pfl_worker"
SAME = 1e-3  # of how far training went: float32 sums in another order stay well below this
NEARLY = 1e-2  # a pool that takes the other of two equal pixels carries rounding further: a CNN on two of torch's threads ends 1.5e-3 away


@dataclass(frozen=True)
class Pythons:
    """The interpreters of the peers' environments, None where there is none; and whether rows go to the files of results."""

    pfl: str | None
    flower: str | None
    cfla: str | None = None
    results: bool = False


def compare(workload: Workload, sides: set[str], pythons: Pythons, same: float = SAME) -> dict[str, Times]:
    """Time the sides by turns, see that all trained the same model, and print a table."""
    recorded = workload.recorded()
    steps, start = recorded.steps(), recorded.start.numpy()
    heading(f"{workload.name}: {steps} client steps, evaluation {'on' if workload.evaluate else 'off'}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        times = by_turns(_sides(workload, recorded, sides, pythons, folder, stack))
    ours = times["ours"]
    row("side", "us/step", "times ours", "spread", "model apart")
    for name, side in times.items():
        difference = apart(side.model, ours.model, start)
        row(name, f"{side.median / steps * 1e6:.2f}", f"{side.median / ours.median:.2f}", spread(side.seconds), f"{difference:.1e}")
        if difference > same:
            raise RuntimeError(f"{name} trained another model than we did: the comparison does not hold")
    return times


def _sides(workload: Workload, recorded: Recorded, wanted: set[str], pythons: Pythons, folder: Path, stack: ExitStack) -> dict[str, Run]:
    engine, loop = BatchedEngine(workload.world), LoopEngine(workload.world)
    found: dict[str, Run] = {"ours": lambda: workload.ours(engine)}
    if "stacked" in wanted:
        stacked = Forced(workload.world, "stacked", "vmap")
        found["ours, stacked"] = lambda: workload.ours(stacked)
    if "loop" in wanted:
        found["ours, loop"] = lambda: workload.ours(loop)
    if "plain" in wanted:
        found |= _threaded("plain PyTorch", recorded, lambda rounds: Plain(rounds, workload.evaluate).run)
    if "loaders" in wanted:
        found |= _threaded("DataLoader form", recorded, lambda rounds: Loaders(rounds).run)
    path = folder / "recorded.pt"
    recorded.save(path)
    if "pfl" in wanted and pythons.pfl:
        found |= _pfl(pythons.pfl, path, recorded, stack)
    if "flower" in wanted and pythons.flower:
        found["Flower simulation"] = stack.enter_context(Peer(pythons.flower, "benchmarks.peers.flower_worker", path)).run
    return found


def _threaded(name: str, recorded: Recorded, side: Callable[[Recorded], Run]) -> dict[str, Run]:
    """The side on as many of torch's threads as suit it best: one, or all cores."""

    def on(threads: int, run: Run) -> tuple[float, Floats]:
        with limit_torch_threads(threads):
            return run()

    short = side(recorded.excerpt())
    best, whole = _best(lambda threads: on(threads, short)[0]), side(recorded)
    return {f"{name} ({_count(best)})": lambda: on(best, whole)}


def _pfl(python: str, path: Path, recorded: Recorded, stack: ExitStack) -> dict[str, Run]:
    short = path.with_name("short.pt")
    recorded.excerpt().save(short)

    def trial(threads: int) -> float:
        with Peer(python, PFL, short, threads) as peer:
            return min(peer.run()[0] for _ in range(3))

    best = _best(trial)
    return {f"pfl-research 0.6 ({_count(best)})": stack.enter_context(Peer(python, PFL, path, best)).run}


def _best(seconds: Callable[[int], float]) -> int:
    return min(sorted({1, os.cpu_count() or 1}), key=lambda threads: min(seconds(threads) for _ in range(2)))


def _count(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def ratio(times: dict[str, Times], side: str) -> float | None:
    """How many times as long as ours a side took; None where it was not there."""
    return next((found.median / times["ours"].median for name, found in times.items() if name.startswith(side)), None)


def judge(times: dict[str, Times], targets: dict[str, float]) -> None:
    for side, target in targets.items():
        value = ratio(times, side)
        if value is None:
            print(f"   not run: {side} (no environment for it)")
        else:
            verdict(f"{side} / ours", value, target, least=True)


def mclr(images: Images, pythons: Pythons) -> None:
    world = World.from_spec(images.paper(), "mclr")
    workload = Workload("MNIST powerlaw, MCLR, cohort 20, E=20, B=10, 2 rounds", world, PAPER, cohort=20, rounds=2)
    times = compare(workload, {"stacked", "loop", "plain", "loaders", "pfl", "flower"}, pythons)
    judge(times, {"plain": 30, "DataLoader": 45, "pfl": 40})
    _flops(workload, times["ours"])
    evaluated = Workload("the same, every client's test part after each round", world, PAPER, 20, 2, evaluate=True)
    compare(evaluated, {"plain"}, pythons)


def mlp(images: Images, pythons: Pythons) -> None:
    world = World.from_spec(images.paper(), "mlp(128)")
    workload = Workload("MNIST powerlaw, MLP-128, cohort 20, E=20, B=10, 1 round", world, PAPER, cohort=20, rounds=1)
    times = compare(workload, {"stacked", "plain", "loaders", "pfl"}, pythons)
    judge(times, {"plain": 7})
    _flops(workload, times["ours"])


def cnn(images: Images, pythons: Pythons) -> None:
    """Ours is the loop, clients side by side. The stacked route is left out: on a CPU it is never chosen for convolutions, and after a
    hundred steps in float32 it ends elsewhere than the others, which all call the same kernels. Tests hold it to the loop in float64."""
    federation = images.divided("shards(clients=100)")
    workload = Workload(
        "MNIST shards, McMahan's CNN, cohort 4, E=1, B=10, 1 round",
        World.from_spec(federation, "cnn"),
        PAPER.replace(epochs=1),
        cohort=4,
        rounds=1,
    )
    times = compare(workload, {"plain", "loaders"}, pythons, NEARLY)
    judge(times, {"plain": 0.95})


def flute(images: Images, pythons: Pythons) -> None:
    workload = Workload(
        "LR-MNIST of FLUTE's comparison, 1000 clients, cohort 10, E=1, B=10, 100 rounds",
        World.from_spec(images.paper(), "mclr"),
        PAPER.replace(epochs=1),
        cohort=10,
        rounds=100,
    )
    judge(compare(workload, {"plain", "loaders", "pfl"}, pythons), {"pfl": 20})


def _flops(workload: Workload, ours: Times) -> None:
    """Multiplications and additions of the layers' products, forward and backward, against a large matrix product."""
    recorded = workload.recorded()
    samples = sum(orders.numel() for clients in recorded.rounds for orders in clients)
    weights = [a * b for a, b in zip(recorded.sizes[:-1], recorded.sizes[1:], strict=True)]
    operations = samples * (4 * sum(weights) + 2 * sum(weights[1:]))  # the first layer's input needs no gradient
    reached, best = operations / ours.median / 1e9, product_gflops()
    print(f"   ours {reached:.1f} GFLOP/s of the layers' products; a large float32 product {best:.1f} GFLOP/s: {reached / best:.0%} of it")


SECTIONS = {"mclr": mclr, "mlp": mlp, "cnn": cnn, "flute": flute}
