"""Asks that train nothing: losses, errors, gradients and evaluations, those of many lanes together where that is faster."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from coterie.core.asks import Error, Evaluate, Gradient, Gradients, Losses
from coterie.core.threads import among, one_thread
from coterie.engines.dense import Spread
from coterie.engines.dense_arrays import DenseArrays
from coterie.engines.dense_choice import each_of, losses_alone
from coterie.engines.dense_tensors import DenseTensors
from coterie.engines.evaluate import Judge, evaluate
from coterie.engines.gradients import gradients_of
from coterie.engines.held.rows import TensorRows
from coterie.engines.judging import Jury, judged_together
from coterie.engines.local_engine import Work, at_hand
from coterie.engines.loop import LoopEngine
from coterie.engines.losses import errors, loss_table
from coterie.engines.own_models import Each
from coterie.engines.probing import gradients_together
from coterie.engines.resident import Resident
from coterie.engines.vectorised.each import StackedEach
from coterie.engines.world import World


class Answering:
    """Answers by what is resident for a world, by the loop where nothing there can. `holds`: whether gradients stay on the device."""

    def __init__(
        self, resident: Callable[[World], Resident], loop: LoopEngine, threads: int, pool: ThreadPoolExecutor, *, holds: bool
    ) -> None:
        self.resident, self.loop, self.threads, self.pool, self.holds = resident, loop, threads, pool, holds

    def answers(self, works: Sequence[Work]) -> list[Any]:
        """All answers, on the CPU side by side where that is safe."""
        if not works:
            return []
        works = [at_hand(work) if isinstance(self.resident(work.world).dense, DenseArrays) else work for work in works]
        with one_thread():
            dense = self.loop.device.type == "cpu" and all(self.resident(work.world).dense is not None for work in works)
            spread: Spread = self._spread if dense else map
            juries = {world: jury for world in {work.world for work in works} if (jury := self._jury(world, spread)) is not None}
            found: dict[int, Any] = dict(judged_together(works, juries, spread))
            for numbers in self._probing(works):
                route = self.resident(works[numbers[0]].world).vectorised()
                found |= zip(numbers, gradients_together([works[i] for i in numbers], route), strict=True)
            left = [i for i in range(len(works)) if i not in found]
            alone = spread if len(works) == 1 else map  # then it has the cores to itself
            found |= zip(left, spread(lambda i: self._answer(works[i], alone), left), strict=True)
            return [found[i] for i in range(len(works))]

    def _probing(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks for gradients that are answered together: of one world whose trainings are stacked on the device."""
        found: dict[World, list[int]] = {}
        for number, work in enumerate(works):
            if self.holds and isinstance(work.ask, Gradient) and self.resident(work.world).stacks:
                found.setdefault(work.world, []).append(number)
        return list(found.values())

    def _jury(self, world: World, spread: Spread) -> Jury | None:
        """What judges models on the same samples; None where probabilities are needed to tell."""
        kept = self.resident(world)
        if isinstance(kept.dense, DenseArrays):
            return Jury(partial(kept.dense.judge, spread=spread), kept.panels)
        if isinstance(kept.dense, DenseTensors):
            return Jury(kept.dense.judge_many, kept.panels)
        return None if self.loop.device.type == "cpu" else Jury(self.loop.space(world).judge_many, kept.panels)

    def _spread(self, work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterable[Any]:
        """`map`, by the engine's threads: one piece, or one thread, is not worth handing over."""
        listed = list(pieces)
        return map(work, listed) if self.threads == 1 or len(listed) < 2 else among(self.pool, self.threads - 1, work, listed)

    def _answer(self, work: Work, spread: Spread = map) -> Any:
        ask, kept, federation = work.ask, self.resident(work.world), work.world.federation
        predict = partial(kept.dense.predict, spread=spread) if kept.dense is not None else self.loop.space(work.world).predict
        match ask:
            case Evaluate():
                judge = self._judge(work.world, kept, spread)
                return evaluate(ask, federation, predict, work.judged(), judge, self._each(work.world, kept, spread))
            case Losses():
                shorter = losses_alone(kept.dense, spread) if kept.dense is not None else self.loop.space(work.world).losses_many
                return loss_table(ask, work.parts(ask.part), predict, shorter)
            case Error():
                return errors(ask, work.parts(), federation.y, predict, federation.task)
            case Gradient() if kept.dense is not None:
                parts = work.parts()
                found = [kept.dense.gradient(ask.models[s], parts[c]) for c, s in zip(ask.clients, ask.start, strict=True)]
                vectors, losses = np.stack([v for v, _ in found]), np.array([loss for _, loss in found])
                return Gradients(ask.clients, vectors, parts.sizes[ask.clients], losses)
            case Gradient() if self.holds:
                parts = work.parts()
                there, losses = gradients_of(ask, self.loop.space(work.world), parts)
                return Gradients(ask.clients, TensorRows.measured(there).as_array(), parts.sizes[ask.clients], losses)
        return self.loop.answer(work)

    def _each(self, world: World, kept: Resident, spread: Spread) -> Each | None:
        """What judges many models, each on samples of its own; None where they are judged one after the other."""
        if kept.dense is not None:
            return each_of(kept.dense, spread)
        return StackedEach(kept.vectorised(), world.federation.task) if self.holds and kept.stacks else None

    def _judge(self, world: World, kept: Resident, spread: Spread) -> Judge | None:
        """The likeliest classes, where they can be had without the probabilities: on a GPU they are found there."""
        dense = kept.dense
        if isinstance(dense, DenseArrays):
            return lambda model, rows: dense.judge([model], rows, spread)[0]
        if isinstance(dense, DenseTensors):
            return dense.judge
        return None if self.loop.device.type == "cpu" else self.loop.space(world).judge
