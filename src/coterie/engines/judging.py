"""Evaluations of one model each on the same samples, as most lanes of a study ask for: judged in one pass over the samples."""

from collections.abc import Mapping, Sequence

from coterie.core.arrays import Floats
from coterie.core.asks import Evaluate
from coterie.engines.dense import Spread
from coterie.engines.dense_arrays import DenseArrays, Judged
from coterie.engines.evaluate import only_model
from coterie.engines.local_engine import Work
from coterie.engines.world import World

MOST = 1 << 25  # answers at a time: sixteen bytes each


def judged_together(works: Sequence[Work], kept: Mapping[World, DenseArrays], spread: Spread) -> dict[int, Judged]:
    """By number, what `DenseArrays.judge` says for those of the works whose samples another asks about as well."""
    groups: dict[tuple[int, str, bytes], list[tuple[int, Floats]]] = {}
    for number, work in enumerate(works):
        ask = work.ask
        if isinstance(ask, Evaluate) and ask.share is None:  # the samples of a share are each seed's own
            model = only_model(ask, work.world.federation, work.judged())
            if model is not None:
                groups.setdefault((id(work.world), ask.part, ask.clients.tobytes()), []).append((number, model))
    found: dict[int, Judged] = {}
    for members in groups.values():
        first = works[members[0][0]]
        parts = first.judged()
        if len(members) < 2 or parts is None or not isinstance(first.ask, Evaluate):
            continue
        rows = parts.joined(first.ask.clients)
        together = max(1, MOST // max(1, len(rows)))
        for begin in range(0, len(members), together):
            numbers, models = zip(*members[begin : begin + together], strict=True)
            found |= dict(zip(numbers, kept[first.world].judge(models, rows, spread), strict=True))
    return found
