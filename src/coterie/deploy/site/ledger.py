"""The privacy ledger of a site: what every client has spent, kept on disk so that a restart forgets nothing.

Epsilon is computed by Opacus' accountant of Rényi differential privacy over all that a client has ever sent.
"""

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie._util.files import hash_text, lock_file, sync_to_disk
from coterie.core.arrays import Doubles
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy

ORDERS = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 80, 96, 128, 192, 256, 384, 512]  # broken ones take long


@dataclass(frozen=True)
class Charge:
    """Steps of one mechanism at one noise; `exact` answers have none, and no epsilon."""

    mechanism: Literal["dp-sgd", "clip+noise", "exact"]
    noise: float  # deviation over sensitivity
    rate: float  # the probability with which a sample enters a step
    steps: int


def compute_epsilon(charges: Iterable[Charge], delta: float, mechanism: str) -> float:
    """The epsilon at this delta of all noisy steps together.

    A guarantee for a whole update covers a sample, too, so under dp-sgd both kinds of steps count. The other way round it does not
    hold: under clip+noise only steps of that mechanism are in the sum.
    """
    counted = [c for c in charges if c.steps and (c.mechanism == mechanism or (mechanism == "dp-sgd" and c.mechanism == "clip+noise"))]
    if not counted:
        return 0.0
    spent = sum(c.steps * _compute_step_rdp(c.rate, c.noise) for c in counted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order being the last one only means that the bound could be a little tighter
        epsilon, _ = _import_rdp().get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(epsilon))


def calibrate_noise(epsilon: float, delta: float, releases: int) -> float:
    """The noise, in clips, at which so many clipped and noised vectors of a client cost this epsilon (unit: all that the client sends)."""
    low, high = 1e-3, 1e5
    for _ in range(60):
        middle = (low * high) ** 0.5
        spent = compute_epsilon([Charge("clip+noise", middle / 2, 1.0, releases)], delta, "clip+noise")  # two vectors are two clips apart
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


@lru_cache(maxsize=1 << 12)
def _compute_step_rdp(rate: float, noise: float) -> Doubles:
    """The Rényi divergence of one step at each order; it takes long, and is the same for every step."""
    return np.asarray(_import_rdp().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS), dtype=np.float64)


def _import_rdp() -> Any:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        raise UserError("Privacy is accounted by Opacus, which is not installed: pip install 'coterie[deploy]'.") from None
    return rdp


FORMAT = 2
DATA = "data:"  # what the names of clients' data begin with, beside those of clients
SEAL = "ledger"  # the key of an audit line that seals a version


@dataclass
class Book:
    """The contents of a ledger. Clients have two names each, their id and the hash of their data: neither a new id nor new data alone
    gives a fresh budget."""

    secret: str = field(default_factory=lambda: os.urandom(32).hex())
    charges: dict[str, list[Charge]] = field(default_factory=dict)  # by name of a client or of its data
    models: dict[str, int] = field(default_factory=dict)  # on which a client was evaluated in all runs, by the same names
    runs: dict[str, dict[str, int]] = field(default_factory=dict)  # by run: the asks under "", and the models by client
    sketches: dict[str, int] = field(default_factory=dict)  # by projection, the longest sketch that was shown
    grids: dict[str, str] = field(default_factory=dict)  # by run, a hash of the intervals in which survival times were counted

    def charge(
        self, costs: Mapping[str, Charge], privacy: NoPrivacy | ClipNoise | DpSgd, data: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """Charge clients; those whose limit it would pass are not charged: they are returned, with epsilon."""
        limit = getattr(privacy, "epsilon_limit", None)
        over: dict[str, float] = {}
        for client, cost in costs.items():
            if cost.steps < 1:
                raise ValueError(f"a charge of {cost.steps} steps")  # a ledger only ever grows
            after = {name: _add_charge(self.charges.get(name, []), cost) for name in _get_names(client, data)}
            if limit is not None and not isinstance(privacy, NoPrivacy):
                epsilon = max(compute_epsilon(charges, privacy.delta, privacy.mechanism) for charges in after.values())
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
            client: max(compute_epsilon(self.charges.get(name, []), privacy.delta, privacy.mechanism) for name in _get_names(client, data))
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
        for name in _get_names(client, data):
            self.models[name] = self.models.get(name, 0) + more
        return counts[client], max(self.models[name] for name in _get_names(client, data))

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
        charges = {name: [_parse_charge(entry) for entry in entries] for name, entries in tree.pop("charges").items()}
        counts = [tree["models"], tree["sketches"], *tree["runs"].values()]
        if any(type(count) is not int or count < 0 for table in counts for count in table.values()):
            raise ValueError("a count is no whole number")
        return cls(charges=charges, **tree)


class Ledger:
    """One JSON file, and the audit log that seals it."""

    def __init__(self, path: Path, audit: Audit | None = None) -> None:
        """Without an audit log (to look at a ledger) no seal is checked or made."""
        self.path, self.audit = path, audit
        with lock_file(path):
            self.book = self._read()  # one that is damaged is refused now, not in the middle of a run

    @contextmanager
    def spending(self, run: str = "") -> Iterator[Book]:
        """The book, to be written to; it is on the disk, and sealed, when the block ends. No other process writes meanwhile."""
        with lock_file(self.path):
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
            self.audit.append({"time": now, "event": "ledger sealed", "run": run, SEAL: hash_text(text)})
        self._draft.replace(self.path)
        sync_to_disk(self.path.parent)

    def _read(self) -> Book:
        text = _read_text(self.path)
        if self.audit is not None:
            text = self._sealed(text)
        if text is None:
            return Book()
        try:
            return Book.read(text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"The privacy ledger {self.path} cannot be read ({error}): restore it from a copy; without it what was spent is unknown."
            ) from error

    def _sealed(self, text: str | None) -> str | None:
        """The text, if the audit log's last seal is of it."""
        assert self.audit is not None
        seal = self.audit.last_value(SEAL)
        if seal == (None if text is None else hash_text(text)):
            return text
        draft = _read_text(self._draft)
        if seal is not None and draft is not None and hash_text(draft) == seal:  # the machine stopped before it had its name
            self._draft.replace(self.path)
            sync_to_disk(self.path.parent)
            return draft
        if seal is None:
            fault = f"is not known to the audit log {self.audit.path}, which was removed or started over"
        else:
            fault = "is missing" if text is None else "is not the one that the audit log sealed last: it was changed, or is an older copy"
        raise UserError(
            f"The privacy ledger {self.path} {fault}. Nothing is answered, since what was spent is unknown: restore the ledger and the "
            "audit log together, from their last state."
        )


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The privacy ledger {path} cannot be read ({error}): restore it from a copy; without it what was spent is unknown."
        ) from error


def _parse_charge(entry: Any) -> Charge:
    made = Charge(**entry)
    if type(made.steps) is not int or made.steps < 0 or not all(isinstance(each, (int, float)) for each in (made.noise, made.rate)):
        raise ValueError("a charge is no number of steps")
    return made


def _get_names(client: str, data: Mapping[str, str] | None) -> tuple[str, ...]:
    return (client,) if data is None or client not in data else (client, f"{DATA}{data[client]}")


def _add_charge(charges: list[Charge], cost: Charge) -> list[Charge]:
    """The charges and one more; steps of the same kind are one entry."""
    same = [c for c in charges if replace(c, steps=0) == replace(cost, steps=0)]
    rest = [c for c in charges if c not in same]
    return [*rest, replace(cost, steps=cost.steps + sum(c.steps for c in same))]
