"""Many lanes' evaluations of one model each on the same samples: evaluated and counted in one pass."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.data.federation import Federation, Parts
from coterie.engines.evaluation.dense import MapFunction
from coterie.engines.evaluation.evaluate import Classified, clip_losses, evaluate, find_only_model
from coterie.engines.local_engine import Work
from coterie.engines.world import World

KEPT = 4  # test and validation parts, the central set, and one more
LARGEST = 1 << 20  # samples of a panel that is kept: three times eight bytes each


@dataclass(frozen=True)
class EvalSet:
    """Samples of some clients, client after client, and what of the counts is known before a model is asked."""

    rows: Ints | None  # sample numbers; None: the central test set, which is counted in one row
    y: Ints  # (m,) labels
    owners: Ints  # (m,) the row in which a sample counts
    truths: Ints  # (m,) the cell of (rows, classes) that counts a right answer
    actual: Ints  # (rows, classes)
    sizes: Ints  # (rows,)

    @classmethod
    def from_parts(cls, federation: Federation, parts: Parts | None, clients: Ids) -> "EvalSet":
        """The samples that `parts` give these clients; None is the central test set."""
        n, classes = len(clients), len(federation.classes)
        if parts is None:
            assert federation.central is not None  # or it would not be asked
            rows, y = None, federation.central[1]
            owners = np.zeros(len(y), np.int64)
        else:
            rows = parts.joined(clients)
            y, owners = federation.y[rows], np.repeat(np.arange(n), parts.sizes[clients])
        truths = owners * classes + y
        actual = np.bincount(truths, minlength=n * classes).reshape(n, classes)
        actual.flags.writeable = False  # many replies have it in common
        return cls(rows, y, owners, truths, actual, actual.sum(1))


class EvalSets:
    """Those of one federation that were asked for last."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._kept: OrderedDict[tuple[int, bytes], tuple[Parts | None, EvalSet]] = OrderedDict()

    def of(self, parts: Parts | None, clients: Ids) -> EvalSet:
        """The panel of these clients' samples."""
        key = (id(parts), clients.tobytes())  # the parts are kept beside it, so that no others can have their number
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        found = EvalSet.from_parts(self.federation, parts, clients)
        if len(found.y) <= LARGEST:
            self._kept[key] = parts, found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


MOST = 1 << 25  # answers at a time: sixteen bytes each
NEAR = 1 << 16  # answers that are counted at a time: they stay in a core's cache
ClassifyMany = Callable[[Sequence[Floats], Ints | None], Sequence[Classified]]  # the answers of each of some models on the same samples


class BatchEvaluator(NamedTuple):
    """What judges the models of one world."""

    judge: ClassifyMany
    panels: EvalSets


def evaluate_together(works: Sequence[Work], juries: Mapping[World, BatchEvaluator], spread: MapFunction) -> dict[int, Evaluated]:
    """By number, the answers to those of the works whose world has a batch evaluator and whose samples another work is about as well; a
    single work needs no other."""
    groups: dict[tuple[int, str, bytes, float | None], list[tuple[int, Floats]]] = {}
    for number, work in enumerate(works):
        ask = work.ask
        if isinstance(ask, Evaluate) and ask.share is None and work.world in juries:  # the samples of a share are each seed's own
            model = find_only_model(ask, work.world.federation, work.evaluation_parts())
            if model is not None:
                groups.setdefault((id(work.world), ask.part, ask.clients.tobytes(), ask.loss_limit), []).append((number, model))
    found: dict[int, Evaluated] = {}
    for members in groups.values():
        first = works[members[0][0]]
        if len(members) < min(2, len(works)) or not isinstance(first.ask, Evaluate):
            continue
        jury = juries[first.world]
        panel = jury.panels.of(first.evaluation_parts(), first.ask.clients)
        together = max(1, MOST // max(1, len(panel.y)))
        for begin in range(0, len(members), together):
            numbers, models = zip(*members[begin : begin + together], strict=True)
            judged = jury.judge(models, panel.rows)
            found |= zip(numbers, _count_answers([works[i] for i in numbers], judged, panel, spread), strict=True)
    return found


def _count_answers(works: Sequence[Work], judged: Sequence[Classified], panel: EvalSet, spread: MapFunction) -> list[Evaluated]:
    """The counts of each of these works, a few of them at a time; bitwise what `evaluate` gives for each by itself."""
    n, classes = panel.actual.shape
    undefined = np.full(n, np.nan)
    limit: float | None = getattr(works[0].ask, "loss_limit", None)  # the same for all

    def block(begin: int) -> list[Evaluated]:
        asks, some = [work.ask for work in works[begin : begin + together]], judged[begin : begin + together]
        guesses, losses = (np.stack(of) for of in zip(*some, strict=True))  # (lanes, samples)
        owners, truths = (_offset_by_lane(places, len(some), cells) for places, cells in ((panel.owners, n), (panel.truths, n * classes)))
        hits, predicted = (
            np.bincount(where.ravel(), minlength=len(some) * n * classes).reshape(-1, n, classes)
            for where in (truths[guesses == panel.y], owners * classes + guesses)
        )
        sums = np.bincount(owners.ravel(), weights=clip_losses(losses, limit).ravel(), minlength=len(some) * n).reshape(-1, n)
        means = np.divide(sums, panel.sizes, out=np.full(sums.shape, np.nan), where=panel.sizes > 0)
        return [
            _evaluate_with_answers(ask, works[begin + i], some[i])
            if ask.answers
            else Evaluated(ask.clients, hits[i], predicted[i], panel.actual, means[i], undefined)
            for i, ask in enumerate(asks)
            if isinstance(ask, Evaluate)
        ]

    together = max(1, NEAR // max(1, len(panel.y)))
    return [one for some in spread(block, range(0, len(works), together)) for one in some]


def _offset_by_lane(places: Ints, lanes: int, cells: int) -> Ints:
    """(lanes, m) the places of every lane among cells of its own."""
    return places[None, :] if lanes == 1 else np.arange(lanes)[:, None] * cells + places


def _evaluate_with_answers(ask: Evaluate, work: Work, judged: Classified) -> Evaluated:
    """Where answers are kept sample by sample, which is after the last round."""
    federation = work.world.federation
    return evaluate(ask, federation, _refuse_predict, work.evaluation_parts(), lambda model, rows: judged)


def _refuse_predict(model: Floats, rows: Ints | None) -> tuple[Doubles, Doubles]:
    raise AssertionError("of one model that is judged already, no probabilities are asked for")
