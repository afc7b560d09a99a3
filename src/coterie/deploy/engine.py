"""The engine of a real federation: asks go to the sites that hold the clients, and the replies are what came back in time."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

import numpy as np

from coterie.core.acceptance import assemble
from coterie.core.refusals import Refusal, Refused
from coterie.deploy.awaiting import Letters, Post, Rows
from coterie.deploy.checks import InvalidMessageError, Known, Said, check_denial, check_reply, most_bytes, read_answers, shown
from coterie.deploy.denied import Denied
from coterie.deploy.members import Members
from coterie.deploy.messages import LIMIT, MessageError, Parcel, to_message
from coterie.deploy.parcels import clients_of, parcel_for, rows_of
from coterie.engines.engine import Awaited, Engine, Stamped


class Carrier(Protocol):
    """Takes bytes to sites and brings back what they say."""

    def exchange(self, parcels: Mapping[str, bytes]) -> Mapping[str, Said]:
        """By site, the answers that came in time; who is silent is missing."""


class PostingCarrier(Carrier, Post, Protocol):
    """One that can also send without waiting, for asynchronous rounds."""


@runtime_checkable
class LimitingCarrier(Protocol):
    """One that can drop an answer while it comes in, before it is in memory."""

    def limit_answers(self, most: Mapping[str, int]) -> None:
        """By site, the bytes that its answer to what is sent next can have at most."""


def limit_answers(carrier: object, most: Mapping[str, int]) -> None:
    """Tell a carrier that can make use of it how large answers can be."""
    if isinstance(carrier, LimitingCarrier):
        carrier.limit_answers(most)


class FederatedEngine(Engine):
    """One parcel for each site and phase, whatever the number of lanes and clients in it."""

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
        """`sites` says at which site each client is, `ids` are the clients in the order of the roster. In asynchronous rounds sites at work
        are asked nothing else before the `last` round, in which everybody is waited for. Replies are held against what `members` say of
        themselves; sample counts only where they are to be checked. `order` is the hash that every message carries."""
        self.order = order
        self.carrier, self.ids, self.run_id, self.limit, self.last = carrier, tuple(ids), run, limit, last
        self.site_of = np.array([sites[name] for name in ids], dtype=object)
        self._number = {name: i for i, name in enumerate(ids)}
        self._letters: Letters | None = None
        self._classes, self._sizes, self._tests = None, None, None
        if members is not None:
            self._classes = len(members.classes)
            self._tests = np.array([member.actual for member in members.members], dtype=np.int64).reshape(-1, self._classes)
            self._sizes = np.array([member.train for member in members.members], dtype=np.int64) if counts == "checked" else None

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        later = [stamped for stamped in asks if isinstance(stamped, Awaited)]
        if later:  # trainings of all lanes are asked for together
            come = iter(self.letters.answers(later))
            rest = iter(self.run([stamped for stamped in asks if not isinstance(stamped, Awaited)]))
            return [next(come if isinstance(stamped, Awaited) else rest) for stamped in asks]
        number = secrets.token_hex(16)
        parcels = self._parcels(asks, number)
        if self._letters is not None and all(self.last is None or stamped.round_ < self.last for stamped in asks):
            busy = self._letters.busy
            parcels = {site: parcel for site, parcel in parcels.items() if site not in busy}
        sent = {site: to_message(parcel) for site, (parcel, _) in parcels.items()}
        limit_answers(self.carrier, {site: self._most_bytes(parcel) for site, (parcel, _) in parcels.items()})
        answers: list[Rows] = [{} for _ in asks]
        refused: list[dict[int, Refused]] = [{} for _ in asks]
        for site, data in self.carrier.exchange(sent).items() if sent else ():
            if site in parcels:
                self._read(site, data, parcels[site], answers, refused)
        return [_reply(stamped, rows, faults) for stamped, rows, faults in zip(asks, answers, refused, strict=True)]

    @property
    def letters(self) -> Letters:
        """What is on its way in asynchronous rounds."""
        if self._letters is None:
            carrier = cast(PostingCarrier, self.carrier)
            self._letters = Letters(carrier, self.ids, self.site_of, self.run_id, self._read, self._limit, self.order)
        return self._letters

    def _limit(self, site: str, parcel: Parcel) -> None:
        limit_answers(self.carrier, {site: self._most_bytes(parcel)})

    def _most_bytes(self, parcel: Parcel) -> int:
        """The most that the answer to a parcel can weigh."""
        most = most_bytes(parcel, self._classes)
        return self.limit if most is None else min(most, self.limit)

    def _known(self, numbers: Sequence[int]) -> Known | None:
        """What the cards say of these clients."""
        if self._classes is None or self._tests is None:
            return None
        return Known(self._classes, self._tests[numbers], None if self._sizes is None else self._sizes[numbers])

    def _parcels(self, asks: Sequence[Stamped], number: str) -> dict[str, tuple[Parcel, list[int]]]:
        """By site, its parcel and which of the asks are in it."""
        owners = [self.site_of[clients_of(stamped.ask)] for stamped in asks]
        found: dict[str, tuple[Parcel, list[int]]] = {}
        for site in dict.fromkeys(site for own in owners for site in own):
            concerned = [i for i, own in enumerate(owners) if (own == site).any()]
            rows = [np.flatnonzero(owners[i] == site) for i in concerned]
            found[site] = (parcel_for([asks[i] for i in concerned], self.ids, rows, self.run_id, number, self.order), concerned)
        return found

    def _read(self, site: str, data: Said, sent: tuple[Parcel, list[int]], answers: list[Rows], refused: list[dict[int, Refused]]) -> None:
        """Take over what a site says; what cannot be right is refused for all its clients, and costs no other site anything."""
        parcel, concerned = sent
        numbers = [self._number[name] for name in parcel.ids]

        def refuse(ask: int, stamped: Stamped, why: Refusal, detail: object) -> None:
            refused[ask] |= {numbers[c]: Refused(why, f"{site}: {shown(detail)}") for c in clients_of(stamped.ask)}

        try:
            said = read_answers(data, parcel, self._most_bytes(parcel))
        except MessageError as error:
            for i, stamped in zip(concerned, parcel.asks, strict=True):
                refuse(i, stamped, _why(error), error)
            return
        known = self._known(numbers)
        for i, stamped, own in zip(concerned, parcel.asks, said.answers, strict=True):
            if isinstance(own, Denied):
                denied = check_denial(own)
                refuse(i, stamped, Refusal.FAILED if denied.cause == "failure" else Refusal.DENIED, denied.reason)
                continue
            try:
                check_reply(own, stamped.ask, known)
            except MessageError as error:
                refuse(i, stamped, _why(error), error)
                continue
            answers[i] |= {numbers[c]: row for c, row in rows_of(own).items()}


def _why(error: MessageError) -> Refusal:
    return error.why if isinstance(error, InvalidMessageError) else Refusal.UNREADABLE


def _reply(stamped: Stamped, rows: Rows, faults: Mapping[int, Refused]) -> Any:
    reply = assemble(stamped.ask, rows)
    reply.refused.update(faults)
    return reply
