"""The process in which a site answers: it holds the data, and knows nothing of the network but bytes."""

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from coterie.core.disk import write_whole
from coterie.core.errors import UserError
from coterie.core.plain import json_text, read_json
from coterie.data.federation import Federation
from coterie.data.schema import conform
from coterie.deploy.answering import answer_parcel, site_card
from coterie.deploy.approvals import Approvals, OrderRecord
from coterie.deploy.audit import Audit
from coterie.deploy.denied import Denied
from coterie.deploy.files import kit_files
from coterie.deploy.held import site_data, site_name
from coterie.deploy.ledger import Ledger
from coterie.deploy.mechanisms import ClipNoise, DpSgd
from coterie.deploy.messages import (
    LIMIT,
    PROTOCOL,
    Answers,
    Delivery,
    Hello,
    MessageError,
    Parcel,
    Received,
    from_message,
    is_kind,
    read_schema,
    to_message,
)
from coterie.deploy.names import escape_text
from coterie.deploy.orders import SHORT_HASH, OrderError, OrderTerms, estimate_epsilon
from coterie.deploy.policy import read_policy
from coterie.deploy.received import write_delivery
from coterie.deploy.site import SiteWorker, open_site
from coterie.engines.engine import Stamped
from coterie.engines.make import make_engine
from coterie.engines.world import World

SITE = "site.json"
LONGEST_LINE = 1000  # characters of an error in site.log


@dataclass(frozen=True)
class SiteSettings:
    """What `coterie join` was told: the data of the site, which are only ever described here."""

    data: str
    clients: tuple[str, ...] | None = None
    data_seed: int = 0
    data_dir: str | None = None
    engine: str = "auto"
    threads: int | None = None
    where: str | None = None  # the folder in which it was told: file names and modules are looked for there

    def write(self, kit: Path) -> None:
        """Keep it in the kit."""
        write_whole(kit / SITE, json_text(vars(self)), 0o600)

    @classmethod
    def read(cls, kit: Path) -> "SiteSettings":
        tree = read_json(kit / SITE)
        return cls(**{**tree, "clients": tuple(tree["clients"]) if tree["clients"] is not None else None})


