"""What a server does in a run, whatever carries its messages: ask who is there, run the study, write the evidence, deliver the models."""

import json
import secrets
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

from coterie.core.errors import UserError
from coterie.core.plain import plain, write_json
from coterie.core.trust import check_trust
from coterie.deploy.answering import coterie_version
from coterie.deploy.asked_kinds import find_asks
from coterie.deploy.checks import CARD_BYTES, RECEIPT_BYTES, Said, read_card, read_receipt
from coterie.deploy.engine import Carrier, FederatedEngine, PostingCarrier, limit_answers
from coterie.deploy.federation import Claim
from coterie.deploy.inspecting import InspectOrder, problem_of, write_inspection
from coterie.deploy.journal import STATUS
from coterie.deploy.members import Members, admit_sites, choose_schema, describe_thin_sites, read_stored_schema
from coterie.deploy.messages import LIMIT, PROTOCOL, Delivery, Hello, MessageError, PendingError, SiteCard, to_message
from coterie.deploy.names import escape_text, is_name
from coterie.deploy.orders import LARGEST_ORDER, LONGEST_NOTE, SHORT_HASH, OrderTerms
from coterie.deploy.serving_out import deliveries
from coterie.evidence.settings import Settings
from coterie.inspect.inspection import inspection
from coterie.methods.catalogue import build
from coterie.run.asynchrony import check_methods
from coterie.run.budget import Clock
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import keyed_seed
from coterie.run.study import Study

UNDELIVERED = "undelivered.json"  # the sites that did not say that they have their models
APPROVALS = "approvals.json"  # the order's hash, and the sites that have not approved it yet
POLL = 2.0  # seconds between questions to sites that have not approved the order
TURN = 60.0  # seconds that a job waits for approvals while other runs wait for their turn


class TooFewSitesError(UserError):
    """Sites that should be there were silent: they may be back in a moment."""


class UnapprovedError(TooFewSitesError):
    """Too few sites have approved the order, and another run waits for its turn."""


@dataclass(frozen=True)
class Order:
    """What is to be done, as it travels to the server: plain text and numbers."""

    run: str
    kind: str  # "study" or "inspect"
    settings: Mapping[str, Any]  # of the study, as JSON
    order: tuple[str, ...] = ()  # of the sites, as the federation lists them
    minimum: int = 1  # sites without which nothing begins
    limit: int = LIMIT
    trusted: tuple[str, ...] = ()  # methods and samplers that are code of the operator's own, by their specs: others are not imported
    operator: str = ""  # who asks; sites are shown it, and what it is for
    purpose: str = ""

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "Order":
        """From what a file or a job holds."""
        made = cls(**{**tree, "order": tuple(tree.get("order", ())), "trusted": tuple(tree.get("trusted", ()))})
        if not is_name(made.run):  # it is a folder's
            raise UserError(f"A run cannot be called {escape_text(str(made.run), 100)!r}: use letters, digits, - . = and _.")
        return made

    def terms(self, methods: Sequence[Any] | None = None) -> OrderTerms:
        """The order as sites read and approve it. `methods` are the study's, where they are built already."""
        who: dict[str, Any] = {
            "kind": self.kind,
            "run": self.run,
            "operator": self.operator[:LONGEST_NOTE],
            "purpose": self.purpose[:LONGEST_NOTE],
        }
        if self.kind == "inspect":
            wanted = InspectOrder.read(self.settings)
            who |= {"data": wanted.data, "model": wanted.model, "seeds": (wanted.seed,), "plan": plain(self.settings["plan"])}
            return OrderTerms(**who, methods=("inspect",), asks=find_asks([inspection]))
        settings = Settings.from_json(self.settings)
        made = methods if methods is not None else [build(spec, trust=spec in self.trusted) for spec in settings.methods]
        seeds = [keyed_seed(draw, seed) if settings.own_seeds else seed for draw in settings.draws for seed in settings.seeds]
        who |= {"data": settings.data, "model": settings.model, "seeds": tuple(dict.fromkeys(seeds))}
        return OrderTerms(**who, methods=settings.methods, asks=find_asks(made, "Evaluate"), plan=plain(settings.as_json()["plan"]))


