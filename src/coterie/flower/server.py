"""The ServerApp: a study of Coterie's methods whose asks go to Flower's nodes."""

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Refusal
from coterie.core.local import Local
from coterie.core.method import Method
from coterie.core.model import MakeModule, make_layout
from coterie.core.plan import Plan
from coterie.deploy.messages import LIMIT, PROTOCOL, Hello, MessageError, SiteCard, get_version, to_message
from coterie.deploy.server.engine import FederatedEngine
from coterie.deploy.server.members import Members, admit_sites
from coterie.deploy.server.runner import make_problem, serve_lanes
from coterie.deploy.server.validation import clean_text, read_card
from coterie.engines.engine import StampedAsk
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.flower.functions import Abilities, describe_difference, layout_from_json, layout_to_json
from coterie.flower.records import ACTION, from_records, read_abilities, to_records
from coterie.flower.rehearsal import rehearse
from coterie.models.catalogue import GivenModel, resolve_model
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution, make_plan
from coterie.run.lanes import Lane
from coterie.run.method_sets import ChosenMethods
from coterie.run.result import Result, check_finished
from coterie.run.study import Study

BUNDLES = "bundles"  # in the folder of a run, by method: the models that clients are served
MESSAGE_TYPE = f"query.{ACTION}"
LOST = "lost "  # before the number of a batch whose node is gone
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks for replies
_log = logging.getLogger("flwr")


def server_app(
    method: Method[Any] | str | Sequence[Method[Any] | str],
    *,
    model: GivenModel,
    nodes: int,
    seeds: Iterable[int] = (0,),
    plan: Plan | None = None,
    local: Local | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    name: str = "flower",
    wait: float = 120.0,
    timeout: float = 3600.0,
    callbacks: Iterable[Callback] = (),
    on_result: Callable[[Result], None] | None = None,
    **settings: Any,
) -> ServerApp:
    """A ServerApp that trains by a method of Coterie, with nodes that run `coterie.flower.client_app`.

    Args:
        method: A method, its spec (``"fedsim(clusters=4)"``), or several that are run side by side.
        model: The model: a class or function that makes a module, a module, or a spec.
        nodes: How many nodes to wait for. Nodes that are there when the run starts take part.
        seeds: The seeds of training.
        plan: All settings of the plan at once; a setting given twice is refused.
        local: The settings of local training, which nodes get with each ask to train.
        out: The folder for the evidence, and for the models that clients are served (`bundles`); without it, they are in memory.
        resume: Whether to resume the run in the folder.
        name: What the evidence calls the data.
        wait: The seconds to wait for nodes.
        timeout: The seconds that a node has for one reply; a node that takes longer is absent from it.
        callbacks: Watch the run. Default: a line of Flower's log for each evaluated round.
        on_result: Called with the result at the end.
        settings: Those of `Plan` and `Local` by name: rounds, cohort, epochs, batch_size, lr and the others.

    Returns:
        The app, for ``flwr run`` or a simulation.

    Raises:
        UserError: A method or setting is unknown. When the app runs: too few nodes, or an ask of the method that nodes do not answer.

    Example:
        >>> app = server_app("fedsim(clusters=4)", model=Net, nodes=10, rounds=20, out="runs/flower")  # doctest: +SKIP
    """
    chosen, (named, make) = ChosenMethods.resolve(method), resolve_model(model)
    made = make_plan(settings, plan, local)
    made.check_real()
    if nodes < 1:
        raise UserError(f"nodes={nodes} should be 1 or more: how many nodes the run waits for.")
    given = Settings(methods=chosen.labels, data=name, model=named, seeds=tuple(seeds), plan=made)
    terms = _state_model(model, named, make)
    watchers = [*callbacks] or [_RoundLog()]
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        carrier = GridCarrier(grid, timeout)
        members, abilities = _introduce_nodes(carrier, nodes, wait, terms, watchers)
        # only a user's own function knows how many samples it trains on
        whole = given if "Train" not in abilities.own else replace(given, plan=replace(made, counts="believed"))
        study = _prepare_study(whole, tuple(chosen.methods), members, abilities, make)
        engine = FlowerEngine(carrier, members, abilities, whole.plan)
        folder = Path(out) if out is not None else None
        execution = Execution(checkpoint_every=1, device="cpu")
        result = check_finished(study.run(out=folder, resume=resume, execution=execution, engine=engine, callbacks=watchers))
        if folder is not None:
            for lane, _, names in serve_lanes(study, folder, members, engine, folder / BUNDLES):
                _log.info("%s: %s in %s", lane.label, ", ".join(names[:5]), folder / BUNDLES)
        _log.info("%s", result)
        if on_result is not None:
            on_result(result)

    app.main()(main)
    return app


