"""Weights and weighted averages of replies: of whole models, of several that each client trains, or tensor by tensor."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.asks import Gradients, Trained
from coterie.core.method import Context
from coterie.core.mixing import MixedTensor, Mixing
from coterie.core.states import Models

Weighting = Literal["samples", "uniform"]
NO_WEIGHT = 1e-14  # what sums of weights may miss one by: rounding


def compute_weights(replies: Trained | Gradients, weighting: Weighting) -> Doubles:
    """(n,) how much each reply counts, up to a common factor: n_k, or 1."""
    return replies.sizes.astype(np.float64) if weighting == "samples" else np.ones(len(replies))


def average_replies(state: Models, trained: Trained, weighting: Weighting, ctx: Context) -> Models:
    """The state with its one model replaced by the average of the replies; unchanged without replies."""
    return state.with_models(ctx.mix(Mixing.average(trained.clients, compute_weights(trained, weighting)), trained, state.models))


TensorWeighting = Callable[[Floats, Floats], Doubles]  # (n, s) replies and (s,) model before of one tensor -> (n,) weights that sum to one


def compute_tensor_mixing(weigh: TensorWeighting, trained: Trained, before: Floats, ctx: Context, *, step: float = 1.0) -> Mixing:
    """One model that moves, tensor by tensor, `step` of the way to the weighted mean of the replies.

    Statistics and counters are not compared: they are averaged with the clients' mean weight over the tensors that are,
    and never beyond the average (a variance must not turn negative).
    """
    slices = ctx.layout.slices
    weights = {s.begin: weigh(trained.vectors[:, s.begin : s.end], before[0, s.begin : s.end]) for s in slices if s.kind == "weight"}
    usual: Doubles = np.mean(list(weights.values()), axis=0)
    parts = []
    for s in slices:
        moved = step if s.kind == "weight" else 1.0
        row = weights[s.begin] if s.kind == "weight" else usual
        parts.append(MixedTensor(s.begin, s.end, moved * row[None, :], np.array([[1.0 - moved]])))
    return Mixing.by_tensor(trained.clients, tuple(parts), averages=step <= 1.0)


def average_components(trained: Trained, rows: Doubles, models: Floats, ctx: Context) -> Floats:
    """(K, d) the new models of a method whose clients train all K: model k from what clients sent of model k, weighted by rows[k] (n,), and
    for the rest of its weight from the model before."""
    made, used = [], []
    for k in range(len(models)):
        sent = replace(trained, vectors=trained.vectors if k == 0 else trained.more[:, k - 1])
        rest = max(1.0 - float(rows[k].sum()), 0.0)
        kept = rest if rest > NO_WEIGHT else 0.0
        made.append(np.asarray(ctx.mix(Mixing(trained.clients, rows[[k]], np.array([[kept]])), sent, models[k : k + 1])))
        assert ctx.notes.mixing is not None
        used.append(ctx.notes.mixing)
    before = np.diag([float(mixing.before[0, 0]) for mixing in used])
    ctx.notes.mixing = replace(used[0], replies=np.concatenate([mixing.replies for mixing in used]), before=before)
    return np.concatenate(made)
