"""Random ragged jobs for the stacked route, and the float64 loop that they are compared with."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core.arrays import Array, Floats, Ints
from coterie.core.local import Local
from coterie.core.model import read_vector
from coterie.data.federation import Federation, Parts
from coterie.engines.client_training import ClientTraining, train_client
from coterie.engines.jobs import TrainingJob
from coterie.engines.stacked.route import StackedOptions, StackedTrainer
from coterie.engines.stacked.step import Optimizer
from coterie.engines.workspace import Workspace
from coterie.engines.world import World
from coterie.testing.worlds import make_custom_world

ROOM = 1 << 30
CLASSES = 3


class Smooth(nn.Module):
    """Without kinks, so that two precisions part only by rounding."""

    def __init__(self, inputs: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x.flatten(1))
        return result


def noise_world(model: str | nn.Module, shape: tuple[int, ...], sizes: list[int], seed: int = 0) -> World:
    """Clients with so many samples of noise, some samples being nobody's."""
    draw = np.random.default_rng(seed)
    total = sum(sizes) + 3
    order = draw.permutation(total)[:-3]
    federation = Federation(
        name="noise",
        x=draw.normal(size=(total, *shape)).astype(np.float32),
        y=draw.integers(0, CLASSES, total),
        classes=tuple("abc"),
        ids=tuple(map(str, range(len(sizes)))),
        train=Parts.from_lists(np.split(order, np.cumsum(sizes)[:-1])),
        test=Parts.from_lists([order[:1]] * len(sizes)),
    )
    return World.from_spec(federation, model) if isinstance(model, str) else make_custom_world(federation, lambda: model)


def job_for(world: World, **settings: Array | Any) -> TrainingJob:
    """One training a client, with the given settings in the place of the ordinary ones."""
    federation, n = world.federation, len(world.federation)
    draw = np.random.default_rng(7)
    ordinary: dict[str, Any] = {
        "models": np.stack([world.model.initial(seed)() for seed in range(2)]),
        "start": np.arange(n) % 2,
        "keys": draw.integers(0, 2**64, n, dtype=np.uint64),
        "epochs": np.full(n, 2),
        "max_steps": np.full(n, -1),
        "batch_size": np.full(n, 4),
        "lr": np.full(n, 0.1),
        "momentum": np.zeros(n),
        "weight_decay": np.zeros(n),
        "mu": np.zeros(n),
    }
    arrays = {"x": federation.x, "y": federation.y, "offsets": federation.train.offsets, "indices": federation.train.indices}
    return TrainingJob(sizes=(), **arrays, **(ordinary | settings))


CHAINED = StackedOptions(backend="layer kernels", shares_tables=True)
EXACT = StackedOptions(exact=True)
PRODUCTS = StackedOptions(convolutions="products")


def route(world: World, memory: int = ROOM, options: StackedOptions = StackedOptions(), **given: Any) -> StackedTrainer:  # noqa: B008
    x, y = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y)
    return StackedTrainer(world.model.module(), world.loss, x, y, memory=memory, options=options, **given)


def oracle(world: World, job: TrainingJob, optimizer: Optimizer = "sgd") -> tuple[Floats, Ints]:
    """The same trainings, one by one and in float64."""
    space = Workspace(world, torch.device("cpu"), torch.float64)
    vectors, steps = np.zeros((len(job.start), job.models.shape[1]), np.float32), np.zeros(len(job.start), np.int64)
    for i, row in enumerate(job.start):
        local = Local(
            batch_size=int(job.batch_size[i]),
            lr=float(job.lr[i]),
            momentum=float(job.momentum[i]),
            weight_decay=float(job.weight_decay[i]),
            optimizer=optimizer,
            max_steps=int(job.max_steps[i]) if job.max_steps[i] > 0 else None,
        )
        start = space.to_tensor(job.models[row])
        visit = ClientTraining(
            samples=job.indices[job.offsets[i] : job.offsets[i + 1]],
            key=int(job.keys[i]),
            start=start,
            epochs=int(job.epochs[i]) if job.max_steps[i] else 0,
            mu=float(job.mu[i]),
            anchor=start if job.anchors is None else space.to_tensor(job.anchors[i]),
            linear=None if job.linear is None else space.to_tensor(job.linear[i]),
        )
        steps[i] = train_client(space, visit, local).steps
        vectors[i] = read_vector(space.module)
    return vectors, steps


def worst(found: tuple[Floats, Ints], expected: tuple[Floats, Ints]) -> float:
    """The worst training's largest deviation, relative to its largest weight. The steps must agree exactly."""
    assert found[1].tolist() == expected[1].tolist()
    return float((np.abs(found[0] - expected[0]).max(1) / np.abs(expected[0]).max(1)).max(initial=0))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[World, TrainingJob, Optimizer, int]:
    """A ragged job with everything that can differ from training to training, an optimiser, and a budget of memory."""
    sizes = draw(st.lists(st.integers(1, 12) | st.sampled_from([1, 40]), min_size=1, max_size=6))
    task, n = noise_world(Smooth(), (6,), sizes, draw(st.integers(0, 99))), len(sizes)
    noise = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(2, n, task.model.layout.size)).astype(np.float32) * 0.1

    def each(strategy: st.SearchStrategy[Any]) -> Array:
        return np.array(draw(st.lists(strategy, min_size=n, max_size=n)))

    settings: dict[str, Any] = {
        "epochs": each(st.integers(0, 4)),
        "max_steps": each(st.sampled_from([-1, -1, 0, 1, 5])),
        "batch_size": each(st.integers(1, 45)) if draw(st.booleans()) else np.full(n, draw(st.integers(1, 12))),
        "lr": each(st.floats(0.001, 0.1)),
        "momentum": each(st.sampled_from([0.0, 0.5, 0.9])) if draw(st.booleans()) else np.zeros(n),
        "weight_decay": each(st.sampled_from([0.0, 0.01])) if draw(st.booleans()) else np.zeros(n),
        "mu": each(st.sampled_from([0.0, 0.1, 1.0])) if draw(st.booleans()) else np.zeros(n),
        "anchors": noise[0] if draw(st.booleans()) else None,
        "linear": noise[1] if draw(st.booleans()) else None,
    }
    # Gentle enough that rounding is not magnified: at the full rate momentum and one-sample batches carry any two float32 loops apart.
    settings["lr"] = settings["lr"] * (1 - settings["momentum"]) * np.minimum(1, settings["batch_size"] / 10)
    memory = draw(st.sampled_from([1, 40_000, ROOM]))
    return task, job_for(task, **settings), draw(st.sampled_from(["sgd", "sgd", "adam"])), memory
