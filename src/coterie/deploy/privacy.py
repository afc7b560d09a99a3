"""Clipping and noise on what a client sends: its whole update, or its gradient with the loss."""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats
from coterie.core.asks import Ask, Gradient, Gradients, ModelAsk, Reply, Train, Trained
from coterie.core.layout import Layout
from coterie.core.rules import MODEL
from coterie.deploy.mechanisms import ClipNoise
from coterie.deploy.secret import secret_normals

MOMENTS = ("running_mean", "running_var")  # batch norm's; no other buffer leaves under noise


def clipped(rows: Doubles, bound: float) -> Doubles:
    """Each row cut to an L2 norm of at most `bound`; a row with a number that is not finite has no direction, and becomes zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((rows**2).sum(axis=1))
    whole = np.where(np.isfinite(norms)[:, None], rows, 0.0)
    factors = np.minimum(1.0, bound / np.maximum(norms, np.finfo(np.float64).tiny, where=np.isfinite(norms), out=np.ones_like(norms)))
    return np.asarray(whole * factors[:, None], dtype=np.float64)


def releases(ask: Ask[Any]) -> int:
    """How many clipped and noised vectors an answer holds for each client; none where it is not noised at all."""
    if isinstance(ask, Train):
        return 1 + len(_further(ask))
    return 1 if isinstance(ask, Gradient) else 0


def privatised(ask: Ask[Any], reply: Reply, privacy: ClipNoise, layout: Layout) -> Reply:
    """The reply as it may leave. Counts (samples, steps) and the answers of other asks are as they were."""
    if isinstance(ask, Train) and isinstance(reply, Trained):
        rows = _rows(ask, reply)
        received = ask.models[ask.start[rows]]
        vectors = _noised(reply.vectors, received, privacy, layout)
        more = reply.more.copy()
        for place, loop in enumerate(_further(ask)):
            more[:, place] = _noised(reply.more[:, place], ask.extra[loop][rows] if loop in ask.extra else received, privacy, layout)
        return replace(reply, vectors=vectors, more=more)
    if isinstance(ask, Gradient) and isinstance(reply, Gradients):
        return _noised_gradients(reply, privacy, layout)
    return reply


def _noised(vectors: Floats, received: Floats, privacy: ClipNoise, layout: Layout) -> Floats:
    """Models whose difference to the ones received is clipped and noised; what the data cannot have changed stays as received."""
    learned = _learned(layout)
    base = received[:, learned].astype(np.float64)
    changes = clipped(vectors[:, learned].astype(np.float64) - base, privacy.clip)
    made = received.astype(np.float64)
    made[:, learned] = base + changes + secret_normals(changes.shape, privacy.noise * privacy.clip)
    for part in layout.slices:
        if part.name.endswith(MOMENTS[1]):
            made[:, part.begin : part.end] = np.maximum(made[:, part.begin : part.end], 0.0)  # a variance; noise may have made it negative
    return made.astype(np.float32)


def _noised_gradients(reply: Gradients, privacy: ClipNoise, layout: Layout) -> Gradients:
    """The loss is one more coordinate of the gradient, so that one clip bounds all that leaves."""
    joined = np.column_stack([reply.vectors[:, layout.compared].astype(np.float64), reply.losses])
    joined = clipped(joined, privacy.clip)
    joined += secret_normals(joined.shape, privacy.noise * privacy.clip)
    vectors = np.zeros_like(reply.vectors)
    vectors[:, layout.compared] = joined[:, :-1]
    return replace(reply, vectors=vectors, losses=joined[:, -1])


def _learned(layout: Layout) -> Bools:
    """(d,) trained weights, and the moments of batch norm: what training changes and the server needs."""
    mask = layout.compared.copy()
    for part in layout.slices:
        if part.kind == "statistic" and part.name.endswith(MOMENTS):
            mask[part.begin : part.end] = True
    return mask


def _further(ask: Train) -> list[str]:
    return [loop for loop in ask.local.rule.loops if loop != MODEL] if ask.local.rule is not None else []


def _rows(ask: ModelAsk[Any], reply: Reply) -> Any:
    """For each row of the reply, the row of the ask: a client may be silent."""
    place = {int(client): row for row, client in enumerate(ask.clients)}
    return np.array([place[int(client)] for client in reply.clients], dtype=np.int64)
