"""The running account of a round in progress: what it has cost, who was missing, how far clients moved."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.asks import Ask, Evaluate, ModelAsk, Reply, Train, Trained
from coterie.core.limits import Moves
from coterie.core.method import Context
from coterie.core.refusals import Refusal
from coterie.evidence.record import Absence, Cost
from coterie.run.costs import cost_of


@dataclass
class Account:
    """One round of one lane."""

    context: Context | None = None
    cost: Cost = field(default_factory=Cost)
    absences: list[Absence] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    discrepancy: float = 0.0
    trained: int = 0  # answers to all training of the round
    ran_away: bool = False  # whether a model that was not finite was refused
    moves: Moves = field(default_factory=Moves)
    measuring: bool = False  # whether the round is over and its models are looked at: nothing is charged

    def charge(self, ask: Ask[Any], reply: Any, seconds: float) -> None:
        """An ask, as the method made it, and what came of it. Clients that were gone were asked all the same: the question costs."""
        self.seconds["clients"] = self.seconds.get("clients", 0.0) + seconds
        if self.measuring:
            self.absences += _refusals(ask, reply)  # a site may keep its scores to itself: that is told, and costs nothing
            return
        self.cost += cost_of(ask, reply)
        self.absences += _absences(ask, reply)
        self._count(ask, reply)
        self.moves.forget()

    def charge_apart(self, asked: Train, silent: Ids, question: Train, reply: Trained, seconds: float) -> None:
        """Likewise in an asynchronous round: who was asked, who will not answer, and, as if asked now, those whose answers are there.

        Questions are charged when they are sent, answers and the work behind them when they arrive.
        """
        self.seconds["clients"] = self.seconds.get("clients", 0.0) + seconds
        nobody = np.zeros(0, dtype=np.int64)
        self.cost += cost_of(asked, reply.take(nobody)) + cost_of(question.take(nobody), reply)
        self.absences += [*_refusals(asked, reply), *(Absence(int(client), asked.kind, "ABSENT") for client in silent)]
        self._count(question, reply)
        self.moves.forget()

    def _count(self, ask: Ask[Any], reply: Any) -> None:
        """How the round's training went."""
        if isinstance(ask, Train) and isinstance(reply, Trained):
            self.trained += len(reply)
            self.ran_away |= any(refused.why is Refusal.NOT_FINITE for refused in reply.refused.values())
            if ask.purpose == "train" and ask.sketch is None:  # neither pre-training nor a trial
                # the summed distance between the models sent back and the models received (FedGroup, Eq. 4)
                self.discrepancy += sum((float(some.sum()) for some in self.moves.of(ask, reply)), 0.0)

    def charge_server(self, seconds: float) -> None:
        self.seconds["server"] = self.seconds.get("server", 0.0) + seconds


def _absences(ask: Ask[Any], reply: Reply) -> list[Absence]:
    """Who was asked and does not count. One without a sample in the share asked about has nothing to answer and is not missing."""
    name, found = ask.kind, _refusals(ask, reply)
    if not isinstance(ask, (ModelAsk, Evaluate)) or ask.share is not None or (isinstance(ask, Evaluate) and ask.part == "central"):
        return found
    if len(reply) + len(found) < len(ask.clients):
        gone = np.setdiff1d(ask.clients, np.concatenate([reply.clients, np.array(sorted(reply.refused), dtype=np.int64)]))
        found += [Absence(int(client), name, "ABSENT") for client in gone]
    return found


def _refusals(ask: Ask[Any], reply: Reply) -> list[Absence]:
    return [Absence(client, ask.kind, refused.why.name, refused.detail) for client, refused in sorted(reply.refused.items())]
