"""The batched engine: clients, seeds and methods are one batch dimension.

All asks to train that arrive together become one job, executed on the route that `routes` chooses. Losses, errors, gradients and
evaluations of many lanes are a few matrix products. Fused trainings and predictions depend on the ask alone: they are computed in pieces of
fixed shape, whatever else is asked at the same time. Stacked networks agree with themselves within float32 rounding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie._util.errors import UserError
from coterie._util.threads import count_cores, map_with_helpers, use_one_thread
from coterie.core.arrays import Floats, Ints
from coterie.core.asks import AskErrors, Evaluate, Gradient, Gradients, Losses, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import Local, LocalRule
from coterie.data.federation import Parts
from coterie.engines.captured.trainer import CapturedTrainer
from coterie.engines.client_training import compute_gradients
from coterie.engines.device import (
    Precision,
    as_tensor,
    fetch_tensor,
    get_stacked_memory,
    limit_torch_threads,
    raise_device_errors,
    use_precision,
)
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.evaluation.batch import BatchEvaluator, EvalSets, evaluate_together
from coterie.engines.evaluation.dense import MapFunction, NumpyEvaluator, TorchEvaluator, make_dense_evaluator
from coterie.engines.evaluation.evaluate import Classify, EachEvaluator, compute_errors, compute_loss_table, evaluate
from coterie.engines.features import FeatureWorlds
from coterie.engines.fused import cpu_route as fused_cpu
from coterie.engines.fused import cpu_rules as fused_rules
from coterie.engines.fused import gpu_route as fused_gpu
from coterie.engines.jobs import ConcatRows, RowBlock, TrainingJob, concat_jobs, merge_asks, send_rows, split_replies
from coterie.engines.local_engine import LocalEngine, Work, fetch_models
from coterie.engines.loop import LoopEngine
from coterie.engines.pools import WorldPool, pool_worlds
from coterie.engines.routes import Route, choose_ask_route, choose_engine, choose_route, choose_stacked_options, get_layer_sizes, name_kind
from coterie.engines.rule_jobs import RuleJob
from coterie.engines.stacked.inference import StackedEachEvaluator, compute_stacked_gradients
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.world import World


class BatchedEngine(LocalEngine):
    """Executes asks together.

    Args:
        worlds: The world, or one for each draw of the data.
        device: "cpu", "cuda" or "cuda:N".
        threads: Default: all cores.
        pinned: The routes of a study that is resumed, by kind of training.
        precision: Of products on a GPU.
        microbatch: Samples of a batch that pass a large model at a time.
        holds: Whether trained models stay on the device until their numbers are read.
    """

    name = "batched"

    def __init__(
        self,
        worlds: World | Mapping[int, World],
        device: str = "cpu",
        threads: int | None = None,
        pinned: Mapping[str, str] | None = None,
        precision: Precision = "float32",
        microbatch: int | None = None,
        *,
        holds: bool = False,
    ) -> None:
        super().__init__(worlds)
        self.device, self.precision, self.microbatch, self.holds = torch.device(device), precision, microbatch, holds
        self.threads = threads or count_cores()
        self.loop = LoopEngine(worlds, device, threads=threads, precision=precision, microbatch=microbatch)
        self._featured = FeatureWorlds(self.device, precision)
        self._pinned = dict(pinned or {})  # routes of a study that is resumed
        self._caches: dict[World, WorldCache] = {}
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="coterie-batched")
        self._inference = InferenceRunner(self._get_cache, self.loop, self.threads, self._pool, holds=holds)

    def prepare(self, local: Local) -> None:
        for world in self.worlds.values():
            with raise_device_errors(), limit_torch_threads(1):
                route = self._route(self._featured.of(world), local)
            if route.name == "fused" and self.device.type == "cpu":
                fused_cpu.warm_up()

    def _world(self, stamped: StampedAsk) -> World:
        return self._featured.of(super()._world(stamped))

    def close(self) -> None:
        self.loop.close()
        self._pool.shutdown()

    def execute(self, works: Sequence[Work]) -> list[Any]:
        answers: list[Any] = [None] * len(works)
        with limit_torch_threads(1), use_precision(self.precision):
            for numbers in self._group_trainings(works):
                for number, answer in zip(numbers, self._train([works[i] for i in numbers]), strict=True):
                    answers[number] = answer
            others = [i for i, work in enumerate(works) if not isinstance(work.ask, Train)]
            for number, answer in zip(others, self._inference.answers([works[i] for i in others]), strict=True):
                answers[number] = answer
        return answers

    def _train(self, works: Sequence[Work]) -> Sequence[Any]:
        """Asks of one world, or by a rule of worlds that are pooled, and one optimiser, in one job."""
        asks = [work.ask for work in works if isinstance(work.ask, Train)]
        kept = self._get_cache(works[0].world)
        route = self._route_ask(works[0])
        if route.name == "loop":
            return [self.loop.answer(work) for work in works]
        local = asks[0].local
        if local.rule is not None:
            return self._train_by_rule(works, asks, local.rule, route)
        job = merge_asks(works, asks, kept.sizes, apart=self.holds or route.name != "fused")
        if route.name == "fused":
            trained, steps = self._train_fused(job, kept)
        elif route.name == "captured":
            trained, steps = kept.captured_trainer.train_on_device(job, local)
        else:
            assert local.optimizer != "adamw"  # whose route is the loop
            trained, steps = kept.get_stacked_trainer(exact=route.is_exact).train_on_device(job, local.optimizer)
        return split_replies(asks, job.samples(), self._store_trained(trained, job), steps)

    def _train_by_rule(self, works: Sequence[Work], asks: Sequence[Train], rule: LocalRule, route: Route) -> Sequence[Any]:
        """Asks of one world, or, sorted by world, of several that are pooled."""
        pool, kept = self._find_pool(works[0].world, route), self._get_cache(works[0].world)
        jobs, firsts = list[TrainingJob](), list[int]()
        for world, run in groupby(zip(works, asks, strict=True), key=lambda pair: pair[0].world):
            pairs = list(run)
            jobs.append(merge_asks([work for work, _ in pairs], [ask for _, ask in pairs], kept.sizes))
            firsts.append(0 if pool is None else pool.firsts[world])
        extra = {name: np.concatenate([ask.extra[name] for ask in asks]) for name in asks[0].extra}
        whole = RuleJob(concat_jobs(jobs, firsts), rule, asks[0].local, extra)
        if route.name == "fused":
            assert kept.dense is not None
            each = kept.dense.each()
            found = fused_rules.train_by_rule(whole, lambda models, rows, sizes: each.judge(models, rows, sizes)[1], self.threads)
        else:
            found = (kept if pool is None else self._get_cache(pool.world)).get_stacked_trainer().train_by_rule(whole)
        return split_replies(asks, whole.job.samples(), *found)

    @cached_property
    def _pools(self) -> Mapping[World, WorldPool]:
        return pool_worlds(self._featured.of(world) for world in self.worlds.values())

    def _find_pool(self, world: World, route: Route) -> WorldPool | None:
        """The pool that a world's trainings by a rule are stacked in."""
        return self._pools.get(world) if route.name == "stacked" else None

    def _route_ask(self, work: Work) -> Route:
        assert isinstance(work.ask, Train)
        world, local = work.world, work.ask.local

        def find_smallest_batch() -> int:
            return 1 if self._get_cache(world).sizes else self.loop.space(world).smallest_batch

        return choose_ask_route(self._route(world, local), world.federation.train.sizes, local.batch_size, find_smallest_batch)

    def _train_fused(self, job: TrainingJob, kept: "WorldCache") -> tuple[Tensor, Ints]:
        if self.device.type == "cuda":
            assert isinstance(kept.dense, TorchEvaluator)
            return fused_gpu.train_on_device(job, resident=(kept.dense.x, kept.dense.y))
        if self.holds:
            arrays = {"models": send_rows(job.models, self.device).numpy()}
            arrays |= {name: np.asarray(rows) for name in ("anchors", "linear") if (rows := getattr(job, name)) is not None}
            job = replace(job, **arrays)  # type: ignore[arg-type]
        vectors, steps = fused_cpu.train(job, self.threads)
        return torch.from_numpy(vectors), steps

    def _store_trained(self, vectors: Tensor, job: TrainingJob) -> Floats:
        """Trained models as replies have them: where they are, or fetched. Those that did not fit a GPU are on the host already."""
        if not self.holds or vectors.device.type != self.device.type:
            return fetch_tensor(vectors)
        return DeviceVectors.from_training(vectors, send_rows(job.models, vectors.device), job.start).as_array()

    def _group_trainings(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks to train, those of one world and one optimiser together; by a local rule, those of the same settings, of
        worlds that are pooled together, sorted by world."""
        buckets: dict[tuple[int, str, Local | str | None, str], list[int]] = {}
        places = {work.world: place for place, work in enumerate(reversed(works))}
        for number, work in enumerate(works):
            if isinstance(work.ask, Train):
                local, route = work.ask.local, self._route_ask(work)
                pool = self._find_pool(work.world, route) if local.rule is not None else None
                world = work.world if pool is None else pool.world
                key = (id(world), local.optimizer, local if local.rule is not None else local.augment, str(route))
                buckets.setdefault(key, []).append(number)
        return [sorted(numbers, key=lambda number: places[works[number].world]) for numbers in buckets.values()]

    def _route(self, world: World, local: Local) -> Route:
        kind, kept = name_kind(world.model.text, local), self._get_cache(world)
        if kind not in kept.routes:
            route = choose_route(world, local, self.device)
            if self._pinned.get(kind, str(route)) != str(route):
                raise UserError(
                    f"The study was started on the route {self._pinned[kind]!r}, which is not available here ({route}: {route.why}): "
                    "resume it on the machine where it was started, or start over."
                )
            kept.routes[kind] = self.chosen[kind] = route
        return kept.routes[kind]

    def _get_cache(self, world: World) -> "WorldCache":
        if world not in self._caches:
            self._caches[world] = WorldCache(world, self.device, self.threads, self.precision, self.microbatch, holds=self.holds)
        return self._caches[world]


def make_engine(
    worlds: World | Mapping[int, World],
    engine: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    pinned: Mapping[str, str] | None = None,
    precision: Precision = "float32",
    microbatch: int | None = None,
    *,
    holds: bool = False,
) -> Engine:
    """The engine of this name for these worlds; the other arguments are those of `BatchedEngine`.

    With `holds`, models trained on a GPU stay there, and replies are arrays that are fetched when their numbers are read.
    """
    found = resolve_device(device)
    if choose_engine(engine, found) == "loop":
        return LoopEngine(worlds, found, threads=threads, precision=precision, microbatch=microbatch)
    return BatchedEngine(worlds, found, threads, pinned, precision, microbatch, holds=holds and found.startswith("cuda"))


def resolve_device(device: str) -> str:
    """The name of an available device; "auto" is the GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"The device {device!r} is not available here ({str(error).splitlines()[0]}): use cpu or auto.") from error
    return device


