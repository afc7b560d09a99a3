"""The introduction of a run's sites: they approve the order, agree on columns and become members."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from coterie._util.errors import UserError
from coterie._util.json_io import write_json
from coterie.core.arrays import Ints
from coterie.data.agreed_schema import read_agreed_schema
from coterie.data.schema import Schema
from coterie.deploy.composition import SAME, find_composition
from coterie.deploy.messages import (
    PROTOCOL,
    Hello,
    MessageError,
    PendingError,
    RawMessage,
    SiteCard,
    TableAsk,
    get_version,
    read_schema,
    to_message,
)
from coterie.deploy.orders import LARGEST_ORDER, SHORT_HASH, STUDY_QUESTIONS, OrderTerms
from coterie.deploy.server.engine import Carrier, limit_answers
from coterie.deploy.server.federation import AGREED_FILE, PREPARED_FILE, Claim
from coterie.deploy.server.members import Members, admit_sites, choose_schema, describe_thin_sites, read_stored_schema
from coterie.deploy.server.preparation import TableQuestions, check_preparation, collect_scaling, list_preparations
from coterie.deploy.server.runs import APPROVALS_FILE, STATUS_FILE, Order
from coterie.deploy.server.times import collect_exits, collect_grid, describe_no_events, fit_times
from coterie.deploy.server.validation import CARD_BYTES, clean_text, read_card

POLL = 2.0  # seconds between questions to sites that have not approved the order
TURN = 60.0  # seconds that a job waits for approvals while other runs wait for their turn


class TooFewSitesError(UserError):
    """Sites that should be there were silent: they may be back in a moment."""


class UnapprovedError(TooFewSitesError):
    """Too few sites have approved the order, and another run waits for its turn."""


class PendingApprovals:
    """The sites of a job that have not approved the order yet."""

    def __init__(
        self,
        hello: Hello | TableAsk,
        carrier: Carrier,
        limit: int,
        sites: Iterable[str],
        read: Callable[[RawMessage, Any, int], Any] = read_card,
        most: int = CARD_BYTES,
    ) -> None:
        """`hello` is the message that holds the order; `read` checks what a site answers it with, in at most so many bytes."""
        self.hello, self.carrier, self.limit, self.sites = hello, carrier, limit, set(sites)
        self.read, self.most = read, most
        self.cards: dict[str, Any] = {}  # of those that have approved: cards, or answers about tables
        self.faults: dict[str, str] = {}  # of those that take no part
        self._asked = 0.0

    def ask(self) -> bool:
        """Ask those that have not decided; whether anything has changed."""
        self._asked, before = monotonic(), set(self.sites)
        limit_answers(self.carrier, dict.fromkeys(self.sites, min(self.limit, self.most)))
        response = self.carrier.exchange({site: to_message(self.hello) for site in sorted(self.sites)})
        for site in sorted(self.sites):
            if site not in response:  # silent, or gone: the next job sees
                self.sites.discard(site)
                continue
            try:
                self.cards[site] = self.read(response[site], self.hello, self.limit)
            except PendingError:
                continue
            except MessageError as error:
                self.faults[site] = str(error)
            self.sites.discard(site)
        return self.sites != before

    def has_approval(self) -> bool:
        """Whether one of them has approved since; asked at most every few seconds."""
        known = len(self.cards)
        if self.sites and monotonic() - self._asked > POLL:
            self.ask()
        return len(self.cards) > known


def introduce_sites(
    order: Order,
    terms: OrderTerms,
    carrier: Carrier,
    sites: Sequence[str],
    folder: Path,
    report: Callable[[str], None],
    roster: Mapping[str, Claim] | None = None,
    schema_file: Path | None = None,
    start: Schema | None = None,
) -> tuple[Members, PendingApprovals]:
    """The members: every site's card, after those that took part before, and the sites that have yet to approve the order.

    Where too few have approved it, they are asked again until enough have, or until another run has waited for long enough for its turn.
    What stands in a site's way is reported. All sites that take part have the same columns in the same order: those of the run's earlier
    jobs, or those that `choose_schema` finds. `start` is the schema of a bundle, by which its sites were prepared.
    """
    if len(text := terms.as_text()) > LARGEST_ORDER:
        raise UserError(f"The order has {len(text):,} characters, sites take {LARGEST_ORDER:,}: order fewer seeds or methods at once.")
    path = folder / "members.json"
    before = Members.read(path) if path.exists() else None
    agreed = _read_agreed(schema_file, terms, start) if before is None else ""
    schema = before.schema if before is not None else agreed
    hello = Hello(PROTOCOL, order.run, secrets.token_hex(16), terms.model, get_version(), terms.hash, text, schema)
    pending = PendingApprovals(hello, carrier, order.limit, sites)
    await_approvals(pending, order.minimum, folder, report)
    schema, cards, differing = _agree_on_schema(hello, pending, order, schema_file)
    exits = dict(before.exits) if before is not None else {}
    if agreed and cards:
        prepared = _prepare_together(replace(hello, schema=schema), terms, pending, cards, report)
        schema, cards = prepared.schema, prepared.cards
        differing |= prepared.faults
        exits |= prepared.exits
    members, refused = admit_sites(cards, order.order, before, roster)
    refused = differing | refused
    for sentence in describe_faults(refused):
        report(sentence)
    taken = members.here if members is not None else frozenset()
    for site in sorted(taken):
        if cards[site].version != hello.version:
            report(f"Site {site!r} has coterie {cards[site].version}, the server {hello.version}: install the same version on both.")
    if members is None or len(taken) < max(order.minimum, 1):
        short, faults = f"{len(taken)} sites introduced themselves, {order.minimum} are needed.", describe_faults(pending.faults | refused)
        raise UserError(f"{short} {' '.join(faults)}") if faults else TooFewSitesError(short)
    stated = {site: clean_text(cards[site].version) for site in sorted(taken)}
    members = replace(members, schema=schema, exits=exits, versions={**(before.versions if before is not None else {}), **stated})
    if before is None:
        for sentence in (*describe_thin_sites(members, pending.cards), *_describe_aggregated(cards, taken, terms)):
            report(sentence)
    members.write(path)
    if schema_file is not None and schema:
        if (final := read_schema(schema)).scaling is not None or final.times is not None:
            write_json(schema_file.with_name(PREPARED_FILE), {"schema": schema})
        write_json(schema_file, {"schema": replace(read_schema(schema), agreed=None, scaling=None, times=None).to_json()})
    return members, pending


def _describe_aggregated(cards: Mapping[str, SiteCard], taken: Iterable[str], terms: OrderTerms) -> Iterator[str]:
    """Which sites answer for all of their clients as one, and for which methods that is another federation than the flat one."""
    sites = [site for site in sorted(taken) if cards[site].aggregated]
    if not sites:
        return
    yield f"One reply for all clients of the site (aggregate): {', '.join(sites)}."
    if terms.kind == "study":
        for spec in terms.methods:
            if (found := find_composition(spec)).kind != SAME:
                yield f"{spec} {found.reason}."


def _read_agreed(schema_file: Path | None, terms: OrderTerms, start: Schema | None = None) -> str:
    """The schema that the operator has agreed on with the sites, as JSON; empty where there is no such file. An order whose sites report no
    sums gets it with those of the last study, if that had the same schema; one that starts from a bundle with those of the bundle."""
    path = None if schema_file is None else schema_file.with_name(AGREED_FILE)
    if path is None or not path.exists():
        return ""
    if start is not None and start.agreed is not None:
        check_preparation(start, path)
        return replace(start, label=(), missing=()).to_json()
    agreed, prepared = Schema.from_agreed(read_agreed_schema(path)), path.with_name(PREPARED_FILE)
    if not set(STUDY_QUESTIONS) <= set(terms.facts.asks) and prepared.exists():
        stored = read_schema(read_stored_schema(prepared))
        if stored.agreed_schema == agreed.agreed_schema:
            return stored.to_json()
    return agreed.to_json()


@dataclass(frozen=True)
class _Prepared:
    """The agreed schema with what all sites are prepared by, the cards of sites that are, and why others are not."""

    schema: str
    cards: dict[str, SiteCard]
    faults: dict[str, str] = field(default_factory=dict)
    exits: Mapping[str, Ints] = field(default_factory=dict)  # of survival times, by client


def _prepare_together(
    hello: Hello, terms: OrderTerms, pending: PendingApprovals, cards: dict[str, SiteCard], report: Callable[[str], None]
) -> _Prepared:
    """Have sites report what all of them are prepared by: sums of columns, and counts of survival times."""
    schema = read_schema(hello.schema)
    agreed = schema.agreed_schema
    assert agreed is not None
    wanted = list_preparations(agreed)
    if schema.scaling is not None:  # of a bundle
        wanted = tuple(question for question in wanted if question != "SummarizeTable")
    if not wanted or not set(STUDY_QUESTIONS) <= set(terms.facts.asks):  # other orders go by what the last study was prepared by
        return _Prepared(hello.schema, cards)
    if not set(wanted) <= set(terms.asks):
        raise UserError(f"{AGREED_FILE} was changed after the order was placed, and sites are now to report sums: order the run again.")
    questions = TableQuestions(pending.carrier, terms.run, terms.hash, pending.limit)

    def mention(silent: Mapping[str, str], what: str) -> None:
        for site, reason in silent.items():
            report(f"Site {site!r} reports no {what}: {reason.removesuffix('.')}.")

    if "SummarizeTable" in wanted:
        scaling, silent = collect_scaling(questions, cards, agreed)
        mention(silent, "sums to prepare columns by")
        schema = replace(schema, scaling=scaling.to_dict())
    made, exits = _Prepared(hello.schema, cards), dict[str, Ints]()
    if "CountTimes" in wanted:
        if not schema.has_grid:
            grid, silent = collect_grid(questions, schema, cards)
            mention(silent, "event times to compute a grid by")
            schema = replace(schema, times={"grid": list(grid)})
            made = _use_schema(hello, schema, pending, made)
        exits, silent = collect_exits(questions, schema, made.cards)
        mention(silent, "counts of its survival times")
        for sentence in describe_no_events(exits):
            report(sentence)
        schema = replace(schema, times=fit_times(exits, schema))
    return replace(_use_schema(hello, schema, pending, made), exits=exits)


def _use_schema(hello: Hello, schema: Schema, pending: PendingApprovals, before: _Prepared) -> _Prepared:
    """Have sites read their data by a schema."""
    made = schema.to_json()
    asked = PendingApprovals(replace(hello, number=secrets.token_hex(16), schema=made), pending.carrier, pending.limit, before.cards)
    asked.ask()
    faults = asked.faults | {site: "it does not have the agreed columns" for site, card in asked.cards.items() if card.schema != made}
    return _Prepared(made, {site: card for site, card in asked.cards.items() if site not in faults}, before.faults | faults)


def await_approvals(
    pending: PendingApprovals, minimum: int, folder: Path, report: Callable[[str], None], *, waits_for_all: bool = False
) -> None:
    """Ask the sites until enough have approved the order, or too few are left; what stands in the way of each is reported once.

    `waits_for_all`: those that have not decided are waited for, though some take no part.
    """
    began, details = monotonic(), set[str]()
    folder.mkdir(parents=True, exist_ok=True)
    pending.ask()
    while True:
        for fault in describe_faults(pending.faults):
            if fault not in details:
                details.add(fault)
                report(fault)
        if pending.sites and (waiting := _describe_pending(pending)) not in details:
            details.add(waiting)
            report(waiting)
        write_json(folder / APPROVALS_FILE, {"order": pending.hello.order, "pending": sorted(pending.sites)})
        too_few = not pending.sites if waits_for_all else len(pending.cards) + len(pending.sites) < minimum
        if len(pending.cards) >= minimum or too_few:
            return
        if monotonic() - began > TURN and _is_other_run_waiting(folder):
            raise UnapprovedError(_describe_pending(pending))
        sleep(POLL)
        pending.ask()


def _agree_on_schema(
    hello: Hello, pending: PendingApprovals, order: Order, schema_file: Path | None
) -> tuple[str, dict[str, SiteCard], dict[str, str]]:
    """The columns of the run, the cards of the sites that have them, and why others do not. Sites whose own columns are different, or in
    another order, are asked for a card in the agreed ones."""
    cards, schema = pending.cards, hello.schema
    if not schema:
        ranked = sorted(cards, key=lambda site: (order.order.index(site) if site in order.order else len(order.order), site))
        stored = read_stored_schema(schema_file) if schema_file is not None else ""
        schema = choose_schema([cards[site].schema for site in ranked], stored)
    if not schema:
        return "", cards, {}
    asked = PendingApprovals(replace(hello, number=secrets.token_hex(16), schema=schema), pending.carrier, pending.limit, ())
    if not hello.schema:
        asked.sites = {site for site, card in cards.items() if card.schema != schema}
        if asked.sites:
            other = set(asked.sites)
            asked.ask()
            cards = {site: card for site, card in cards.items() if site not in other} | asked.cards
    faults = asked.faults | {
        site: "it does not have the columns that the sites agreed on" for site, card in cards.items() if card.schema != schema
    }
    return schema, {site: card for site, card in cards.items() if site not in faults}, faults


def _is_other_run_waiting(folder: Path) -> bool:
    """Whether another run of the federation waits for its turn: there is one job at a time."""
    for path in folder.parent.glob(f"*/{STATUS_FILE}"):
        with suppress(OSError, ValueError, AttributeError):  # being written
            if path.parent != folder and json.loads(path.read_text(encoding="utf-8")).get("status") in ("waiting", "again"):
                return True
    return False


def _describe_pending(pending: PendingApprovals) -> str:
    short, run = pending.hello.order[:SHORT_HASH], pending.hello.run
    return f"Waiting for approval at {', '.join(sorted(pending.sites))} (order {short}); there: coterie policy approve KIT {run}."


def describe_faults(faults: Mapping[str, str]) -> list[str]:
    """Why sites take no part, a sentence each."""
    return [f"Site {site!r} does not take part: {fault}{'' if fault.endswith(('.', '?')) else '.'}" for site, fault in faults.items()]
