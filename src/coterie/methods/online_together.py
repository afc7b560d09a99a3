"""FedEx's online layer for many clients side by side: the first input of all, then the second, and so on.

Each client's layer begins afresh and sees its own inputs alone, so nothing depends on who stands beside it: the bits are those of one
client after the other.
"""

from itertools import pairwise

import numpy as np

from coterie.core.arrays import Doubles, Ints

TOGETHER = 1 << 13  # clients at a time: their weights are to stay near


def scores_of_each(probabilities: Doubles, sizes: Ints, begin: Doubles, *, per_class: bool) -> Doubles:
    """(m, C) the scores of the layer, each client's pass over its `sizes` inputs begun with the weights `begin` (k, C)."""
    scores, first = np.empty(probabilities.shape[1:]), np.cumsum(sizes) - sizes
    order = np.argsort(-sizes, kind="stable")  # the longest first: who still has inputs is then a part from the front
    for at, end in pairwise((*range(0, len(order), TOGETHER), len(order))):
        some = order[at:end]
        _pass(probabilities, sizes[some], first[some], begin, scores, per_class)
    return scores


def _pass(probabilities: Doubles, sizes: Ints, first: Ints, begin: Doubles, scores: Doubles, per_class: bool) -> None:
    """Algorithm 2 for these clients, whose inputs begin at `first`; their rows of `scores` are filled."""
    weights = np.repeat(begin[None], len(sizes), axis=0)  # (n, k, C)
    said_before = np.zeros((len(sizes), begin.shape[1]), dtype=np.int64)  # (n, C) inputs that were taken for a class
    for t in range(int(sizes.max(initial=0))):
        left = np.arange(np.count_nonzero(sizes > t))
        outputs = np.ascontiguousarray(probabilities[:, first[left] + t].transpose(1, 0, 2))
        scores[first[left] + t] = found = (weights[left] * outputs).sum(axis=1)
        p = found.argmax(axis=1)  # line 2
        said = np.ascontiguousarray(outputs[left, :, p])
        total = said.sum(axis=1, keepdims=True)
        confidence = np.divide(said, total, out=np.full_like(said, 1.0 / begin.shape[0]), where=total > 0)  # line 4
        now = (said_before[left, p] + 1 if per_class else np.full(len(left), t + 1))[:, None]
        weights[left, :, p] = (weights[left, :, p] * now + confidence) / (now + 1)  # line 7
        said_before[left, p] += 1