class Site:
    """A site's data, its policy, its approvals, and the worker of the run that goes on."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.settings = kit, SiteSettings.read(kit)
        folder = Path(self.settings.data_dir) if self.settings.data_dir else None
        self.federation = site_data(
            self.settings.data, self.settings.clients, data_seed=self.settings.data_seed, data_dir=folder, site=site_name(kit)
        )
        files = kit_files(kit)
        self.policy, self.audit, self.approvals = read_policy(files.policy), Audit(files.audit), Approvals(kit)
        self.order: OrderTerms | None = None  # that the server has introduced itself with, approved
        self.worker: SiteWorker | None = None
        self.world: World | None = None
        self._told: tuple[str, str] | None = None  # the hello that was last logged: a pending order is asked about every few seconds
        self.audit.chain_flare_log()

    def answer(self, data: bytes) -> bytes:
        """The answer to a message of any kind. What is refused is in the log, too, and nothing leaves that is not."""
        try:
            for kind, reply in ((Parcel, self._parcel), (Hello, self._hello), (Delivery, self._delivery)):
                if is_kind(data, kind):
                    return reply(data)
            raise MessageError("a message that no site answers")
        except _LoggedError:
            raise
        except Exception as error:
            told = str(error) if isinstance(error, (UserError, MessageError)) else f"{type(error).__name__}: {error}"
            self._log("refused", run=self.order.run if self.order else "", bytes_in=len(data), reason=told)
            raise

    def _log(self, event: str, **told: Any) -> None:
        try:
            self.audit.log(event, **told)
        except (OSError, UserError) as error:
            raise _LoggedError("the site could not write its log, and answers nothing without") from error

    def _hello(self, data: bytes) -> bytes:
        hello = from_message(data, Hello, LIMIT)
        terms = self._read_terms(hello)
        self.policy = read_policy(kit_files(self.kit).policy)  # it may have been changed since the last run
        denied = self.policy.model_permitted(terms.model)  # before the model is built: building it runs its code
        try:
            record = self._record(terms) if denied is None else None
        except OrderError as error:
            raise MessageError(str(error)) from error
        if record is None or record.state != "approved":
            self.order = self.worker = self.world = None
            return self._unapproved(hello, terms, record, denied)
        try:
            federation = conform(self.federation, read_schema(hello.schema), where="The site") if hello.schema else self.federation
        except UserError as error:  # it names columns and words, as a card does
            self.order = self.worker = self.world = None
            self._log("refused", run=terms.run, order=hello.order, bytes_in=len(data), reason=str(error).removesuffix("."))
            return to_message(Denied(str(error).removesuffix("."), "failure"))
        self._open(terms, record, federation)
        assert self.world is not None
        assert self.worker is not None
        card = self.worker.disclosed_card(site_card(hello, self.world))
        told = {"clients": card.ids, "sizes": card.sizes, "class_counts": self.policy.class_counts, "bytes_in": len(data)}
        told["schema"] = hashlib.sha256(card.schema.encode()).hexdigest() if card.schema else ""
        self._log("hello", run=terms.run, order=hello.order, state="approved", **told)
        self._told = None
        self.audit.chain_flare_log()
        return to_message(card)

    def _read_terms(self, hello: Hello) -> OrderTerms:
        """The order of a hello, whose hash and model are those that the hello names."""
        try:
            terms = OrderTerms.read(hello.terms)
        except OrderError as error:
            raise MessageError(str(error)) from error
        if (hello.order, hello.run, hello.model) != (terms.hash, terms.run, terms.model):
            raise MessageError("a hello that names another order, run or model than it holds")
        return terms

    def _record(self, terms: OrderTerms) -> OrderRecord:
        """What this site says to an order: what was decided before, or what the policy says to a new one."""
        known = self.approvals.find(terms.hash)
        if known is not None and known.state != "pending":
            return known
        sizes = {name: int(size) for name, size in zip(self.federation.ids, self.federation.train.sizes, strict=True)}
        epsilon = estimate_epsilon(terms, self.policy.privacy, sizes, Ledger(kit_files(self.kit).ledger).charges())
        against = self.policy.approve.find_objection(terms, epsilon)
        if against is not None:
            return self.approvals.note(OrderRecord(terms.as_text(), "pending", reason=against, epsilon=epsilon))
        limit = None if self.policy.approve.any else self.policy.approve.maximum_epsilon
        return self.approvals.note(OrderRecord(terms.as_text(), "approved", "policy", epsilon=epsilon, limit=limit))

    def _unapproved(self, hello: Hello, terms: OrderTerms, record: OrderRecord | None, denied: Denied | None) -> bytes:
        """What the server is told instead of a card."""
        if record is None:
            said = denied or Denied("the order is not approved")
        elif record.state == "refused":
            said = Denied(f"the site has refused the order {hello.order[:SHORT_HASH]}{f': {record.reason}' if record.reason else ''}")
        else:
            said = Denied(f"the order {hello.order[:SHORT_HASH]} waits for the site's approval", "pending")
        if self._told != (hello.order, said.reason):
            self._log("hello", run=terms.run, order=hello.order, state=said.cause if record is None else record.state, denied=said.reason)
            self._told = (hello.order, said.reason)
        return to_message(said)

    def _open(self, terms: OrderTerms, record: OrderRecord, federation: Federation) -> None:
        """Make ready to answer an approved order from the data in the columns that the sites agree on."""
        self.world = World.of(federation, self.policy.local_model(terms.model))
        engine = make_engine(self.world, self.settings.engine, "cpu", self.settings.threads)
        self.worker = open_site(self.kit, self.world, engine, run=terms.run, own=self.federation)
        self.worker.audit = self.worker.ledger.audit = Audit(self.audit.path, terms.hash)
        if record.limit is not None and isinstance(self.policy.privacy, (ClipNoise, DpSgd)):
            least = min(record.limit, self.policy.privacy.epsilon_limit or record.limit)
            privacy = self.policy.privacy.model_copy(update={"epsilon_limit": least})
            self.worker.policy = self.policy.model_copy(update={"privacy": privacy})  # what the policy approved by itself it holds to
        self.order = terms

    def _require_order(self, run: str, order: str) -> OrderTerms:
        """The approved order that a message is part of. Approvals are looked up each time: one may have been taken back."""
        if self.order is None or (run, order) != (self.order.run, self.order.hash):
            raise MessageError("a message of an order that the server has not introduced itself with, or that is not approved")
        record = self.approvals.find(order)
        if record is None or record.state != "approved":
            raise MessageError(f"the site does not approve the order {order[:SHORT_HASH]} any more")
        return self.order

    def _parcel(self, data: bytes) -> bytes:
        if self.worker is None or self.world is None:
            raise MessageError("asks before the server has introduced itself")
        parcel = from_message(data, Parcel, LIMIT)
        try:
            terms = self._require_order(parcel.run, parcel.order)
        except MessageError as error:
            self._log("refused", run=parcel.run, order=parcel.order, bytes_in=len(data), reason=str(error))
            denied = Denied(f"{str(error)[0].upper()}{str(error)[1:]}.")
            return to_message(Answers(PROTOCOL, parcel.run, parcel.number, parcel.ids, (denied,) * len(parcel.asks), parcel.order))

        def tell(denied: Denied) -> None:
            self._log("refused", run=parcel.run, order=parcel.order, bytes_in=len(data), reason=denied.reason)

        return answer_parcel(data, self.world, partial(self._held_to, terms), LIMIT, tell)

    def _held_to(self, terms: OrderTerms, stampeds: Sequence[Stamped]) -> list[Any]:
        """The worker's answers to what is within the order; what is not is denied before anything else looks at it."""
        assert self.worker is not None
        denials = [terms.find_denial(stamped) for stamped in stampeds]
        for denied in denials:
            if denied is not None:
                self._log("refused", run=terms.run, order=terms.hash, reason=denied.reason)
        within = [stamped for stamped, denied in zip(stampeds, denials, strict=True) if denied is None]
        replies = iter(self.worker.answer(within) if within else [])
        return [next(replies) if denied is None else denied for denied in denials]

    def _delivery(self, data: bytes) -> bytes:
        delivery = from_message(data, Delivery, LIMIT)
        if self.world is None:
            raise MessageError("a delivery before the server has introduced itself")
        terms = self._require_order(delivery.run, delivery.order)
        if delivery.method not in terms.methods:
            raise MessageError("a delivery of a method that the order does not name")
        before = self.approvals.records()[delivery.order].delivered.get(delivery.method)
        if before is not None and type(delivery.round_) is int and delivery.round_ < before:
            raise MessageError(f"a delivery of round {delivery.round_} after that of round {before}")
        folder = write_delivery(delivery, self.world, self.kit / "bundles")
        self.approvals.note_delivery(delivery.order, delivery.method, delivery.round_)
        told = {"method": delivery.method, "round": delivery.round_, "folder": f"{delivery.run}/{folder.name}", "bytes_in": len(data)}
        self._log("delivery", run=terms.run, order=terms.hash, clients=delivery.ids, **told)
        self.audit.chain_flare_log()
        return to_message(Received(PROTOCOL, delivery.run, delivery.number, folder.name, delivery.order))


