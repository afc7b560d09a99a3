"""The engine of a real federation: asks go to the sites that hold the clients, replies are those that arrive in time.

Asynchronous rounds keep batches pending and collect replies as they come.
"""

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

import numpy as np

from coterie.core.arrays import Array
from coterie.core.asks import Refusal, RefusedReply
from coterie.core.replies import assemble
from coterie.core.tasks import CLASSIFICATION
from coterie.deploy.messages import LIMIT, AskBatch, Denial, MessageError, RawMessage, get_clients, make_batch, split_by_client, to_message
from coterie.deploy.server.members import Members
from coterie.deploy.server.validation import (
    ClientFacts,
    InvalidMessageError,
    check_denial,
    check_reply,
    clean_text,
    compute_max_bytes,
    read_answers,
)
from coterie.engines.engine import AsyncAsk, AsyncReplies, Engine, StampedAsk

ReplyRows = dict[int, dict[str, Array]]  # by client, its row of every column
ReadReplies = Callable[[str, RawMessage, tuple[AskBatch, list[int]], list[ReplyRows], list[dict[int, RefusedReply]]], None]


class AsyncSender(Protocol):
    """Takes bytes to sites, and brings back their answers as they come."""

    def post(self, number: str, site: str, data: bytes) -> None:
        """Send a batch, and do not wait."""

    def collect(self, *, wait: bool) -> tuple[str, RawMessage | None] | None:
        """The next answer by the number of its batch, or None in its place where none will come; None where there is nothing to come, or,
        without waiting, nothing now."""


@dataclass(frozen=True)
class _PendingBatch:
    """A batch that has not been answered."""

    site: str
    batch: AskBatch
    lanes: tuple[tuple[int, int, tuple[int, ...]], ...]  # of each of its asks the lane, the round and the clients


@dataclass(frozen=True)
class _ClientReply:
    client: int
    round_: int
    response: dict[str, Array] | RefusedReply


class PendingBatches:
    """The pending batches of all lanes of a run."""

    def __init__(
        self,
        post: AsyncSender,
        ids: Sequence[str],
        site_of: Array,
        run: str,
        read: ReadReplies,
        limit: Callable[[str, AskBatch], None],
        order: str = "",
    ) -> None:
        """`read` takes over a site's answer, as `FederatedEngine` reads it; `limit` gives the carrier the largest size of an answer."""
        self.carrier, self.ids, self.site_of, self.run, self.read = post, ids, site_of, run, read
        self.limit, self.order = limit, order
        self.posted: dict[str, _PendingBatch] = {}
        self.inbox: defaultdict[int, list[_ClientReply]] = defaultdict(list)  # by lane, answers that it has not had, as they came
        self.silent: defaultdict[int, list[int]] = defaultdict(list)  # by lane, clients that will not answer
        self.at_work: defaultdict[int, set[int]] = defaultdict(set)  # by lane, clients

    @property
    def busy(self) -> set[str]:
        """Sites at work, after a look at what has come in the meantime."""
        while self.posted and (come := self.carrier.collect(wait=False)) is not None:
            self._open(*come)
        return {info.site for info in self.posted.values()}

    def answers(self, asks: Sequence[AsyncAsk]) -> list[AsyncReplies]:
        """Ask as there is room, and wait until every lane has as many answers as it wants, or no site is left to wait for."""
        queues = [get_clients(stamped.ask).tolist() for stamped in asks]
        asked: list[list[int]] = [[] for _ in asks]
        self._ask(asks, queues, asked, attended=False)
        while True:
            self._ask(asks, queues, asked, attended=True)
            if all(len(self.inbox[one.lane]) >= one.wanted or not self.at_work[one.lane] for one in asks):
                break
            come = self.carrier.collect(wait=True)
            if come is None:  # a carrier that knows of nothing any more
                break
            self._open(*come)
        return [self._taken(stamped, own) for stamped, own in zip(asks, asked, strict=True)]

    def _ask(self, asks: Sequence[AsyncAsk], queues: Sequence[list[int]], asked: Sequence[list[int]], *, attended: bool) -> None:
        """Ask the clients there is room for. An answer that lies here holds its place until the round attends to it."""
        now = []
        for stamped, queue, before in zip(asks, queues, asked, strict=True):
            here = len(self.inbox[stamped.lane])
            room = stamped.room - len(self.at_work[stamped.lane]) - (0 if attended else here)
            now.append(self._next(stamped.lane, queue, room if here < stamped.wanted or not attended else 0))
            before += now[-1]
        self._post(asks, now)

    def _next(self, lane: int, queue: list[int], room: int) -> list[int]:
        """The clients of a lane's cohort to ask now: none that is at work, or whose answer lies here."""
        known = self.at_work[lane] | {answer.client for answer in self.inbox[lane]}
        found: list[int] = []
        while queue and len(found) < room:
            client = queue.pop(0)
            if client not in known:
                found.append(client)
        self.at_work[lane] |= set(found)
        return found

    def _post(self, asks: Sequence[AsyncAsk], now: Sequence[Sequence[int]]) -> None:
        """One batch for each site, whatever the number of lanes and clients in it."""
        plain = [StampedAsk(s.ask, s.seed, s.round_, s.draw) for s in asks]
        for site in dict.fromkeys(self.site_of[client] for clients in now for client in clients):
            here = [np.array([c for c in own if self.site_of[c] == site], dtype=np.int64) for own in now]
            rows = [np.flatnonzero(np.isin(get_clients(stamped.ask), own)) for stamped, own in zip(asks, here, strict=True)]
            concerned = [i for i, own in enumerate(rows) if len(own)]
            number = secrets.token_hex(16)
            batch = make_batch([plain[i] for i in concerned], self.ids, [rows[i] for i in concerned], self.run, number, self.order)
            lanes = tuple((asks[i].lane, asks[i].round_, tuple(get_clients(asks[i].ask)[rows[i]].tolist())) for i in concerned)
            self.posted[number] = _PendingBatch(site, batch, lanes)
            self.limit(site, batch)
            self.carrier.post(number, site, to_message(batch))

    def _open(self, number: str, data: RawMessage | None) -> None:
        """Put a site's answer, or that there is none, where the lanes find it."""
        info = self.posted.pop(number, None)
        if info is None:
            return
        rows: list[ReplyRows] = [{} for _ in info.lanes]
        refused: list[dict[int, RefusedReply]] = [{} for _ in info.lanes]
        if data is not None:
            self.read(info.site, data, (info.batch, list(range(len(info.lanes)))), rows, refused)
        for (lane, round_, clients), own, faults in zip(info.lanes, rows, refused, strict=True):
            response: Mapping[int, dict[str, Array] | RefusedReply] = {**own, **faults}
            self.at_work[lane] -= set(clients)
            self.silent[lane] += [client for client in clients if client not in response]
            self.inbox[lane] += [_ClientReply(client, round_, response[client]) for client in clients if client in response]

    def _taken(self, stamped: AsyncAsk, asked: Sequence[int]) -> AsyncReplies:
        """As many answers as the lane wants, and the clients that will not answer: they are the lane's from now on."""
        lane = stamped.lane
        taken, self.inbox[lane] = self.inbox[lane][: stamped.wanted], self.inbox[lane][stamped.wanted :]
        silent, self.silent[lane] = self.silent[lane], []
        answers = []
        for round_ in sorted({answer.round_ for answer in taken}):
            own = [answer for answer in taken if answer.round_ == round_]
            reply = assemble(stamped.ask, {a.client: a.response for a in own if not isinstance(a.response, RefusedReply)})
            reply.refused.update({a.client: a.response for a in own if isinstance(a.response, RefusedReply)})
            answers.append((round_, reply))
        return AsyncReplies(np.array(asked, dtype=np.int64), tuple(answers), np.array(sorted(silent), dtype=np.int64))


