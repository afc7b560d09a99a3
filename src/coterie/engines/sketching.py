"""Sketched replies, computed from full ones at the client: the one place where engines do it, whatever route the full reply took."""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Words
from coterie.core.asks import Ask, Gradient, Gradients, Train, Trained
from coterie.core.layout import Layout
from coterie.core.rng import extend_key, hash_word, make_generator
from coterie.core.vectors import Sketch, clip_rows, project


def remove_sketch(ask: Ask[Any]) -> Ask[Any]:
    """The question that the client answers to itself before it makes a sketch of the answer."""
    return replace(ask, sketch=None) if isinstance(ask, (Train, Gradient)) and ask.sketch is not None else ask


def get_sketch(ask: Ask[Any]) -> Sketch | None:
    """What an ask wants a sketch of what it asks to be."""
    return ask.sketch if isinstance(ask, (Train, Gradient)) else None


def sketch_reply(ask: Ask[Any], reply: Any, layout: Layout) -> Any:
    """The reply with the sketch in place of the vector: of the gradient, or of the update (the trained model less the one received).

    A loss does not leave with a sketch: it is zero. Only what may be compared is in the sketch.
    """
    sketch = get_sketch(ask)
    if sketch is None:
        return reply
    if isinstance(ask, Train) and isinstance(reply, Trained):
        rows = np.searchsorted(ask.clients, reply.clients, sorter=(order := np.argsort(ask.clients, kind="stable")))
        received = ask.models[ask.start[order[rows]]]
        vectors = project(layout.comparable(reply.vectors), sketch, layout.comparable(received)).astype(np.float32)
        return replace(reply, vectors=vectors, more=np.zeros((len(vectors), 0, sketch.size), np.float32))
    assert isinstance(reply, Gradients)
    vectors = project(layout.comparable(reply.vectors), sketch).astype(np.float32)
    return replace(reply, vectors=vectors, losses=np.zeros(len(vectors)))


def add_simulated_noise(ask: Ask[Any], reply: Any, keys: Words) -> Any:
    """The reply with its sketches clipped and noised as the ask wants it, from each client's key: what a site's policy does, simulated."""
    sketch = get_sketch(ask)
    if sketch is None or sketch.clip is None:
        return reply
    made = clip_rows(reply.vectors.astype(np.float64), sketch.clip)
    if sketch.noise:
        made += sketch.noise * sketch.clip * _draw_normals(ask, keys, sketch.size)
    return replace(reply, vectors=made.astype(np.float32))


def _draw_normals(ask: Any, keys: Words, size: int) -> Doubles:
    """(n, size) of each client its own; two questions of one round (two folds, two classes) have different noise."""
    share = ask.share.key if ask.share is not None else ()
    about = hash_word(f"{ask.kind} {getattr(ask, 'purpose', '')} {share}")
    return (
        np.stack([make_generator(extend_key(int(key), about)).standard_normal(size) for key in keys]) if len(keys) else np.zeros((0, size))
    )
