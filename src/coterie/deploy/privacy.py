"""Clipping and noise on what a client sends: its whole update, its gradient with the loss, or a sketch of either."""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Bools, Floats
from coterie.core.asks import Ask, Gradient, Gradients, ModelAsk, Reply, Train, Trained
from coterie.core.clipping import clipped
from coterie.core.layout import Layout
from coterie.core.rules import MODEL
from coterie.deploy.mechanisms import ClipNoise, DpSgd, NoPrivacy
from coterie.deploy.secret import secret_normals
from coterie.engines.sketching import sketch_in

MOMENTS = ("running_mean", "running_var")  # batch norm's; no other buffer leaves under noise


def mechanism_for(ask: Ask[Any], privacy: NoPrivacy | ClipNoise | DpSgd) -> NoPrivacy | ClipNoise | DpSgd:
    """What is done to an answer: what the policy says; where it says nothing, the clipping and noise that a sketch was asked with."""
    sketch = sketch_in(ask)
    if not isinstance(privacy, NoPrivacy) or sketch is None or sketch.clip is None or not sketch.noise:
        return privacy
    return ClipNoise(mechanism="clip+noise", clip=sketch.clip, noise=sketch.noise)


def without_noise(ask: Ask[Any]) -> Ask[Any]:
    """The ask as the site's engine gets it: it would clip and noise by keys, which the server knows."""
    sketch = sketch_in(ask)
    if sketch is None or not isinstance(ask, (Train, Gradient)):
        return ask
    return replace(ask, sketch=replace(sketch, clip=None, noise=0.0))


def releases(ask: Ask[Any]) -> int:
    """How many clipped and noised vectors an answer holds for each client; none where it is not noised at all."""
    if isinstance(ask, Train):
        return 1 + len(_further(ask))
    return 1 if isinstance(ask, Gradient) else 0


def privatised(ask: Ask[Any], reply: Reply, privacy: ClipNoise, layout: Layout) -> Reply:
    """The reply as it may leave. Counts (samples, steps) and the answers of other asks are as they were."""
    if sketch_in(ask) is not None and isinstance(reply, (Trained, Gradients)):
        cut = clipped(reply.vectors.astype(np.float64), privacy.clip)
        return replace(reply, vectors=(cut + secret_normals(cut.shape, privacy.noise * privacy.clip)).astype(np.float32))
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
