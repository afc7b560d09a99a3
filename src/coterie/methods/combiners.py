"""FedEx's combiners: how the outputs of several experts become one prediction (FedEx, Algorithm 2 and its alternatives).

Each takes the experts' class probabilities (k, m, C) on m inputs in their order and returns scores (m, C). The largest score is the
prediction. The online layer runs many clients side by side: the first input of all, then the second, and so on. Each client's layer starts
from scratch and sees its own inputs only, so the result is bitwise identical to one client after the other.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from coterie.core.arrays import Doubles, Ints
from coterie.core.serving import Combiner, NamedModels

CLIENTS_AT_ONCE = 1 << 13  # clients at a time: their weights are to stay near


def compute_online_scores(probabilities: Doubles, sizes: Ints, begin: Doubles, *, per_class: bool) -> Doubles:
    """(m, C) the scores of the layer, each client's pass over its `sizes` inputs begun with the weights `begin` (k, C)."""
    scores, first = np.empty(probabilities.shape[1:]), np.cumsum(sizes) - sizes
    order = np.argsort(-sizes, kind="stable")  # the longest first: those with inputs left are then a part from the front
    for at, end in pairwise((*range(0, len(order), CLIENTS_AT_ONCE), len(order))):
        some = order[at:end]
        _run_online_pass(probabilities, sizes[some], first[some], begin, scores, per_class)
    return scores


def _run_online_pass(probabilities: Doubles, sizes: Ints, first: Ints, begin: Doubles, scores: Doubles, per_class: bool) -> None:
    """Algorithm 2 for these clients, whose inputs begin at `first`; their rows of `scores` are filled."""
    weights = np.repeat(begin[None], len(sizes), axis=0)  # (n, k, C)
    taken_before = np.zeros((len(sizes), begin.shape[1]), dtype=np.int64)  # (n, C) inputs that were taken for a class
    for t in range(int(sizes.max(initial=0))):
        left = np.arange(np.count_nonzero(sizes > t))
        outputs = np.ascontiguousarray(probabilities[:, first[left] + t].transpose(1, 0, 2))
        scores[first[left] + t] = found = (weights[left] * outputs).sum(axis=1)
        p = found.argmax(axis=1)  # line 2
        chosen = np.ascontiguousarray(outputs[left, :, p])
        total = chosen.sum(axis=1, keepdims=True)
        confidence = np.divide(chosen, total, out=np.full_like(chosen, 1.0 / begin.shape[0]), where=total > 0)  # line 4
        now = (taken_before[left, p] + 1 if per_class else np.full(len(left), t + 1))[:, None]
        weights[left, :, p] = (weights[left, :, p] * now + confidence) / (now + 1)  # line 7
        taken_before[left, p] += 1


@dataclass(frozen=True)
class Online:
    """The paper's online layer: weights (experts x classes) that follow the experts' confidence, input after input.

    It rewards confidence, not accuracy (as the authors state), and depends on the order of the inputs. Every pass starts again, at 1/k or
    at the weights given. `frozen` does not update them: with weights learned on an earlier pass it is a fixed gate, without any the mean.
    """

    of_classes: ClassVar[bool] = True  # it follows how sure experts are of classes
    per_class: bool = False  # count t for each class by itself, instead of over all inputs
    frozen: bool = False
    weights: Doubles | None = None  # (k, C) to begin with

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        return self._run(probabilities)[0]

    def combine_each(self, probabilities: Doubles, sizes: Ints) -> Doubles | None:
        """(k, m, C) -> (m, C) for clients whose inputs, so many each, stand one after the other: the bits of `combine` for each."""
        if self.frozen:
            return None
        return compute_online_scores(probabilities, sizes, self._get_initial_weights(*probabilities.shape[::2]), per_class=self.per_class)

    def learned(self, probabilities: Doubles) -> Doubles:
        """(k, C) the weights after a pass over these inputs."""
        return self._run(probabilities)[1]

    def _run(self, probabilities: Doubles) -> tuple[Doubles, Doubles]:
        k, m, classes = probabilities.shape
        weights = self._get_initial_weights(k, classes)
        if self.frozen:
            return np.einsum("ij,imj->mj", weights, probabilities), weights
        by_input = np.ascontiguousarray(probabilities.transpose(1, 0, 2))  # (m, k, C)
        scores = np.empty((m, classes))
        t = [1] * classes
        for row, outputs in enumerate(by_input):
            scores[row] = (weights * outputs).sum(axis=0)
            p = int(scores[row].argmax())  # line 2; the text prints an argmax over experts
            chosen = outputs[:, p]
            total = chosen.sum()
            confidence = chosen / total if total > 0 else np.full(k, 1.0 / k)  # line 4
            now = t[p] if self.per_class else row + 1
            weights[:, p] = (weights[:, p] * now + confidence) / (now + 1)  # line 7: column p keeps the sum 1
            t[p] += 1
        return scores, weights

    def _get_initial_weights(self, k: int, classes: int) -> Doubles:
        return np.full((k, classes), 1.0 / k) if self.weights is None else np.array(self.weights, dtype=np.float64)


@dataclass(frozen=True)
class Mean:
    """The plain mean of the experts' probabilities."""

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        return np.asarray(probabilities.mean(axis=0))


@dataclass(frozen=True)
class MostConfident:
    """For each input, the expert whose largest probability is the largest (the first of equals)."""

    of_classes: ClassVar[bool] = True

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        best = probabilities.max(axis=2).argmax(axis=0)  # (m,)
        return np.asarray(probabilities[best, np.arange(probabilities.shape[1])])


@dataclass(frozen=True)
class AccuracyGate:
    """Experts weighted, class by class, by how often they were right when they predicted it."""

    of_classes: ClassVar[bool] = True
    weights: Doubles  # (k, C)

    @classmethod
    def from_counts(cls, hits: Ints | Doubles, predictions: Ints | Doubles) -> "AccuracyGate":
        """From counts (k, C): w_ij = (hits_ij + 1) / (predictions_ij + C), so that an expert never heard on a class is at chance."""
        precision = (np.asarray(hits) + 1.0) / (np.asarray(predictions) + hits.shape[1])
        return cls(precision / precision.sum(axis=0))

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        return np.asarray(np.einsum("ij,imj->mj", self.weights, probabilities))


@dataclass(frozen=True)
class OwnExpert:
    """One expert for each row of the serving: the client's own."""

    experts: Ints  # (n,)

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        return np.asarray(probabilities[self.experts[client]])


@dataclass(frozen=True)
class ByRow:
    """A combiner of its own for each row of the serving, so that one panel can show several side by side."""

    combiners: tuple[Combiner | None, ...]  # None where a single model answers

    def drop_class_combiners(self, named: NamedModels) -> NamedModels:
        """The models of a panel that do not go by classes, for tasks that have none."""
        kept = np.array([not getattr(each, "of_classes", False) for each in self.combiners], dtype=np.bool_)
        names = tuple(name for name, good in zip(named.names, kept, strict=True) if good)
        return NamedModels(names, named.serving.take(np.flatnonzero(kept)))

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        combiner = self.combiners[client]
        if combiner is None:
            raise ValueError(f"row {client} of this serving has no combiner")
        return combiner.combine(probabilities, client)
