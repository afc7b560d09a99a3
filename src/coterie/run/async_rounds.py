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
    """A client at work, in the order in which answers come: those done at the same moment by round and by draw."""

    end: float
    round_: int  # in which it was asked
    draw: int  # its own, of that round
    client: int


class Candidate(NamedTuple):
    """A client that may be asked in this round, and how long it would take; one that is gone is asked and never heard of."""

    client: int
    draw: int
    time: float
    gone: bool = False


@dataclass(frozen=True)
class RoundSchedule:
    """How a round goes."""

    asked: tuple[int, ...]  # clients that were sent the round's model, those that are gone among them, in their order
    arrived: tuple[BusyClient, ...]  # in the order of arrival
    pending: tuple[BusyClient, ...]  # still at work, or done and not yet attended to
    clock: float  # when the server goes on


def schedule_round(
    clock: float, aloft: Iterable[BusyClient], candidates: Iterable[Candidate], round_: int, wanted: float, room: float
) -> RoundSchedule:
    """The course of a round that begins at `clock`: it ends with the `wanted`-th answer, or when nobody is at work any more.

    Candidates begin in the order of their draws as long as there is room; whoever comes back makes room for the next at once. Those who
    are at work already are not asked.
    """
    working, arrived, asked = list(aloft), list[BusyClient](), list[int]()
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
    """Simulated time, and n answers that have not come yet, in any order."""

    clock: float
    times: Doubles  # (roster,) how long clients take, so that a changed file is noticed; none of real ones
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
        """At the beginning: models of this length, and none on its way."""
        none, empty = np.zeros(0, dtype=np.int64), np.zeros((0, length), dtype=np.float32)
        return cls(0.0, times, none, none, np.zeros(0), empty, none, none, none, empty)

    def __len__(self) -> int:
        return len(self.clients)

    def at(self, clock: float) -> "PendingReplies":
        return replace(self, clock=clock)

    def add_replies(self, trained: Trained, ends: Doubles, round_: int, model: Floats) -> "PendingReplies":
        """With the answers of clients that were sent the model (d,) of a round."""
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

    def only(self, rows: Bools) -> "PendingReplies":
        """Some of the answers, and the models that are still needed for them."""
        names = ("clients", "begun", "ends", "vectors", "sizes", "steps")
        needed = np.isin(self.rounds, self.begun[rows])
        return replace(self, **{name: getattr(self, name)[rows] for name in names}, rounds=self.rounds[needed], models=self.models[needed])

    def answers(self, round_: int, model: Floats, exponent: float, compared: Bools) -> Trained:
        """All of it as answers to the question of a round, whose model (d,) is sent then: ascending by client, each rebased."""
        order = np.argsort(self.clients, kind="stable")
        vectors, behind = self.vectors, round_ - self.begun
        if (late := behind > 0).any():  # what was trained from this very model stays as it is, to the bit
            vectors, sent = vectors.copy(), self.models[np.searchsorted(self.rounds, self.begun[late])]
            vectors[late] = rebase_updates(vectors[late], sent, model, compute_staleness_weights(behind[late], exponent), compared)
        return Trained(self.clients[order], vectors=vectors[order], sizes=self.sizes[order], steps=self.steps[order])


def compute_staleness_weights(behind: Ints, exponent: float) -> Doubles:
    """(n,) how much updates count that were begun so many rounds ago: (1 + t)^-a (Nguyen et al. 2022, Section 5; a = 1/2 there)."""
    return np.asarray((1.0 + behind) ** -exponent)


def rebase_updates(vectors: Floats, sent: Floats, model: Floats, weights: Doubles, compared: Bools) -> Floats:
    """(n, d) models trained from other models than this one, as if from this: it plus each client's update times its weight.

    FedBuff's server adds the mean of weighted updates (Nguyen et al. 2022, Algorithm 1), which is the mean of these minus the model.
    Statistics and counters have no update: of them the client's share is its weight, so that a running variance stays positive.
    """
    origin = np.where(compared, sent, model).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused when it is accepted
        return (model + weights[:, None] * (vectors - origin)).astype(np.float32)


ASYNC_RULE = "asynchronous rounds are for methods whose round is one training of one shared model (such as fedavg, fedprox, simprox)"


def check_async_methods(plan: Plan, labels: Sequence[str], methods: Sequence[Method[Any]]) -> None:
    """Refuse, at start-up, methods that cannot have asynchronous rounds."""
    for label, method in zip(labels, methods, strict=True):
        if plan.buffer_size is not None and not method.trains_once:
            raise UserError(f"The method {label!r} cannot be run with buffer_size={plan.buffer_size}: {ASYNC_RULE}; omit one of them.")


