"""Small federations for tests: six clients of different sizes, five features, three classes; generated from keys."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from coterie.core.arrays import Array
from coterie.core.model import ModelSpec
from coterie.core.rng import make_generator, make_key
from coterie.core.tasks import Task, TaskName
from coterie.data.federation import Federation, Parts
from coterie.engines.world import World

SIZES = (12, 7, 1, 9, 16, 5)  # training samples: a single one, fewer than a batch, whole batches and partial ones
FEATURES, CLASSES, VALIDATION, TEST = 5, 3, 3, 4


def make_federation(sizes: tuple[int, ...] = SIZES, *, classes: int = CLASSES, identical: bool = False, name: str = "tiny") -> Federation:
    """A federation whose client i is the same whatever clients come after it; with `identical` all hold the same samples."""
    x, y, parts, begin = [], [], [], 0
    for i, size in enumerate(sizes):
        n = size + VALIDATION + TEST
        rng = make_generator(make_key(0, "tiny", 0 if identical else i))
        x.append(rng.normal(size=(n, FEATURES)).astype(np.float32))
        y.append(rng.integers(classes, size=n))
        parts.append(np.split(begin + np.arange(n), [size, size + VALIDATION]))
        begin += n
    rng = make_generator(make_key(0, "tiny", "central"))
    return Federation(
        name=name,
        x=np.concatenate(x),
        y=np.concatenate(y),
        classes=tuple("abcdefgh"[:classes]),
        ids=tuple(f"client-{i}" for i in range(len(sizes))),
        train=Parts.from_lists([p[0] for p in parts]),
        validation=Parts.from_lists([p[1] for p in parts]),
        test=Parts.from_lists([p[2] for p in parts]),
        central=(rng.normal(size=(10, FEATURES)).astype(np.float32), rng.integers(classes, size=10)),
    )


@lru_cache
def make_world(model: str = "mclr") -> World:
    """The tiny federation with a model; the same object each time, so that engines set it up once."""
    return World.from_spec(make_federation(), model)


def make_task_federation(task: TaskName) -> Federation:
    """The tiny federation with something else to predict from the same features: a number, three labels, or times in four intervals."""
    made = make_federation()
    weights = make_generator(make_key(0, "tiny", task)).normal(size=(FEATURES, CLASSES))
    assert made.central is not None

    def labels(x: Array) -> Array:
        outputs = x @ weights
        if task == "survival":
            return np.stack([4 / (1 + np.exp(outputs[:, 0])) + 0.5, outputs[:, 1] > -1], axis=1).astype(np.float32)
        return (outputs > 0).astype(np.uint8) if task == "multilabel" else (outputs[:, 0] / np.sqrt(FEATURES)).astype(np.float32)

    if task == "classification":
        return made
    if task == "survival":
        known = Task(task, grid=(0.0, 10.0, 20.0, 40.0, 80.0), censoring=(1.0, 0.9, 0.75, 0.6), reference=(0.9, 0.7, 0.4, 0.2))
        named = tuple(f"interval {number}" for number in range(1, 5))
    else:
        named = ("u", "v", "w") if task == "multilabel" else ("price",)
        known = Task(task, mean=10.0, deviation=2.0) if task == "regression" else Task(task)
    return made.replace(
        y=labels(made.x), central=(made.central[0], labels(made.central[0])), classes=named, task=known, name=f"tiny {task}"
    )


@lru_cache
def make_task_world(task: TaskName, model: str = "mclr") -> World:
    """The tiny federation of a task with a model; the same object each time."""
    return World.from_spec(make_task_federation(task), model)


@lru_cache
def make_newcomer_world() -> World:
    """The tiny federation after two more clients have joined."""
    return World.from_spec(make_federation((*SIZES, 8, 6)), "mclr")


@lru_cache
def make_single_client_world() -> World:
    """A federation of one client."""
    return World.from_spec(make_federation(SIZES[:1]), "mclr")


@lru_cache
def make_identical_world() -> World:
    """Five clients that hold the same samples."""
    return World.from_spec(make_federation((8,) * 5, identical=True), "mclr")


@lru_cache
def make_batch_norm_world() -> World:
    """A model with running statistics and a counter beside its weights. No client has a single sample: batch norm cannot train on one."""

    return make_custom_world(
        make_federation((12, 7, 6, 9)), lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))
    )


def make_custom_world(federation: Federation, build: Callable[[], nn.Module], name: str = "made", **options: Any) -> World:
    """A world whose module a function makes."""
    spec = ModelSpec(name, federation.input_shape, len(federation.classes), lambda text, shape, outputs: build())
    return World(federation, spec, **options)
