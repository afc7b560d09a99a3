"""Which lanes make a wave where several are carried out at once."""

from collections.abc import Sequence
from math import ceil

from coterie.run.drive import waves
from coterie.run.lanes import Lane

WAVES = 2  # for each place where there is enough to do: whoever ends first takes one more


def cut(lanes: Sequence[Lane], memory: int, seeds: int | None, places: int, *, whole_seeds: bool) -> list[list[Lane]]:
    """Waves for so many places, of whole seeds where there are enough of them, else of some methods of a seed.

    `memory` is in bytes and of one place. A study that must end on time keeps to `whole_seeds`, so that it ends with complete pairs.
    """
    pairs = len({(lane.key.draw, lane.seed) for lane in lanes})
    whole = list(waves(lanes, memory, seeds or max(1, ceil(pairs / (WAVES * places)))))
    if whole_seeds or not whole or len(whole) >= places:
        return whole
    each = ceil(places / len(whole))
    return [wave[i * len(wave) // each : (i + 1) * len(wave) // each] for wave in whole for i in range(each) if _any(len(wave), i, each)]


def _any(count: int, i: int, each: int) -> bool:
    return (i + 1) * count // each > i * count // each
