"""A run on the server, whatever carries its messages: introduce the sites, run the study or inspection, deliver the models."""

import json
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import numpy as np

from coterie._util.errors import UserError
from coterie._util.json_io import write_json
from coterie.core.asks import Refusal
from coterie.core.method import Context, Problem
from coterie.core.model import ModelSpec
from coterie.core.plan import Plan
from coterie.core.specs import check_trust
from coterie.deploy.bundle.export import name_models
from coterie.deploy.messages import (
    PROTOCOL,
    Delivery,
    Hello,
    MessageError,
    PendingError,
    RawMessage,
    SiteCard,
    get_version,
    restrict_serving,
    to_message,
)
from coterie.deploy.orders import LARGEST_ORDER, SHORT_HASH, OrderTerms
from coterie.deploy.server.engine import Carrier, FederatedEngine, PostingCarrier, limit_answers
from coterie.deploy.server.federation import Claim
from coterie.deploy.server.members import Members, admit_sites, choose_schema, describe_thin_sites, read_stored_schema
from coterie.deploy.server.runs import APPROVALS_FILE, STATUS_FILE, InspectOrder, Order
from coterie.deploy.server.validation import CARD_BYTES, RECEIPT_BYTES, read_card, read_receipt
from coterie.engines.engine import StampedAsk
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.inspect.inspection import run_inspection
from coterie.methods.catalogue import build
from coterie.models.catalogue import build_model
from coterie.run.async_rounds import check_async_methods
from coterie.run.callbacks import Callback
from coterie.run.driver import run_script
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.run.waves import TimeLimit

ANSWERS_FILE = "answers.json"  # in words, for the terminal


def write_inspection(order: InspectOrder, members: Members, carrier: Carrier, run: str, folder: Path, terms: str = "") -> None:
    """Ask, and write inspection.json, inspection.html and the answers in words into the run's folder. `terms` is the order's hash."""
    from coterie.inspect.answers import write_answers
    from coterie.inspect.page import render_inspection  # here: charts are slow to import, and other jobs draw none
    from coterie.inspect.recommendation import recommend

    problem = make_problem(members, order.model)
    plan = replace(order.plan, validation=order.plan.validation and members.validation)
    ctx = Context(problem.roster_at(0), problem.layout, Plan(), order.seed, 0)
    script = run_inspection(problem.initial(order.seed), members.classes, (order.data, order.model), ctx, plan)
    engine = _DenialRecorder(carrier, members, run, terms)
    try:
        found = run_script(script, engine, seed=order.seed)
    except UserError as error:
        raise UserError(engine.explained(str(error))) from error
    write_json(folder / "inspection.json", found.as_json())
    (folder / "inspection.html").write_text(render_inspection(found), encoding="utf-8")
    advised = recommend(found, str(folder.parent.parent))
    details = {
        "recommended": None if advised is None else asdict(advised),
        "clients": len(found.ids),
        "left_out": list(found.left_out),
        "answers": [asdict(one) for one in write_answers(found)],
    }
    (folder / ANSWERS_FILE).write_text(json.dumps(details | {"denied": engine.denials}), encoding="utf-8")


class _DenialRecorder(FederatedEngine):
    """Keeps what sites refuse, to report why an inspection has too little to go by."""

    def __init__(self, carrier: Carrier, members: Members, run: str, order: str) -> None:
        super().__init__(carrier, members.sites, [member.id for member in members.members], run, members=members, order=order)
        self.denials: list[str] = []

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        replies = super().run(asks)
        details = {refused.detail for reply in replies for refused in reply.refused.values() if refused.why is Refusal.DENIED}
        self.denials += sorted(details - set(self.denials))
        return replies

    def explained(self, fault: str) -> str:
        """What went wrong, with the policies' part in it."""
        if any("label_shares" in detail for detail in self.denials):
            return (
                "The sites do not report how many samples of each class they have ('label_shares' is false in their policy.toml): "
                "inspect with --no-labels, or ask them to allow it."
            )
        return f"{fault} {self.denials[0]}" if self.denials else fault


def make_problem(members: Members, model: str) -> Problem:
    """What the server knows of what is learned."""
    roster = replace(members.roster(), sites=tuple(member.site for member in members.members))
    spec = ModelSpec(model, members.input_shape, len(members.classes), build_model)
    return Problem(spec, lambda round_: roster, validation=members.validation)