class Carrier(Protocol):
    """Takes bytes to sites and brings back their answers."""

    def exchange(self, batches: Mapping[str, bytes]) -> Mapping[str, RawMessage]:
        """By site, the answers that came in time; silent sites are missing."""


class PostingCarrier(Carrier, AsyncSender, Protocol):
    """One that can also send without waiting, for asynchronous rounds."""


@runtime_checkable
class LimitingCarrier(Protocol):
    """One that can drop an answer while it comes in, before it is in memory."""

    def limit_answers(self, most: Mapping[str, int]) -> None:
        """By site, the bytes that its answer to what is sent next can have at most."""


def limit_answers(carrier: object, most: Mapping[str, int]) -> None:
    """Limit the answers of a carrier that can drop larger ones."""
    if isinstance(carrier, LimitingCarrier):
        carrier.limit_answers(most)


class FederatedEngine(Engine):
    """One batch for each site and phase, whatever the number of lanes and clients in it."""

    name: ClassVar[str] = "flare"

    def __init__(
        self,
        carrier: Carrier,
        sites: Mapping[str, str],
        ids: Sequence[str],
        run: str,
        limit: int = LIMIT,
        *,
        last: int | None = None,
        members: Members | None = None,
        counts: Literal["checked", "believed"] = "checked",
        order: str = "",
    ) -> None:
        """`sites` is the site of each client, `ids` are the clients in the order of the roster. In asynchronous rounds sites at work are
        asked nothing else before the `last` round, in which all sites are waited for. Replies are checked against the cards of `members`;
        sample counts only where they are to be checked. `order` is the hash that every message carries."""
        self.order = order
        self.carrier, self.ids, self.run_id, self.limit, self.last = carrier, tuple(ids), run, limit, last
        self.site_of = np.array([sites[name] for name in ids], dtype=object)
        self._number = {name: i for i, name in enumerate(ids)}
        self._pending: PendingBatches | None = None
        self._classes, self._sizes, self._tests, self._task = None, None, None, CLASSIFICATION
        if members is not None:
            self._task = members.learned
            self._classes = self._task.labels(len(members.classes))
            self._tests = np.array([member.actual for member in members.members], dtype=np.int64).reshape(-1, len(members.classes))
            self._sizes = np.array([member.train for member in members.members], dtype=np.int64) if counts == "checked" else None

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        later = [stamped for stamped in asks if isinstance(stamped, AsyncAsk)]
        if later:  # trainings of all lanes are asked for together
            come = iter(self.pending.answers(later))
            rest = iter(self.run([stamped for stamped in asks if not isinstance(stamped, AsyncAsk)]))
            return [next(come if isinstance(stamped, AsyncAsk) else rest) for stamped in asks]
        number = secrets.token_hex(16)
        batches = self._make_batches(asks, number)
        if self._pending is not None and all(self.last is None or stamped.round_ < self.last for stamped in asks):
            busy = self._pending.busy
            batches = {site: batch for site, batch in batches.items() if site not in busy}
        sent = {site: to_message(batch) for site, (batch, _) in batches.items()}
        limit_answers(self.carrier, {site: self._most_bytes(batch) for site, (batch, _) in batches.items()})
        answers: list[ReplyRows] = [{} for _ in asks]
        refused: list[dict[int, RefusedReply]] = [{} for _ in asks]
        for site, data in self.carrier.exchange(sent).items() if sent else ():
            if site in batches:
                self._read(site, data, batches[site], answers, refused)
        return [_assemble_reply(stamped, rows, faults) for stamped, rows, faults in zip(asks, answers, refused, strict=True)]

    @property
    def pending(self) -> PendingBatches:
        """Batches that are pending in asynchronous rounds."""
        if self._pending is None:
            carrier = cast(PostingCarrier, self.carrier)

            def limit(site: str, batch: AskBatch) -> None:
                limit_answers(carrier, {site: self._most_bytes(batch)})

            self._pending = PendingBatches(carrier, self.ids, self.site_of, self.run_id, self._read, limit, self.order)
        return self._pending

    def _most_bytes(self, batch: AskBatch) -> int:
        """The most bytes that the answer to a batch can have."""
        most = compute_max_bytes(batch, self._classes, len(self._task.sums))
        return self.limit if most is None else min(most, self.limit)

    def _make_batches(self, asks: Sequence[StampedAsk], number: str) -> dict[str, tuple[AskBatch, list[int]]]:
        """By site, its batch and which of the asks are in it."""
        owners = [self.site_of[get_clients(stamped.ask)] for stamped in asks]
        found: dict[str, tuple[AskBatch, list[int]]] = {}
        for site in dict.fromkeys(site for own in owners for site in own):
            concerned = [i for i, own in enumerate(owners) if (own == site).any()]
            rows = [np.flatnonzero(owners[i] == site) for i in concerned]
            found[site] = (make_batch([asks[i] for i in concerned], self.ids, rows, self.run_id, number, self.order), concerned)
        return found

    def _read(
        self,
        site: str,
        data: RawMessage,
        sent: tuple[AskBatch, list[int]],
        answers: list[ReplyRows],
        refused: list[dict[int, RefusedReply]],
    ) -> None:
        """Take over a site's answer; what cannot be right is refused for all its clients, and costs no other site anything."""
        batch, concerned = sent
        numbers = [self._number[name] for name in batch.ids]

        def refuse(ask: int, stamped: StampedAsk, why: Refusal, detail: object) -> None:
            refused[ask] |= {numbers[c]: RefusedReply(why, f"{site}: {clean_text(detail)}") for c in get_clients(stamped.ask)}

        try:
            response = read_answers(data, batch, self._most_bytes(batch))
        except MessageError as error:
            for i, stamped in zip(concerned, batch.asks, strict=True):
                refuse(i, stamped, _describe_error(error), error)
            return
        known = None  # what the cards state of these clients
        if self._classes is not None and self._tests is not None:
            known = ClientFacts(self._classes, self._tests[numbers], None if self._sizes is None else self._sizes[numbers], self._task)
        for i, stamped, own in zip(concerned, batch.asks, response.answers, strict=True):
            if isinstance(own, Denial):
                denied = check_denial(own)
                refuse(i, stamped, Refusal.FAILED if denied.cause == "failure" else Refusal.DENIED, denied.reason)
                continue
            try:
                check_reply(own, stamped.ask, known)
            except MessageError as error:
                refuse(i, stamped, _describe_error(error), error)
                continue
            answers[i] |= {numbers[c]: row for c, row in split_by_client(own).items()}


def _describe_error(error: MessageError) -> Refusal:
    return error.why if isinstance(error, InvalidMessageError) else Refusal.UNREADABLE


def _assemble_reply(stamped: StampedAsk, rows: ReplyRows, faults: Mapping[int, RefusedReply]) -> Any:
    reply = assemble(stamped.ask, rows)
    reply.refused.update(faults)
    return reply
