"""The orders that a site has seen, and what it said to each: kept in its kit, so that a restart forgets no approval and no refusal."""

import getpass
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from coterie.core.disk import write_whole
from coterie.core.errors import UserError
from coterie.core.locks import locked
from coterie.deploy.audit import Audit
from coterie.deploy.files import kit_files
from coterie.deploy.names import escape_text, shorten_text
from coterie.deploy.orders import LONGEST_NOTE, SHORT_HASH, OrderError, OrderTerms, hash_order

FILE = "orders.json"
MOST_PENDING = 50  # orders that wait at once: a server could send new ones without end
State = Literal["pending", "approved", "refused"]


@dataclass(frozen=True)
class OrderRecord:
    """One order at a site."""

    terms: str  # canonical JSON
    state: State = "pending"
    by: str = ""  # who decided: a user's name, or "policy"
    time: str = ""  # of the decision, or of the first message
    reason: str = ""  # of a refusal, or why the policy did not approve it by itself
    epsilon: float | None = None  # the largest of a client after this order, as estimated when it came
    limit: float | None = None  # the epsilon up to which the policy's [approve] has approved it
    delivered: Mapping[str, int] = field(default_factory=dict)  # by method, the round of the models that came

    @property
    def order(self) -> OrderTerms:
        return OrderTerms.read(self.terms)


class Approvals:
    """The file of a kit. Whoever decides writes a line into the kit's audit log first."""

    def __init__(self, kit: Path) -> None:
        files = kit_files(kit)
        self.kit, self.path, self.audit = kit, files.policy.with_name(FILE), Audit(files.audit)
        self._seen: tuple[int, int] | None = None
        self._known: dict[str, OrderRecord] = {}

    def records(self) -> dict[str, OrderRecord]:
        """Return all orders by their hash, the oldest first. The file is read again only when it has changed."""
        try:
            found = self.path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._seen:
                tree = json.loads(self.path.read_text(encoding="utf-8"))
                self._known = {name: OrderRecord(**told) for name, told in tree.items()}
                self._seen = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            self._known, self._seen = {}, None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"The orders in {self.path} cannot be read ({error}): restore the file from a copy, or remove it and approve anew."
            ) from error
        return self._known

    def find(self, order: str) -> OrderRecord | None:
        """Return the record of a hash."""
        return self.records().get(order)

    def note(self, record: OrderRecord) -> OrderRecord:
        """Keep an order that came, with what the policy says to it; one that is known already stays as it is, unless it now is approved."""
        name = hash_order(record.terms)
        with self._changing() as known:
            before = known.get(name)
            if before is not None and (before.state != "pending" or record.state == "pending"):
                return before
            if record.state == "pending" and sum(one.state == "pending" for one in known.values()) >= MOST_PENDING:
                raise OrderError(f"{MOST_PENDING} orders wait for the site's approval already: it takes no further ones")
            made = replace(record, time=_now())
            self._log(name, made)
            known[name] = made
        return made

    def decide(self, name: str, state: State, reason: str = "") -> tuple[str, OrderRecord]:
        """Approve or refuse an order by hand.

        Args:
            name: The run, or the beginning of the order's hash.
            state: "approved" or "refused".
            reason: Of a refusal; the server is told.

        Returns:
            The order's hash and its record.
        """
        order = self.resolve(name, but=state)
        with self._changing() as known:
            made = replace(known[order], state=state, by=_user(), time=_now(), reason=shorten_text(reason, LONGEST_NOTE), limit=None)
            self._log(order, made)
            known[order] = made
        return order, made

    def resolve(self, name: str, but: State | None = None) -> str:
        """Return the hash of the order that a run's name or the beginning of a hash means, one that is not in the state `but`."""
        known = self.records()
        found = [order for order, record in known.items() if order.startswith(name) and len(name) >= 6] or [
            order for order, record in known.items() if _run_of(record) == name
        ]
        others = [order for order in found if known[order].state != but]
        pending = [order for order in others if known[order].state == "pending"]
        chosen = pending or others
        if len(chosen) > 1:
            raise UserError(
                f"{len(chosen)} orders are called {name!r}: name one by its hash, {' or '.join(order[:SHORT_HASH] for order in chosen)}."
            )
        if chosen:
            return chosen[0]
        if found:
            raise UserError(f"The order {found[0][:SHORT_HASH]} ({_run_of(known[found[0]])}) is {but} already.")
        listed = ", ".join(f"{_run_of(record)} ({order[:SHORT_HASH]})" for order, record in known.items() if record.state == "pending")
        raise UserError(f"The kit {self.kit} knows no order {escape_text(name)!r}: {f'choose from {listed}' if listed else 'none waits'}.")

    def note_delivery(self, order: str, method: str, round_: int) -> None:
        """Keep that a method's models of a round have come."""
        with self._changing() as known:
            known[order] = replace(known[order], delivered={**known[order].delivered, method: round_})

    def _log(self, order: str, record: OrderRecord) -> None:
        entry = {"event": "approval", "time": record.time, "run": _run_of(record), "order": order, "state": record.state}
        self.audit.append({**entry, "by": record.by, "reason": record.reason, "epsilon": record.epsilon})

    @contextmanager
    def _changing(self) -> Iterator[dict[str, OrderRecord]]:
        with locked(self.path):
            known = dict(self.records())
            before = dict(known)
            yield known
            if known != before:
                write_whole(self.path, json.dumps({name: asdict(record) for name, record in known.items()}, indent=1), 0o600)


def _run_of(record: OrderRecord) -> str:
    try:
        return record.order.run
    except OrderError:  # the file was edited
        return "?"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
