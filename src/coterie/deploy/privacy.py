"""Clipping and noise on all that a client sends: its update, its gradient with the loss, a sketch of either, losses, errors, evaluations.

Numbers that have a bound (a share of right answers, a loss that is cut) are brought to [0, 1]. Two possible answers of k such numbers are
at most sqrt(k) apart, as two clipped vectors are at most two clips apart: all get the noise at which an answer costs the same.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats
from coterie.core.asks import Ask, Errors, Evaluated, Gradient, Gradients, LossTable, ModelAsk, Reply, Train, Trained
from coterie.core.clipping import clipped
from coterie.core.layout import Layout
from coterie.core.rules import MODEL
from coterie.deploy.mechanisms import ClipNoise, DpSgd, NoPrivacy
from coterie.deploy.secret import secret_normals
from coterie.engines.sketching import sketch_in

HUNDRED = 100  # samples that a client says to have where their number is protected
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
    """How many clipped and noised vectors an answer holds for each client."""
    return 1 + len(_further(ask)) if isinstance(ask, Train) else 1


def privatised(ask: Ask[Any], reply: Reply, privacy: ClipNoise, layout: Layout, limit: float = 1.0, classes: int = 2) -> Reply:
    """The reply as it may leave; losses are of samples whose own is at most `limit`. Counts of samples and steps are withheld elsewhere."""
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
    if isinstance(reply, LossTable):
        return replace(reply, losses=limit * _bounded(reply.losses / limit, privacy.multiplier))
    if isinstance(reply, Errors):
        worst = max(classes - 1, 1)  # of class numbers
        k = reply.labels.shape[1]
        both = _bounded(np.column_stack([reply.labels / worst, reply.probabilities]), privacy.multiplier)
        return replace(reply, labels=worst * both[:, :k], probabilities=both[:, k:])
    if isinstance(reply, Evaluated):
        totals = np.maximum(reply.actual.sum(axis=1), 1)
        even = np.where(np.isfinite(reply.auroc), reply.auroc, 0.5)  # that it is undefined tells that a class is missing
        shares = _bounded(np.column_stack([reply.hits.sum(axis=1) / totals, reply.loss / limit, even]), privacy.multiplier)
        noised = _as_counts(reply, np.rint(HUNDRED * shares[:, 0]), np.full(len(reply), HUNDRED))
        held = reply.actual.sum(axis=1) > 0
        auroc = np.where(held & (classes == 2), shares[:, 2], np.nan)
        return replace(noised, loss=np.where(held, limit * shares[:, 1], np.nan), auroc=auroc)
    raise TypeError(f"no noise is known for a {type(reply).__name__}")


def noised_tests(reply: Evaluated, noise: float, limit: float) -> Evaluated:
    """An evaluation in which no sample can be told: noise on the number of right answers and on the sum of losses.

    One sample changes the first by one, the second by `limit`: both together by sqrt(2) in units of these.
    """
    totals = reply.actual.sum(axis=1)
    sums = np.column_stack([reply.hits.sum(axis=1), np.nan_to_num(reply.loss) * totals / limit]).astype(np.float64)
    sums += secret_normals(sums.shape, noise * np.sqrt(2))
    noised = _as_counts(reply, np.rint(np.clip(sums[:, 0], 0, totals)), totals)
    loss = np.where(totals > 0, limit * np.clip(sums[:, 1] / np.maximum(totals, 1), 0.0, 1.0), np.nan)
    return replace(noised, loss=loss, auroc=np.full(len(reply), np.nan))


def _bounded(shares: Doubles, multiplier: float) -> Doubles:
    """(n, k) numbers in [0, 1] with noise of `multiplier` times how far two rows can be apart; what is no number counts as 1."""
    cut = np.clip(np.nan_to_num(shares, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    return np.asarray(np.clip(cut + secret_normals(cut.shape, multiplier * np.sqrt(max(cut.shape[1], 1))), 0.0, 1.0))


def _as_counts(reply: Evaluated, hits: Any, totals: Any) -> Evaluated:
    """Right answers among so many samples, all as one class; none where a client has no samples."""
    made: dict[str, Any] = {name: np.zeros_like(getattr(reply, name)) for name in ("hits", "predicted", "actual")}
    held = reply.actual.sum(axis=1) > 0
    for name, count in (("hits", hits), ("predicted", totals), ("actual", totals)):
        made[name][:, 0] = np.where(held, count, 0)
    return replace(reply, **made)


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
