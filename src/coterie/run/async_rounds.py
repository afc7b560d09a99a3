"""Asynchronous rounds (FedBuff: Nguyen et al., 2022): the clock of a lane, simulated or real, and pending replies.

A method's round stays as it is. Its one `Train` goes to the clients of the cohort for which there is room. It is answered by the next
replies to arrive, some of them to the asks of earlier rounds, rebased on the model of this one. In a simulation, arrival times follow
from the clients' speeds alone, so all clients asked in a round train in one call of the engine, and later replies are kept until they
arrive; they are part of a checkpoint. In a real federation the clock is the server's, in seconds since the run began, and replies
pending when a job ends are lost: those clients are asked again. No client is asked twice with one model: its training is keyed by
(seed, round, client) and would be the same again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints, Words
from coterie.core.asks import Ask, Gradient, RefusedReply, Train, Trained
from coterie.core.method import Context, Method, Problem
from coterie.core.plan import Equal, Plan, parse_speeds
from coterie.core.replies import accept
from coterie.core.rng import make_key
from coterie.core.states import State
from coterie.engines.engine import AsyncAsk, AsyncReplies, StampedAsk


class BusyClient(NamedTuple):
    """A client at work, in the order of arrival: those done at the same time by round and by draw."""

    end: float
    round_: int  # in which it was asked
    draw: int  # its own, of that round
    client: int


class Candidate(NamedTuple):
    """A client that may be asked in this round, and the time it would take; one that is gone is asked and never answers."""

    client: int
    draw: int
    time: float
    gone: bool = False


@dataclass(frozen=True)
class RoundSchedule:
    """The events of a round."""

    asked: tuple[int, ...]  # clients that were sent the round's model, in their order, also those that are gone
    arrived: tuple[BusyClient, ...]  # in the order of arrival
    pending: tuple[BusyClient, ...]  # still at work, or done and not yet received
    clock: float  # when the server continues


def schedule_round(
    clock: float, pending: Iterable[BusyClient], candidates: Iterable[Candidate], round_: int, wanted: float, room: float
) -> RoundSchedule:
    """The events of a round that begins at `clock`: it ends with the `wanted`-th reply, or when no client is at work.

    Candidates start in the order of their draws while there is room; each reply makes room for the next. Clients at work are not asked.
    """
    working, arrived, asked = list(pending), list[BusyClient](), list[int]()
    heapify(working)
    busy = {each.client for each in working}
    waiting = sorted((each for each in candidates if each.client not in busy), key=lambda each: each.draw, reverse=True)
    while len(arrived) < wanted:
        while waiting and len(working) < room:
            one = waiting.pop()
            asked.append(one.client)
            if not one.gone:
                heappush(working, BusyClient(clock + one.time, round_, one.draw, one.client))
        if not working:
            break
        arrived.append(heappop(working))
        clock = max(clock, arrived[-1].end)
    return RoundSchedule(tuple(asked), tuple(arrived), tuple(sorted(working)), clock)


@dataclass(frozen=True)
class PendingReplies(State):
    """Simulated time, and n replies that have not arrived yet, in any order."""

    clock: float
    times: Doubles  # (roster,) how long clients take, so that a changed file is noticed; empty for real ones
    clients: Ids  # (n,)
    begun: Ints  # (n,) the round in which each was asked
    ends: Doubles  # (n,) when each is done
    vectors: Floats  # (n, d) what each will send
    sizes: Ints  # (n,)
    steps: Ints  # (n,)
    rounds: Ints  # (v,) those in which any of them was asked
    models: Floats  # (v, d) the model that was sent in each of these rounds

    @classmethod
    def empty(cls, times: Doubles, length: int) -> "PendingReplies":
        """None pending, for models of this length."""
        none, empty = np.zeros(0, dtype=np.int64), np.zeros((0, length), dtype=np.float32)
        return cls(0.0, times, none, none, np.zeros(0), empty, none, none, none, empty)

    def __len__(self) -> int:
        return len(self.clients)

    def at_time(self, clock: float) -> "PendingReplies":
        return replace(self, clock=clock)

    def add_replies(self, trained: Trained, ends: Doubles, round_: int, model: Floats) -> "PendingReplies":
        """With the replies of clients that were sent the model (d,) of a round."""
        return replace(
            self,
            clients=np.concatenate([self.clients, trained.clients]),
            begun=np.concatenate([self.begun, np.full(len(trained), round_, dtype=np.int64)]),
            ends=np.concatenate([self.ends, ends]),
            vectors=np.concatenate([self.vectors, np.asarray(trained.vectors)]),
            sizes=np.concatenate([self.sizes, trained.sizes]),
            steps=np.concatenate([self.steps, trained.steps]),
            rounds=np.append(self.rounds, round_),
            models=np.concatenate([self.models, model[None, :]]),
        )

    def select(self, rows: Bools) -> "PendingReplies":
        """Some of the replies, and the models that are needed for them."""
        names = ("clients", "begun", "ends", "vectors", "sizes", "steps")
        needed = np.isin(self.rounds, self.begun[rows])
        return replace(self, **{name: getattr(self, name)[rows] for name in names}, rounds=self.rounds[needed], models=self.models[needed])

    def to_reply(self, round_: int, model: Floats, exponent: float, compared: Bools) -> Trained:
        """All of them as one reply to the ask of a round with this model (d,): ascending by client, each rebased."""
        order = np.argsort(self.clients, kind="stable")
        vectors, behind = self.vectors, round_ - self.begun
        if (late := behind > 0).any():  # what was trained from this model stays bitwise identical
            vectors, sent = vectors.copy(), self.models[np.searchsorted(self.rounds, self.begun[late])]
            vectors[late] = rebase_updates(vectors[late], sent, model, compute_staleness_weights(behind[late], exponent), compared)
        return Trained(self.clients[order], vectors=vectors[order], sizes=self.sizes[order], steps=self.steps[order])


def compute_staleness_weights(behind: Ints, exponent: float) -> Doubles:
    """(n,) the weights of updates that are t rounds old: (1 + t)^-a (Nguyen et al. 2022, Section 5; a = 1/2 there)."""
    return np.asarray((1.0 + behind) ** -exponent)


def rebase_updates(vectors: Floats, sent: Floats, model: Floats, weights: Doubles, compared: Bools) -> Floats:
    """(n, d) models trained from other models, as if from this one: it plus each client's update times its weight.

    FedBuff's server adds the mean of weighted updates (Nguyen et al. 2022, Algorithm 1), which is the mean of these minus the model.
    Statistics and counters have no update: they are averaged by the weight, so that a running variance stays positive.
    """
    origin = np.where(compared, sent, model).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused when it is accepted
        return (model + weights[:, None] * (vectors - origin)).astype(np.float32)


ASYNC_RULE = "asynchronous rounds are for methods whose round is one training of one shared model (such as fedavg, fedprox, simprox)"


def check_async_methods(plan: Plan, labels: Sequence[str], methods: Sequence[Method[Any]]) -> None:
    """Refuse methods that cannot have asynchronous rounds."""
    for label, method in zip(labels, methods, strict=True):
        if plan.buffer_size is not None and not method.trains_once:
            raise UserError(f"The method {label!r} cannot be run with buffer_size={plan.buffer_size}: {ASYNC_RULE}; omit one of them.")


def check_speeds(plan: Plan, problems: Iterable[Problem]) -> None:
    """Refuse a file of speeds that lacks a client."""
    if (speeds := parse_speeds(plan.speeds)) is not None:
        for problem in problems:
            speeds.times(problem.roster, 0)


def check_async_ask(ask: Ask[Any], *, first: bool) -> None:
    """Refuse an ask that replies to an earlier one cannot answer: a user's method may declare what is not so."""
    plain = isinstance(ask, Train) and len(ask.models) == 1 and ask.sketch is None and ask.share is None and not ask.alone
    if not plain or not first or (isinstance(ask, Train) and (ask.linear is not None or ask.extra or _sends_more(ask))):
        which = "a second" if plain and not first else "such a"
        raise UserError(
            f"A method asked {which} {ask.kind} in an asynchronous round: {ASYNC_RULE}, whose clients bring no state of their own."
        )


