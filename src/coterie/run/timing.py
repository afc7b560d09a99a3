"""Simulated time of a lane, and whose answers it goes on with: all of a round's, or, asynchronously, the first that are there.

In asynchronous rounds (FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022) a method's round stays
as it is. Its one `Train` goes to those of the cohort for whom there is room; it is answered by the next answers to arrive, some of them to
the questions of earlier rounds, rebased on the model of this one. Who answers when is known from the clients' times alone, so everybody who
is asked in a round is trained in one call of the engine, and what arrives later is kept until then.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from coterie.core.acceptance import accept
from coterie.core.arrays import Doubles, Ids, Words
from coterie.core.asks import Ask, Gradient, Train, Trained
from coterie.core.errors import UserError
from coterie.core.method import Context
from coterie.core.plan import Plan
from coterie.core.problem import Problem
from coterie.core.rng import key
from coterie.core.speeds import Equal, speeds_of
from coterie.engines.engine import Stamped
from coterie.run.aloft import Aloft
from coterie.run.asynchrony import check_ask
from coterie.run.course import AtWork, Candidate, Course, course_of

STALENESS = "staleness"  # the note of an asynchronous round that says of each answer how many rounds ago it was asked for


@dataclass(frozen=True)
class Sent:
    """A question on its way: whom it went to, and what comes of it when."""

    asked: Train  # as the method made it, of those who were asked, some of whom may be gone
    round_: int
    course: Course


@dataclass(frozen=True)
class Buffer:
    """What an asynchronous round goes on with."""

    asked: Train  # whom the round's own question went to
    silent: Ids  # who was asked, in this round or before, and will not answer
    question: Train  # as if it had gone to those whose answers are there
    answers: Trained  # theirs, as if begun from the round's model


class Timing:
    """The clock of one lane. Of each round it is told what is asked (`send`) and what the engine answers (`receive`)."""

    def __init__(self, plan: Plan, problem: Problem, seed: int) -> None:
        self.plan, self.problem, self.seed = plan, problem, seed
        self.room = plan.concurrency or plan.cohort_size(len(problem.roster))
        self.sent: Sent | None = None

    @cached_property
    def times(self) -> Doubles:
        """(roster,) how long clients take; looked up when time runs, so that a finished study needs no file of speeds."""
        return (speeds_of(self.plan.speeds) or Equal()).times(self.problem.roster, self.seed)

    @cached_property
    def aloft(self) -> Aloft:
        """How late it is, and what is on its way."""
        return Aloft.nothing(self.times, self.problem.layout.size)

    def go_on(self, aloft: Aloft) -> None:
        """Stand where an earlier run left off."""
        if not np.array_equal(aloft.times, self.times):
            raise UserError(f"The speeds {self.plan.speeds!r} are not those that the study was begun with: restore them.")
        self.aloft = aloft

    def send(self, ask: Ask[Any], left: Ask[Any], round_: int) -> Ask[Any]:
        """What goes out of a question of which the world leaves `left`; all but trainings and gradients take no time."""
        if self.plan.asynchronous is None:
            if isinstance(ask, (Train, Gradient)) and isinstance(left, (Train, Gradient)):
                course = course_of(self.aloft.clock, (), self._candidates(ask, left, round_), round_, inf, inf)
                self.aloft = self.aloft.at(course.clock)
            return left
        check_ask(ask, first=self.sent is None or self.sent.round_ < round_)
        assert isinstance(ask, Train)
        assert isinstance(left, Train)
        candidates = self._candidates(ask, left, round_)
        course = course_of(self.aloft.clock, self._at_work(), candidates, round_, self.plan.asynchronous, self.room)
        asked = np.array(course.asked, dtype=np.int64)
        self.sent = Sent(ask.take(np.isin(ask.clients, asked)), round_, course)
        return left.take(np.isin(left.clients, asked))

    def stamped(self, stamped: Stamped) -> Stamped:
        """The question as it goes to the engine, which answers all that it is asked."""
        return stamped

    def receive(self, ask: Train, reply: Trained, ctx: Context) -> Buffer:
        """What the round goes on with; what comes later is kept."""
        assert self.sent is not None
        back, asked = accept(ask, reply), self.sent.asked
        course, model, round_ = self.sent.course, ask.models[0], ctx.round_
        ends = {each.client: each.end for each in (*course.arrived, *course.aloft) if each.round_ == round_}
        known = self.aloft.joined_by(back, np.array([ends[client] for client in back.clients.tolist()]), round_, model)
        arrived = {(each.client, each.round_) for each in course.arrived}
        here = np.array([pair in arrived for pair in zip(known.clients.tolist(), known.begun.tolist(), strict=True)], dtype=np.bool_)
        now, self.aloft = known.only(here), known.only(~here).at(course.clock)
        answers = now.answers(round_, model, self.plan.staleness, self.problem.layout.compared)
        note_arrivals(now, len(self.aloft), ctx)
        silent = np.setdiff1d(asked.clients, [*back.clients.tolist(), *back.refused])
        return Buffer(asked, silent, question_to(answers.clients, ask), replace(answers, refused=back.refused))

    def _candidates(self, ask: Train | Gradient, left: Train | Gradient, round_: int) -> list[Candidate]:
        """Everybody who may be asked; who is not left is gone."""
        epochs: Any = 1  # a gradient takes as long as one
        if isinstance(left, Train):
            epochs = left.local.epochs if left.epochs is None else left.epochs
        spent = self.times[left.clients] * epochs / self.plan.local.epochs
        known = dict(zip(left.clients.tolist(), spent.tolist(), strict=True))
        draws = self._draws(ask.clients, round_).tolist()
        return [Candidate(c, draw, known.get(c, 0.0), c not in known) for c, draw in zip(ask.clients.tolist(), draws, strict=True)]

    def _at_work(self) -> list[AtWork]:
        flown = self.aloft
        rounds, draws = flown.begun.tolist(), np.zeros(len(flown), dtype=np.uint64)
        for round_ in set(rounds):
            own = flown.begun == round_
            draws[own] = self._draws(flown.clients[own], round_)
        return [AtWork(*each) for each in zip(flown.ends.tolist(), rounds, draws.tolist(), flown.clients.tolist(), strict=True)]

    def _draws(self, clients: Ids, round_: int) -> Words:
        return self.problem.roster.draws(key(self.seed, "order of asking", round_), clients)


def question_to(clients: Ids, ask: Train) -> Train:
    """The same question to other clients, to whom nothing is told beside the model."""
    return replace(ask, clients=clients, start=np.zeros(len(clients), dtype=np.int64), anchors=None, mus=None, epochs=None)


def note_arrivals(now: Aloft, later: int, ctx: Context) -> None:
    """Write down whose answers came, how many rounds ago each was asked, and how many are still to come."""
    order = np.argsort(now.clients, kind="stable")
    ctx.note("arrived", now.clients[order])
    ctx.note(STALENESS, ctx.round_ - now.begun[order])
    ctx.note("at_work", later)