def _state_model(model: GivenModel, named: str, make: MakeModule) -> str:
    """What nodes that have functions and no model need to know of it; of a model whose shapes the data decide, nothing."""
    takes_shape = isinstance(model, str) or not (isinstance(model, nn.Module) or _has_no_shape(model))
    if takes_shape:
        return json.dumps({"layout": "[]", "order": []})
    module = make(named, (1,), 1)
    return json.dumps({"layout": layout_to_json(make_layout(module)), "order": list(module.state_dict())})


def _has_no_shape(factory: Callable[..., Any]) -> bool:
    return not {"input_shape", "outputs"} & set(signature(factory).parameters)


class _RoundLog(Callback):
    """A line of Flower's log for each evaluated round."""

    def on_notice(self, sentence: str) -> None:
        _log.info("%s", sentence)

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        score = record.score(lane.problem.task)
        absent = f", {len(record.absences)} absent" if record.absences else ""
        if score is not None:
            _log.info("[round %d] %s, seed %d: accuracy %.4f%s", record.round_, lane.label, lane.seed, score, absent)


@dataclass
class GridCarrier:
    """Takes bytes to nodes, called by their numbers, and brings back their answers (`deploy.server.engine.PostingCarrier`).

    Flower's own `send_and_receive` looks for replies every three seconds; this looks sooner, and less often the longer it takes.
    """

    grid: Grid
    timeout: float
    posted: dict[str, tuple[str, float]] = field(default_factory=dict)  # by Flower's id of a message: our number, and when it is too late
    ready: list[tuple[str, bytes | None]] = field(default_factory=list)  # answers by our number, as they came

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        """By node, its answer; nodes that failed, left or took too long are missing."""
        replies = self.ask(batches)
        return {node: data for node, message in replies.items() if (data := _read_content(message, node)) is not None}

    def ask(self, batches: Mapping[str, bytes]) -> dict[str, Message]:
        """By node, its message; of a node that could not be reached, none."""
        waiting = {sent: node for node, data in batches.items() if (sent := self._push(node, data))}
        found: dict[str, Message] = {}
        began = time.monotonic()
        while waiting and time.monotonic() - began < self.timeout:
            for message in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    found[node] = message
            _pause(began, enough=not waiting)
        return found

    def post(self, number: str, site: str, data: bytes) -> None:
        """Send a batch, and do not wait."""
        self.posted[self._push(site, data) or f"{LOST}{number}"] = number, time.monotonic() + self.timeout

    def collect(self, *, wait: bool) -> tuple[str, bytes | None] | None:
        """The next answer by the number of its batch; None in its place where none will come."""
        began = time.monotonic()
        while self.ready or self.posted:
            if self.ready:
                return self.ready.pop(0)
            gone = [sent for sent, (_, end) in self.posted.items() if sent.startswith(LOST) or time.monotonic() > end]
            self.ready += [(self.posted.pop(sent)[0], None) for sent in gone]
            for message in self.grid.pull_messages(list(self.posted)):
                number, _ = self.posted.pop(message.metadata.reply_to_message_id)
                self.ready.append((number, _read_content(message, str(message.metadata.src_node_id))))
            if not self.ready and not wait:
                return None
            _pause(began, enough=bool(self.ready))
        return None

    def _push(self, node: str, data: bytes) -> str:
        """Flower's id of the message; empty where the node is gone."""
        message = Message(to_records(data), dst_node_id=int(node), message_type=MESSAGE_TYPE, ttl=self.timeout)
        return next(iter(self.grid.push_messages([message])), "")


def _pause(began: float, *, enough: bool) -> None:
    if not enough:
        time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, (time.monotonic() - began) / 10)))


def _read_content(message: Message, node: str) -> bytes | None:
    """The bytes of a reply; None where the node's app failed, or speaks of something else."""
    if message.has_error():
        _log.warning("Node %s did not answer: %s", node, clean_text(message.error.reason or f"error {message.error.code}"))
        return None
    try:
        return from_records(message.content)
    except MessageError:
        return b""


