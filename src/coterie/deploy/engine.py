"""The engine of a real federation: asks go to the sites that hold the clients, and the replies are what came back in time."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from coterie.core.acceptance import assemble
from coterie.core.refusals import Refusal, Refused
from coterie.deploy.awaiting import Letters, Post, Rows
from coterie.deploy.denied import Denied
from coterie.deploy.messages import LIMIT, Answers, MessageError, Parcel, from_message, to_message
from coterie.deploy.parcels import check_reply, clients_of, parcel_for, rows_of
from coterie.engines.engine import Awaited, Engine, Stamped


class Carrier(Protocol):
    """Takes bytes to sites and brings back what they say."""

    def exchange(self, parcels: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """By site, the answers that came in time; who is silent is missing."""


class PostingCarrier(Carrier, Post, Protocol):
    """One that can also send without waiting, for asynchronous rounds."""


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
        order: str = "",
    ) -> None:
        """`sites` says at which site each client is, `ids` are the clients in the order of the roster. In asynchronous rounds sites at work
        are asked nothing else before the `last` round, in which everybody is waited for. `order` is the hash that every message carries."""
        self.order = order
        self.carrier, self.ids, self.run_id, self.limit, self.last = carrier, tuple(ids), run, limit, last
        self.site_of = np.array([sites[name] for name in ids], dtype=object)
        self._number = {name: i for i, name in enumerate(ids)}
        self._letters: Letters | None = None

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
            self._letters = Letters(cast(PostingCarrier, self.carrier), self.ids, self.site_of, self.run_id, self._read, self.order)
        return self._letters

    def _parcels(self, asks: Sequence[Stamped], number: str) -> dict[str, tuple[Parcel, list[int]]]:
        """By site, its parcel and which of the asks are in it."""
        owners = [self.site_of[clients_of(stamped.ask)] for stamped in asks]
        found: dict[str, tuple[Parcel, list[int]]] = {}
        for site in dict.fromkeys(site for own in owners for site in own):
            concerned = [i for i, own in enumerate(owners) if (own == site).any()]
            rows = [np.flatnonzero(owners[i] == site) for i in concerned]
            found[site] = (parcel_for([asks[i] for i in concerned], self.ids, rows, self.run_id, number, self.order), concerned)
        return found

    def _read(self, site: str, data: bytes, sent: tuple[Parcel, list[int]], answers: list[Rows], refused: list[dict[int, Refused]]) -> None:
        """Take over what a site says; what cannot be right is refused for all its clients, and costs no other site anything."""
        parcel, concerned = sent
        numbers = [self._number[name] for name in parcel.ids]

        def refuse(ask: int, stamped: Stamped, why: Refusal, detail: str) -> None:
            refused[ask] |= {numbers[c]: Refused(why, f"{site}: {detail}") for c in clients_of(stamped.ask)}

        try:
            said = from_message(data, Answers, self.limit)
            if (said.run, said.number, said.ids) != (parcel.run, parcel.number, parcel.ids) or len(said.answers) != len(concerned):
                raise MessageError("an answer to another question")
            if said.order != parcel.order:
                raise MessageError("an answer to another order")
        except MessageError as error:
            for i, stamped in zip(concerned, parcel.asks, strict=True):
                refuse(i, stamped, Refusal.UNREADABLE, str(error))
            return
        for i, stamped, own in zip(concerned, parcel.asks, said.answers, strict=True):
            if isinstance(own, Denied):
                refuse(i, stamped, Refusal.FAILED if own.cause == "failure" else Refusal.DENIED, own.reason)
                continue
            try:
                check_reply(own, stamped.ask, len(numbers))
            except MessageError as error:
                refuse(i, stamped, Refusal.UNREADABLE, str(error))
                continue
            answers[i] |= {numbers[c]: row for c, row in rows_of(own).items()}


def _reply(stamped: Stamped, rows: Rows, faults: Mapping[int, Refused]) -> Any:
    reply = assemble(stamped.ask, rows)
    reply.refused.update(faults)
    return reply
