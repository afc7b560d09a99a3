"""Evaluations of one model each, as most lanes ask for; of lanes that ask about the same samples, judged and counted in one pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.engines.dense import Spread
from coterie.engines.dense_arrays import Judged
from coterie.engines.evaluate import evaluate, only_model
from coterie.engines.local_engine import Work
from coterie.engines.panels import Panel, Panels
from coterie.engines.tallies import limited
from coterie.engines.world import World

MOST = 1 << 25  # answers at a time: sixteen bytes each
NEAR = 1 << 16  # answers that are counted at a time: they stay in a core's cache
JudgeMany = Callable[[Sequence[Floats], Ints | None], Sequence[Judged]]  # what each of some models says of the same samples


class Jury(NamedTuple):
    """What judges the models of one world."""

    judge: JudgeMany
    panels: Panels


def judged_together(works: Sequence[Work], juries: Mapping[World, Jury], spread: Spread) -> dict[int, Evaluated]:
    """By number, the answers to those of the works whose world has a jury and whose samples another asks about as well; one work by
    itself needs no other."""
    groups: dict[tuple[int, str, bytes, float | None], list[tuple[int, Floats]]] = {}
    for number, work in enumerate(works):
        ask = work.ask
        if isinstance(ask, Evaluate) and ask.share is None and work.world in juries:  # the samples of a share are each seed's own
            model = only_model(ask, work.world.federation, work.judged())
            if model is not None:
                groups.setdefault((id(work.world), ask.part, ask.clients.tobytes(), ask.loss_limit), []).append((number, model))
    found: dict[int, Evaluated] = {}
    for members in groups.values():
        first = works[members[0][0]]
        if len(members) < min(2, len(works)) or not isinstance(first.ask, Evaluate):
            continue
        jury = juries[first.world]
        panel = jury.panels.of(first.judged(), first.ask.clients)
        together = max(1, MOST // max(1, len(panel.y)))
        for begin in range(0, len(members), together):
            numbers, models = zip(*members[begin : begin + together], strict=True)
            judged = jury.judge(models, panel.rows)
            found |= zip(numbers, _counted([works[i] for i in numbers], judged, panel, spread), strict=True)
    return found


def _counted(works: Sequence[Work], judged: Sequence[Judged], panel: Panel, spread: Spread) -> list[Evaluated]:
    """The counts of each of these works, a few of them at a time; to the bit what `evaluate` says of each by itself."""
    n, classes = panel.actual.shape
    undefined = np.full(n, np.nan)
    limit: float | None = getattr(works[0].ask, "loss_limit", None)  # the same for all

    def block(begin: int) -> list[Evaluated]:
        asks, some = [work.ask for work in works[begin : begin + together]], judged[begin : begin + together]
        guesses, losses = (np.stack(of) for of in zip(*some, strict=True))  # (lanes, samples)
        owners, truths = (_apart(places, len(some), cells) for places, cells in ((panel.owners, n), (panel.truths, n * classes)))
        hits, predicted = (
            np.bincount(where.ravel(), minlength=len(some) * n * classes).reshape(-1, n, classes)
            for where in (truths[guesses == panel.y], owners * classes + guesses)
        )
        sums = np.bincount(owners.ravel(), weights=limited(losses, limit).ravel(), minlength=len(some) * n).reshape(-1, n)
        means = np.divide(sums, panel.sizes, out=np.full(sums.shape, np.nan), where=panel.sizes > 0)
        return [
            _with_answers(ask, works[begin + i], some[i])
            if ask.answers
            else Evaluated(ask.clients, hits[i], predicted[i], panel.actual, means[i], undefined)
            for i, ask in enumerate(asks)
            if isinstance(ask, Evaluate)
        ]

    together = max(1, NEAR // max(1, len(panel.y)))
    return [one for some in spread(block, range(0, len(works), together)) for one in some]


def _apart(places: Ints, lanes: int, cells: int) -> Ints:
    """(lanes, m) the places of every lane among cells of its own."""
    return places[None, :] if lanes == 1 else np.arange(lanes)[:, None] * cells + places


def _with_answers(ask: Evaluate, work: Work, judged: Judged) -> Evaluated:
    """Where samples are told one by one, which is after the last round."""
    federation = work.world.federation
    return evaluate(ask, federation, _never, work.judged(), lambda model, rows: judged)


def _never(model: Floats, rows: Ints | None) -> tuple[Doubles, Doubles]:
    raise AssertionError("of one model that is judged already, no probabilities are asked for")