def _introduce_nodes(carrier: GridCarrier, nodes: int, wait: float, terms: str, watchers: Sequence[Callback]) -> tuple[Members, Abilities]:
    """Wait for nodes and ask for their cards. Those that cannot take part are reported; too few are refused."""
    began = time.monotonic()
    while len(found := [str(node) for node in carrier.grid.get_node_ids()]) < nodes:
        if time.monotonic() - began > wait:
            raise UserError(f"{len(found)} of {nodes} nodes are connected after {wait:g} s: start the others, or name fewer in nodes=.")
        time.sleep(0.1)
    hello = Hello(PROTOCOL, "flower", secrets.token_hex(16), "", get_version(), terms=terms)
    replies = carrier.ask(dict.fromkeys(found, to_message(hello)))
    faults = {node: "it sent no answer" for node in found if node not in replies}
    cards: dict[str, SiteCard] = {}
    abilities: dict[str, Abilities] = {}
    for node, message in replies.items():
        try:
            cards[node] = read_card(_require_content(message), hello, LIMIT)
            abilities[node] = read_abilities(message.content)
        except MessageError as error:
            cards.pop(node, None)
            faults[node] = str(error).removeprefix("the other side reports: ")
    ranked = sorted(cards, key=lambda node: _rank_id(cards[node].ids[0]))
    members, refused = admit_sites(cards, ranked)
    faults |= refused
    first = abilities[ranked[0]] if ranked else Abilities()
    if other := next((node for node in ranked if abilities[node] != first and node not in refused), None):
        raise UserError(f"Node {other} answers other asks, or has another model, than node {ranked[0]}: run the same ClientApp everywhere.")
    for node, fault in faults.items():
        for watcher in watchers:
            watcher.on_notice(f"Node {node} does not take part: {fault.rstrip('.')}.")
    if members is None or len(members.here) < nodes:
        count, why = 0 if members is None else len(members.here), next(iter(faults.items()))
        raise UserError(f"{count} of {nodes} nodes take part; node {why[0]} does not: {why[1].rstrip('.')}.")
    return members, first


def _require_content(message: Message) -> bytes:
    if message.has_error():
        reason = clean_text((message.error.reason or f"error {message.error.code}").strip().splitlines()[-1])
        way = ": make it with coterie.flower.client_app" if "No query function" in reason else ""
        raise MessageError(f"its ClientApp failed ({reason}){way}")
    return from_records(message.content)


def _rank_id(name: str) -> tuple[int, int, str]:
    """Numbers before names, in their order: clients then stand as those of a simulation do."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _prepare_study(settings: Settings, methods: tuple[Method[Any], ...], members: Members, abilities: Abilities, make: MakeModule) -> Study:
    """The study, refused where its methods ask what nodes do not answer, or what no message carries."""
    settings.plan.check(len(members.members))
    problem = make_problem(members, settings.model, make)
    if differs := describe_difference(layout_from_json(abilities.layout), problem.layout):
        raise UserError(f"The model of the nodes is another than the server's: {differs}.")
    study = Study(settings, problems={0: problem}, rosters={0: members.table()}, methods=methods, changing=True)
    for label, asked in rehearse(study).items():
        for stamped in asked:
            check_answered(stamped, abilities, label)
            try:
                to_message(stamped.ask)
            except (TypeError, ValueError) as error:
                raise UserError(f"Method {label} asks for what no message carries ({error}): use a method of the catalogue.") from error
    return study


def check_answered(stamped: StampedAsk, abilities: Abilities, method: str = "") -> None:
    """Refuse an ask that the nodes' ClientApp does not answer."""
    obstacle = abilities.find_obstacle(stamped.ask)
    if obstacle is not None:
        who = f"Method {method}" if method else f"Round {stamped.round_}"
        way = "leave that function out" if "your own" in obstacle and abilities.engine else "give client_app model= and data= alone"
        raise UserError(f"{who} asks for {obstacle}, which the nodes' ClientApp does not answer: {way}, or choose another method.")


class FlowerEngine(FederatedEngine):
    """Asks go to Flower's nodes, one message for each node and phase."""

    name: ClassVar[str] = "flower"

    def __init__(self, carrier: GridCarrier, members: Members, abilities: Abilities, plan: Plan) -> None:
        ids = [member.id for member in members.members]
        super().__init__(carrier, members.sites, ids, "flower", last=plan.rounds, members=members, counts=plan.counts)
        self.abilities, self._answered = abilities, set[str]()

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        for stamped in asks:
            check_answered(stamped, self.abilities)  # what no rehearsal has met
        replies = super().run(asks)
        for stamped, reply in zip(asks, replies, strict=True):
            self._check_first(stamped.ask.kind, reply)
        return replies

    def _check_first(self, kind: str, reply: Any) -> None:
        """Refuse to go on where no node has ever answered a kind of ask, and all report why: the fault is in the app, not in a node."""
        if not hasattr(reply, "refused"):
            return
        failed = [refused for refused in reply.refused.values() if refused.why in (Refusal.FAILED, Refusal.DENIED, Refusal.UNREADABLE)]
        if len(reply) or not failed:
            self._answered |= {kind} if len(reply) else set()
        elif kind not in self._answered:
            raise UserError(f"No node answers {kind}. Node {failed[0].detail.rstrip('.')}.")
