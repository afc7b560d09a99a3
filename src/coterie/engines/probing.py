"""Gradients that several lanes ask for, in one stack and left where they are computed."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from coterie.core.asks import Gradient, Gradients
from coterie.data.federation import Parts
from coterie.engines.apart import RowsApart, SomeRows
from coterie.engines.held.rows import TensorRows
from coterie.engines.local_engine import Work
from coterie.engines.vectorised.gradients import stacked_gradients
from coterie.engines.vectorised.route import Vectorised


def gradients_together(works: Sequence[Work], route: Vectorised) -> list[Gradients]:
    """The answers to asks of one world."""
    asks = [work.ask for work in works if isinstance(work.ask, Gradient)]
    held = [work.parts() for work in works]
    models = RowsApart([SomeRows(len(ask.models), ask.models) for ask in asks], asks[0].models.shape[1]).on(route.device)
    firsts = np.cumsum([0, *(len(ask.models) for ask in asks)])
    start = np.concatenate([ask.start + first for ask, first in zip(asks, firsts, strict=False)])
    own = Parts.of([parts[client] for ask, parts in zip(asks, held, strict=True) for client in ask.clients])
    found, losses = stacked_gradients(route, models, start, own)
    vectors, ends = TensorRows.measured(found).as_array(), np.cumsum([0, *(len(ask.clients) for ask in asks)])
    spans = [slice(begin, end) for begin, end in pairwise(ends)]
    return [Gradients(ask.clients, vectors[span], own.sizes[span], losses[span]) for ask, span in zip(asks, spans, strict=True)]
