"""Asks that train nothing: losses, errors, gradients and evaluations, those of many lanes together where that is faster.

`WorldCache` keeps, for each world, the routes chosen and the objects that train and evaluate its models.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie._util.threads import map_with_helpers, use_one_thread
from coterie.core.asks import AskErrors, Evaluate, Gradient, Gradients, Losses
from coterie.data.federation import Parts
from coterie.engines.captured import CapturedTrainer
from coterie.engines.client_training import compute_gradients
from coterie.engines.device import Precision, as_tensor, get_stacked_memory
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.evaluation.batch import BatchEvaluator, EvalSets, evaluate_together
from coterie.engines.evaluation.dense import MapFunction, NumpyEvaluator, make_dense_evaluator
from coterie.engines.evaluation.evaluate import Classify, EachEvaluator, compute_errors, compute_loss_table, evaluate
from coterie.engines.jobs import ConcatRows, RowBlock
from coterie.engines.local_engine import Work, fetch_models
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import Route, choose_stacked_options, get_layer_sizes
from coterie.engines.stacked.inference import StackedEachEvaluator, compute_stacked_gradients
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.world import World


def compute_gradients_together(works: Sequence[Work], route: StackedTrainer) -> list[Gradients]:
    """The answers to asks of one world."""
    asks = [work.ask for work in works if isinstance(work.ask, Gradient)]
    held = [work.parts() for work in works]
    models = ConcatRows([RowBlock(len(ask.models), ask.models) for ask in asks], asks[0].models.shape[1]).on(route.device)
    firsts = np.cumsum([0, *(len(ask.models) for ask in asks)])
    start = np.concatenate([ask.start + first for ask, first in zip(asks, firsts, strict=False)])
    own = Parts.of([parts[client] for ask, parts in zip(asks, held, strict=True) for client in ask.clients])
    found, losses = compute_stacked_gradients(route, models, start, own)
    vectors, ends = DeviceVectors.from_gradients(found).as_array(), np.cumsum([0, *(len(ask.clients) for ask in asks)])
    spans = [slice(begin, end) for begin, end in pairwise(ends)]
    return [Gradients(ask.clients, vectors[span], own.sizes[span], losses[span]) for ask, span in zip(asks, spans, strict=True)]


class WorldCache:
    """What is kept of one world. A dense network has its layer sizes and data from the start; everything else is made at first use."""

    def __init__(
        self, world: World, device: torch.device, threads: int, precision: Precision, microbatch: int | None, *, holds: bool
    ) -> None:
        self.world, self.device, self.precision, self.microbatch = world, device, precision, microbatch
        self.sizes = get_layer_sizes(world)
        self.dense = make_dense_evaluator(world.federation, self.sizes, device, threads, holds=holds)
        self.panels = EvalSets(world.federation)
        self.routes: dict[str, Route] = {}
        self._stacked: dict[bool, StackedTrainer] = {}  # by whether batches have exact sizes

    @property
    def has_stacked_route(self) -> bool:
        """Whether trainings of this world are stacked in padded batches: then gradients can be."""
        padded = (route.name == "stacked" and not route.is_exact for route in self.routes.values())
        return self.dense is None and any(padded)

    @cached_property
    def captured_trainer(self) -> CapturedTrainer:
        """Trains large models client by client."""
        options: dict[str, Any] = {"device": self.device, "precision": self.precision, "microbatch": self.microbatch}
        return CapturedTrainer(self.world.model.module(), self.world.loss, *self._tensors(), **options)

    def get_stacked_trainer(self, *, exact: bool = False) -> StackedTrainer:
        """Trains and evaluates stacks of models."""
        if exact not in self._stacked:
            module, options = self.world.model.module(), choose_stacked_options(self.world, self.device, exact=exact)
            memory = get_stacked_memory(self.device, one_body=options.backend == "adapters")
            given: dict[str, Any] = {"device": self.device, "memory": memory, "options": options, "precision": self.precision}
            self._stacked[exact] = StackedTrainer(module, self.world.loss, *self._tensors(), **given)
        return self._stacked[exact]

    def _tensors(self) -> tuple[Tensor, Tensor]:
        return as_tensor(self.world.federation.x), as_tensor(self.world.federation.y)


class InferenceRunner:
    """Answers by what is resident for a world, by the loop where nothing there can. `holds`: whether gradients stay on the device."""

    def __init__(
        self, resident: Callable[[World], WorldCache], loop: LoopEngine, threads: int, pool: ThreadPoolExecutor, *, holds: bool
    ) -> None:
        self.resident, self.loop, self.threads, self.pool, self.holds = resident, loop, threads, pool, holds

    def answers(self, works: Sequence[Work]) -> list[Any]:
        """All answers, on the CPU side by side where that is safe."""
        if not works:
            return []
        works = [fetch_models(work) if isinstance(self.resident(work.world).dense, NumpyEvaluator) else work for work in works]
        with use_one_thread():
            dense = self.loop.device.type == "cpu" and all(self.resident(work.world).dense is not None for work in works)
            spread: MapFunction = self._spread if dense else map
            juries = {
                world: jury for world in {work.world for work in works} if (jury := self._make_batch_evaluator(world, spread)) is not None
            }
            found: dict[int, Any] = dict(evaluate_together(works, juries, spread))
            for numbers in self._group_gradients(works):
                route = self.resident(works[numbers[0]].world).get_stacked_trainer()
                found |= zip(numbers, compute_gradients_together([works[i] for i in numbers], route), strict=True)
            left = [i for i in range(len(works)) if i not in found]
            alone = spread if len(works) == 1 else map  # then it has the cores to itself
            found |= zip(left, spread(lambda i: self._answer(works[i], alone), left), strict=True)
            return [found[i] for i in range(len(works))]

    def _group_gradients(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks for gradients that are answered together: of one world whose trainings are stacked on the device."""
        found: dict[World, list[int]] = {}
        for number, work in enumerate(works):
            if self.holds and isinstance(work.ask, Gradient) and self.resident(work.world).has_stacked_route:
                found.setdefault(work.world, []).append(number)
        return list(found.values())

    def _make_batch_evaluator(self, world: World, spread: MapFunction) -> BatchEvaluator | None:
        """What judges models on the same samples; None where probabilities are needed to tell."""
        kept = self.resident(world)
        if kept.dense is not None:
            return BatchEvaluator(partial(kept.dense.classify, spread=spread), kept.panels)
        return None if self.loop.device.type == "cpu" else BatchEvaluator(self.loop.space(world).judge_many, kept.panels)

    def _spread(self, work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterable[Any]:
        """`map`, by the engine's threads: one piece, or one thread, is not worth handing over."""
        listed = list(pieces)
        return map(work, listed) if self.threads == 1 or len(listed) < 2 else map_with_helpers(self.pool, self.threads - 1, work, listed)

    def _answer(self, work: Work, spread: MapFunction = map) -> Any:
        ask, kept, federation = work.ask, self.resident(work.world), work.world.federation
        predict = partial(kept.dense.predict, spread=spread) if kept.dense is not None else self.loop.space(work.world).predict
        match ask:
            case Evaluate():
                judge = self._judge(work.world, kept, spread)
                return evaluate(ask, federation, predict, work.judged(), judge, self._make_each_evaluator(work.world, kept, spread))
            case Losses():
                dense = kept.dense
                shorter = partial(dense.losses, spread=spread) if dense is not None else self.loop.space(work.world).losses_many
                return compute_loss_table(ask, work.parts(ask.part), predict, shorter)
            case AskErrors():
                return compute_errors(ask, work.parts(), federation.y, predict, federation.task)
            case Gradient() if kept.dense is not None:
                parts = work.parts()
                found = [kept.dense.gradient(ask.models[s], parts[c]) for c, s in zip(ask.clients, ask.start, strict=True)]
                vectors, losses = np.stack([v for v, _ in found]), np.array([loss for _, loss in found])
                return Gradients(ask.clients, vectors, parts.sizes[ask.clients], losses)
            case Gradient() if self.holds:
                parts = work.parts()
                there, losses = compute_gradients(ask, self.loop.space(work.world), parts)
                return Gradients(ask.clients, DeviceVectors.from_gradients(there).as_array(), parts.sizes[ask.clients], losses)
        return self.loop.answer(work)

    def _make_each_evaluator(self, world: World, kept: WorldCache, spread: MapFunction) -> EachEvaluator | None:
        """What judges many models, each on samples of its own; None where they are judged one after the other."""
        if kept.dense is not None:
            return kept.dense.each(spread)
        return StackedEachEvaluator(kept.get_stacked_trainer(), world.federation.task) if self.holds and kept.has_stacked_route else None

    def _judge(self, world: World, kept: WorldCache, spread: MapFunction) -> Classify | None:
        """The likeliest classes, where they can be had without the probabilities: on a GPU they are found there."""
        dense = kept.dense
        if dense is not None:
            return lambda model, rows: dense.classify([model], rows, spread)[0]
        return None if self.loop.device.type == "cpu" else self.loop.space(world).judge