def make_deliveries(
    study: Study, folder: Path, members: Members, engine: FederatedEngine, run: str, order: str
) -> Iterator[dict[str, Delivery]]:
    """For each method of the study, with its first seed: by site, what its clients are served. Sites that are not there get none."""
    states, roster = load_lanes(folder).lanes, members.roster()
    for lane in study.lanes():
        if lane.seed != study.settings.seeds[0] or lane.key not in states or states[lane.key].end.failed:
            continue
        lane.resume_from(states[lane.key].end, states[lane.key].state)
        script = lane.method.serve(lane.state, roster.available, lane.context(lane.round_))
        serving = run_script(script, engine, seed=lane.derived_seed, round_=lane.round_, draw=lane.key.draw)
        serving = replace(serving, neighbours=None)  # of knn the model is delivered: samples are the client's own
        names = name_models(lane, serving, roster.ids)
        found = {}
        sites = np.array([members.members[int(c)].site for c in serving.clients], dtype=object)
        for site in dict.fromkeys(sites.tolist()):
            part = serving.take(np.flatnonzero(sites == site))
            ids, cut = tuple(roster.ids[int(c)] for c in part.clients), restrict_serving(part)
            used = np.unique(part.rows) if len(cut.models) < len(part.models) else np.arange(len(part.models))
            named = tuple(names[int(row)] for row in used)
            number = secrets.token_hex(16)
            found[site] = Delivery(PROTOCOL, run, number, lane.label, lane.seed, lane.round_, ids, cut, named, order)
        yield found


UNDELIVERED_FILE = "undelivered.json"  # the sites that did not confirm that they have their models
POLL = 2.0  # seconds between questions to sites that have not approved the order
TURN = 60.0  # seconds that a job waits for approvals while other runs wait for their turn


class TooFewSitesError(UserError):
    """Sites that should be there were silent: they may be back in a moment."""


class UnapprovedError(TooFewSitesError):
    """Too few sites have approved the order, and another run waits for its turn."""


def run_order(
    order: Order,
    carrier: Carrier,
    sites: Sequence[str],
    folder: Path,
    *,
    clock: TimeLimit,
    report: Callable[[str], None],
    watchers: Iterable[Callback] = (),
    roster: Mapping[str, Claim] | None = None,
    schema_file: Path | None = None,
) -> bool:
    """Start or resume the run; whether it is complete. It ends early, with every round so far on disk, when the clock is over, or when a
    site has approved the order that had not before. `roster` is what the operator lets sites claim; in `schema_file` the federation keeps
    the columns that the sites of its last run agreed on."""
    if order.kind == "inspect":
        wanted, terms = InspectOrder.read(order.settings), order.terms()
        members, _ = introduce_sites(order, terms, carrier, sites, folder, report, roster, schema_file)
        carrier = _MembersCarrier(carrier, members.here)
        write_inspection(wanted, members, carrier, order.run, folder, terms.hash)
        return True
    settings = Settings.from_json(order.settings)
    settings.plan.check_real()
    check_trust([settings.plan.selection], "The order", settings.plan.selection in order.trusted, "sampler")
    # a wrong one is refused before any site is asked
    methods = tuple(build(spec, trust=spec in order.trusted) for spec in settings.methods)
    check_async_methods(settings.plan, settings.methods, methods)
    terms = order.terms(methods)
    members, pending = introduce_sites(order, terms, carrier, sites, folder, report, roster, schema_file)
    clock, carrier = _ApprovalClock(clock, pending), _MembersCarrier(carrier, members.here)
    problem = make_problem(members, settings.model)
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
        changing=True,  # clients may come later, and some share no scores
    )
    out, execution = folder / "study", Execution(checkpoint_every=1, device="cpu")
    study.run(out=out, resume=out.exists(), execution=execution, engine=engine, callbacks=watchers, budget=clock)
    if clock.over:
        return False
    write_json(
        folder / UNDELIVERED_FILE,
        sorted(_deliver(make_deliveries(study, out, members, engine, order.run, terms.hash), carrier, order.limit)),
    )
    return True


def _deliver(batches: Iterable[Mapping[str, Delivery]], carrier: Carrier, limit: int) -> set[str]:
    """Send what every site is served, method by method; the sites that did not confirm that they have it."""
    without: set[str] = set()
    for by_site in batches:
        limit_answers(carrier, dict.fromkeys(by_site, min(limit, RECEIPT_BYTES)))
        response = carrier.exchange({site: to_message(delivery) for site, delivery in by_site.items()})
        for site, delivery in by_site.items():
            try:
                read_receipt(response.get(site, b""), delivery, limit)
            except MessageError:
                without.add(site)
    return without


class PendingApprovals:
    """The sites of a job that have not approved the order yet."""

    def __init__(self, hello: Hello, carrier: Carrier, limit: int, sites: Iterable[str]) -> None:
        self.hello, self.carrier, self.limit, self.sites = hello, carrier, limit, set(sites)
        self.cards: dict[str, SiteCard] = {}  # of those that have approved
        self.faults: dict[str, str] = {}  # of those that take no part
        self._asked = 0.0

    def ask(self) -> bool:
        """Ask those that have not decided; whether anything has changed."""
        self._asked, before = monotonic(), set(self.sites)
        limit_answers(self.carrier, dict.fromkeys(self.sites, min(self.limit, CARD_BYTES)))
        response = self.carrier.exchange({site: to_message(self.hello) for site in sorted(self.sites)})
        for site in sorted(self.sites):
            if site not in response:  # silent, or gone: the next job sees
                self.sites.discard(site)
                continue
            try:
                self.cards[site] = read_card(response[site], self.hello, self.limit)
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


