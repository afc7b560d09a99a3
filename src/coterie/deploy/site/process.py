"""The process in which a site answers: it holds the data, and sees nothing of the network but bytes.

Loads the site's clients, answers hellos, batches of asks and deliveries, and logs what it refuses.
"""

import hashlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie._util.errors import UserError
from coterie.core.asks import Ask, Evaluated, Reply
from coterie.data.federation import Federation
from coterie.data.schema import Schema
from coterie.deploy.bundle.files import write_delivery
from coterie.deploy.files import escape_text, get_kit_files
from coterie.deploy.messages import (
    LIMIT,
    PROTOCOL,
    AskBatch,
    Delivery,
    Denial,
    Hello,
    MessageError,
    Receipt,
    ReplyBatch,
    SiteCard,
    TableAsk,
    TableReply,
    from_message,
    get_clients,
    get_version,
    is_kind,
    read_schema,
    replace_clients,
    to_message,
)
from coterie.deploy.orders import SHORT_HASH, STUDY_QUESTIONS, OrderError, OrderTerms
from coterie.deploy.site.aggregation import deny_methods, spread_delivery
from coterie.deploy.site.approvals import Approvals, OrderRecord, estimate_epsilon
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.data import DataError, SiteData, SiteSettings
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy, read_policy
from coterie.deploy.site.tables import TableReporter
from coterie.deploy.site.worker import SiteWorker, open_worker
from coterie.engines.batched import make_engine
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World

AnswerAll = Callable[[Sequence[StampedAsk]], list[Any]]  # a Reply or a Denial for each ask; clients by the site's own numbers


def answer_batch(batch: AskBatch, ids: Sequence[str], answer: AnswerAll, report: Callable[[Denial], None] = lambda denied: None) -> bytes:
    """Answer a batch of asks. Clients get the numbers that they have in `ids`, and in the replies those of the batch.

    `report` is called with the denial of a batch that is refused as a whole, which `answer` never sees.
    """
    own = {name: i for i, name in enumerate(ids)}
    fault = next(_find_batch_faults(batch, own), None)
    if fault is not None:
        denied = Denial(fault, "failure")
        report(denied)
        replies: list[Any] = [denied] * len(batch.asks)
    else:
        here = np.array([own[name] for name in batch.ids], dtype=np.int64)
        replies = answer([replace(stamped, ask=replace_clients(stamped.ask, here[get_clients(stamped.ask)])) for stamped in batch.asks])
        back = {int(client): place for place, client in enumerate(here)}
        replies = [_renumber_reply(reply, back) if isinstance(reply, Reply) else reply for reply in replies]
    return to_message(ReplyBatch(PROTOCOL, batch.run, batch.number, batch.ids, tuple(replies), batch.order))


