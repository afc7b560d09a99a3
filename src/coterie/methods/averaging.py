"""Weights by rule, and the average that they make: what most methods end their rounds with."""

from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles
from coterie.core.asks import Gradients, Trained
from coterie.core.method import Context
from coterie.core.mixing import Mixing
from coterie.core.states import Models

Weighting = Literal["samples", "uniform"]


def weights_of(replies: Trained | Gradients, weighting: Weighting) -> Doubles:
    """(n,) how much each reply counts, up to a common factor: n_k, or 1."""
    return replies.sizes.astype(np.float64) if weighting == "samples" else np.ones(len(replies))


def averaged(state: Models, trained: Trained, weighting: Weighting, ctx: Context) -> Models:
    """The state with its one model replaced by the average of the replies; unchanged when nobody answered."""
    return state.with_models(ctx.mix(Mixing.average(trained.clients, weights_of(trained, weighting)), trained, state.models))
