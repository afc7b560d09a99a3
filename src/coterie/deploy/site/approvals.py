"""Orders at a site: which ones arrived, what was decided, and what the site's operator sees while the site takes part.

Records are kept in the kit, so that a restart forgets neither an approval nor a refusal.
"""

import getpass
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Literal

from coterie._util.errors import UserError
from coterie._util.files import lock_file, write_atomic
from coterie._util.json_io import read_json_object
from coterie.deploy.files import escape_text, get_kit_files, shorten_text
from coterie.deploy.orders import ASKS, LONGEST_NOTE, SHORT_HASH, STUDY_QUESTIONS, OrderError, OrderTerms, hash_order
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.explain import describe_order
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy, read_policy

if TYPE_CHECKING:
    from coterie.deploy.site.ledger import Charge


ORDERS_FILE = "orders.json"
MOST_PENDING = 50  # orders that wait at once: a server could send new ones without end
State = Literal["pending", "approved", "refused"]


@dataclass(frozen=True)
class OrderRecord:
    """One order at a site."""

    terms: str  # canonical JSON
    state: State = "pending"
    by: str = ""  # a user's name, or "policy"
    time: str = ""  # of the decision, or of the first message
    reason: str = ""  # of a refusal, or why the policy did not approve it by itself
    epsilon: float | None = None  # the largest of a client after this order, as estimated when it came
    limit: float | None = None  # the epsilon up to which the policy's [approve] has approved it
    delivered: Mapping[str, int] = field(default_factory=dict)  # by method, the round of the models that came

    @property
    def order(self) -> OrderTerms:
        return OrderTerms.read(self.terms)


class Approvals:
    """The file of a kit. Each decision is first written into the kit's audit log."""

    def __init__(self, kit: Path) -> None:
        files = get_kit_files(kit)
        self.kit, self.path, self.audit = kit, files.policy.with_name(ORDERS_FILE), Audit(files.audit)
        self._seen: tuple[int, int] | None = None
        self._known: dict[str, OrderRecord] = {}

    def records(self) -> dict[str, OrderRecord]:
        """Return all orders by their hash, the oldest first. The file is read again only when it has changed."""
        try:
            found = self.path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._seen:
                tree = json.loads(self.path.read_text(encoding="utf-8"))
                self._known = {name: OrderRecord(**details) for name, details in tree.items()}
                self._seen = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            self._known, self._seen = {}, None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"The orders in {self.path} cannot be read ({error}): restore the file from a copy, or remove it and approve again."
            ) from error
        return self._known

    def find(self, order: str) -> OrderRecord | None:
        """Return the record of a hash."""
        return self.records().get(order)

    def note(self, record: OrderRecord) -> OrderRecord:
        """Keep an order that came, with the policy's decision; one that is known already stays as it is, unless it now is approved."""
        name = hash_order(record.terms)
        with self._changing() as known:
            before = known.get(name)
            if before is not None and (before.state != "pending" or record.state == "pending"):
                return before
            if record.state == "pending" and sum(one.state == "pending" for one in known.values()) >= MOST_PENDING:
                raise OrderError(f"{MOST_PENDING} orders wait for the site's approval already: it takes no further ones")
            made = replace(record, time=_format_now())
            self._log(name, made)
            known[name] = made
        return made

    def decide(self, name: str, state: State, reason: str = "") -> tuple[str, OrderRecord]:
        """Approve or refuse an order by hand, by its run's name or the beginning of its hash; its hash and record."""
        order = self.resolve(name, but=state)
        with self._changing() as known:
            made = replace(
                known[order], state=state, by=_get_user(), time=_format_now(), reason=shorten_text(reason, LONGEST_NOTE), limit=None
            )
            self._log(order, made)
            known[order] = made
        return order, made

    def resolve(self, name: str, but: State | None = None) -> str:
        """Return the hash of the order that a run's name or the beginning of a hash means, one that is not in the state `but`."""
        known = self.records()
        found = [order for order in known if order.startswith(name) and len(name) >= 6]
        found = found or [order for order, record in known.items() if _get_run(record) == name]
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
            raise UserError(f"The order {found[0][:SHORT_HASH]} ({_get_run(known[found[0]])}) is {but} already.")
        listed = ", ".join(f"{_get_run(record)} ({order[:SHORT_HASH]})" for order, record in known.items() if record.state == "pending")
        raise UserError(f"The kit {self.kit} knows no order {escape_text(name)!r}: {f'choose from {listed}' if listed else 'none waits'}.")

    def note_delivery(self, order: str, method: str, round_: int) -> None:
        """Keep that a method's models of a round have come."""
        with self._changing() as known:
            known[order] = replace(known[order], delivered={**known[order].delivered, method: round_})

    def _log(self, order: str, record: OrderRecord) -> None:
        entry = {"event": "approval", "time": record.time, "run": _get_run(record), "order": order, "state": record.state}
        self.audit.append({**entry, "by": record.by, "reason": record.reason, "epsilon": record.epsilon})

    @contextmanager
    def _changing(self) -> Iterator[dict[str, OrderRecord]]:
        with lock_file(self.path):
            known = dict(self.records())
            before = dict(known)
            yield known
            if known != before:
                write_atomic(self.path, json.dumps({name: asdict(record) for name, record in known.items()}, indent=1), 0o600)


def _get_run(record: OrderRecord) -> str:
    try:
        return record.order.run
    except OrderError:  # the file was edited
        return "?"


