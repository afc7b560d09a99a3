"""The roster: all that the server may know of the clients, and how a round's cohort is selected from it.

A sampler is a function ``(ctx, size, purpose, **settings) -> client numbers``: built in, from an installed package, or the user's own. It
sees what a method sees, the roster and the round, and draws by key: ``ctx.rng(purpose)``, ``ctx.draws(purpose, clients)``. `size` is the
plan's cohort, None where it names none. Every rule is computed from the round's number alone, so that any round can be repeated by itself.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError, suggest_names, summarize_error
from coterie.core.arrays import Bools, Ids, Ints, Words
from coterie.core.mixing import find_within_share
from coterie.core.rng import fold_keys, hash_word, make_key
from coterie.core.specs import Registry, import_object, parse

if TYPE_CHECKING:
    from coterie.core.method import Context


MAX_CACHED, MAX_CACHED_SIZE = 256, 4096  # cohorts that are kept, and the most clients of one


@dataclass(frozen=True)
class Roster:
    """Ids, sample counts, which clients can be reached. A client's number is its row here and never changes: rosters only grow."""

    ids: tuple[str, ...]
    sizes: Ints  # (n,) training samples
    reachable: Bools  # (n,)
    sites: tuple[str, ...] | None = None  # (n,) the site of each client, where that is known

    @classmethod
    def from_sizes(cls, ids: Iterable[str], sizes: Ints, sites: Iterable[str] | None = None) -> "Roster":
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
        return np.array([hash_word(name) for name in self.ids], dtype=np.uint64)

    @cached_property
    def _available_words(self) -> Words:
        return self.words[self.available]

    def draws(self, key: int, clients: Ids) -> Words:
        """(n,) each client's own draw, which depends on no position: in the order of the draws a newcomer only takes a place."""
        words = self._available_words if clients is self.available else self.words[clients]
        return fold_keys(np.array([key], dtype=np.uint64), words)

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
        """`lowest` of the clients that can be asked now. Methods that are compared draw the same cohorts, so those of late are kept."""
        found = self._recent.get((key, size, most_share))
        if found is None:
            found = self.lowest(key, self.available, size, most_share)
            found.flags.writeable = False
            if size <= MAX_CACHED_SIZE:
                if len(self._recent) >= MAX_CACHED:
                    self._recent.clear()
                self._recent[key, size, most_share] = found
        return found

    def lowest(self, key: int, clients: Ids, size: int, most_share: float = 1.0) -> Ids:
        """`size` of these clients, ascending: those that draw the lowest numbers.

        Where a site's share is bounded, one site's clients beyond ceil(most_share * size) come after all others: they fill the sample only
        where the other sites have too few clients.
        """
        if size >= len(clients):
            return np.sort(clients)
        draws = self.draws(key, clients)  # no two are equal
        if most_share < 1 and self.site_numbers is not None:
            order = np.argsort(draws)
            first = find_within_share(self.site_numbers[clients[order]], size, most_share)
            return np.sort(clients[np.r_[order[first], order[~first]][:size]])
        return np.sort(clients[np.argpartition(draws, size)[:size]])


def select_uniform(roster: Roster, size: int | None, seed: int, purpose: str, round_: int, most_share: float = 1.0) -> Ids:
    """A sample of the reachable clients without replacement, ascending; all of them without a size. `most_share` bounds the share of one
    site's clients in it, where other sites have enough."""
    return roster.available if size is None else roster.cohort(make_key(seed, purpose, round_), size, most_share)


def select_evaluated(roster: Roster, size: int | None) -> Ids:
    """The clients that a study looks at, ascending: all, or a sample by their ids alone, so that all methods and seeds share it."""
    return roster.clients if size is None else roster.lowest(make_key("evaluated clients"), roster.clients, size)


def select_windows(roster: Roster, size: int, seed: int, purpose: str, round_: int) -> Ids:
    """A window that slides over a random order of all clients, ascending (SimProx, Section IV-A).

    The window that reaches the end takes what is left, and the next one begins a new random order: no client takes part twice before
    all have once. The order is of the whole roster, so a client that cannot be reached misses its turn and moves no other.
    """
    per_pass = -(-len(roster) // size)
    number, window = divmod(max(round_ - 1, 0), per_pass)  # rounds count from 1
    order = np.argsort(roster.draws(make_key(seed, f"{purpose} windows", number), roster.clients), kind="stable")
    picked = order[window * size : (window + 1) * size]
    return np.sort(picked[roster.reachable[picked]])


Sampler = Callable[..., Ids]
PARAMETERS = ("ctx", "size", "purpose")  # the first parameters of every sampler


def _uniform_sampler(ctx: "Context", size: int | None, purpose: str) -> Ids:
    """A fresh sample each round."""
    return select_uniform(ctx.roster, size, ctx.seed, purpose, ctx.round_, ctx.plan.most_share or 1.0)


def _window_sampler(ctx: "Context", size: int | None, purpose: str) -> Ids:
    """Windows that slide over a random order of all clients."""
    wide = size or ctx.plan.cohort_size(len(ctx.roster))
    return select_windows(ctx.roster, wide, ctx.seed, purpose, ctx.round_)


BUILT_IN: dict[str, Sampler] = {"uniform": _uniform_sampler, "windows": _window_sampler}
samplers: Registry[Ids] = Registry("sampler", "coterie.samplers", **BUILT_IN)


def check_sampler(text: str) -> None:
    """Refuse what names no sampler. Code is not imported for that: whether it may run is decided elsewhere."""
    spec = parse(text)
    if ":" not in spec.name and spec.name not in samplers:
        raise UserError(f"A study cannot use selection={text!r}: {suggest_names(spec.name, samplers)}")


def select_cohort(text: str, ctx: "Context", size: int | None, purpose: str) -> Ids:
    """The cohort that a sampler gives, ascending: of those it names, which can be reached."""
    if text in BUILT_IN:
        return BUILT_IN[text](ctx, size, purpose)
    spec = parse(text)
    make = _load_sampler(spec.name) if ":" in spec.name else samplers[spec.name]
    try:
        given: Any = make(ctx, size, purpose, *spec.args, **spec.kwargs)
        chosen = np.asarray(given)
    except UserError:
        raise
    except Exception as error:  # whatever a function of the user's own may raise
        raise UserError(f"The sampler {text!r} ended with {type(error).__name__}: {summarize_error(error)}.") from error
    clients = len(ctx.roster)
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size) or len(np.unique(chosen)) != len(chosen):
        raise UserError(f"The sampler {text!r} should give each client of the cohort once, by its number in the roster.")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < clients:
        raise UserError(f"The sampler {text!r} names client {int(chosen.max())} of {clients}: numbers run from 0 to {clients - 1}.")
    found = np.sort(chosen.astype(np.int64))
    return found[ctx.roster.reachable[found]]


@cache
def _load_sampler(name: str) -> Sampler:
    """A function of the user's own; anything else is not called."""
    found = import_object("Sampler", name)
    first = tuple(inspect.signature(found).parameters)[: len(PARAMETERS)] if inspect.isfunction(found) else ()
    if first != PARAMETERS:
        raise UserError(f"Sampler {name!r} should be a function of ({', '.join(PARAMETERS)}) that gives the numbers of clients.")
    sampler: Sampler = found
    return sampler
