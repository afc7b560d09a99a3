"""What FeSEM compares and how far it is: models as points, squared distances, empty centres seeded anew."""

from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.held import elsewhere
from coterie.core.layout import Layout
from coterie.core.method import Context
from coterie.core.sketches import Sketch, project
from coterie.grouping.many.points import MANY, short_points_of
from coterie.grouping.principal import note_landmarks, points_of_rows
from coterie.grouping.similarity import BLOCK

Compared = Literal["all", "last_layer", "sketch"]


def points_of(vectors: Floats, origin: Floats, on: Compared, sketch: Sketch | None, ctx: Context) -> Doubles:
    """(n, r) the models as points with the distances that `on` asks for; many are placed in the principal directions of landmarks."""
    vectors, origin = _compared(vectors, on, ctx.layout), _compared(origin[None, :], on, ctx.layout)
    if sketch is None:
        return points_of_rows(vectors, origin, ctx)
    if len(vectors) <= MANY:
        return project(vectors, sketch, origin)
    note_landmarks(ctx)  # everybody's sketches, side by side in float64, would outgrow the models themselves
    return short_points_of(lambda rows: project(rows, sketch, origin), vectors, ctx.rng("landmarks"))


def distances_to(vectors: Floats, centres: Floats, on: Compared, sketch: Sketch | None, ctx: Context) -> Doubles:
    """(n, K) squared L2 (Eq. 8)."""
    vectors, centres = _compared(vectors, on, ctx.layout), _compared(centres, on, ctx.layout)
    if sketch is not None:  # of differences from one centre: models lose their updates in the rounding
        return squared_distances(project(vectors, sketch, centres[:1]), project(centres, sketch, centres[:1]))
    return squared_distances(vectors, centres)


def squared_distances(vectors: Floats | Doubles, centres: Floats | Doubles) -> Doubles:
    """(n, K) ||w_i - c_k||^2 in float64, from the differences themselves, a block of columns at a time."""
    if (away := elsewhere(vectors)) is not None:
        return away.squares_to(centres)
    if len(vectors) > MANY:
        return np.concatenate([squared_distances(vectors[at : at + MANY], centres) for at in range(0, len(vectors), MANY)])
    total = np.zeros((len(vectors), len(centres)))
    for begin in range(0, vectors.shape[1], BLOCK):
        block = vectors[:, begin : begin + BLOCK].astype(np.float64)
        for k, centre in enumerate(centres[:, begin : begin + BLOCK]):
            total[:, k] += ((block - centre) ** 2).sum(axis=1)
    return total


def reseed(members: Ids, clients: Ids, apart: Doubles) -> list[int]:
    """Give a centre that has lost every client this round's farthest, unless that would empty another; `members` is changed."""
    sizes = np.bincount(members[members >= 0], minlength=apart.shape[1])
    reseeded = []
    for empty in np.flatnonzero(sizes == 0):
        own = members[clients]
        gaps = np.where(sizes[own] > 1, apart[np.arange(len(own)), own], 0.0)
        far = int(gaps.argmax())
        if gaps[far] > 0:
            sizes[own[far]] -= 1
            sizes[empty], members[clients[far]] = 1, empty
            reseeded.append(int(empty))
    return reseeded


def _compared(vectors: Floats, on: Compared, layout: Layout) -> Floats:
    if on != "last_layer":
        return layout.comparable(vectors)
    weights = layout.weights
    last = [piece for piece in weights if piece.name.rpartition(".")[0] == weights[-1].name.rpartition(".")[0]]
    return vectors[:, last[0].begin : last[-1].end]