class _LoggedError(MessageError):
    """About the log itself: nothing more can be logged."""


def work(line: Connection, kit: Path) -> None:
    """Answer until the line is closed. What goes wrong is written into the kit's log, and the server hears that something did."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    site: Site | None = None
    _go_where_told(kit)
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):  # an OSError where the other end was killed in the middle of a message
            return
        try:
            site = site or Site(kit)
            said = site.answer(data)
        except MessageError as error:  # about what was sent, never about data: the server may know it
            _complain(kit, error)
            said = to_message(Denied(str(error), "failure"))
        except Exception as error:  # whatever a user's data or module may raise
            _complain(kit, error)
            said = b""
        line.send_bytes(said)


def _go_where_told(kit: Path) -> None:
    """FLARE works in a folder of its own; what the user wrote is meant from where it was written."""
    where = SiteSettings.read(kit).where
    if where is not None and Path(where).is_dir():
        os.chdir(where)


def _leave_with_parent() -> None:
    """A job process that is killed cannot end this one, which would train on for nobody beside its successor."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _complain(kit: Path, error: Any) -> None:
    with (kit / "site.log").open("a", encoding="utf-8") as log:
        told = str(error) if isinstance(error, (UserError, MessageError)) else f"{type(error).__name__}: {error}"
        log.write(f"{escape_text(told, LONGEST_LINE)}\n")  # it may quote what a server sent
        log.flush()
        os.fsync(log.fileno())