def carry_out_order(
    order: Order,
    carrier: Carrier,
    sites: Sequence[str],
    folder: Path,
    *,
    clock: Clock,
    tell: Callable[[str], None],
    watchers: Iterable[Callback] = (),
    roster: Mapping[str, Claim] | None = None,
    schema_file: Path | None = None,
) -> bool:
    """Begin the run or go on with it; whether it is complete. It ends early, with every round so far on disk, when the clock says so, or
    when a site has approved the order that had not before. `roster` is what the operator lets sites claim; in `schema_file` the federation
    keeps the columns that the sites of its last run agreed on."""
    if order.kind == "inspect":
        wanted, terms = InspectOrder.read(order.settings), order.terms()
        members, _ = introductions(order, terms, carrier, sites, folder, tell, roster, schema_file)
        carrier = _MembersOnly(carrier, members.here)
        write_inspection(wanted, members, carrier, order.run, folder, terms.hash)
        return True
    settings = Settings.from_json(order.settings)
    settings.plan.check_real()
    check_trust([settings.plan.selection], "The order", settings.plan.selection in order.trusted, "sampler")
    # a wrong one is refused before any site is asked
    methods = tuple(build(spec, trust=spec in order.trusted) for spec in settings.methods)
    check_methods(settings.plan, settings.methods, methods)
    terms = order.terms(methods)
    members, pending = introductions(order, terms, carrier, sites, folder, tell, roster, schema_file)
    clock, carrier = _ApprovalClock(clock, pending), _MembersOnly(carrier, members.here)
    problem = problem_of(members, settings.model)
    engine = FederatedEngine(
        carrier,
        members.sites,
        [m.id for m in members.members],
        order.run,
        order.limit,
        last=settings.plan.rounds,
        members=members,
        counts=settings.plan.counts,
        order=terms.hash,
    )
    settings.plan.check(len(members.members))
    study = Study(
        settings,
        problems={settings.draws[0]: problem},
        rosters={settings.draws[0]: members.table()},
        methods=methods,
        changing=True,  # clients may come later, and some tell no scores
    )
    out, execution = folder / "study", Execution(checkpoint_every=1, device="cpu")
    study.run(out=out, resume=out.exists(), execution=execution, engine=engine, callbacks=watchers, budget=clock)
    if clock.over:
        return False
    write_json(folder / UNDELIVERED, sorted(_deliver(deliveries(study, out, members, engine, order.run, terms.hash), carrier, order.limit)))
    return True


def _deliver(parcels: Iterable[Mapping[str, Delivery]], carrier: Carrier, limit: int) -> set[str]:
    """Hand out what every site is served, method by method; the sites that did not say that they have it."""
    without: set[str] = set()
    for by_site in parcels:
        limit_answers(carrier, dict.fromkeys(by_site, min(limit, RECEIPT_BYTES)))
        said = carrier.exchange({site: to_message(delivery) for site, delivery in by_site.items()})
        for site, delivery in by_site.items():
            try:
                read_receipt(said.get(site, b""), delivery, limit)
            except MessageError:
                without.add(site)
    return without


class Pending:
    """The sites of a job that have not approved the order yet."""

    def __init__(self, hello: Hello, carrier: Carrier, limit: int, sites: Iterable[str]) -> None:
        self.hello, self.carrier, self.limit, self.sites = hello, carrier, limit, set(sites)
        self.cards: dict[str, SiteCard] = {}  # of those that have approved
        self.faults: dict[str, str] = {}  # of those that take no part
        self._asked = 0.0

    def ask(self) -> bool:
        """Ask those that have not said yes or no; whether anything has changed."""
        self._asked, before = monotonic(), set(self.sites)
        limit_answers(self.carrier, dict.fromkeys(self.sites, min(self.limit, CARD_BYTES)))
        said = self.carrier.exchange({site: to_message(self.hello) for site in sorted(self.sites)})
        for site in sorted(self.sites):
            if site not in said:  # silent, or gone: the next job sees
                self.sites.discard(site)
                continue
            try:
                self.cards[site] = read_card(said[site], self.hello, self.limit)
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


class _MembersOnly:
    """A carrier that takes nothing to sites without a card in this job: they refused, or have yet to approve. They count as silent."""

    def __init__(self, carrier: Carrier, sites: Container[str]) -> None:
        self.carrier, self.sites, self._silent = carrier, sites, list[str]()

    def limit_answers(self, most: Mapping[str, int]) -> None:
        limit_answers(self.carrier, most)

    def exchange(self, parcels: Mapping[str, bytes]) -> Mapping[str, Said]:
        own = {site: data for site, data in parcels.items() if site in self.sites}
        return self.carrier.exchange(own) if own else {}

    def post(self, number: str, site: str, data: bytes) -> None:
        if site in self.sites:
            cast(PostingCarrier, self.carrier).post(number, site, data)
        else:
            self._silent.append(number)

    def collect(self, *, wait: bool) -> tuple[str, Said | None] | None:
        return (self._silent.pop(), None) if self._silent else cast(PostingCarrier, self.carrier).collect(wait=wait)


class _ApprovalClock:
    """Ends a job, so that the next one takes a site in that has approved the order since."""

    def __init__(self, clock: Clock, pending: Pending) -> None:
        self.clock, self.pending, self._over = clock, pending, False

    @property
    def over(self) -> bool:
        self._over = self._over or self.pending.has_approval()
        return self._over or self.clock.over

    def begin_wave(self) -> bool:
        return not self._over and self.clock.begin_wave()