def _sends_more(ask: Train) -> bool:
    """Whether a local rule sends anything but the model back."""
    return any(0 not in ask.row_shapes()[name] for name in ("more", "losses", "summary"))


STALENESS = "staleness"  # the note of an asynchronous round with the age of each reply in rounds


@dataclass(frozen=True)
class SentAsk:
    """A pending ask: the clients that got it, and when they reply."""

    asked: Train  # the method's ask to the clients that were asked, some of which may be gone
    round_: int
    schedule: RoundSchedule


@dataclass(frozen=True)
class ReplyBuffer:
    """The replies that an asynchronous round continues with."""

    asked: Train  # the round's ask, to the clients that got it
    silent: Ids  # clients that were asked, in this round or before, and will not answer
    question: Train  # as if it had been sent to the clients whose replies are there
    answers: Trained  # theirs, as if started from the round's model


class SimulatedClock:
    """The clock of one lane: it gets what is asked (`send`) and what the engine answers (`receive`)."""

    def __init__(self, plan: Plan, problem: Problem, seed: int) -> None:
        self.plan, self.problem, self.seed = plan, problem, seed
        self.room = plan.concurrency or plan.cohort_size(len(problem.roster))
        self.sent: SentAsk | None = None

    @cached_property
    def times(self) -> Doubles:
        """(roster,) how long clients take; read when needed, so that a finished study needs no file of speeds."""
        return (parse_speeds(self.plan.speeds) or Equal()).times(self.problem.roster, self.seed)

    @cached_property
    def pending(self) -> PendingReplies:
        return PendingReplies.empty(self.times, self.problem.layout.size)

    def resume_from(self, pending: PendingReplies) -> None:
        """Continue from the progress of an earlier run."""
        if not np.array_equal(pending.times, self.times):
            raise UserError(f"The speeds {self.plan.speeds!r} are not those that the study started with: restore them.")
        self.pending = pending

    def send(self, ask: Ask[Any], left: Ask[Any], round_: int) -> Ask[Any]:
        """The part of an ask that is sent, given what conditions leave of it; only trainings and gradients take time."""
        if self.plan.buffer_size is None:
            if isinstance(ask, (Train, Gradient)) and isinstance(left, (Train, Gradient)):
                schedule = schedule_round(self.pending.clock, (), self._candidates(ask, left, round_), round_, inf, inf)
                self.pending = self.pending.at_time(schedule.clock)
            return left
        check_async_ask(ask, first=self.sent is None or self.sent.round_ < round_)
        assert isinstance(ask, Train)
        assert isinstance(left, Train)
        candidates = self._candidates(ask, left, round_)
        schedule = schedule_round(self.pending.clock, self._at_work(), candidates, round_, self.plan.buffer_size, self.room)
        asked = np.array(schedule.asked, dtype=np.int64)
        self.sent = SentAsk(ask.take(np.isin(ask.clients, asked)), round_, schedule)
        return left.take(np.isin(left.clients, asked))

    def stamp(self, stamped: StampedAsk) -> StampedAsk:
        """The ask unchanged: the engine answers all that it is asked."""
        return stamped

    def receive(self, ask: Train, reply: Trained, ctx: Context) -> ReplyBuffer:
        """The replies that arrive in the round; later ones stay pending."""
        assert self.sent is not None
        back, asked = accept(ask, reply), self.sent.asked
        schedule, model, round_ = self.sent.schedule, ask.models[0], ctx.round_
        ends = {each.client: each.end for each in (*schedule.arrived, *schedule.pending) if each.round_ == round_}
        known = self.pending.add_replies(back, np.array([ends[client] for client in back.clients.tolist()]), round_, model)
        arrived = {(each.client, each.round_) for each in schedule.arrived}
        here = np.array([pair in arrived for pair in zip(known.clients.tolist(), known.begun.tolist(), strict=True)], dtype=np.bool_)
        now, self.pending = known.select(here), known.select(~here).at_time(schedule.clock)
        answers = now.to_reply(round_, model, self.plan.staleness, self.problem.layout.compared)
        note_arrivals(now, len(self.pending), ctx)
        silent = np.setdiff1d(asked.clients, [*back.clients.tolist(), *back.refused])
        return ReplyBuffer(asked, silent, readdress_ask(answers.clients, ask), replace(answers, refused=back.refused))

    def _candidates(self, ask: Train | Gradient, left: Train | Gradient, round_: int) -> list[Candidate]:
        """The clients that may be asked; those not in `left` are gone."""
        epochs: Any = 1  # a gradient takes as long as one
        if isinstance(left, Train):
            epochs = left.local.epochs if left.epochs is None else left.epochs
        spent = self.times[left.clients] * epochs / self.plan.local.epochs
        known = dict(zip(left.clients.tolist(), spent.tolist(), strict=True))
        draws = self._draws(ask.clients, round_).tolist()
        return [Candidate(c, draw, known.get(c, 0.0), c not in known) for c, draw in zip(ask.clients.tolist(), draws, strict=True)]

    def _at_work(self) -> list[BusyClient]:
        pending = self.pending
        rounds, draws = pending.begun.tolist(), np.zeros(len(pending), dtype=np.uint64)
        for round_ in set(rounds):
            own = pending.begun == round_
            draws[own] = self._draws(pending.clients[own], round_)
        return [BusyClient(*each) for each in zip(pending.ends.tolist(), rounds, draws.tolist(), pending.clients.tolist(), strict=True)]

    def _draws(self, clients: Ids, round_: int) -> Words:
        return self.problem.roster.draws(make_key(self.seed, "order of asking", round_), clients)


