"""Asynchronous rounds of real clients, who take their own time: the same rounds as `timing` simulates, with answers as they come.

The clock is the server's, in seconds since the run began. What was on its way when a job ended is lost with it: those clients are asked
again.
"""

from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from coterie.core.acceptance import accept
from coterie.core.asks import Ask, Train
from coterie.core.method import Context
from coterie.core.plan import Plan
from coterie.core.problem import Problem
from coterie.core.refusals import Refused
from coterie.core.rng import key
from coterie.engines.engine import Arrived, Awaited, Stamped
from coterie.run.aloft import Aloft
from coterie.run.asynchrony import check_ask
from coterie.run.timing import Buffer, Timing, note_arrivals, question_to


class OwnTime:
    """What `Timing` is in a simulation."""

    def __init__(self, plan: Plan, problem: Problem, seed: int) -> None:
        assert plan.asynchronous is not None
        self.plan, self.problem, self.seed, self.wanted = plan, problem, seed, plan.asynchronous
        self.room = plan.concurrency or plan.cohort_size(len(problem.roster))
        self.aloft = Aloft.nothing(np.zeros(0), problem.layout.size)
        self._began = monotonic()
        self._asked: Train | None = None  # the round's question, as the method made it
        self._round = -1
        self._models: dict[int, Any] = {}  # by round whose answers are still to come, the model that was sent
        self._at_work: dict[int, int] = {}  # by client, the round of its question

    def go_on(self, aloft: Aloft) -> None:
        """Time goes on where the last job ended."""
        self.aloft, self._began = self.aloft.at(aloft.clock), monotonic() - aloft.clock

    def send(self, ask: Ask[Any], left: Ask[Any], round_: int) -> Ask[Any]:
        """The question to the whole cohort, in the order in which clients are asked as there is room."""
        check_ask(ask, first=self._round < round_)
        assert isinstance(ask, Train)
        assert isinstance(left, Train)
        self._asked, self._round, self._models[round_] = ask, round_, ask.models[0]
        draws = self.problem.roster.draws(key(self.seed, "order of asking", round_), left.clients)
        return left.take(np.argsort(draws))

    def stamped(self, stamped: Stamped) -> Stamped:
        """The question with how many answers are waited for."""
        return Awaited(**vars(stamped), wanted=self.wanted, room=self.room)

    def receive(self, ask: Train, reply: Arrived, ctx: Context) -> Buffer:
        """What has come, as answers to the round's question."""
        assert self._asked is not None
        self._at_work |= dict.fromkeys(reply.asked.tolist(), ctx.round_)
        now, refused = Aloft.nothing(self.aloft.times, ask.models.shape[1]), dict[int, Refused]()
        for round_, own in reply.answers:
            sensible = accept(question_to(own.clients, ask), own)
            refused |= sensible.refused
            now = now.joined_by(sensible, np.zeros(len(sensible)), round_, self._models[round_])
        for client in (*now.clients.tolist(), *refused, *reply.silent.tolist()):
            self._at_work.pop(client, None)
        self._models = {round_: model for round_, model in self._models.items() if round_ in self._at_work.values()}
        self.aloft = self.aloft.at(monotonic() - self._began)
        note_arrivals(now, len(self._at_work), ctx)
        answers = now.answers(ctx.round_, ask.models[0], self.plan.staleness, self.problem.layout.compared)
        asked = self._asked.take(np.isin(self._asked.clients, reply.asked))
        return Buffer(asked, reply.silent, question_to(answers.clients, ask), replace(answers, refused=refused))


def timing_of(plan: Plan, problem: Problem, seed: int, *, real: bool) -> Timing | OwnTime | None:
    """The clock of a lane; None where time is not of interest."""
    if real:
        return None if plan.asynchronous is None else OwnTime(plan, problem, seed)
    return None if plan.speeds is None and plan.asynchronous is None else Timing(plan, problem, seed)
