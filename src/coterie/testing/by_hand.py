"""Driving a method by hand: a test writes the replies and reads the asks, with no engine in between."""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.asks import Ask, Gradients, Trained
from coterie.core.layout import Layout, Slice, TensorKind
from coterie.core.local import Local
from coterie.core.method import Context
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.core.states import Models

T = TypeVar("T")


def layout(*tensors: tuple[int, TensorKind]) -> Layout:
    """Tensors of these lengths and kinds, one after the other."""
    ends = np.cumsum([length for length, _ in tensors])
    slices = [Slice(f"t{i}", (n,), int(e) - n, kind) for i, ((n, kind), e) in enumerate(zip(tensors, ends, strict=True))]
    return Layout(tuple(slices))


def context(
    sizes: Sequence[int], shape: Layout | int = 2, *, plan: Plan | None = None, seed: int = 0, round_: int = 1, truth: Ids | None = None
) -> Context:
    """A round with these clients, all of them picked unless the plan says otherwise; `shape` is a layout or a number of weights."""
    roster = Roster.of([f"client-{i}" for i in range(len(sizes))], np.array(sizes))
    shape = layout((shape, "weight")) if isinstance(shape, int) else shape
    return Context(roster, shape, plan or Plan(local=Local(lr=0.1)), seed, round_, truth=truth)


def model(*values: float) -> Models:
    """A state of one model."""
    return Models(np.array([values], dtype=np.float32))


def trained(clients: Sequence[int], vectors: Any, sizes: Sequence[int]) -> Trained:
    """A reply to `Train`, one step each."""
    return Trained(np.array(clients), np.array(vectors, dtype=np.float32), np.array(sizes), np.ones(len(clients), dtype=np.int64))


def gradients(clients: Sequence[int], vectors: Any, losses: Sequence[float]) -> Gradients:
    """A reply to `Gradient`, one sample each."""
    sizes = np.ones(len(clients), dtype=np.int64)
    return Gradients(np.array(clients), np.array(vectors, dtype=np.float32), sizes, np.array(losses, dtype=np.float64))


def emptied(reply: Any) -> Any:
    """The same reply without a client in it."""
    return reply.take(np.zeros(0, dtype=np.int64))


def dialogue(script: Generator[Ask[Any], Any, T], *replies: Any) -> tuple[T, list[Any]]:
    """Give a generator these replies, one an ask; what it returns, and what it asked."""
    asks: list[Any] = [next(script)]
    for number, reply in enumerate(replies):
        try:
            asks.append(script.send(reply))
        except StopIteration as end:
            assert number == len(replies) - 1, "the method asked less than it was answered"
            return end.value, asks
    raise AssertionError("the method asked more than it was answered")
