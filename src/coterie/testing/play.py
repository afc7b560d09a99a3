"""Playing a method on a small federation, with a world that misbehaves in one chosen way."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np

from coterie.core.arrays import Floats, Ids, find_positions
from coterie.core.asks import Gradient, ModelAsk, Reply, Train
from coterie.core.local import MODEL, Local
from coterie.core.method import Context, Method, Round, T
from coterie.core.plan import Plan
from coterie.core.replies import assemble
from coterie.core.states import State, to_bytes
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.records import RUNNING, LaneKey, RoundRecord
from coterie.run.driver import drive, run_script
from coterie.run.lanes import Lane
from coterie.testing import worlds

# Evaluation only at the start: what a round asks is then exactly what the method asks.
PLAN = Plan(rounds=99, evaluate_every=99, cohort=4, local=Local(epochs=2, batch_size=8, lr=0.1))

Alter = Callable[[StampedAsk, int, Any], Any]  # (the ask, its number within the round, the reply) -> what arrives instead


def get_loop_engine(world: World | None = None) -> LoopEngine:
    """The loop engine of a world (default: the tiny one); the same object each time."""
    return _make_loop_engine(world or worlds.make_world())


@cache
def _make_loop_engine(world: World) -> LoopEngine:
    return LoopEngine(world)


class AlteredEngine(Engine):
    """The loop engine with altered replies."""

    name = "altered"

    def __init__(self, alter: Alter, world: World | None = None) -> None:
        self.alter, self.inner = alter, get_loop_engine(world)
        self.asked: list[StampedAsk] = []
        self._numbers: Counter[tuple[int, int]] = Counter()

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        return [self._pass_on(stamped, reply) for stamped, reply in zip(asks, self.inner.run(asks), strict=True)]

    def _pass_on(self, stamped: StampedAsk, reply: Any) -> Any:
        self.asked.append(stamped)
        number = self._numbers[stamped.lane, stamped.round_]
        self._numbers[stamped.lane, stamped.round_] += 1
        return self.alter(stamped, number, reply)


def pass_unchanged(stamped: StampedAsk, number: int, reply: Any) -> Any:
    """The reply as it is."""
    return reply


def reverse_clients(stamped: StampedAsk, number: int, reply: Reply) -> Reply:
    """The last client answers first."""
    return reply.take(np.arange(len(reply))[::-1])


def drop_replies(clients: Ids, rounds: Collection[int], number: int | None = None) -> Alter:
    """These clients do not answer in these rounds: any ask of theirs, or only the one with this number."""

    def alter(stamped: StampedAsk, n: int, reply: Reply) -> Reply:
        gone = stamped.round_ in rounds and number in (None, n)
        return reply.take(~np.isin(reply.clients, clients)) if gone else reply

    return alter


def zero_updates(stamped: StampedAsk, number: int, reply: Any) -> Any:
    """Training changes nothing and every gradient is zero."""
    ask = stamped.ask
    if isinstance(ask, Train) and ask.sketch is None:
        return replace(reply, vectors=ask.get_sent_models(reply.clients), more=_get_further_starts(ask, reply.clients))
    return replace(reply, vectors=np.zeros_like(reply.vectors)) if isinstance(ask, (Train, Gradient)) else reply


def _get_further_starts(ask: Train, clients: Ids) -> Floats:
    """(n, l, d) where the further loops of a local rule begin, of these clients."""
    received, rule, rows = ask.get_sent_models(clients), ask.local.rule, find_positions(ask.clients, clients)
    starts = [ask.extra[loop][rows] if loop in ask.extra else received for loop in rule.loops if loop != MODEL] if rule is not None else []
    return np.stack(starts, axis=1) if starts else np.zeros((len(received), 0, received.shape[1]), dtype=np.float32)


def corrupt_reply(client: int, round_: int, spoil: Callable[[Any], Any]) -> Alter:
    """In this round the client's numbers are spoilt, and the server puts together what each client sent, as in a real federation."""

    def alter(stamped: StampedAsk, number: int, reply: Reply) -> Any:
        if stamped.round_ != round_ or not isinstance(stamped.ask, ModelAsk):
            return reply
        names = [f.name for f in fields(reply) if f.name not in ("clients", "refused")]
        answers = {int(c): {name: getattr(reply, name)[i] for name in names} for i, c in enumerate(reply.clients)}
        if client in answers:
            floats = [n for n in names if getattr(reply, n).dtype.kind == "f"]
            answers[client] |= {name: spoil(answers[client][name]) for name in floats}
        return assemble(stamped.ask, answers)

    return alter


@dataclass(frozen=True)
class ContextWithout(Context):
    """A context in which some clients cannot be reached, so that the cohort is the one of `whole` without them."""

    whole: Context | None = None

    def cohort(self, purpose: str = "cohort") -> Ids:
        assert self.whole is not None
        picked = self.whole.cohort(purpose)
        return picked[np.isin(picked, self.roster.available)]


class LaneWithout(Lane):
    """A lane whose method does not know some clients in some rounds: as if they had not been picked."""

    missing: Ids = np.zeros(0, dtype=np.int64)
    rounds: Collection[int] = ()

    def _context(self, round_: int) -> Context:
        ctx = super()._context(round_)
        if round_ not in self.rounds:
            return ctx
        roster = replace(ctx.roster, reachable=~np.isin(ctx.roster.clients, self.missing))
        return ContextWithout(**{**vars(ctx), "roster": roster}, whole=ctx)


@dataclass
class History:
    """The states of a played lane, their bytes at the time, and the records, round by round."""

    states: list[State] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)

    def watch(self, lane: Lane, record: RoundRecord) -> None:
        assert lane.state is not None
        self.states.append(lane.state)
        self.data.append(to_bytes(lane.state))
        self.records.append(record)


def play(
    method: Method[Any],
    *,
    engine: Engine | None = None,
    world: World | None = None,
    plan: Plan = PLAN,
    seed: int = 0,
    rounds: int = 2,
    missing: tuple[Ids, Collection[int]] | None = None,
    begin: tuple[State, int] | None = None,
) -> History:
    """Run one lane; with `missing`, its method does not hear of these clients in these rounds; with `begin`, resume from a state."""
    lane = LaneWithout(method, LaneKey(0, "subject", seed), (world or worlds.make_world()).problem, plan)
    if missing is not None:
        lane.missing, lane.rounds = missing
    if begin is not None:
        lane.state, lane.round_ = begin
    history = History()
    drive([lane], engine or get_loop_engine(world), rounds, history.watch)
    assert lane.status == RUNNING, lane.reason
    return history


def run_generator(script: Round[T], world: World | None = None, *, seed: int = 0, round_: int = 1, engine: Engine | None = None) -> T:
    """Run one generator of a method alone, and return its result."""
    return run_script(script, engine or get_loop_engine(world), seed=seed, round_=round_)


def make_round_context(world: World | None = None, plan: Plan = PLAN, seed: int = 0, round_: int = 1) -> Context:
    """The context of one round."""
    return (world or worlds.make_world()).problem.context(plan, seed, round_)
