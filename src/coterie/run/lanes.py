"""A lane: one seed of one method on one problem, as a script of asks; and what each of its rounds leaves behind.

The life of an ask: the script yields it, `stamp` keys it and puts it under the plan's conditions, the driver has the engine answer it and
checks the reply, `take_note` charges it to the round, and the script goes on with the reply. When a round's generator returns its new
state, `_close` measures it and yields the record.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, places
from coterie.core.asks import Ask, Evaluate, Evaluated, Train, Trained
from coterie.core.method import Context, Method
from coterie.core.mixing import Mixing
from coterie.core.plan import Plan
from coterie.core.states import State
from coterie.core.threads import cores, in_order
from coterie.engines.engine import Stamped
from coterie.engines.problem import Problem
from coterie.run.conditions import under_conditions
from coterie.run.costs import Cost, cost_of

RUNNING, DIVERGED, FAILED = "running", "diverged", "failed"
CACHED = 1 << 17  # numbers


@dataclass(frozen=True)
class RoundRecord:
    """The evidence of one round of one lane; round 0 is the start."""

    lane: int
    round_: int
    cost: Cost
    refused: dict[int, str]
    records: dict[str, Any]  # what the method wrote down
    mixing: Mixing | None = None  # who counted how much
    groups: Ids | None = None
    discrepancy: float = 0.0  # 003, Eq. 4: how far the cohort moved from the models it received
    evaluated: Evaluated | None = None  # every client's test part with the model it is served
    validated: Evaluated | None = None  # the same on validation parts, where the federation has them
    central: tuple[tuple[str, ...], Evaluated] | None = None  # named models on the server's own test set
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """What a script yields when a round is complete."""

    record: RoundRecord


class Lane:
    """Advances one method, one ask at a time. The driver sends the replies and decides when asks run together."""

    def __init__(self, method: Method[Any], label: str, seed: int, problem: Problem, plan: Plan, number: int = 0) -> None:
        self.method, self.label, self.seed = method, label, seed
        self.problem, self.plan, self.number = problem, plan, number
        self.state: State | None = None
        self.round_ = -1  # the last complete round
        self.status, self.reason = RUNNING, ""
        self._book = _Book()

    def script(self, until: int) -> Generator[Ask[Any] | Done, Any, None]:
        """The start, if it has not been made, and the rounds up to `until`; each ends by yielding what it leaves behind."""
        if self.state is None:
            ctx = self._context(0)
            state = yield from self.method.start(self.problem.initial(self.seed), ctx)
            yield from self._close(ctx, state)
        while self.round_ < until and self.status == RUNNING:
            ctx = self._context(self.round_ + 1)
            state = yield from self.method.round(self.state, ctx)
            yield from self._close(ctx, state)

    def stamp(self, ask: Ask[Any]) -> Stamped:
        """The ask as it goes out: keyed by this lane's seed and round, under the conditions of the plan."""
        round_ = self.round_ + 1 if self._book.context is None else self._book.context.round_
        if not self._book.measuring:
            if getattr(ask, "part", None) in ("test", "central"):
                raise PermissionError("a method may not look at test data while it trains")
            ask = under_conditions(ask, self.plan, self.problem.roster, self.seed, round_)
        return Stamped(ask, self.problem.at(round_), self.seed, round_, self.number)

    def take_note(self, ask: Any, reply: Any, seconds: float) -> None:
        """Charge an ask, as the method made it, to the round, and notice clients that ran away to infinity."""
        book = self._book
        book.seconds["clients"] = book.seconds.get("clients", 0.0) + seconds
        if book.measuring:
            return
        book.cost += cost_of(ask, reply)
        book.refused.update(reply.refused)
        if isinstance(ask, Train) and isinstance(reply, Trained):
            book.discrepancy += _moved(ask, reply)
            book.trained += len(reply)
            book.ran_away |= any("finite" in why for why in reply.refused.values())

    def charge_server(self, seconds: float) -> None:
        self._book.seconds["server"] = self._book.seconds.get("server", 0.0) + seconds

    def stop(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason

    def _context(self, round_: int) -> Context:
        ctx = Context(self.problem.roster_at(round_), self.problem.layout, self.plan, self.seed, round_)
        self._book = _Book(context=ctx)
        return ctx

    def _close(self, ctx: Context, state: State) -> Generator[Ask[Any] | Done, Any, None]:
        """End a round: keep the state, measure it when due, and hand over the record.

        A lane none of whose clients trained to a finite model ends before it. That is judged over the round: one newcomer asked by
        itself may run away without taking everybody along.
        """
        if self._book.ran_away and not self._book.trained:
            return self.stop(DIVERGED, f"in round {ctx.round_} no client sent a finite model")
        self.state, self.round_ = state, ctx.round_
        book, measured = self._book, {}
        records = dict(ctx.records)
        mixing = records.pop("mixing", None)
        members = self.method.members(state)
        if ctx.round_ % self.plan.evaluate_every == 0 or ctx.round_ == self.plan.rounds:
            book.measuring = True
            measured = yield from self._measure(ctx, state)
        yield Done(
            RoundRecord(
                lane=self.number,
                round_=ctx.round_,
                cost=book.cost,
                refused=dict(book.refused),
                records=records,
                mixing=mixing,
                groups=members,
                discrepancy=book.discrepancy,
                **measured,
                seconds=dict(book.seconds),
            )
        )

    def _measure(self, ctx: Context, state: State) -> Generator[Ask[Any], Any, dict[str, Any]]:
        """What the record says of the state's models, by the name of its field."""
        measured: dict[str, Any] = {}
        serving = yield from self.method.serve(state, self.problem.roster.clients, ctx)
        measured["evaluated"] = yield from Evaluate(serving)
        if self.problem.federation.validation is not None:
            measured["validated"] = yield from Evaluate(serving, "validation")
        panel = self.method.panel(state) if self.problem.federation.central is not None else None
        if panel is not None:
            central = yield from Evaluate(panel.serving, "central")
            measured["central"] = (panel.names, central)
        return measured


@dataclass
class _Book:
    """The running account of the round in progress."""

    context: Context | None = None
    cost: Cost = field(default_factory=Cost)
    refused: dict[int, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    discrepancy: float = 0.0
    trained: int = 0  # answers to all training of the round
    ran_away: bool = False  # whether a model that was not finite was refused
    measuring: bool = False


def _moved(ask: Train, reply: Trained) -> float:
    """The summed distance between the models sent back and the models received."""
    rows = ask.start[places(ask.clients, reply.clients)]
    together = max(1, CACHED // max(reply.vectors.shape[1], 1))  # rows at a time: what is subtracted stays in the cache
    pieces = [slice(i, i + together) for i in range(0, len(rows), together)]
    workers = cores() if len(pieces) > 1 and together == 1 else 1

    def distances(piece: slice) -> float:
        received = ask.models if len(ask.models) == 1 else ask.models[rows[piece]]
        return float(_lengths(reply.vectors[piece] - received).sum())

    return sum(in_order(distances, pieces, workers), 0.0)


def _lengths(steps: Floats) -> Doubles:
    """(n,) Euclidean lengths. By einsum: a linear-algebra library would split long sums over threads."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", steps, steps).astype(np.float64)))


def lanes_of(methods: Sequence[tuple[str, Method[Any]]], seeds: Sequence[int], problem: Problem, plan: Plan) -> list[Lane]:
    """Every method with every seed, seed by seed, so that a study cut short holds complete pairs."""
    pairs = [(seed, label, method) for seed in seeds for label, method in methods]
    return [Lane(method, label, seed, problem, plan, number) for number, (seed, label, method) in enumerate(pairs)]