def introductions(
    order: Order,
    terms: OrderTerms,
    carrier: Carrier,
    sites: Sequence[str],
    folder: Path,
    tell: Callable[[str], None],
    roster: Mapping[str, Claim] | None = None,
    schema_file: Path | None = None,
) -> tuple[Members, Pending]:
    """Who is there: every site's card, after those that took part before, and the sites that have yet to approve the order.

    Where too few have approved it, they are asked again until enough have, or until another run has waited for long enough for its turn.
    What stands in a site's way is told. All sites that take part have the same columns in the same order: those of the run's earlier jobs,
    or those that `choose_schema` finds.
    """
    if len(text := terms.as_text()) > LARGEST_ORDER:
        raise UserError(f"The order has {len(text):,} characters, sites take {LARGEST_ORDER:,}: order fewer seeds or methods at once.")
    path = folder / "members.json"
    before = Members.read(path) if path.exists() else None
    schema = before.schema if before is not None else ""
    hello = Hello(PROTOCOL, order.run, secrets.token_hex(16), terms.model, coterie_version(), terms.hash, text, schema)
    pending, began, told = Pending(hello, carrier, order.limit, sites), monotonic(), set[str]()
    folder.mkdir(parents=True, exist_ok=True)
    pending.ask()
    while True:
        for fault in _describe_faults(pending.faults):
            if fault not in told:
                told.add(fault)
                tell(fault)
        if pending.sites and (waiting := _describe_pending(pending)) not in told:
            told.add(waiting)
            tell(waiting)
        write_json(folder / APPROVALS, {"order": terms.hash, "pending": sorted(pending.sites)})
        if len(pending.cards) >= order.minimum or len(pending.cards) + len(pending.sites) < order.minimum:
            break
        if monotonic() - began > TURN and _others_wait(folder):
            raise UnapprovedError(_describe_pending(pending))
        sleep(POLL)
        pending.ask()
    schema, cards, differing = _agree_on_schema(pending, order, schema_file)
    members, refused = admit_sites(cards, order.order, before, roster)
    refused = differing | refused
    for sentence in _describe_faults(refused):
        tell(sentence)
    taken = members.here if members is not None else frozenset()
    for site in sorted(taken):
        if cards[site].version != hello.version:
            tell(f"Site {site!r} has coterie {cards[site].version}, the server {hello.version}: install the same version on both.")
    if members is None or len(taken) < max(order.minimum, 1):
        short, faults = f"{len(taken)} sites introduced themselves, {order.minimum} are needed.", _describe_faults(pending.faults | refused)
        raise UserError(f"{short} {' '.join(faults)}") if faults else TooFewSitesError(short)
    members = replace(members, schema=schema)
    if before is None:
        for sentence in describe_thin_sites(members, pending.cards):
            tell(sentence)
    members.write(path)
    if schema_file is not None and schema:
        write_json(schema_file, {"schema": schema})
    return members, pending


def _agree_on_schema(pending: Pending, order: Order, schema_file: Path | None) -> tuple[str, dict[str, SiteCard], dict[str, str]]:
    """The columns of the run, the cards of the sites that have them, and why others do not. Sites whose own columns are different, or in
    another order, are asked for a card in the agreed ones."""
    hello, cards = pending.hello, pending.cards
    schema = hello.schema
    if not schema:
        ranked = sorted(cards, key=lambda site: (order.order.index(site) if site in order.order else len(order.order), site))
        stored = read_stored_schema(schema_file) if schema_file is not None else ""
        schema = choose_schema([cards[site].schema for site in ranked], stored)
    if not schema:
        return "", cards, {}
    asked = Pending(replace(hello, number=secrets.token_hex(16), schema=schema), pending.carrier, pending.limit, ())
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


def _others_wait(folder: Path) -> bool:
    """Whether another run of the federation waits for its turn: there is one job at a time."""
    for path in folder.parent.glob(f"*/{STATUS}"):
        with suppress(OSError, ValueError, AttributeError):  # being written
            if path.parent != folder and json.loads(path.read_text(encoding="utf-8")).get("status") in ("waiting", "again"):
                return True
    return False


def _describe_pending(pending: Pending) -> str:
    short, run = pending.hello.order[:SHORT_HASH], pending.hello.run
    return f"Waiting for approval at {', '.join(sorted(pending.sites))} (order {short}); there: coterie policy approve KIT {run}."


def _describe_faults(faults: Mapping[str, str]) -> list[str]:
    return [f"Site {site!r} does not take part: {fault}{'' if fault.endswith(('.', '?')) else '.'}" for site, fault in faults.items()]
