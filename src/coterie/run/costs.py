"""The costs of a round: messages, bytes each way, passes and steps, absences and time, counted from asks and replies."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from coterie.core.arrays import Ids, find_positions
from coterie.core.asks import Ask, Evaluate, Evaluated, ModelAsk, Refusal, Reply, Train, Trained
from coterie.core.method import Context
from coterie.core.replies import UpdateNorms
from coterie.core.serving import COMBINED
from coterie.evidence.records import Absence, Cost

FLOAT_BYTES = 4  # bytes


def compute_cost(ask: Any, reply: Reply) -> Cost:
    """The cost of one ask. Clients that do not answer cost the message to them."""
    if isinstance(ask, Evaluate):  # of a method (FedEx's gate); the study's own evaluations are free
        return _compute_evaluation_cost(ask, reply)
    if not isinstance(ask, ModelAsk):
        raise TypeError(f"the cost of {type(ask).__name__} is not known: an ask that sends models is a ModelAsk")
    passes, steps, samples = _count_work(ask, reply)
    if ask.alone:  # nothing is sent
        return Cost(passes=passes, steps=steps, samples=samples)
    asked, answered = len(ask.clients), len(reply.clients)
    d = ask.models.shape[1] - ask.held
    sent = d * (len(ask.models) if ask.every_model else 1)
    extras = [v for v in (getattr(ask, name, None) for name in ("anchors", "linear", "mus", "epochs")) if v is not None]
    extras += [v for name, v in ask.extra.items() if name not in ask.kept] if isinstance(ask, Train) else []
    sent += sum(prod(v.shape[1:]) for v in extras)
    kept = d * len(ask.kept_loops) if isinstance(ask, Train) else 0
    whole = ask.held if getattr(ask, "sketch", None) is None else 0
    up = sum(prod(getattr(reply, name).shape[1:]) for name in reply.columns()) - kept - whole
    return Cost(asked + answered, FLOAT_BYTES * asked * sent, FLOAT_BYTES * answered * up, passes, steps, samples)


def _compute_evaluation_cost(ask: Evaluate, reply: Reply) -> Cost:
    """Each client gets the model that serves it, or all of them where they are combined, and sends its counts back."""
    assert isinstance(reply, Evaluated)
    if ask.part == "central":
        return Cost()  # the server's own data: nothing is sent
    models = np.where(ask.serving.rows == COMBINED, len(ask.serving.models), 1)  # sent to, and run by, each client
    run = models[find_positions(ask.clients, reply.clients)]
    passes, samples = float(run.sum()), int((run * reply.sizes).sum())
    if ask.alone:
        return Cost(passes=passes, samples=samples)
    down, up = int(models.sum()) * ask.serving.models.shape[1], len(reply) * (3 * reply.hits.shape[1] + 2)
    return Cost(len(models) + len(reply), FLOAT_BYTES * down, FLOAT_BYTES * up, passes, 0, samples)


def _count_work(ask: ModelAsk[Any], reply: Any) -> tuple[float, int, int]:
    sizes = reply.sizes
    if not isinstance(ask, Train):
        passes = len(ask.models) if ask.every_model else 1
        return float(passes * len(sizes)), 0, int(passes * sizes.sum())
    assert isinstance(reply, Trained)
    batch = np.minimum(ask.local.batch_size or sizes, sizes)
    done = reply.steps / np.ceil(sizes / np.maximum(batch, 1))
    return float(done.sum()), int(reply.steps.sum()), int(np.rint(done * sizes).sum())


@dataclass
class RoundAccount:
    """The costs and absences of one round of one lane."""

    context: Context | None = None
    cost: Cost = field(default_factory=Cost)
    absences: list[Absence] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    discrepancy: float = 0.0
    trained: int = 0  # answers to all training of the round
    has_nonfinite: bool = False  # whether a model that was not finite was refused
    moves: UpdateNorms = field(default_factory=UpdateNorms)
    is_measuring: bool = False  # whether the round is over and its models are evaluated: nothing is charged

    def charge(self, ask: Ask[Any], reply: Any, seconds: float) -> None:
        """Charge a method's ask and its reply. Clients that are gone cost the message to them."""
        self.seconds["clients"] = self.seconds.get("clients", 0.0) + seconds
        if self.is_measuring:
            self.absences += _list_refusals(ask, reply)  # a site may refuse to send its scores
            return
        self.cost += compute_cost(ask, reply)
        self.absences += _list_absences(ask, reply)
        self._count(ask, reply)
        self.moves.forget()

    def charge_async(self, asked: Train, silent: Ids, question: Train, reply: Trained, seconds: float) -> None:
        """Likewise in an asynchronous round: asks are charged when sent, replies and the work behind them when they arrive."""
        self.seconds["clients"] = self.seconds.get("clients", 0.0) + seconds
        none = np.zeros(0, dtype=np.int64)
        self.cost += compute_cost(asked, reply.take(none)) + compute_cost(question.take(none), reply)
        self.absences += [*_list_refusals(asked, reply), *(Absence(int(client), asked.kind, "ABSENT") for client in silent)]
        self._count(question, reply)
        self.moves.forget()

    def _count(self, ask: Ask[Any], reply: Any) -> None:
        """Count the round's trained and refused models."""
        if isinstance(ask, Train) and isinstance(reply, Trained):
            self.trained += len(reply)
            self.has_nonfinite |= any(refused.why is Refusal.NOT_FINITE for refused in reply.refused.values())
            if ask.purpose == "train" and ask.sketch is None:  # neither pre-training nor a test run
                # the summed distance between the models sent back and the models received (FedGroup, Eq. 4)
                self.discrepancy += sum((float(some.sum()) for some in self.moves.of(ask, reply)), 0.0)

    def charge_server(self, seconds: float) -> None:
        self.seconds["server"] = self.seconds.get("server", 0.0) + seconds


def _list_absences(ask: Ask[Any], reply: Reply) -> list[Absence]:
    """The clients that were asked and do not count. One without samples in the share asked about is not missing."""
    name, found = ask.kind, _list_refusals(ask, reply)
    if not isinstance(ask, (ModelAsk, Evaluate)) or ask.share is not None or (isinstance(ask, Evaluate) and ask.part == "central"):
        return found
    if len(reply) + len(found) < len(ask.clients):
        gone = np.setdiff1d(ask.clients, np.concatenate([reply.clients, np.array(sorted(reply.refused), dtype=np.int64)]))
        found += [Absence(int(client), name, "ABSENT") for client in gone]
    return found


def _list_refusals(ask: Ask[Any], reply: Reply) -> list[Absence]:
    return [Absence(client, ask.kind, refused.why.name, refused.detail) for client, refused in sorted(reply.refused.items())]