def check_speeds(plan: Plan, problems: Iterable[Problem]) -> None:
    """Refuse, before anything is written, a file that does not say how long every client takes."""
    if (speeds := parse_speeds(plan.speeds)) is not None:
        for problem in problems:
            speeds.times(problem.roster, 0)


def check_async_ask(ask: Ask[Any], *, first: bool) -> None:
    """Refuse a question that cannot be answered with answers to an earlier one: a method of one's own may say of itself what is not so."""
    plain = isinstance(ask, Train) and len(ask.models) == 1 and ask.sketch is None and ask.share is None and not ask.alone
    if not plain or not first or (isinstance(ask, Train) and (ask.linear is not None or ask.extra or ask.row_shapes()["more"][0])):
        which = "a second" if plain and not first else "such a"
        raise UserError(f"A method asked {which} {ask.kind} in an asynchronous round: {ASYNC_RULE}, whose clients bring nothing along.")


STALENESS = "staleness"  # the note of an asynchronous round that says of each answer how many rounds ago it was asked for


@dataclass(frozen=True)
class SentAsk:
    """A question on its way: whom it went to, and what comes of it when."""

    asked: Train  # as the method made it, of those who were asked, some of whom may be gone
    round_: int
    schedule: RoundSchedule


@dataclass(frozen=True)
class ReplyBuffer:
    """What an asynchronous round goes on with."""

    asked: Train  # whom the round's own question went to
    silent: Ids  # who was asked, in this round or before, and will not answer
    question: Train  # as if it had gone to those whose answers are there
    answers: Trained  # theirs, as if begun from the round's model


class SimulatedClock:
    """The clock of one lane. Of each round it is told what is asked (`send`) and what the engine answers (`receive`)."""

    def __init__(self, plan: Plan, problem: Problem, seed: int) -> None:
        self.plan, self.problem, self.seed = plan, problem, seed
        self.room = plan.concurrency or plan.cohort_size(len(problem.roster))
        self.sent: SentAsk | None = None

    @cached_property
    def times(self) -> Doubles:
        """(roster,) how long clients take; looked up when time runs, so that a finished study needs no file of speeds."""
        return (parse_speeds(self.plan.speeds) or Equal()).times(self.problem.roster, self.seed)

    @cached_property
    def pending(self) -> PendingReplies:
        """How late it is, and what is on its way."""
        return PendingReplies.empty(self.times, self.problem.layout.size)

    def resume_from(self, aloft: PendingReplies) -> None:
        """Stand where an earlier run left off."""
        if not np.array_equal(aloft.times, self.times):
            raise UserError(f"The speeds {self.plan.speeds!r} are not those that the study was begun with: restore them.")
        self.pending = aloft

    def send(self, ask: Ask[Any], left: Ask[Any], round_: int) -> Ask[Any]:
        """What goes out of a question of which the world leaves `left`; all but trainings and gradients take no time."""
        if self.plan.buffer_size is None:
            if isinstance(ask, (Train, Gradient)) and isinstance(left, (Train, Gradient)):
                course = schedule_round(self.pending.clock, (), self._candidates(ask, left, round_), round_, inf, inf)
                self.pending = self.pending.at(course.clock)
            return left
        check_async_ask(ask, first=self.sent is None or self.sent.round_ < round_)
        assert isinstance(ask, Train)
        assert isinstance(left, Train)
        candidates = self._candidates(ask, left, round_)
        course = schedule_round(self.pending.clock, self._at_work(), candidates, round_, self.plan.buffer_size, self.room)
        asked = np.array(course.asked, dtype=np.int64)
        self.sent = SentAsk(ask.take(np.isin(ask.clients, asked)), round_, course)
        return left.take(np.isin(left.clients, asked))

    def stamped(self, stamped: StampedAsk) -> StampedAsk:
        """The question as it goes to the engine, which answers all that it is asked."""
        return stamped

    def receive(self, ask: Train, reply: Trained, ctx: Context) -> ReplyBuffer:
        """What the round goes on with; what comes later is kept."""
        assert self.sent is not None
        back, asked = accept(ask, reply), self.sent.asked
        course, model, round_ = self.sent.schedule, ask.models[0], ctx.round_
        ends = {each.client: each.end for each in (*course.arrived, *course.pending) if each.round_ == round_}
        known = self.pending.add_replies(back, np.array([ends[client] for client in back.clients.tolist()]), round_, model)
        arrived = {(each.client, each.round_) for each in course.arrived}
        here = np.array([pair in arrived for pair in zip(known.clients.tolist(), known.begun.tolist(), strict=True)], dtype=np.bool_)
        now, self.pending = known.only(here), known.only(~here).at(course.clock)
        answers = now.answers(round_, model, self.plan.staleness, self.problem.layout.compared)
        note_arrivals(now, len(self.pending), ctx)
        silent = np.setdiff1d(asked.clients, [*back.clients.tolist(), *back.refused])
        return ReplyBuffer(asked, silent, readdress_ask(answers.clients, ask), replace(answers, refused=back.refused))

    def _candidates(self, ask: Train | Gradient, left: Train | Gradient, round_: int) -> list[Candidate]:
        """Everybody who may be asked; who is not left is gone."""
        epochs: Any = 1  # a gradient takes as long as one
        if isinstance(left, Train):
            epochs = left.local.epochs if left.epochs is None else left.epochs
        spent = self.times[left.clients] * epochs / self.plan.local.epochs
        known = dict(zip(left.clients.tolist(), spent.tolist(), strict=True))
        draws = self._draws(ask.clients, round_).tolist()
        return [Candidate(c, draw, known.get(c, 0.0), c not in known) for c, draw in zip(ask.clients.tolist(), draws, strict=True)]

    def _at_work(self) -> list[BusyClient]:
        flown = self.pending
        rounds, draws = flown.begun.tolist(), np.zeros(len(flown), dtype=np.uint64)
        for round_ in set(rounds):
            own = flown.begun == round_
            draws[own] = self._draws(flown.clients[own], round_)
        return [BusyClient(*each) for each in zip(flown.ends.tolist(), rounds, draws.tolist(), flown.clients.tolist(), strict=True)]

    def _draws(self, clients: Ids, round_: int) -> Words:
        return self.problem.roster.draws(make_key(self.seed, "order of asking", round_), clients)


