"""Which draws of the data and which seeds a comparison is made of, for every federation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.core.errors import UserError
from coterie.data.federation import Federation
from coterie.data.redrawing import same_data, sharing

DRAWS, SEEDS = 10, (0, 1, 2)  # of data that can be redrawn: more draws are worth more than more seeds (docs/statistics.md)
SEEDS_ALONE = tuple(range(10))  # of data that are as they are
MOST_DRAWS = 10_000

Load = Callable[[int], Federation]  # a draw of one federation


@dataclass(frozen=True)
class Design:
    """Draws x seeds of one federation."""

    draws: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def repetitions(self) -> int:
        """What a test counts: draws, or seeds where there is one draw."""
        return len(self.draws) if len(self.draws) > 1 else len(self.seeds)

    @property
    def runs(self) -> int:
        return len(self.draws) * len(self.seeds)


def design_of(spec: str, draw: Load, *, first: int = 0, draws: int | None = None, seeds: Sequence[int] | None = None) -> Design:
    """The draws from the first on, as many as asked for, with these seeds.

    Unless either is said: ten draws of three seeds where the data can be redrawn, else ten seeds. Seeds alone are of one draw, since
    ten times as many runs are nothing to begin unasked.
    """
    if draws is not None and not 1 <= draws <= MOST_DRAWS:
        raise UserError(f"A comparison cannot use draws={draws}: give 1 to {MOST_DRAWS:,}.")
    if draws == 1 or (draws is None and seeds is not None):
        return Design((first,), tuple(seeds) if seeds is not None else SEEDS_ALONE)
    if same_data(draw(first), draw(first + 1)):
        if draws is not None:
            raise UserError(f"{spec!r} cannot be redrawn: another draw is the same data. Leave --draws away and give --seeds.")
        return Design((first,), SEEDS_ALONE)
    chosen = SEEDS if seeds is None else tuple(seeds)
    return Design(tuple(range(first, first + (draws or DRAWS))), chosen)


class Draws:
    """The draws of one federation, each loaded once; those of one pool share its samples."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._made: dict[int, Federation] = {}

    def __call__(self, draw: int) -> Federation:
        if draw not in self._made:
            made = self._load(draw)
            self._made[draw] = sharing(next(iter(self._made.values())), made) if self._made else made
        return self._made[draw]
