"""Evaluations of one model each on the same samples, as most lanes of a study ask for: judged and counted in one pass."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.engines.dense import Spread
from coterie.engines.dense_arrays import Judged
from coterie.engines.evaluate import evaluate, only_model
from coterie.engines.local_engine import Work
from coterie.engines.world import World

MOST = 1 << 25  # answers at a time: sixteen bytes each
NEAR = 1 << 16  # answers that are counted at a time: they stay in a core's cache
JudgeMany = Callable[[Sequence[Floats], Ints | None], Sequence[Judged]]  # what each of some models says of the same samples


def judged_together(works: Sequence[Work], judges: Mapping[World, JudgeMany], spread: Spread) -> dict[int, Evaluated]:
    """By number, the answers to those of the works whose samples another asks about as well, and whose world has a judge."""
    groups: dict[tuple[int, str, bytes], list[tuple[int, Floats]]] = {}
    for number, work in enumerate(works):
        ask = work.ask
        if isinstance(ask, Evaluate) and ask.share is None and work.world in judges:  # the samples of a share are each seed's own
            model = only_model(ask, work.world.federation, work.judged())
            if model is not None:
                groups.setdefault((id(work.world), ask.part, ask.clients.tobytes()), []).append((number, model))
    found: dict[int, Evaluated] = {}
    for members in groups.values():
        first = works[members[0][0]]
        parts = first.judged()
        if len(members) < 2 or not isinstance(first.ask, Evaluate):
            continue
        rows = None if parts is None else parts.joined(first.ask.clients)
        together = max(1, MOST // max(1, len(_labels(first, rows))))
        for begin in range(0, len(members), together):
            numbers, models = zip(*members[begin : begin + together], strict=True)
            judged = judges[first.world](models, rows)
            found |= zip(numbers, _counted([works[i] for i in numbers], judged, spread), strict=True)
    return found


def _counted(works: Sequence[Work], judged: Sequence[Judged], spread: Spread) -> list[Evaluated]:
    """The counts of each of these works, a few of them at a time; to the bit what `evaluate` says of each by itself."""
    first, federation, parts = works[0].ask, works[0].world.federation, works[0].judged()
    assert isinstance(first, Evaluate)
    n, classes = len(first.clients), len(federation.classes)
    y = _labels(works[0], None if parts is None else parts.joined(first.clients))
    owners = np.zeros(len(y), np.int64) if parts is None else np.repeat(np.arange(n), parts.sizes[first.clients])  # central: one row
    cells, truths = owners * classes, owners * classes + y  # where a client's counts begin, and that of the right class
    actual = np.bincount(truths, minlength=n * classes).reshape(n, classes)
    sizes, undefined = actual.sum(1), np.full(n, np.nan)

    def block(begin: int) -> list[Evaluated]:
        asks, some = [work.ask for work in works[begin : begin + together]], judged[begin : begin + together]
        guesses, losses = (np.stack(of) for of in zip(*some, strict=True))  # (lanes, samples)
        lanes = np.arange(len(some))[:, None]
        hits, predicted = (
            np.bincount(where.ravel(), minlength=len(some) * n * classes).reshape(-1, n, classes)
            for where in ((lanes * (n * classes) + truths)[guesses == y], lanes * (n * classes) + cells + guesses)
        )
        sums = np.bincount((lanes * n + owners).ravel(), weights=losses.ravel(), minlength=len(some) * n).reshape(-1, n)
        means = np.divide(sums, sizes, out=np.full(sums.shape, np.nan), where=sizes > 0)
        return [
            _with_answers(ask, works[begin + i], some[i])
            if ask.answers
            else Evaluated(ask.clients, hits[i], predicted[i], actual, means[i], undefined)
            for i, ask in enumerate(asks)
            if isinstance(ask, Evaluate)
        ]

    together = max(1, NEAR // max(1, len(y)))
    return [one for some in spread(block, range(0, len(works), together)) for one in some]


def _labels(work: Work, rows: Ints | None) -> Ints:
    """Of these samples; None is the central test set."""
    federation = work.world.federation
    if rows is not None:
        return federation.y[rows]
    assert federation.central is not None  # or nobody would ask
    return federation.central[1]


def _with_answers(ask: Evaluate, work: Work, judged: Judged) -> Evaluated:
    """Where samples are told one by one, which is after the last round."""
    federation = work.world.federation
    return evaluate(ask, federation, _never, work.judged(), lambda model, rows: judged)


def _never(model: Floats, rows: Ints | None) -> tuple[Doubles, Doubles]:
    raise AssertionError("of one model that is judged already, no probabilities are asked for")
