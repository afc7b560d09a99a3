"""A run on the server, whatever carries its messages: introduce the sites, run an order of any kind, deliver the models."""

import json
import secrets
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from coterie._util.errors import UserError
from coterie._util.json_io import write_json
from coterie.core.asks import Evaluate, Refusal
from coterie.core.method import Context, Problem
from coterie.core.model import MakeModule, ModelSpec
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.core.specs import check_trust
from coterie.deploy.bundle.bundle import Bundle, Origin
from coterie.deploy.bundle.export import name_models
from coterie.deploy.bundle.files import write_bundle
from coterie.deploy.files import make_folder_name
from coterie.deploy.messages import (
    PROTOCOL,
    Delivery,
    MessageError,
    RawMessage,
    read_schema,
    restrict_serving,
    to_message,
)
from coterie.deploy.orders import OrderTerms
from coterie.deploy.server.engine import Carrier, FederatedEngine, PostingCarrier, limit_answers
from coterie.deploy.server.evaluation import (
    ContinuedProblem,
    EvaluateOrder,
    History,
    check_fit,
    load_kept_bundle,
    make_look,
    serve_bundle,
)
from coterie.deploy.server.federation import Claim
from coterie.deploy.server.introduction import PendingApprovals, introduce_sites
from coterie.deploy.server.members import Members
from coterie.deploy.server.runs import InspectOrder, Journal, Order
from coterie.deploy.server.tables import run_schema_order, run_statistics_order
from coterie.deploy.server.validation import RECEIPT_BYTES, clean_text, read_receipt
from coterie.engines.engine import Engine, StampedAsk
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.inspect.inspection import run_inspection
from coterie.methods.catalogue import build
from coterie.models.catalogue import build_model
from coterie.run.async_rounds import check_async_methods
from coterie.run.callbacks import Callback
from coterie.run.driver import run_script
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
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


def make_problem(members: Members, model: str, make: MakeModule = build_model) -> Problem:
    """What the server knows of what is learned; `make` turns the model's text into a module."""
    roster = replace(members.roster(), sites=tuple(member.site for member in members.members))
    spec = ModelSpec(model, members.input_shape, len(members.classes), make)
    return Problem(spec, lambda round_: roster, validation=members.validation, task=members.learned)


def serve_lanes(study: Study, folder: Path, members: Members, engine: Engine, bundles: Path) -> Iterator[tuple[Lane, Serving, list[str]]]:
    """For each method of the study, with its first seed: what the clients that are there are served, and the names of the models. A folder
    of `bundles` keeps it."""
    states, roster = load_lanes(folder).lanes, members.roster()
    for lane in study.lanes():
        if lane.seed != study.settings.seeds[0] or lane.key not in states or states[lane.key].end.failed:
            continue
        lane.resume_from(states[lane.key].end, states[lane.key].state)
        script = lane.method.serve(lane.state, roster.available, lane.context(lane.round_))
        serving = run_script(script, engine, seed=lane.derived_seed, round_=lane.round_, draw=lane.key.draw)
        serving = replace(serving, neighbours=None)  # of knn the model is delivered: samples are the client's own
        names = name_models(lane, serving, roster.ids)
        _keep_served_models(study, lane, serving, names, members, bundles)
        yield lane, serving, names


def make_deliveries(
    study: Study, folder: Path, members: Members, engine: FederatedEngine, run: str, order: str
) -> Iterator[dict[str, Delivery]]:
    """For each method of the study, with its first seed: by site, what its clients are served. Sites that are not there get none."""
    roster = members.roster()
    for lane, serving, names in serve_lanes(study, folder, members, engine, folder.parent / BUNDLES_FOLDER):
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


BUNDLES_FOLDER = "bundles"  # in a run's folder, by method: what all clients were served, for `launch --evaluate` and `--from`


def _keep_served_models(study: Study, lane: Lane, serving: Serving, names: Sequence[str], members: Members, folder: Path) -> None:
    """Write what all clients are served as a bundle; one of an earlier round gives way."""
    schema = read_schema(members.schema) if members.schema else None
    own = schema is not None and (schema.classes, schema.shape) == (members.classes, members.input_shape)
    ids = members.roster().ids
    bundle = Bundle(
        origin=Origin(lane.label, study.settings.data, lane.seed, lane.key.draw, lane.round_),
        model=study.settings.model,
        input_shape=members.input_shape,
        classes=members.classes,
        models=np.asarray(serving.models),
        names=tuple(names),
        clients={ids[int(client)]: int(row) for client, row in zip(serving.clients, serving.rows, strict=True)},
        combiner=serving.combiner,
        features=schema.features or None if schema is not None and own else None,
        preparation=schema.make_preparation() if schema is not None and own else None,
        schema=schema if schema is not None and own and schema.agreed is not None else None,
        task=members.learned,
    )
    target = folder / make_folder_name(lane.label)
    shutil.rmtree(target, ignore_errors=True)
    write_bundle(bundle, target)


UNDELIVERED_FILE = "undelivered.json"  # the sites that did not confirm that they have their models