class WorldCache:
    """What is kept of one world. A dense network has its layer sizes and data from the start; everything else is made at first use."""

    def __init__(
        self, world: World, device: torch.device, threads: int, precision: Precision, microbatch: int | None, *, holds: bool
    ) -> None:
        self.world, self.device, self.precision, self.microbatch = world, device, precision, microbatch
        self.sizes = get_layer_sizes(world)
        self.dense = make_dense_evaluator(world.federation, self.sizes, device, threads, holds=holds)
        self.eval_sets = EvalSets(world.federation)
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
    """Answers asks that train nothing, with what is cached of a world, or in the loop. With `holds`, gradients stay on the device."""

    def __init__(
        self, get_cache: Callable[[World], WorldCache], loop: LoopEngine, threads: int, pool: ThreadPoolExecutor, *, holds: bool
    ) -> None:
        self.get_cache, self.loop, self.threads, self.pool, self.holds = get_cache, loop, threads, pool, holds

    def answers(self, works: Sequence[Work]) -> list[Any]:
        """All answers, on the CPU side by side where that is safe."""
        if not works:
            return []
        works = [fetch_models(work) if isinstance(self.get_cache(work.world).dense, NumpyEvaluator) else work for work in works]
        with use_one_thread():
            dense = self.loop.device.type == "cpu" and all(self.get_cache(work.world).dense is not None for work in works)
            spread: MapFunction = self._spread if dense else map
            made = {world: self._make_batch_evaluator(world, spread) for world in {work.world for work in works}}
            evaluators = {world: evaluator for world, evaluator in made.items() if evaluator is not None}
            found: dict[int, Any] = dict(evaluate_together(works, evaluators, spread))
            for numbers in self._group_gradients(works):
                route = self.get_cache(works[numbers[0]].world).get_stacked_trainer()
                found |= zip(numbers, compute_gradients_together([works[i] for i in numbers], route), strict=True)
            # the loop has one module of a world: not to be written to side by side
            found |= {i: self.loop.answer(work) for i, work in enumerate(works) if isinstance(work.ask, Describe | AskSubspaces)}
            left = [i for i in range(len(works)) if i not in found]
            alone = spread if len(works) == 1 else map  # then it has the cores to itself
            found |= zip(left, spread(lambda i: self._answer(works[i], alone), left), strict=True)
            return [found[i] for i in range(len(works))]

    def _group_gradients(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks for gradients that are answered together: of one world whose trainings are stacked on the device."""
        found: dict[World, list[int]] = {}
        for number, work in enumerate(works):
            if self.holds and isinstance(work.ask, Gradient) and self.get_cache(work.world).has_stacked_route:
                found.setdefault(work.world, []).append(number)
        return list(found.values())

    def _make_batch_evaluator(self, world: World, spread: MapFunction) -> BatchEvaluator | None:
        """Classifies with many models on the same samples; None where that needs the probabilities."""
        kept = self.get_cache(world)
        if kept.dense is not None:
            return BatchEvaluator(partial(kept.dense.classify, spread=spread), kept.eval_sets)
        return None if self.loop.device.type == "cpu" else BatchEvaluator(self.loop.space(world).classify_many, kept.eval_sets)

    def _spread(self, work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterable[Any]:
        """`map`, by the engine's threads: one piece, or one thread, is not worth handing over."""
        listed = list(pieces)
        return map(work, listed) if self.threads == 1 or len(listed) < 2 else map_with_helpers(self.pool, self.threads - 1, work, listed)

    def _answer(self, work: Work, spread: MapFunction = map) -> Any:
        ask, kept, federation = work.ask, self.get_cache(work.world), work.world.federation
        predict = partial(kept.dense.predict, spread=spread) if kept.dense is not None else self.loop.space(work.world).predict
        match ask:
            case Evaluate() if ask.serving.neighbours is not None:
                return self.loop.answer(work)  # which looks at features
            case Evaluate():
                classify = self._make_classifier(work.world, kept, spread)
                return evaluate(
                    ask, federation, predict, work.evaluation_parts(), classify, self._make_each_evaluator(work.world, kept, spread)
                )
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
        """Evaluates many models, each on its own samples, together; None where they are evaluated one after the other."""
        if kept.dense is not None:
            return kept.dense.each(spread)
        return StackedEachEvaluator(kept.get_stacked_trainer(), world.federation.task) if self.holds and kept.has_stacked_route else None

    def _make_classifier(self, world: World, kept: WorldCache, spread: MapFunction) -> Classify | None:
        """Predicted classes without the probabilities, where that is possible: on a GPU they are computed there."""
        dense = kept.dense
        if dense is not None:
            return lambda model, rows: dense.classify([model], rows, spread)[0]
        return None if self.loop.device.type == "cpu" else self.loop.space(world).classify


def compute_gradients_together(works: Sequence[Work], route: StackedTrainer) -> list[Gradients]:
    """The answers to asks of one world."""
    asks = [work.ask for work in works if isinstance(work.ask, Gradient)]
    held = [work.parts() for work in works]
    models = ConcatRows([RowBlock(len(ask.models), ask.models) for ask in asks], asks[0].models.shape[1]).on(route.device)
    firsts = np.cumsum([0, *(len(ask.models) for ask in asks)])
    start = np.concatenate([ask.start + first for ask, first in zip(asks, firsts, strict=False)])
    own = Parts.from_lists([parts[client] for ask, parts in zip(asks, held, strict=True) for client in ask.clients])
    found, losses = compute_stacked_gradients(route, models, start, own)
    vectors, ends = DeviceVectors.from_gradients(found).as_array(), np.cumsum([0, *(len(ask.clients) for ask in asks)])
    spans = [slice(begin, end) for begin, end in pairwise(ends)]
    return [Gradients(ask.clients, vectors[span], own.sizes[span], losses[span]) for ask, span in zip(asks, spans, strict=True)]