def _get_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def estimate_epsilon(
    terms: OrderTerms, privacy: NoPrivacy | ClipNoise | DpSgd, sizes: Mapping[str, int], spent: "Mapping[str, list[Charge]]"
) -> float | None:
    """Estimate the largest epsilon of a client after an order, with all that it has `spent` before; None without a mechanism.

    Every method is taken to ask every client once in every round, with each seed, each kind of question that it asks at all. Not in it:
    what a method does before its first round, and under dp-sgd the budget of the test samples. `sizes` are training samples by client.
    """
    from coterie.deploy.site.ledger import Charge, compute_epsilon
    from coterie.engines.sampling import count_steps

    if isinstance(privacy, NoPrivacy):
        return None
    passes = max(terms.rounds, 1) * len(terms.methods) * len(terms.seeds)
    statistics = sum(question in terms.asks for question in STUDY_QUESTIONS)

    def planned(samples: int) -> list[Charge]:
        if isinstance(privacy, ClipNoise):
            return [Charge("clip+noise", privacy.multiplier, 1.0, passes * sum(kind in terms.asks for kind in ASKS) + statistics)]
        local = terms.local
        batch = min(local.get("batch_size") or samples, samples)
        steps = count_steps(samples, batch, local.get("epochs", 1), local.get("max_steps")) if "Train" in terms.asks else 0
        table = Charge("dp-sgd", privacy.noise_multiplier, 1.0, statistics)
        return [Charge("dp-sgd", privacy.noise_multiplier, batch / samples, passes * steps), table]

    found = (
        compute_epsilon([*spent.get(client, []), *planned(samples)], privacy.delta, privacy.mechanism)
        for client, samples in sizes.items()
        if samples
    )
    return max(found, default=0.0)


class SiteMonitor:
    """Reads what is added to the kit's files from now on."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.bundles, self.approvals = kit, kit / "bundles", Approvals(kit)
        self.audit, self.log = (_LogTail(path) for path in (get_kit_files(kit).audit, kit / "site.log"))
        self._run, self._reported = "", set[str]()
        self._received = self._bundles()

    def wait(self, seconds: float) -> list[str]:
        """The news after a while."""
        sleep(seconds)
        return list(self._news())

    def waiting_orders(self) -> list[str]:
        """The orders that came before and still wait, in words."""
        return [
            line for order, record in self.approvals.records().items() if record.state == "pending" for line in self._pending(order, record)
        ]

    def _news(self) -> Iterator[str]:
        for line in self.audit.lines():
            entry = json.loads(line)
            run = escape_text(str(entry.get("run", "")))
            if run and run != self._run:
                self._run, self._reported = run, set()
            for details in self._describe(entry, run):
                if details not in self._reported:  # once a run
                    self._reported.add(details)
                    yield details
        yield from (f"Could not answer: {escape_text(line.rstrip(), 1000)}" for line in self.log.lines())
        found = self._bundles()
        for folder in sorted({bundle.parent for bundle in found - self._received}):
            yield f"Run {folder.name} has ended: its models are in {folder}."
        self._received = found

    def _describe(self, entry: Mapping[str, Any], run: str) -> Iterator[str]:
        """An entry of the log in words; most hold nothing new."""
        event = entry.get("event", "ask")
        if event == "ask":
            if not any(response.startswith(f"Run {run} asks") for response in self._reported):
                yield f"Run {run} asks: {escape_text(str(entry['ask']))}."
            if entry.get("denied"):
                yield f"Run {run} was denied: {escape_text(entry['denied'])}"
        elif event == "table":
            yield f"Run {run} asks about the table: {escape_text(str(entry.get('question')))}."
            yield from (f"Your table {escape_text(str(line), 1000)}." for line in entry.get("findings", ()))
        elif event == "refused":
            yield f"Refused{f' of run {run}' if run else ''}: {escape_text(str(entry.get('reason')))}."
        elif event == "approval":
            yield from self._order(str(entry.get("order")), entry)

    def _order(self, order: str, entry: Mapping[str, Any]) -> Iterator[str]:
        run, short, record = escape_text(str(entry.get("run"))), order[:SHORT_HASH], self.approvals.find(order)
        if entry.get("state") == "approved":
            yield f"Run {run}: the order {short} is approved (by {escape_text(str(entry.get('by')))})."
        elif entry.get("state") == "refused":
            yield f"Run {run}: the order {short} is refused."
        elif record is not None:
            yield "\n".join(self._pending(order, record))

    def _pending(self, order: str, record: OrderRecord) -> list[str]:
        """An order with what its operator can do about it."""
        short = order[:SHORT_HASH]
        todo = [
            f"  Approve it:  coterie policy approve {self.kit} {short}",
            f"  Refuse it:   coterie policy refuse {self.kit} {short} --reason '...'",
        ]
        return [*format_order(order, record, self.kit), *(todo if record.state == "pending" else [])]

    def _bundles(self) -> set[Path]:
        return {path for path in self.bundles.glob("*/*") if not path.name.startswith(".")}


def format_order(order: str, record: OrderRecord, kit: Path) -> list[str]:
    """An order in words, for a terminal."""
    terms = record.order
    details = {"pending": "waits for your approval", "approved": f"is approved (by {escape_text(record.by)})", "refused": "is refused"}
    if (kit / "kit.json").is_file():
        server = read_json_object(kit / "kit.json", server=str)["server"]
        terms = replace(terms, operator=f"{terms.operator or 'no name'}, by the server {server}")
    lines = [f"Run {escape_text(terms.run)}: the order {order[:SHORT_HASH]} {details[record.state]}."]
    return lines + [
        f"  {heading:<9} {text}" for heading, text in describe_order(terms, read_policy(get_kit_files(kit).policy), record.epsilon)
    ]


class _LogTail:
    """The whole lines that a file grows by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.place)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.place += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
