"""The site's book of privacy spent: on its disk, client by client, so that a restart forgets nothing.

What an answer costs is written before the work begins. A crash after that costs budget for nothing, never the other way round.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from coterie.core.disk import write_whole
from coterie.core.errors import UserError
from coterie.core.locks import locked
from coterie.deploy.accountant import Charge, epsilon_of
from coterie.deploy.mechanisms import ClipNoise, DpSgd, NoPrivacy

Book = dict[str, list[Charge]]  # by client id


class Ledger:
    """Charges by client id, in one JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read()  # one that is damaged is refused now, not in the middle of a run

    def charge(self, costs: Mapping[str, Charge], privacy: NoPrivacy | ClipNoise | DpSgd) -> dict[str, float]:
        """Write down what clients are about to spend; those whose limit it would pass are not charged: they are returned, with epsilon."""
        limit = getattr(privacy, "epsilon_limit", None)
        over: dict[str, float] = {}
        with locked(self.path):
            book = self._read()
            for client, cost in costs.items():
                after = _added(book.get(client, []), cost)
                if limit is not None and not isinstance(privacy, NoPrivacy):
                    epsilon = epsilon_of(after, privacy.delta, privacy.mechanism)
                    if epsilon > limit:
                        over[client] = epsilon
                        continue
                book[client] = after
            if len(over) < len(costs):
                write_whole(
                    self.path, json.dumps({name: [asdict(c) for c in charges] for name, charges in sorted(book.items())}, indent=1), 0o600
                )
        return over

    def spent(self, privacy: ClipNoise | DpSgd, clients: Iterable[str] | None = None) -> dict[str, float]:
        """Epsilon so far, of these clients or of all in the book."""
        book = self._read()
        return {
            client: epsilon_of(book.get(client, []), privacy.delta, privacy.mechanism) for client in (book if clients is None else clients)
        }

    def charges(self) -> Book:
        """Everything in the book."""
        return self._read()

    def _read(self) -> Book:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            return {client: [Charge(**entry) for entry in entries] for client, entries in tree.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"The privacy ledger {self.path} cannot be read ({error}): restore it from a copy; without it nobody knows what was spent."
            ) from error


def _added(charges: list[Charge], cost: Charge) -> list[Charge]:
    """The charges and one more; steps of the same kind are one entry."""
    same = [c for c in charges if replace(c, steps=0) == replace(cost, steps=0)]
    rest = [c for c in charges if c not in same]
    return [*rest, replace(cost, steps=cost.steps + sum(c.steps for c in same))]
