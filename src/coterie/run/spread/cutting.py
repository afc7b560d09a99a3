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
    if whole_seeds or len(whole) >= places:
        return whole
    parts = _parts([len(wave) for wave in whole], places)
    return [wave[i * len(wave) // n : (i + 1) * len(wave) // n] for wave, n in zip(whole, parts, strict=True) for i in range(n)]


def _parts(sizes: Sequence[int], places: int) -> list[int]:
    """Into how many parts each wave is cut, so that every place has one while lanes last and the largest part is as small as can be."""
    parts = [1] * len(sizes)
    for _ in range(min(places, sum(sizes)) - len(sizes)):
        largest = max(range(len(sizes)), key=lambda i: sizes[i] / parts[i])
        parts[largest] += 1
    return parts
