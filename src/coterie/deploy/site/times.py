"""What a site reports of its survival times before training: events by rounded time, for a grid, and samples by interval, for curves.

No count between 0 and the policy's least count leaves: a rare one is combined with the interval beside it. Under a privacy mechanism counts
by interval are noised.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ints
from coterie.core.survival import count_exits, restore_times
from coterie.data.federation import Federation
from coterie.deploy.site.disclosure import HUNDRED, apportion
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy, Policy
from coterie.deploy.site.privacy import draw_secure_normals
from coterie.deploy.table_answers import ClientExits, EventTimes

DIGITS = 2  # significant digits of an event's time
SINGLE = 6  # digits of a time that is kept in single precision


def combine_rare(counts: Ints, least: int) -> Ints | None:
    """Counts of which none lies between 0 and the least.

    Args:
        counts: (K,) of intervals in their order.
        least: The smallest count that may be said.

    Returns:
        (K,) counts with the same sum: a rare one is added to the next interval, the last ones to the one before. None where all of them
        together are rare.

    Example:
        >>> combine_rare(np.array([4, 8, 0, 12, 3]), 10).tolist()
        [0, 12, 0, 15, 0]
    """
    if 0 < counts.sum() < least:
        return None
    made, waiting, last = np.zeros_like(counts), 0, 0
    for place, count in enumerate(counts.tolist()):
        waiting += count
        if waiting >= least:
            made[place], waiting, last = waiting, 0, place
    made[last] += waiting
    return made


def round_up(times: Array) -> list[float]:
    """Times in two digits that are no smaller: 8.3 stays, 271 becomes 280."""
    exact = [float(f"{time:.{SINGLE}g}") for time in np.asarray(times, dtype=np.float64).tolist()]
    steps = [10.0 ** (np.floor(np.log10(time)) - DIGITS + 1) for time in exact]
    return [float(f"{np.ceil(round(time / step, 3)) * step:.{DIGITS + 1}g}") for time, step in zip(exact, steps, strict=True)]


@dataclass(frozen=True)
class TimeDiscloser:
    """Combines, rounds, noises and withholds counts of survival times, by the policy."""

    policy: Policy

    def count_events(self, federation: Federation) -> EventTimes:
        """Events of all training samples of the site by rounded time.

        Raises:
            UserError: A privacy mechanism protects them: as many bins as there are times would be noise.
        """
        if not isinstance(self.policy.privacy, NoPrivacy):
            raise UserError("The site's policy has a privacy mechanism, under which no grid is computed: state a 'grid' in schema.toml.")
        rows = federation.y[federation.train.indices]
        times = restore_times(rows[rows[:, 1] > 0, 0], np.array(federation.task.grid))
        ends, counts = np.unique(round_up(times), return_counts=True)
        kept = combine_rare(counts.astype(np.int64), self.policy.minimum_samples) if len(ends) else None
        if kept is None:
            return EventTimes((), ())
        kept = self._round(kept)
        return EventTimes(tuple(ends[kept > 0].tolist()), tuple(kept[kept > 0].tolist()))

    def count_exits(self, federation: Federation, site: str) -> tuple[ClientExits, ...]:
        """Each client's training samples by the intervals that they complete; of all that train, where the policy aggregates."""
        rows = [federation.y[federation.train[client]] for client in range(len(federation))]
        if self.policy.aggregate:
            trained = [own for own in rows if len(own) >= self.policy.minimum_samples]
            return (self._count_client(site, np.concatenate(trained), len(federation.classes)),) if trained else ()
        return tuple(self._count_client(name, own, len(federation.classes)) for name, own in zip(federation.ids, rows, strict=True))

    def _count_client(self, name: str, rows: Array, intervals: int) -> ClientExits:
        least, privacy, exits = self.policy.minimum_samples, self.policy.privacy, count_exits(rows, intervals)
        if len(rows) < least:
            return ClientExits(name)
        if isinstance(privacy, NoPrivacy):
            events, censored = (combine_rare(row, least) for row in exits)
            if events is None or censored is None:
                return ClientExits(name)
            made = np.concatenate([self._round(events)[:-1], self._round(censored)])
            if not self.policy.discloses_sizes:
                made = apportion(made, HUNDRED)
        else:
            made = _add_noise(np.concatenate([exits[0, :-1], exits[1]]), privacy)
        return ClientExits(name, tuple(made[:intervals].tolist()), tuple(made[intervals:].tolist()))

    def _round(self, counts: Ints) -> Ints:
        """Counts in multiples of what is rounded to, never more together than there are."""
        base = self.policy.rounding
        return base * apportion(counts, int(counts.sum()) // base) if base > 1 else counts


def _add_noise(counts: Ints, privacy: ClipNoise | DpSgd) -> Ints:
    """Noised counts: under dp-sgd of the client's samples, whose number is known; under clip+noise of a hundred."""
    if isinstance(privacy, DpSgd):  # another sample in the place of one changes two counts by one
        noised, total = counts + draw_secure_normals(counts.shape, privacy.noise_multiplier * sqrt(2)), int(counts.sum())
    else:  # shares, which together are no longer than 1: the vector that the mechanism's noise is for
        noised, total = HUNDRED * (counts / counts.sum() + draw_secure_normals(counts.shape, privacy.noise)), HUNDRED
    kept = np.rint(np.maximum(noised, 0.0)).astype(np.int64)
    return apportion(kept, min(total, int(kept.sum())))
