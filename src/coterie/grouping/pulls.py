"""How a group's clients pull at its model: what CFL looks at, from all pairs of updates, or, of many clients, from landmarks."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.method import Context
from coterie.grouping.clusterers import Linkage
from coterie.grouping.cuts import Parting, cut_of_cosines
from coterie.grouping.many.cuts import cut_of_many, mean_move
from coterie.grouping.many.points import MANY
from coterie.grouping.principal import note_landmarks
from coterie.grouping.similarity import cosines, gram, lengths


class Pull(NamedTuple):
    """The lengths of the mean update and of the longest, and the cut in two of the clients, which is worked out when it is asked for."""

    mean: float
    longest: float
    cut: Callable[[Linkage], Parting]


def pull_of(vectors: Floats, origin: Floats, share: Doubles, ctx: Context) -> Pull:
    """Of clients that were sent `origin`, each counting in the mean by its share; both lengths are exact, however many they are."""
    if len(vectors) > MANY:
        return Pull(
            mean_move(vectors, origin, share), float(lengths(vectors, origin).max()), lambda linkage: _cut(vectors, origin, linkage, ctx)
        )
    inner = gram(vectors, origin)
    mean, longest = float(np.sqrt(max(float(share @ inner @ share), 0.0))), float(np.sqrt(np.diag(inner).max()))
    return Pull(mean, longest, lambda linkage: cut_of_cosines(cosines(inner), linkage))


def _cut(vectors: Floats, origin: Floats, linkage: Linkage, ctx: Context) -> Parting:
    note_landmarks(ctx)
    return cut_of_many(vectors, origin, ctx.rng("landmarks"), linkage)