def _find_batch_faults(batch: AskBatch, own: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with a batch before any of its asks is looked at."""
    if unknown := [name for name in batch.ids if name not in own]:
        yield f"no client {escape_text(unknown[0], 100)!r} here"
    if len(set(batch.ids)) < len(batch.ids):
        yield "a batch names a client twice"
    if not isinstance(batch.asks, tuple) or not all(isinstance(one, StampedAsk) and isinstance(one.ask, Ask) for one in batch.asks):
        yield "a batch holds something that is no ask"
        return
    for stamped in batch.asks:
        clients = getattr(getattr(stamped.ask, "serving", stamped.ask), "clients", None)
        if not isinstance(clients, np.ndarray) or clients.ndim != 1 or clients.dtype.kind != "i":
            yield f"the clients of a {type(stamped.ask).__name__} are no list of numbers"
        elif len(clients) and not 0 <= clients.min() <= clients.max() < len(batch.ids):
            yield f"a {type(stamped.ask).__name__} is about a client that the batch does not name"


def _renumber_reply(reply: Reply, back: dict[int, int]) -> Reply:
    if isinstance(reply, Evaluated):  # which samples are right stays here in any case
        reply = replace(reply, answers=None)
    return replace(reply, clients=np.array([back[int(c)] for c in reply.clients], dtype=np.int64), refused={})


def make_site_card(hello: Hello, world: World) -> SiteCard:
    """The site's card before disclosure control; where the hello names a schema, the world is in its form already. Test samples of survival
    times have no classes: all stand in the first place."""
    federation = world.federation
    owners = np.repeat(np.arange(len(federation)), federation.test.sizes)
    classes = len(federation.classes)
    numbers = federation.y[federation.test.indices] if federation.task.counts_classes else 0
    actual = np.bincount(owners * classes + numbers, minlength=len(federation) * classes)
    return SiteCard(
        PROTOCOL,
        hello.run,
        hello.number,
        get_version(),
        federation.ids,
        sizes=federation.train.sizes.astype(np.int64),
        actual=actual.reshape(-1, classes).astype(np.int64),
        input_shape=federation.input_shape,
        classes=federation.classes,
        validation=federation.validation is not None,
        features=tuple(map(str, federation.provenance.get("features", ()))),
        order=hello.order,
        schema=hello.schema or describe_columns(federation),
    )


def describe_columns(federation: Federation) -> str:
    """The schema of a site's data: names of columns, words and classes. Empty where the samples have no named columns."""
    own = Schema.from_federation(federation)
    return own.shared().to_json() if own.columns else ""


LONGEST_LINE = 1000  # characters of an error in site.log


class Site:
    """A site's data, its policy, its approvals, and the worker of the current run."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.settings = kit, SiteSettings.read(kit)
        files = get_kit_files(kit)
        self.policy, self.audit, self.approvals = read_policy(files.policy), Audit(files.audit), Approvals(kit)
        self.data = SiteData(kit, self.settings, self.policy.merge_below)
        self.order: OrderTerms | None = None  # that the server has introduced itself with, approved
        self.worker: SiteWorker | None = None
        self.world: World | None = None
        self._logged: tuple[str, str] | None = None  # the hello that was last logged: a pending order is asked about every few seconds
        self.audit.chain_flare_log()

    def _read_policy(self) -> None:
        """Read the policy, which may have been changed since the last run, and the data again where it divides them in another way."""
        self.policy = read_policy(get_kit_files(self.kit).policy)
        if self.data.merge_below != self.policy.merge_below:
            self.data = SiteData(self.kit, self.settings, self.policy.merge_below)

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients that the server knows: the site alone, where its policy aggregates."""
        assert self.world is not None
        return (self.data.site,) if self.policy.aggregate else self.world.federation.ids

    def answer(self, data: bytes) -> bytes:
        """The answer to a message of any kind. What is refused is in the log, too, and nothing leaves that is not."""
        try:
            kinds = ((AskBatch, self._answer_asks), (Hello, self._hello), (Delivery, self._delivery), (TableAsk, self._answer_table))
            for kind, reply in kinds:
                if is_kind(data, kind):
                    return reply(data)
            raise MessageError("a message that no site answers")
        except _LogError:
            raise
        except Exception as error:
            details = str(error) if isinstance(error, (UserError, MessageError)) else f"{type(error).__name__}: {error}"
            self._log("refused", run=self.order.run if self.order else "", bytes_in=len(data), reason=details)
            raise

    def _log(self, event: str, **details: Any) -> None:
        try:
            self.audit.log(event, **details)
        except (OSError, UserError) as error:
            raise _LogError("the site could not write its log, and answers nothing without") from error

    def _hello(self, data: bytes) -> bytes:
        hello = from_message(data, Hello, LIMIT)
        terms = self._read_terms(hello)
        if not terms.facts.has_model or hello.model != terms.model:
            raise MessageError("a hello that names another model than its order, or whose order has none")
        schema = read_schema(hello.schema) if hello.schema else None
        self._read_policy()
        denied = self.policy.deny_model(terms.model)  # before the model is built: building it runs its code
        if denied is None and self.policy.aggregate:
            denied = deny_methods(terms.methods)
        try:
            record = self._record(terms, by_table=schema is not None and schema.agreed is not None) if denied is None else None
        except OrderError as error:
            raise MessageError(str(error)) from error
        if record is None or record.state != "approved":
            self.order = self.worker = self.world = None
            return self._reply_unapproved(hello, terms, record, denied)
        try:
            federation = self.data.load(schema)
        except UserError as error:  # it names columns and words, as a card does
            self.order = self.worker = self.world = None
            return self._refuse_data(error, terms, len(data))
        self._open(terms, record, federation, by_table=schema is not None and schema.agreed is not None)
        assert self.world is not None
        assert self.worker is not None
        card = self.worker.disclose_card(make_site_card(hello, self.world))
        details = {"clients": card.ids, "sizes": card.sizes, "class_counts": self.policy.class_counts, "bytes_in": len(data)}
        details["schema"] = hashlib.sha256(card.schema.encode()).hexdigest() if card.schema else ""
        self._log("hello", run=terms.run, order=hello.order, state="approved", **details)
        self._logged = None
        self.audit.chain_flare_log()
        return to_message(card)

    def _refuse_data(self, error: UserError, terms: OrderTerms, size: int) -> bytes:
        """The denial of an order that the site's data do not fit; what names its files stays in its own log."""
        self._log("refused", run=terms.run, order=terms.hash, bytes_in=size, reason=str(error).removesuffix("."))
        withheld = "its data or its mapping.toml cannot be read: its own log has the reason"
        return to_message(Denial(withheld if isinstance(error, DataError) else str(error).removesuffix("."), "failure"))

    def _read_terms(self, hello: Hello | TableAsk) -> OrderTerms:
        """The order of a message that introduces it, whose hash and run are those that the message names."""
        try:
            terms = OrderTerms.read(hello.terms)
        except OrderError as error:
            raise MessageError(str(error)) from error
        if (hello.order, hello.run) != (terms.hash, terms.run):
            raise MessageError("a message that names another order or run than it holds")
        return terms

    def _record(self, terms: OrderTerms, *, by_table: bool) -> OrderRecord:
        """The site's decision about an order: what was decided before, or what the policy decides about a new one."""
        known = self.approvals.find(terms.hash)
        if known is not None and known.state != "pending":
            return known
        sizes = {} if isinstance(self.policy.privacy, NoPrivacy) else self.data.count_samples(by_table=by_table)
        epsilon = estimate_epsilon(terms, self.policy.privacy, sizes, Ledger(get_kit_files(self.kit).ledger).charges())
        against = self.policy.approve.find_objection(terms, epsilon)
        if against is not None:
            return self.approvals.note(OrderRecord(terms.as_text(), "pending", reason=against, epsilon=epsilon))
        limit = None if self.policy.approve.any else self.policy.approve.maximum_epsilon
        return self.approvals.note(OrderRecord(terms.as_text(), "approved", "policy", epsilon=epsilon, limit=limit))

    def _reply_unapproved(self, hello: Hello | TableAsk, terms: OrderTerms, record: OrderRecord | None, denied: Denial | None) -> bytes:
        """The denial that the server gets instead of a card."""
        if record is None:
            response = denied or Denial("the order is not approved")
        elif record.state == "refused":
            response = Denial(f"the site has refused the order {hello.order[:SHORT_HASH]}{f': {record.reason}' if record.reason else ''}")
        else:
            response = Denial(f"the order {hello.order[:SHORT_HASH]} waits for the site's approval", "pending")
        if self._logged != (hello.order, response.reason):
            self._log(
                "hello", run=terms.run, order=hello.order, state=response.cause if record is None else record.state, denied=response.reason
            )
            self._logged = (hello.order, response.reason)
        return to_message(response)

    def _open(self, terms: OrderTerms, record: OrderRecord, federation: Federation, *, by_table: bool) -> None:
        """Make ready to answer an approved order from the data in the columns that the sites agree on."""
        self.world = World.from_spec(federation, self.policy.local_model(terms.model))
        engine = make_engine(self.world, self.settings.engine, "cpu", self.settings.threads)
        known: dict[str, Any] = {"hashes": self.data.hashes} if by_table else {"own": self.data.federation}
        self.worker = open_worker(self.kit, self.world, engine, run=terms.run, site=self.data.site, **known)
        self.worker.audit = self.worker.ledger.audit = Audit(self.audit.path, terms.hash)
        if record.limit is not None and isinstance(self.policy.privacy, (ClipNoise, DpSgd)):
            least = min(record.limit, self.policy.privacy.epsilon_limit or record.limit)
            privacy = self.policy.privacy.model_copy(update={"epsilon_limit": least})
            self.worker.policy = self.policy.model_copy(update={"privacy": privacy})  # what the policy approved by itself it holds to
        self.order = terms

    def _tables(self, terms: OrderTerms) -> TableReporter:
        audit = Audit(self.audit.path, terms.hash)
        return TableReporter(self.kit, self.policy, Ledger(get_kit_files(self.kit).ledger, audit), self.data)

    def _answer_table(self, data: bytes) -> bytes:
        """The answer to a question about the table: that of an order of its own, or within a study what sites are prepared by."""
        ask = from_message(data, TableAsk, LIMIT)
        if ask.terms:
            terms = self._read_terms(ask)
            if terms.facts.has_model:
                raise MessageError("a question about a table whose order is about a model")
            self._read_policy()
            try:
                record = self._record(terms, by_table=True)
            except OrderError as error:
                raise MessageError(str(error)) from error
            if record.state != "approved":
                return self._reply_unapproved(ask, terms, record, None)
        else:
            terms = self._require_order(ask.run, ask.order)
            if ask.question not in STUDY_QUESTIONS or ask.question not in terms.asks or self.world is None:
                raise MessageError("a question about the table that the approved order does not name")
        question = ask.question if terms.facts.has_model else terms.asks[0]
        try:
            body, details = self._tables(terms).report(question, terms, self.world.federation if self.world is not None else None)
        except UserError as error:
            return self._refuse_data(error, terms, len(data))
        if isinstance(body, Denial):
            self._log("refused", run=terms.run, order=terms.hash, bytes_in=len(data), reason=body.reason)
            return to_message(body)
        response = to_message(TableReply(PROTOCOL, ask.run, ask.number, get_version(), ask.order, body))
        sizes = {"bytes_in": len(data), "bytes_out": len(response), "sha256": hashlib.sha256(response).hexdigest()}
        self._log("table", run=terms.run, order=terms.hash, question=question, **details, **sizes)
        return response

    def _require_order(self, run: str, order: str) -> OrderTerms:
        """The approved order that a message is part of. Approvals are looked up each time: one may have been taken back."""
        if self.order is None or (run, order) != (self.order.run, self.order.hash):
            raise MessageError("a message of an order that the server has not introduced itself with, or that is not approved")
        record = self.approvals.find(order)
        if record is None or record.state != "approved":
            raise MessageError(f"the site does not approve the order {order[:SHORT_HASH]} any more")
        return self.order

    def _answer_asks(self, data: bytes) -> bytes:
        if self.worker is None or self.world is None:
            raise MessageError("asks before the server has introduced itself")
        batch = from_message(data, AskBatch, LIMIT)
        try:
            terms = self._require_order(batch.run, batch.order)
        except MessageError as error:
            self._log("refused", run=batch.run, order=batch.order, bytes_in=len(data), reason=str(error))
            denied = Denial(f"{str(error)[0].upper()}{str(error)[1:]}.")
            return to_message(ReplyBatch(PROTOCOL, batch.run, batch.number, batch.ids, (denied,) * len(batch.asks), batch.order))

        def report(denied: Denial) -> None:
            self._log("refused", run=batch.run, order=batch.order, bytes_in=len(data), reason=denied.reason)

        return answer_batch(batch, self.ids, partial(self._answer_within_order, terms), report)

    def _answer_within_order(self, terms: OrderTerms, stampeds: Sequence[StampedAsk]) -> list[Any]:
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
        if not set(delivery.ids) <= set(self.ids):
            raise MessageError("a delivery of other clients")
        own = spread_delivery(delivery, self.world.federation.ids) if self.policy.aggregate else delivery
        folder = write_delivery(own, self.world, self.kit / "bundles")
        self.approvals.note_delivery(delivery.order, delivery.method, delivery.round_)
        details = {"method": delivery.method, "round": delivery.round_, "folder": f"{delivery.run}/{folder.name}", "bytes_in": len(data)}
        self._log("delivery", run=terms.run, order=terms.hash, clients=delivery.ids, **details)
        self.audit.chain_flare_log()
        return to_message(Receipt(PROTOCOL, delivery.run, delivery.number, folder.name, delivery.order))


class _LogError(MessageError):
    """About the log itself: nothing more can be logged."""


def serve_connection(line: Connection, kit: Path) -> None:
    """Answer until the line is closed. What goes wrong is written into the kit's log, and the server hears that something did."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for function in (torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad):
        plain = inspect.unwrap(function)  # torch would import its compiler for them, 1.4 s, which trains nothing here
        vars(plain).setdefault("__dynamo_disable", plain)
    site: Site | None = None
    _change_folder(kit)
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):  # an OSError where the other end was killed in the middle of a message
            return
        try:
            site = site or Site(kit)
            response = site.answer(data)
        except MessageError as error:  # about what was sent, never about data: the server may know it
            _log_error(kit, error)
            response = to_message(Denial(str(error), "failure"))
        except Exception as error:  # whatever a user's data or module may raise
            _log_error(kit, error)
            response = b""
        line.send_bytes(response)


def _change_folder(kit: Path) -> None:
    """FLARE works in a folder of its own; what the user wrote is meant from where it was written."""
    where = SiteSettings.read(kit).where
    if where is not None and Path(where).is_dir():
        os.chdir(where)


def _exit_with_parent() -> None:
    """A job process that is killed cannot end this one, which would train on uselessly beside its successor."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _log_error(kit: Path, error: Any) -> None:
    with (kit / "site.log").open("a", encoding="utf-8") as log:
        details = str(error) if isinstance(error, (UserError, MessageError)) else f"{type(error).__name__}: {error}"
        log.write(f"{escape_text(details, LONGEST_LINE)}\n")  # it may quote what a server sent
        log.flush()
        os.fsync(log.fileno())
