"""The roster: all that the server may know of the clients."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.core.arrays import Bools, Ids, Ints, Words
from coterie.core.rng import fold, word
from coterie.core.site_shares import within_share

RECENT, SMALL = 256, 4096  # cohorts that are kept, and the most clients of one


@dataclass(frozen=True)
class Roster:
    """Ids, sample counts, who can be reached. A client's number is its row here and never changes: rosters only grow."""

    ids: tuple[str, ...]
    sizes: Ints  # (n,) training samples
    reachable: Bools  # (n,)
    sites: tuple[str, ...] | None = None  # (n,) the site of each client, where that is known

    @classmethod
    def of(cls, ids: Iterable[str], sizes: Ints, sites: Iterable[str] | None = None) -> "Roster":
        ids = tuple(ids)
        return cls(ids, np.asarray(sizes, dtype=np.int64), np.ones(len(ids), dtype=np.bool_), None if sites is None else tuple(sites))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def clients(self) -> Ids:
        """Every client, reachable or not."""
        return np.arange(len(self.ids), dtype=np.int64)

    @cached_property
    def available(self) -> Ids:
        """The clients that can be asked now."""
        found = np.flatnonzero(self.reachable).astype(np.int64)
        found.flags.writeable = False  # every round's
        return found

    @cached_property
    def words(self) -> Words:
        """(n,) the 64-bit word of each string id: how a client enters a random key."""
        return np.array([word(name) for name in self.ids], dtype=np.uint64)

    @cached_property
    def _available_words(self) -> Words:
        return self.words[self.available]

    def draws(self, key: int, clients: Ids) -> Words:
        """(n,) each client's own draw, which depends on no position: in the order of the draws a newcomer only takes a place."""
        words = self._available_words if clients is self.available else self.words[clients]
        return fold(np.array([key], dtype=np.uint64), words)

    @cached_property
    def site_numbers(self) -> Ints | None:
        """(n,) the number of each client's site, in the order of `site_names`."""
        return None if self.sites is None else np.searchsorted(self.site_names, np.array(self.sites)).astype(np.int64)

    @cached_property
    def site_names(self) -> tuple[str, ...]:
        """The sites, sorted."""
        return tuple(sorted(set(self.sites or ())))

    @cached_property
    def _recent(self) -> dict[tuple[int, int, float], Ids]:
        return {}

    def cohort(self, key: int, size: int, most_share: float = 1.0) -> Ids:
        """`lowest` of those who can be asked now. Methods that are compared draw the same cohorts, so those of late are kept."""
        found = self._recent.get((key, size, most_share))
        if found is None:
            found = self.lowest(key, self.available, size, most_share)
            found.flags.writeable = False
            if size <= SMALL:
                if len(self._recent) >= RECENT:
                    self._recent.clear()
                self._recent[key, size, most_share] = found
        return found

    def lowest(self, key: int, clients: Ids, size: int, most_share: float = 1.0) -> Ids:
        """`size` of these clients, ascending: those who draw the lowest numbers.

        Where a site's share is bounded, one site's clients beyond ceil(most_share * size) come after all others: they fill the sample only
        where the other sites have too few clients.
        """
        if size >= len(clients):
            return np.sort(clients)
        draws = self.draws(key, clients)  # no two are equal
        if most_share < 1 and self.site_numbers is not None:
            order = np.argsort(draws)
            first = within_share(self.site_numbers[clients[order]], size, most_share)
            return np.sort(clients[np.r_[order[first], order[~first]][:size]])
        return np.sort(clients[np.argpartition(draws, size)[:size]])
