"""What methods will ask, found out before the first round: they are run on made-up replies, by a model of the same tensors made small."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.core.asks import Evaluate
from coterie.core.layout import InitialModels, Layout, Slice
from coterie.core.method import Problem
from coterie.core.replies import assemble
from coterie.core.rng import make_generator, make_key
from coterie.engines.engine import Engine, StampedAsk
from coterie.run.driver import drive
from coterie.run.study import Study

MOST_ROUNDS = 10  # that are rehearsed: what methods ask repeats itself
MOST_NUMBERS = 3  # of each axis of a tensor


@dataclass(frozen=True, eq=False)
class SmallProblem(Problem):
    """The same roster and names of tensors, with few numbers in each."""

    small: Layout = field(default_factory=lambda: Layout(()))

    @property
    def layout(self) -> Layout:
        return self.small

    def initial(self, seed: int) -> InitialModels:
        def init(i: int = 0) -> Any:
            return make_generator(make_key(seed, "rehearsal", i)).normal(size=self.small.size).astype(np.float32)

        return init


def shrink_layout(layout: Layout) -> Layout:
    """The same tensors with at most so many numbers along each axis."""
    slices: list[Slice] = []
    for s in layout.slices:
        shape = tuple(min(length, MOST_NUMBERS) for length in s.shape)
        slices.append(replace(s, shape=shape, begin=slices[-1].end if slices else 0))
    return Layout(tuple(slices))


class RehearsalEngine(Engine):
    """Answers every ask with random numbers of the right shapes, and keeps the asks by method."""

    name = "rehearsal"

    def __init__(self, sizes: Any, classes: int) -> None:
        self.sizes, self.classes = sizes, classes
        self.asked: list[StampedAsk] = []

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        self.asked += asks
        return [self._answer(stamped) for stamped in asks]

    def _answer(self, stamped: StampedAsk) -> Any:
        ask: Any = stamped.ask
        return assemble(ask, {int(client): self._make_row(stamped, int(client)) for client in ask.clients})

    def _make_row(self, stamped: StampedAsk, client: int) -> dict[str, Any]:
        ask: Any = stamped.ask
        rng, samples = make_generator(make_key(stamped.seed, "rehearsal", stamped.round_, client)), int(self.sizes[client])
        if isinstance(ask, Evaluate):
            counts = np.full(self.classes, samples)
            return {"hits": counts // 2, "predicted": counts, "actual": counts, "loss": rng.random(), "auroc": np.nan}
        row: dict[str, Any] = {name: rng.random(shape) for name, shape in ask.row_shapes().items()}
        if "vectors" in row and getattr(ask, "sketch", None) is None:
            row["vectors"] = 0.1 * (row["vectors"] - 0.5) + ask.models[ask.start[np.flatnonzero(ask.clients == client)[0]]]
        row |= {name: np.full(np.shape(row[name]), samples) for name in ("sizes", "steps", "counts") if name in row}
        return row


def rehearse(study: Study) -> dict[str, list[StampedAsk]]:
    """By method, the asks of its start and first rounds. One that fails on made-up replies is known as far as it came."""
    ((draw, problem),) = study.problems.items()
    small = SmallProblem(**vars(problem), small=shrink_layout(problem.layout))
    plan = replace(study.settings.plan, buffer_size=None)  # asynchronous rounds ask the same
    found = {}
    for lane in replace(study, settings=replace(study.settings, plan=plan), problems={draw: small}).lanes():
        if lane.label not in found:
            engine = RehearsalEngine(problem.roster.sizes, problem.model.outputs)
            drive([lane], engine, min(MOST_ROUNDS, study.settings.plan.rounds), lambda lane, record: None)
            found[lane.label] = engine.asked
    return found
