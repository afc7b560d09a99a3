"""Questions of asynchronous rounds on their way to sites and back: who is asked when there is room, and whose answers are there."""

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coterie.core.acceptance import assemble
from coterie.core.arrays import Array, Ids
from coterie.core.refusals import Refused
from coterie.deploy.checks import Said
from coterie.deploy.messages import Parcel, to_message
from coterie.deploy.parcels import clients_of, parcel_for
from coterie.engines.engine import Arrived, Awaited, Stamped

Rows = dict[int, dict[str, Array]]  # by client, its row of every column
Read = Callable[[str, Said, tuple[Parcel, list[int]], list[Rows], list[dict[int, Refused]]], None]


class Post(Protocol):
    """Takes bytes to sites, and brings back what they say when they say it."""

    def post(self, number: str, site: str, data: bytes) -> None:
        """Send a parcel, and do not wait."""

    def collect(self, *, wait: bool) -> tuple[str, Said | None] | None:
        """The next answer by the number of its parcel, or None in its place where none will come; None where there is nothing to come, or,
        without waiting, nothing now."""


@dataclass(frozen=True)
class _Letter:
    """A parcel that has not been answered."""

    site: str
    parcel: Parcel
    lanes: tuple[tuple[int, int, tuple[int, ...]], ...]  # of each of its asks the lane, the round and the clients


@dataclass(frozen=True)
class _Answer:
    client: int
    round_: int
    said: dict[str, Array] | Refused


class Letters:
    """What is on its way for all lanes of a run."""

    def __init__(
        self, post: Post, ids: Sequence[str], site_of: Array, run: str, read: Read, limit: Callable[[str, Parcel], None], order: str = ""
    ) -> None:
        """`read` takes over what a site says, as `FederatedEngine` reads it; `limit` tells the carrier how large an answer can be."""
        self.carrier, self.ids, self.site_of, self.run, self.read = post, ids, site_of, run, read
        self.limit, self.order = limit, order
        self.posted: dict[str, _Letter] = {}
        self.inbox: defaultdict[int, list[_Answer]] = defaultdict(list)  # by lane, answers that it has not had, as they came
        self.silent: defaultdict[int, list[int]] = defaultdict(list)  # by lane, clients that will not answer
        self.at_work: defaultdict[int, set[int]] = defaultdict(set)  # by lane, clients

    @property
    def busy(self) -> set[str]:
        """Sites at work, after a look at what has come in the meantime."""
        while self.posted and (come := self.carrier.collect(wait=False)) is not None:
            self._open(*come)
        return {letter.site for letter in self.posted.values()}

    def answers(self, asks: Sequence[Awaited]) -> list[Arrived]:
        """Ask as there is room, and wait until every lane has as many answers as it wants, or nobody is left to wait for."""
        queues = [clients_of(stamped.ask).tolist() for stamped in asks]
        asked: list[list[int]] = [[] for _ in asks]
        self._ask(asks, queues, asked, attended=False)
        while True:
            self._ask(asks, queues, asked, attended=True)
            if all(self._enough(stamped) for stamped in asks):
                break
            come = self.carrier.collect(wait=True)
            if come is None:  # a carrier that knows of nothing any more
                break
            self._open(*come)
        return [self._taken(stamped, own) for stamped, own in zip(asks, asked, strict=True)]

    def _ask(self, asks: Sequence[Awaited], queues: Sequence[list[int]], asked: Sequence[list[int]], *, attended: bool) -> None:
        """Ask whom there is room for. An answer that lies here holds its place until it is attended to, as the round goes on."""
        now = []
        for stamped, queue, before in zip(asks, queues, asked, strict=True):
            here = len(self.inbox[stamped.lane])
            room = stamped.room - len(self.at_work[stamped.lane]) - (0 if attended else here)
            now.append(self._next(stamped.lane, queue, room if here < stamped.wanted or not attended else 0))
            before += now[-1]
        self._post(asks, now)

    def _next(self, lane: int, queue: list[int], room: int) -> list[int]:
        """Whom of a lane's cohort to ask now; who is at work, or whose answer lies here, is not asked again."""
        known = self.at_work[lane] | {answer.client for answer in self.inbox[lane]}
        found: list[int] = []
        while queue and len(found) < room:
            client = queue.pop(0)
            if client not in known:
                found.append(client)
        self.at_work[lane] |= set(found)
        return found

    def _enough(self, stamped: Awaited) -> bool:
        return len(self.inbox[stamped.lane]) >= stamped.wanted or not self.at_work[stamped.lane]

    def _post(self, asks: Sequence[Awaited], now: Sequence[Sequence[int]]) -> None:
        """One letter for each site, whatever the number of lanes and clients in it."""
        plain = [Stamped(s.ask, s.seed, s.round_, s.draw) for s in asks]
        for site in dict.fromkeys(self.site_of[client] for clients in now for client in clients):
            rows = [_places(stamped, [c for c in own if self.site_of[c] == site]) for stamped, own in zip(asks, now, strict=True)]
            concerned = [i for i, own in enumerate(rows) if len(own)]
            number = secrets.token_hex(16)
            parcel = parcel_for([plain[i] for i in concerned], self.ids, [rows[i] for i in concerned], self.run, number, self.order)
            lanes = tuple((asks[i].lane, asks[i].round_, tuple(clients_of(asks[i].ask)[rows[i]].tolist())) for i in concerned)
            self.posted[number] = _Letter(site, parcel, lanes)
            self.limit(site, parcel)
            self.carrier.post(number, site, to_message(parcel))

    def _open(self, number: str, data: Said | None) -> None:
        """Put what a site says, or that it says nothing, where the lanes find it."""
        letter = self.posted.pop(number, None)
        if letter is None:
            return
        rows: list[Rows] = [{} for _ in letter.lanes]
        refused: list[dict[int, Refused]] = [{} for _ in letter.lanes]
        if data is not None:
            self.read(letter.site, data, (letter.parcel, list(range(len(letter.lanes)))), rows, refused)
        for (lane, round_, clients), own, faults in zip(letter.lanes, rows, refused, strict=True):
            said: Mapping[int, dict[str, Array] | Refused] = {**own, **faults}
            self.at_work[lane] -= set(clients)
            self.silent[lane] += [client for client in clients if client not in said]
            self.inbox[lane] += [_Answer(client, round_, said[client]) for client in clients if client in said]

    def _taken(self, stamped: Awaited, asked: Sequence[int]) -> Arrived:
        """As many answers as the lane wants, and who will not answer: they are the lane's from now on."""
        lane = stamped.lane
        taken, self.inbox[lane] = self.inbox[lane][: stamped.wanted], self.inbox[lane][stamped.wanted :]
        silent, self.silent[lane] = self.silent[lane], []
        answers = []
        for round_ in sorted({answer.round_ for answer in taken}):
            own = [answer for answer in taken if answer.round_ == round_]
            reply = assemble(stamped.ask, {a.client: a.said for a in own if not isinstance(a.said, Refused)})
            reply.refused.update({a.client: a.said for a in own if isinstance(a.said, Refused)})
            answers.append((round_, reply))
        return Arrived(np.array(asked, dtype=np.int64), tuple(answers), np.array(sorted(silent), dtype=np.int64))


def _places(stamped: Awaited, clients: Sequence[int]) -> Ids:
    return np.flatnonzero(np.isin(clients_of(stamped.ask), np.array(clients, dtype=np.int64))).astype(np.int64)
