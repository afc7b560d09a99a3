"""The site's ledger: what was spent and shown, on its disk, so that a restart forgets nothing and no run begins anew.

It holds the privacy charges and the evaluated models of every client, the asks of every run, the directions that sketches have shown, and
the secret of the site's random rounding. What an answer costs is written before the work begins: a crash after that costs budget for
nothing, never the other way round.

Every version of the ledger is sealed: its hash is in a line of the audit log before the file takes its name. A ledger that is missing,
older or changed does not have the hash of the last seal, and is refused.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.core.disk import flush, text_hash
from coterie.core.errors import UserError
from coterie.core.locks import locked
from coterie.deploy.accountant import Charge, epsilon_of
from coterie.deploy.audit import Audit
from coterie.deploy.mechanisms import ClipNoise, DpSgd, NoPrivacy

FORMAT = 2
DATA = "data:"  # what the names of clients' data begin with, beside those of clients
SEAL = "ledger"  # the key of an audit line that seals a version


@dataclass
class Book:
    """What a ledger says. Clients have two names each, their id and the hash of their data, so that neither a new id nor new data alone
    gives a fresh budget."""

    secret: str = field(default_factory=lambda: os.urandom(32).hex())
    charges: dict[str, list[Charge]] = field(default_factory=dict)  # by name of a client or of its data
    models: dict[str, int] = field(default_factory=dict)  # on which a client was evaluated in all runs, by the same names
    runs: dict[str, dict[str, int]] = field(default_factory=dict)  # by run: the asks under "", and the models by client
    sketches: dict[str, int] = field(default_factory=dict)  # by projection, the longest sketch that was shown

    def charge(
        self, costs: Mapping[str, Charge], privacy: NoPrivacy | ClipNoise | DpSgd, data: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """Charge clients; those whose limit it would pass are not charged: they are returned, with epsilon."""
        limit = getattr(privacy, "epsilon_limit", None)
        over: dict[str, float] = {}
        for client, cost in costs.items():
            if cost.steps < 1:
                raise ValueError(f"a charge of {cost.steps} steps")  # a ledger only ever grows
            after = {name: _added(self.charges.get(name, []), cost) for name in _names(client, data)}
            if limit is not None and not isinstance(privacy, NoPrivacy):
                epsilon = max(epsilon_of(charges, privacy.delta, privacy.mechanism) for charges in after.values())
                if epsilon > limit:
                    over[client] = epsilon
                    continue
            self.charges |= after
        return over

    def spent(
        self, privacy: ClipNoise | DpSgd, clients: Iterable[str] | None = None, data: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """Epsilon so far, of these clients or of all."""
        known = [name for name in self.charges if not name.startswith(DATA)] if clients is None else clients
        return {
            client: max(epsilon_of(self.charges.get(name, []), privacy.delta, privacy.mechanism) for name in _names(client, data))
            for client in known
        }

    def count_ask(self, run: str) -> int:
        """Count one ask of a run; how many it has had, this one included."""
        counts = self.runs.setdefault(run, {})
        counts[""] = counts.get("", 0) + 1
        return counts[""]

    def count_models(self, run: str, client: str, more: int, data: Mapping[str, str] | None = None) -> tuple[int, int]:
        """Count models on which a client is evaluated; how many they are in this run, and on its data in all runs."""
        counts = self.runs.setdefault(run, {})
        counts[client] = counts.get(client, 0) + more
        for name in _names(client, data):
            self.models[name] = self.models.get(name, 0) + more
        return counts[client], max(self.models[name] for name in _names(client, data))

    def as_text(self) -> str:
        """The book as the file holds it."""
        tree = {**vars(self), "charges": {name: [asdict(c) for c in charges] for name, charges in self.charges.items()}}
        return json.dumps({"format": FORMAT, **tree}, indent=1, sort_keys=True)

    @classmethod
    def read(cls, text: str) -> "Book":
        """The inverse of `as_text`; ValueError, TypeError or KeyError where the text is no ledger."""
        tree = json.loads(text)
        if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
            raise ValueError("it is not a ledger of this version of coterie")
        charges = {name: [_charge(entry) for entry in entries] for name, entries in tree.pop("charges").items()}
        counts = [tree["models"], tree["sketches"], *tree["runs"].values()]
        if any(type(count) is not int or count < 0 for table in counts for count in table.values()):
            raise ValueError("a count is no whole number")
        return cls(charges=charges, **tree)


class Ledger:
    """One JSON file, and the audit log that seals it."""

    def __init__(self, path: Path, audit: Audit | None = None) -> None:
        """Without an audit log (to look at a ledger) no seal is checked or made."""
        self.path, self.audit = path, audit
        with locked(path):
            self.book = self._read()  # one that is damaged is refused now, not in the middle of a run

    @contextmanager
    def spending(self, run: str = "") -> Iterator[Book]:
        """The book, to be written to; it is on the disk, and sealed, when the block ends. Nobody else writes meanwhile."""
        with locked(self.path):
            book = self._read()
            before = book.as_text()
            yield book
            if (text := book.as_text()) != before or not self.path.exists():
                self._write(text, run)
            self.book = book

    def charge(self, costs: Mapping[str, Charge], privacy: NoPrivacy | ClipNoise | DpSgd) -> dict[str, float]:
        """Write down what clients are about to spend; see `Book.charge`."""
        with self.spending() as book:
            return book.charge(costs, privacy)

    def spent(self, privacy: ClipNoise | DpSgd, clients: Iterable[str] | None = None) -> dict[str, float]:
        """Epsilon so far, of these clients or of all in the ledger."""
        return self._read().spent(privacy, clients)

    def charges(self) -> dict[str, list[Charge]]:
        """Everything that was charged, by client."""
        return {name: charges for name, charges in self._read().charges.items() if not name.startswith(DATA)}

    @property
    def _draft(self) -> Path:
        return self.path.with_name(f".draft-{self.path.name}")

    def _write(self, text: str, run: str) -> None:
        """On the disk first, then sealed, then in its place: after a crash between the two the draft has the hash of the seal."""
        handle = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self.audit is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self.audit.append({"time": now, "event": "ledger sealed", "run": run, SEAL: text_hash(text)})
        self._draft.replace(self.path)
        flush(self.path.parent)

    def _read(self) -> Book:
        text = _text_of(self.path)
        if self.audit is not None:
            text = self._sealed(text)
        if text is None:
            return Book()
        try:
            return Book.read(text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"The privacy ledger {self.path} cannot be read ({error}): restore it from a copy; without it nobody knows what was spent."
            ) from error

    def _sealed(self, text: str | None) -> str | None:
        """The text, if the audit log's last seal is of it."""
        assert self.audit is not None
        seal = self.audit.last_value(SEAL)
        if seal == (None if text is None else text_hash(text)):
            return text
        draft = _text_of(self._draft)
        if seal is not None and draft is not None and text_hash(draft) == seal:  # the machine stopped before it had its name
            self._draft.replace(self.path)
            flush(self.path.parent)
            return draft
        if seal is None:
            fault = f"is not known to the audit log {self.audit.path}, which was removed or begun anew"
        else:
            fault = "is missing" if text is None else "is not the one that the audit log sealed last: it was changed, or is an older copy"
        raise UserError(
            f"The privacy ledger {self.path} {fault}. Nothing is answered, for nobody knows what was spent: restore the ledger and the "
            "audit log together, from their last state."
        )


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The privacy ledger {path} cannot be read ({error}): restore it from a copy; without it nobody knows what was spent."
        ) from error


def _charge(entry: Any) -> Charge:
    made = Charge(**entry)
    if type(made.steps) is not int or made.steps < 0 or not all(isinstance(each, (int, float)) for each in (made.noise, made.rate)):
        raise ValueError("a charge is no number of steps")
    return made


def _names(client: str, data: Mapping[str, str] | None) -> tuple[str, ...]:
    return (client,) if data is None or client not in data else (client, f"{DATA}{data[client]}")


def _added(charges: list[Charge], cost: Charge) -> list[Charge]:
    """The charges and one more; steps of the same kind are one entry."""
    same = [c for c in charges if replace(c, steps=0) == replace(cost, steps=0)]
    rest = [c for c in charges if c not in same]
    return [*rest, replace(cost, steps=cost.steps + sum(c.steps for c in same))]
