"""What a server does in a run, whatever carries its messages: ask who is there, run the study, write the evidence, deliver the models."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.plain import write_json
from coterie.core.trust import check_trust
from coterie.deploy.answering import coterie_version
from coterie.deploy.checks import CARD_BYTES, RECEIPT_BYTES, read_card, read_receipt
from coterie.deploy.engine import Carrier, FederatedEngine, limit_answers
from coterie.deploy.federation import Claim
from coterie.deploy.inspecting import InspectOrder, problem_of, write_inspection
from coterie.deploy.members import Members, admit_sites
from coterie.deploy.messages import LIMIT, PROTOCOL, Delivery, Hello, MessageError, to_message
from coterie.deploy.serving_out import deliveries
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.run.asynchrony import check_methods
from coterie.run.budget import Clock
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.study import Study

UNDELIVERED = "undelivered.json"  # the sites that did not say that they have their models


class TooFewSitesError(UserError):
    """Sites that should be there were silent: they may be back in a moment."""


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

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "Order":
        """From what a file or a job holds."""
        return cls(**{**tree, "order": tuple(tree.get("order", ())), "trusted": tuple(tree.get("trusted", ()))})


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
) -> bool:
    """Begin the run or go on with it; whether it is complete. It ends early, with every round so far on disk, when the clock says so.

    `roster` is what the operator lets sites claim.
    """
    if order.kind == "inspect":
        wanted = InspectOrder.read(order.settings)
        write_inspection(wanted, introductions(order, carrier, sites, wanted.model, folder, tell, roster), carrier, order.run, folder)
        return True
    settings = Settings.from_json(order.settings)
    settings.plan.check_real()
    check_trust([settings.plan.selection], "The order", settings.plan.selection in order.trusted, "sampler")
    # a wrong one is refused before any site is asked
    methods = tuple(build(spec, trust=spec in order.trusted) for spec in settings.methods)
    check_methods(settings.plan, settings.methods, methods)
    members = introductions(order, carrier, sites, settings.model, folder, tell, roster)
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
    write_json(folder / UNDELIVERED, sorted(_deliver(deliveries(study, out, members, engine, order.run), carrier, order.limit)))
    return True


def _deliver(parcels: Iterable[Mapping[str, Delivery]], carrier: Carrier, limit: int) -> set[str]:
    """Hand out what every site is served, method by method; the sites that did not say that they have it."""
    without: set[str] = set()
    for by_site in parcels:
        limit_answers(carrier, dict.fromkeys(by_site, min(limit, RECEIPT_BYTES)))
        said = carrier.exchange({site: to_message(delivery) for site, delivery in by_site.items()})
        for site, delivery in by_site.items():
            try:
                read_receipt(said.get(site, b""), delivery.run, delivery.number, limit)
            except MessageError:
                without.add(site)
    return without


def introductions(
    order: Order,
    carrier: Carrier,
    sites: Sequence[str],
    model: str,
    folder: Path,
    tell: Callable[[str], None],
    roster: Mapping[str, Claim] | None = None,
) -> Members:
    """Who is there: every site's card, after those that took part before. What stands in a site's way is told."""
    hello = Hello(PROTOCOL, order.run, secrets.token_hex(16), model, coterie_version())
    cards, faults = {}, {}
    limit_answers(carrier, dict.fromkeys(sites, min(order.limit, CARD_BYTES)))
    for site, data in carrier.exchange({site: to_message(hello) for site in sites}).items():
        try:
            cards[site] = read_card(data, hello.run, hello.number, order.limit)
        except MessageError as error:
            faults[site] = str(error)
    path = folder / "members.json"
    members, refused = admit_sites(cards, order.order, Members.read(path) if path.exists() else None, roster)
    told = [f"Site {site!r} does not take part: {fault}." for site, fault in (faults | refused).items()]
    for sentence in told:
        tell(sentence)
    taken = members.here if members is not None else frozenset()
    for site in sorted(taken):
        if cards[site].version != hello.version:
            tell(f"Site {site!r} has coterie {cards[site].version}, the server {hello.version}: install the same version on both.")
    if members is None or len(taken) < max(order.minimum, 1):
        short = f"{len(taken)} sites introduced themselves, {order.minimum} are needed."
        raise UserError(f"{short} {' '.join(told)}") if told else TooFewSitesError(short)
    folder.mkdir(parents=True, exist_ok=True)
    members.write(path)
    return members
