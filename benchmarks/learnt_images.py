"""Whether fast rounds learn what plain ones do: FedAvg on real images by a plain loop and by the engine, from the same starts.

The two sides shuffle differently, so that their accuracies differ by chance, too: the spread over starts says how much.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.plain_loop import PlainLoop
from benchmarks.timing import heading, row
from coterie.core.arrays import Array, Floats, Ints
from coterie.core.asks import Evaluate, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.data.catalogue import load_samples
from coterie.data.federation import Federation, Parts
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import Precision
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World

CLIENTS, EACH, TEST = 6, 2500, 500  # test images of each
ROUNDS, STARTS = 8, 3
PRECISIONS: tuple[Precision, ...] = ("tf32", "bf16")
Round = Callable[[Floats, int], Floats]  # a start and the round's number -> the clients' models


def dealt_evenly(x: Array, y: Ints, clients: int, test: int) -> Federation:
    """The samples partitioned evenly; the last of each client's are its test part."""
    whole = np.split(np.arange(len(x)), clients)
    return Federation(
        name="dealt evenly",
        x=x,
        y=y,
        classes=tuple(str(c) for c in range(int(y.max()) + 1)),
        ids=tuple(f"client-{k}" for k in range(clients)),
        train=Parts.from_lists([rows[: len(rows) - test] for rows in whole]),
        test=Parts.from_lists([rows[len(rows) - test :] for rows in whole]),
    )


def cifar10(data_dir: Path | None) -> Federation:
    """Images drawn from all that there are."""
    samples = load_samples("cifar10", data_dir)
    rows = np.sort(np.random.default_rng(0).choice(len(samples.y), CLIENTS * (EACH + TEST), replace=False))
    mixed = np.random.default_rng(1).permutation(len(rows))
    return dealt_evenly(np.asarray(samples.x[rows])[mixed], np.asarray(samples.y[rows])[mixed], CLIENTS, TEST)


def show_learnt(federation: Federation, model: str, local: Local, device: str = "cuda", rounds: int = ROUNDS, starts: int = STARTS) -> None:
    """Accuracy of the mean model after some rounds, for each side over the starts, and how far ours is from the plain loop's."""
    world = World.from_spec(federation, model)
    heading(f"{model}, {len(federation)} clients, {rounds} rounds of {local.epochs} epoch, B={local.batch_size}, {starts} starts")
    plain = PlainLoop(world, local, device)

    def by_hand(start: Floats, _: int) -> Floats:
        plain.round(start)
        return plain.models

    expected = learnt(world, by_hand, rounds, starts, device)
    row("DataLoader and plain PyTorch", *_told(expected))
    for precision in PRECISIONS:
        with BatchedEngine(world, device, precision=precision) as engine:

            def ours(start: Floats, number: int, engine: BatchedEngine = engine) -> Floats:
                [found] = engine.run([StampedAsk(Train(np.arange(len(federation)), start, local), seed=0, round_=number)])
                return np.asarray(found.vectors)

            found = learnt(world, ours, rounds, starts, device)
        apart = [one - two for one, two in zip(found, expected, strict=True)]
        row(f"ours, {precision}", *_told(found), f"{100 * float(np.mean(apart)):+.1f} points")


def learnt(world: World, train: Round, rounds: int, starts: int, device: str) -> list[float]:
    """The accuracy, on all clients' test images, of the model that is averaged round by round; one for each start."""
    found = []
    for seed in range(starts):
        torch.manual_seed(seed)  # of the DataLoader's shuffles
        model = world.model.initial(seed)()
        for number in range(1, rounds + 1):
            model = train(model, 1000 * seed + number).mean(axis=0, dtype=np.float64).astype(np.float32)
        found.append(accuracy_of(world, model, device))
    return found


def accuracy_of(world: World, model: Floats, device: str) -> float:
    """Of one model on all clients' test parts."""
    clients = np.arange(len(world.federation))
    with BatchedEngine(world, device) as engine:
        [found] = engine.run([StampedAsk(Evaluate(Serving.one(clients, model)), seed=0, round_=1)])
    return float(found.hits.sum() / found.actual.sum())


def _told(values: list[float]) -> tuple[str, str]:
    """The mean, and one start after the other."""
    return f"{100 * float(np.mean(values)):.1f} % right", " ".join(f"{100 * value:.1f}" for value in values)
