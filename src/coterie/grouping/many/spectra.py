"""Spectral clustering of many clients whose affinity is (1 + cosine) / 2, as FedEx has it.

That affinity is the inner product of the rows (1, u_i) / sqrt(2), u_i being a client's direction. So the normalised affinity B B' has the
eigenvectors of B' B behind it, a matrix as small as the directions are long: no pairs, and no approximation beyond that of the points.
"""

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.threads import one_thread
from coterie.grouping.clusterers import canonical, kmeans


def spectral_of_many(directions: Doubles, k: int, rng: np.random.Generator) -> Ids:
    """(n,) at most k groups of clients by their directions (n, r), each of length one or, in few directions, less."""
    features = np.concatenate([np.ones((len(directions), 1)), directions], axis=1) / np.sqrt(2)
    degrees = features @ features.sum(axis=0)  # what a client's affinities with everybody sum to
    scaled = features / np.sqrt(degrees)[:, None]
    with one_thread():
        _, vectors = np.linalg.eigh(scaled.T @ scaled)
        embedded = scaled @ vectors[:, -min(k, vectors.shape[1]) :]
    lengths = np.linalg.norm(embedded, axis=1, keepdims=True)
    return canonical(kmeans(embedded / np.where(lengths > 0, lengths, 1.0), k, rng))


def without_lone_of_many(labels: Ids, directions: Doubles) -> Ids:
    """The labels after every group of one client has joined the group whose mean direction is most its own; one after the other."""
    labels = canonical(labels)
    while labels.max() > 0 and (sizes := np.bincount(labels)).min() == 1:
        lone = int(np.flatnonzero(sizes[labels] == 1)[0])
        sums = np.stack([np.bincount(labels, weights=column) for column in directions.T], axis=1)  # (groups, r)
        alike = sums / sizes[:, None] @ directions[lone]
        alike[labels[lone]] = -np.inf
        labels[lone] = int(alike.argmax())
        labels = canonical(labels)
    return labels
