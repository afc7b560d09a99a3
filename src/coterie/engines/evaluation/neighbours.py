"""Evaluation with a client's own training samples: what the nearest of them answer is mixed into the answer of its model (kNN-Per)."""

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.core.serving import COMBINED, Neighbours
from coterie.core.survival import compute_kaplan_meier, find_exits
from coterie.core.tasks import Task
from coterie.data.federation import Parts
from coterie.engines.evaluation.evaluate import compute_score_losses, make_tally
from coterie.engines.workspace import Workspace, capture_features

TOGETHER = 1 << 22  # distances at a time


def evaluate_with_neighbours(ask: Evaluate, neighbours: Neighbours, space: Workspace, parts: Parts) -> Evaluated:
    """The counts of `evaluate`, client by client; where neighbours have no share they are those of the model."""
    serving, federation = ask.serving, space.federation
    if (serving.rows == COMBINED).any():
        raise ValueError("neighbours answer beside one model a client")
    tally = make_tally(len(serving.rows), federation.task, len(federation.classes))
    tally.limit = ask.loss_limit
    if ask.answers:
        tally.keep_answers(parts.sizes[serving.clients])
    for i, (client, row) in enumerate(zip(serving.clients.tolist(), serving.rows.tolist(), strict=True)):
        rows, store, share = parts[client], federation.train[client], float(neighbours.weights[serving.places[i]])
        if not len(rows):
            continue
        model, y = np.asarray(serving.models[row]), federation.y[rows]
        scores, losses = space.predict(model, rows)
        if share > 0 and len(store) > np.isin(store, rows).any():  # a single sample is no neighbour of its own
            own, others = (_compute_features(space, model, samples) for samples in (rows, store))
            near = answer_from_neighbours(
                own, others, rows[:, None] == store, federation.y[store], neighbours, scores.shape[1], federation.task
            )
            scores = share * near + (1 - share) * scores
            losses = compute_score_losses(scores, y, federation.task)
        tally.add(np.full(len(rows), i), scores, losses, y)
    return tally.result(ask)


def answer_from_neighbours(
    own: Doubles, store: Doubles, same: Array, labels: Array, neighbours: Neighbours, outputs: int, task: Task
) -> Doubles:
    """(m, C) what the nearest of the store (N, f) answer for samples (m, f): shares of classes, means of numbers or labels, or the
    Kaplan-Meier curve of their times."""
    if task.name == "survival":
        completed, died = find_exits(labels, outputs)
        edges = np.arange(outputs + 1)
        exits = np.stack([(completed[:, None] == edges) & own[:, None] for own in (died, ~died)], axis=1)
        values = exits.reshape(len(labels), -1).astype(np.float64)
    else:
        values = np.eye(outputs)[labels] if task.counts_classes else np.asarray(labels, dtype=np.float64).reshape(len(labels), -1)
    found = np.empty((len(own), values.shape[1]))
    together = max(1, TOGETHER // len(store))
    for at in range(0, len(own), together):
        piece = own[at : at + together]
        squares = (piece**2).sum(axis=1)[:, None] + (store**2).sum(axis=1) - 2 * piece @ store.T
        squares = np.where(same[at : at + together], np.inf, np.maximum(squares, 0.0))  # no sample is its own neighbour
        nearest = np.argsort(squares, axis=1, kind="stable")[:, : neighbours.count]
        away = np.take_along_axis(squares, nearest, axis=1)
        weights = np.exp(-(away - away[:, :1]) / (store.shape[1] * neighbours.scale))  # the nearest has 1: no sum is zero
        found[at : at + together] = np.einsum("mk,mkc->mc", weights / weights.sum(axis=1, keepdims=True), values[nearest])
    return compute_kaplan_meier(found.reshape(len(own), 2, -1))[:, 1:] if task.name == "survival" else found


def _compute_features(space: Workspace, model: Floats, rows: Ints) -> Doubles:
    """(m, f) what enters the last dense layer."""
    with capture_features(space.module) as seen:
        space.predict(model, rows)
    return np.concatenate([part.detach().flatten(1).cpu().double().numpy() for part in seen])
