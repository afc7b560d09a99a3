"""Fakes for tests of one equation.

An engine whose replies a function gives, and scripts of a method driven with replies written by hand.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.asks import Ask, Gradients, Trained
from coterie.core.layout import Layout, Slice, TensorKind
from coterie.core.local import Local
from coterie.core.method import Context
from coterie.core.plan import Plan
from coterie.core.replies import assemble
from coterie.core.roster import Roster
from coterie.core.states import Models
from coterie.engines.engine import Engine, StampedAsk

# (ask, client) -> the fields of this client's row of the reply, or None when it does not answer
ClientAnswer = Callable[[Any, int], Mapping[str, Any] | None]


class FakeEngine(Engine):
    """Answers every ask by a function, client by client, and keeps the asks of each call."""

    name = "fake"

    def __init__(self, answer: ClientAnswer) -> None:
        self.answer = answer
        self.calls: list[list[StampedAsk]] = []

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        self.calls.append(list(asks))
        return [self._reply(stamped.ask) for stamped in asks]

    def _reply(self, ask: Any) -> Any:
        answers = {int(client): self.answer(ask, int(client)) for client in ask.clients}
        return assemble(ask, {client: answer for client, answer in answers.items() if answer is not None})


T = TypeVar("T")


def make_layout(*tensors: tuple[int, TensorKind]) -> Layout:
    """Tensors of these lengths and kinds, one after the other."""
    ends = np.cumsum([length for length, _ in tensors])
    slices = [Slice(f"t{i}", (n,), int(e) - n, kind) for i, ((n, kind), e) in enumerate(zip(tensors, ends, strict=True))]
    return Layout(tuple(slices))


def make_context(
    sizes: Sequence[int], shape: Layout | int = 2, *, plan: Plan | None = None, seed: int = 0, round_: int = 1, truth: Ids | None = None
) -> Context:
    """A round with these clients, all of them picked unless the plan picks fewer; `shape` is a layout or a number of weights."""
    roster = Roster.from_sizes([f"client-{i}" for i in range(len(sizes))], np.array(sizes))
    shape = make_layout((shape, "weight")) if isinstance(shape, int) else shape
    return Context(roster, shape, plan or Plan(local=Local(lr=0.1)), seed, round_, truth=truth)


def make_model(*values: float) -> Models:
    """A state of one model."""
    return Models(np.array([values], dtype=np.float32))


def make_trained(clients: Sequence[int], vectors: Any, sizes: Sequence[int]) -> Trained:
    """A reply to `Train`, one step each."""
    return Trained(np.array(clients), np.array(vectors, dtype=np.float32), np.array(sizes), np.ones(len(clients), dtype=np.int64))


def make_gradients(clients: Sequence[int], vectors: Any, losses: Sequence[float]) -> Gradients:
    """A reply to `Gradient`, one sample each."""
    sizes = np.ones(len(clients), dtype=np.int64)
    return Gradients(np.array(clients), np.array(vectors, dtype=np.float32), sizes, np.array(losses, dtype=np.float64))


def remove_clients(reply: Any) -> Any:
    """The same reply without a client in it."""
    return reply.take(np.zeros(0, dtype=np.int64))


def run_dialogue(script: Generator[Ask[Any], Any, T], *replies: Any) -> tuple[T, list[Any]]:
    """Give a generator these replies, one an ask; its result, and its asks."""
    asks: list[Any] = [next(script)]
    for number, reply in enumerate(replies):
        try:
            asks.append(script.send(reply))
        except StopIteration as end:
            assert number == len(replies) - 1, "the method asked less than it was answered"
            return end.value, asks
    raise AssertionError("the method asked more than it was answered")