def readdress_ask(clients: Ids, ask: Train) -> Train:
    """The same ask to other clients, which get nothing but the model."""
    return replace(ask, clients=clients, start=np.zeros(len(clients), dtype=np.int64), anchors=None, mus=None, epochs=None)


def note_arrivals(now: PendingReplies, later: int, ctx: Context) -> None:
    """Note the clients whose replies arrived, the age of each in rounds, and the number of pending ones."""
    order = np.argsort(now.clients, kind="stable")
    ctx.note("arrived", now.clients[order])
    ctx.note(STALENESS, ctx.round_ - now.begun[order])
    ctx.note("at_work", later)


class RealClock:
    """The clock of a lane in a real federation: the server's own, in seconds."""

    def __init__(self, plan: Plan, problem: Problem, seed: int) -> None:
        assert plan.buffer_size is not None
        self.plan, self.problem, self.seed, self.wanted = plan, problem, seed, plan.buffer_size
        self.room = plan.concurrency or plan.cohort_size(len(problem.roster))
        self.pending = PendingReplies.empty(np.zeros(0), problem.layout.size)
        self._began = monotonic()
        self._asked: Train | None = None  # the round's ask
        self._round = -1
        self._models: dict[int, Any] = {}  # by round with pending replies, the model that was sent
        self._at_work: dict[int, int] = {}  # by client, the round of its ask

    def resume_from(self, pending: PendingReplies) -> None:
        """Continue the time of the last job."""
        self.pending, self._began = self.pending.at_time(pending.clock), monotonic() - pending.clock

    def send(self, ask: Ask[Any], left: Ask[Any], round_: int) -> Ask[Any]:
        """The ask to the whole cohort, in the order in which clients are asked when there is room."""
        check_async_ask(ask, first=self._round < round_)
        assert isinstance(ask, Train)
        assert isinstance(left, Train)
        self._asked, self._round, self._models[round_] = ask, round_, ask.models[0]
        draws = self.problem.roster.draws(make_key(self.seed, "order of asking", round_), left.clients)
        return left.take(np.argsort(draws))

    def stamp(self, stamped: StampedAsk) -> StampedAsk:
        """The ask with the number of replies to wait for."""
        return AsyncAsk(**vars(stamped), wanted=self.wanted, room=self.room)

    def receive(self, ask: Train, reply: AsyncReplies, ctx: Context) -> ReplyBuffer:
        """The replies that have arrived, as replies to the round's ask."""
        assert self._asked is not None
        self._at_work |= dict.fromkeys(reply.asked.tolist(), ctx.round_)
        now, refused = PendingReplies.empty(self.pending.times, ask.models.shape[1]), dict[int, RefusedReply]()
        for round_, own in reply.answers:
            sensible = accept(readdress_ask(own.clients, ask), own)
            refused |= sensible.refused
            now = now.add_replies(sensible, np.zeros(len(sensible)), round_, self._models[round_])
        for client in (*now.clients.tolist(), *refused, *reply.silent.tolist()):
            self._at_work.pop(client, None)
        self._models = {round_: model for round_, model in self._models.items() if round_ in self._at_work.values()}
        self.pending = self.pending.at_time(monotonic() - self._began)
        note_arrivals(now, len(self._at_work), ctx)
        answers = now.to_reply(ctx.round_, ask.models[0], self.plan.staleness, self.problem.layout.compared)
        asked = self._asked.take(np.isin(self._asked.clients, reply.asked))
        return ReplyBuffer(asked, reply.silent, readdress_ask(answers.clients, ask), replace(answers, refused=refused))


def make_clock(plan: Plan, problem: Problem, seed: int, *, real: bool) -> SimulatedClock | RealClock | None:
    """The clock of a lane; None where time does not matter."""
    if real:
        return None if plan.buffer_size is None else RealClock(plan, problem, seed)
    return None if plan.speeds is None and plan.buffer_size is None else SimulatedClock(plan, problem, seed)