def readdress_ask(clients: Ids, ask: Train) -> Train:
    """The same question to other clients, to whom nothing is told beside the model."""
    return replace(ask, clients=clients, start=np.zeros(len(clients), dtype=np.int64), anchors=None, mus=None, epochs=None)


def note_arrivals(now: PendingReplies, later: int, ctx: Context) -> None:
    """Write down whose answers came, how many rounds ago each was asked, and how many are still to come."""
    order = np.argsort(now.clients, kind="stable")
    ctx.note("arrived", now.clients[order])
    ctx.note(STALENESS, ctx.round_ - now.begun[order])
    ctx.note("at_work", later)


class RealClock:
    """What `SimulatedClock` is in a simulation."""

    def __init__(self, plan: Plan, problem: Problem, seed: int) -> None:
        assert plan.buffer_size is not None
        self.plan, self.problem, self.seed, self.wanted = plan, problem, seed, plan.buffer_size
        self.room = plan.concurrency or plan.cohort_size(len(problem.roster))
        self.pending = PendingReplies.empty(np.zeros(0), problem.layout.size)
        self._began = monotonic()
        self._asked: Train | None = None  # the round's question, as the method made it
        self._round = -1
        self._models: dict[int, Any] = {}  # by round whose answers are still to come, the model that was sent
        self._at_work: dict[int, int] = {}  # by client, the round of its question

    def resume_from(self, aloft: PendingReplies) -> None:
        """Time goes on where the last job ended."""
        self.pending, self._began = self.pending.at(aloft.clock), monotonic() - aloft.clock

    def send(self, ask: Ask[Any], left: Ask[Any], round_: int) -> Ask[Any]:
        """The question to the whole cohort, in the order in which clients are asked as there is room."""
        check_async_ask(ask, first=self._round < round_)
        assert isinstance(ask, Train)
        assert isinstance(left, Train)
        self._asked, self._round, self._models[round_] = ask, round_, ask.models[0]
        draws = self.problem.roster.draws(make_key(self.seed, "order of asking", round_), left.clients)
        return left.take(np.argsort(draws))

    def stamped(self, stamped: StampedAsk) -> StampedAsk:
        """The question with how many answers are waited for."""
        return AsyncAsk(**vars(stamped), wanted=self.wanted, room=self.room)

    def receive(self, ask: Train, reply: AsyncReplies, ctx: Context) -> ReplyBuffer:
        """What has come, as answers to the round's question."""
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
        self.pending = self.pending.at(monotonic() - self._began)
        note_arrivals(now, len(self._at_work), ctx)
        answers = now.answers(ctx.round_, ask.models[0], self.plan.staleness, self.problem.layout.compared)
        asked = self._asked.take(np.isin(self._asked.clients, reply.asked))
        return ReplyBuffer(asked, reply.silent, readdress_ask(answers.clients, ask), replace(answers, refused=refused))


def make_clock(plan: Plan, problem: Problem, seed: int, *, real: bool) -> SimulatedClock | RealClock | None:
    """The clock of a lane; None where time is not of interest."""
    if real:
        return None if plan.buffer_size is None else RealClock(plan, problem, seed)
    return None if plan.speeds is None and plan.buffer_size is None else SimulatedClock(plan, problem, seed)