class _MembersCarrier:
    """A carrier that takes nothing to sites without a card in this job: they refused, or have yet to approve. They count as silent."""

    def __init__(self, carrier: Carrier, sites: Container[str]) -> None:
        self.carrier, self.sites, self._silent = carrier, sites, list[str]()

    def limit_answers(self, most: Mapping[str, int]) -> None:
        limit_answers(self.carrier, most)

    def exchange(self, batches: Mapping[str, bytes]) -> Mapping[str, RawMessage]:
        own = {site: data for site, data in batches.items() if site in self.sites}
        return self.carrier.exchange(own) if own else {}

    def post(self, number: str, site: str, data: bytes) -> None:
        if site in self.sites:
            cast(PostingCarrier, self.carrier).post(number, site, data)
        else:
            self._silent.append(number)

    def collect(self, *, wait: bool) -> tuple[str, RawMessage | None] | None:
        return (self._silent.pop(), None) if self._silent else cast(PostingCarrier, self.carrier).collect(wait=wait)


class _ApprovalClock:
    """Ends a job, so that the next one takes a site in that has approved the order since."""

    def __init__(self, clock: TimeLimit, pending: PendingApprovals) -> None:
        self.clock, self.pending, self._over = clock, pending, False

    @property
    def over(self) -> bool:
        self._over = self._over or self.pending.has_approval()
        return self._over or self.clock.over

    def begin_wave(self) -> bool:
        return not self._over and self.clock.begin_wave()


def introduce_sites(
    order: Order,
    terms: OrderTerms,
    carrier: Carrier,
    sites: Sequence[str],
    folder: Path,
    report: Callable[[str], None],
    roster: Mapping[str, Claim] | None = None,
    schema_file: Path | None = None,
) -> tuple[Members, PendingApprovals]:
    """The members: every site's card, after those that took part before, and the sites that have yet to approve the order.

    Where too few have approved it, they are asked again until enough have, or until another run has waited for long enough for its turn.
    What stands in a site's way is reported. All sites that take part have the same columns in the same order: those of the run's earlier
    jobs, or those that `choose_schema` finds.
    """
    if len(text := terms.as_text()) > LARGEST_ORDER:
        raise UserError(f"The order has {len(text):,} characters, sites take {LARGEST_ORDER:,}: order fewer seeds or methods at once.")
    path = folder / "members.json"
    before = Members.read(path) if path.exists() else None
    schema = before.schema if before is not None else ""
    hello = Hello(PROTOCOL, order.run, secrets.token_hex(16), terms.model, get_version(), terms.hash, text, schema)
    pending, began, details = PendingApprovals(hello, carrier, order.limit, sites), monotonic(), set[str]()
    folder.mkdir(parents=True, exist_ok=True)
    pending.ask()
    while True:
        for fault in _describe_faults(pending.faults):
            if fault not in details:
                details.add(fault)
                report(fault)
        if pending.sites and (waiting := _describe_pending(pending)) not in details:
            details.add(waiting)
            report(waiting)
        write_json(folder / APPROVALS_FILE, {"order": terms.hash, "pending": sorted(pending.sites)})
        if len(pending.cards) >= order.minimum or len(pending.cards) + len(pending.sites) < order.minimum:
            break
        if monotonic() - began > TURN and _is_other_run_waiting(folder):
            raise UnapprovedError(_describe_pending(pending))
        sleep(POLL)
        pending.ask()
    schema, cards, differing = _agree_on_schema(pending, order, schema_file)
    members, refused = admit_sites(cards, order.order, before, roster)
    refused = differing | refused
    for sentence in _describe_faults(refused):
        report(sentence)
    taken = members.here if members is not None else frozenset()
    for site in sorted(taken):
        if cards[site].version != hello.version:
            report(f"Site {site!r} has coterie {cards[site].version}, the server {hello.version}: install the same version on both.")
    if members is None or len(taken) < max(order.minimum, 1):
        short, faults = f"{len(taken)} sites introduced themselves, {order.minimum} are needed.", _describe_faults(pending.faults | refused)
        raise UserError(f"{short} {' '.join(faults)}") if faults else TooFewSitesError(short)
    members = replace(members, schema=schema)
    if before is None:
        for sentence in describe_thin_sites(members, pending.cards):
            report(sentence)
    members.write(path)
    if schema_file is not None and schema:
        write_json(schema_file, {"schema": schema})
    return members, pending


def _agree_on_schema(pending: PendingApprovals, order: Order, schema_file: Path | None) -> tuple[str, dict[str, SiteCard], dict[str, str]]:
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


def _describe_faults(faults: Mapping[str, str]) -> list[str]:
    return [f"Site {site!r} does not take part: {fault}{'' if fault.endswith(('.', '?')) else '.'}" for site, fault in faults.items()]
