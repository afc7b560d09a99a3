"""Worlds that share a model, as draws of a study do, with their samples in one array: their trainings by a rule are stacked together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Array
from coterie.engines.world import World

POOLED_BYTES = 1 << 28  # of samples: worlds that have more train one after the other


@dataclass(frozen=True)
class WorldPool:
    """Several worlds in one: a world of all their samples, and where those of each begin."""

    world: World
    firsts: Mapping[World, int]


def pool_worlds(worlds: Iterable[World]) -> dict[World, WorldPool]:
    """The pool of each world that shares its model, loss and kind of samples with another, and fits; others are in none."""
    alike: dict[object, list[World]] = {}
    for world in dict.fromkeys(worlds):
        alike.setdefault(_describe_kind(world), []).append(world)
    pools = (_make_pool(members) for members in alike.values() if len(members) > 1)
    return {world: pool for pool in pools if pool is not None for world in pool.firsts}


def _describe_kind(world: World) -> object:
    model, x, y = world.model, world.federation.x, world.federation.y
    samples = (x.dtype, x.shape[1:], y.dtype, y.shape[1:], world.federation.task)
    return model.text, model.input_shape, model.outputs, model.make, world.loss, *samples


def _make_pool(members: list[World]) -> WorldPool | None:
    """Samples that worlds have in common are there once."""
    held: dict[tuple[int, int], tuple[int, Array, Array]] = {}  # by identity: where they begin
    firsts, count, size = dict[World, int](), 0, 0
    for world in members:
        x, y = world.federation.x, world.federation.y
        if (id(x), id(y)) not in held:
            held[id(x), id(y)] = count, x, y
            count, size = count + len(x), size + x.nbytes + y.nbytes
        firsts[world] = held[id(x), id(y)][0]
    if size > POOLED_BYTES:
        return None
    x, y = np.concatenate([x for _, x, _ in held.values()]), np.concatenate([y for _, _, y in held.values()])
    few = members[0].federation.replace(x=x, y=y, later=())  # whose parts are not read: trainings bring their own
    return WorldPool(World(few, members[0].model, members[0].loss), firsts)