@dataclass(frozen=True)
class Job:
    """One job of a run: its order, and what the server has to run it with."""

    order: Order
    carrier: Carrier
    sites: Sequence[str]  # that are connected
    folder: Path  # of the run
    clock: TimeLimit
    report: Callable[[str], None]  # what stands in a site's way
    watchers: Iterable[Callback] = ()
    roster: Mapping[str, Claim] | None = None  # what the operator lets sites claim
    schema_file: Path | None = None  # where the federation keeps the columns that the sites of its last run agreed on

    def introduce(self, terms: OrderTerms, bundle: Bundle | None = None) -> tuple[Members, PendingApprovals]:
        """The members of the run, and the sites that have yet to approve the order. Sites are prepared as those of a bundle were."""
        where = self.carrier, self.sites, self.folder, self.report, self.roster, self.schema_file
        return introduce_sites(self.order, terms, *where, None if bundle is None else bundle.schema)


def run_order(
    order: Order, carrier: Carrier, sites: Sequence[str], folder: Path, *, clock: TimeLimit, report: Callable[[str], None], **more: Any
) -> bool:
    """Start or resume the run; whether it is complete. It ends early, with every round so far on disk, when the clock is over, or when a
    site has approved the order that had not before. `more` are fields of `Job`."""
    return RUNNERS[order.kind](Job(order, carrier, sites, folder, clock, report, **more))


def _run_inspection(job: Job) -> bool:
    order, terms = job.order, job.order.terms()
    members, _ = job.introduce(terms)
    if not members.learned.counts_classes:
        raise UserError(f"The sites have a {members.learned}: an inspection is for classes; simulate it with 'coterie inspect'.")
    carrier = _MembersCarrier(job.carrier, members.here)
    write_inspection(InspectOrder.read(order.settings), members, carrier, order.run, job.folder, terms.hash)
    return True


def _run_study(job: Job) -> bool:
    order, folder, settings = job.order, job.folder, Settings.from_json(job.order.settings)
    settings.plan.check_real()
    check_trust([settings.plan.selection], "The order", settings.plan.selection in order.trusted, "sampler")
    # a wrong one is refused before any site is asked
    methods = tuple(build(spec, trust=spec in order.trusted) for spec in settings.methods)
    check_async_methods(settings.plan, settings.methods, methods)
    terms = order.terms(methods)
    bundle = load_kept_bundle(folder, order.start) if order.start else None
    members, pending = job.introduce(terms, bundle)
    clock, carrier = _ApprovalClock(job.clock, pending), _MembersCarrier(job.carrier, members.here)
    problem = make_problem(members, settings.model)
    if bundle is not None:
        check_fit(bundle, members)
        problem = ContinuedProblem(**vars(problem), start=bundle.models)
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
    study.run(out=out, resume=out.exists(), execution=execution, engine=engine, callbacks=job.watchers, budget=clock)
    if clock.over:
        return False
    write_json(
        folder / UNDELIVERED_FILE,
        sorted(_deliver(make_deliveries(study, out, members, engine, order.run, terms.hash), carrier, order.limit)),
    )
    return True


def _run_evaluation(job: Job) -> bool:
    """One look: the scores of the bundle on what the sites have now. Each look introduces the sites again, since their data may have grown;
    the operator's roster bounds what they may claim."""
    order, folder, wanted = job.order, job.folder, EvaluateOrder.read(job.order.settings)
    bundle, history, terms = load_kept_bundle(folder, wanted.bundle), History(folder), order.terms()
    looks = history.read()
    if len(looks) >= wanted.looks:
        return True
    (folder / "members.json").unlink(missing_ok=True)
    members, _ = job.introduce(terms, bundle)
    check_fit(bundle, members)
    serving, without = serve_bundle(bundle, members)
    if without:
        job.report(f"The bundle has no model for {', '.join(sorted(map(clean_text, without))[:5])}: these clients are left out.")
    if not len(serving.clients):
        raise UserError("The bundle has no model for any client that is there: name a bundle of these clients, or one with a single model.")
    carrier, ids = _MembersCarrier(job.carrier, members.here), [m.id for m in members.members]
    engine = FederatedEngine(carrier, members.sites, ids, order.run, order.limit, members=members, order=terms.hash)
    number = len(looks) + 1
    judged = run_script(iter(Evaluate(serving, "test")), engine, round_=number)
    for name, detail in sorted({(members.members[client].site, str(refused)) for client, refused in judged.refused.items()}):
        job.report(f"Site {name!r} {detail}.")
    look = make_look(number, wanted.bundle, judged, serving, members, looks)
    history.append(look)
    for watcher in job.watchers:
        if isinstance(watcher, Journal):
            watcher.append("round", {"method": "evaluate", "seed": 0, "round": number, "absent": len(look.absent), "steps": 0})
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


# how the server runs orders of each kind; whether the run is then complete
RUNNERS: Mapping[str, Callable[[Job], bool]] = {
    "study": _run_study,
    "inspect": _run_inspection,
    "evaluate": _run_evaluation,
    "schema": run_schema_order,
    "statistics": run_statistics_order,
}
