"""The batched engine: clients, seeds and methods are one batch dimension.

All asks to train that arrive together become one job, carried out by the fastest route that suits the world (see `routes`).
Everything else is a few matrix products. An ask's answer depends on the ask alone: fused trainings and
predictions are computed piece by piece in fixed shapes, whatever else is asked at the same time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie.core.arrays import Floats, Ints
from coterie.core.asks import Error, Evaluate, Gradient, Gradients, Losses, Train
from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.threads import among, cores, one_thread
from coterie.engines.alone.route import OneByOne
from coterie.engines.apart import all_on
from coterie.engines.batches import leaves_one_over
from coterie.engines.dense import Spread
from coterie.engines.dense_arrays import DenseArrays
from coterie.engines.dense_choice import dense_for, each_of, losses_alone
from coterie.engines.dense_tensors import DenseTensors
from coterie.engines.engine import Stamped
from coterie.engines.evaluate import Judge, evaluate
from coterie.engines.features import Featured
from coterie.engines.free_memory import stacked_memory
from coterie.engines.fused.cpu import route as fused_cpu
from coterie.engines.fused.gpu import route as fused_gpu
from coterie.engines.gradients import gradients_of
from coterie.engines.held.rows import TensorRows
from coterie.engines.job import FusedJob
from coterie.engines.judging import Jury, judged_together
from coterie.engines.local_engine import LocalEngine, Work, at_hand
from coterie.engines.loop import LoopEngine
from coterie.engines.losses import errors, loss_table
from coterie.engines.merge import merge, share_out
from coterie.engines.own_models import Each
from coterie.engines.panels import Panels
from coterie.engines.precision import Precision, products_in
from coterie.engines.probing import gradients_together
from coterie.engines.routes import Route, convolutions, knows_layers, layer_sizes, route_for
from coterie.engines.tensors import as_tensor, fetched
from coterie.engines.torch_threads import torch_threads
from coterie.engines.vectorised.by_rule import RuleJob
from coterie.engines.vectorised.each import StackedEach
from coterie.engines.vectorised.route import Vectorised
from coterie.engines.world import World
from coterie.models.stacking import stacks_by_itself


class BatchedEngine(LocalEngine):
    """Carries out asks together."""

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
        holds: bool = False,  # whether trained models stay on the device until somebody asks for them
    ) -> None:
        super().__init__(worlds)
        self.device, self.precision, self.microbatch, self.holds = torch.device(device), precision, microbatch, holds
        self.threads = threads or cores()
        self.loop = LoopEngine(worlds, device, threads=threads, precision=precision, microbatch=microbatch)
        self._featured = Featured(self.device, precision)
        self._routes: dict[str, str] = {}
        self._pinned = dict(pinned or {})  # routes of a study that is resumed
        self._kept: dict[World, _Kept] = {}
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="coterie-batched")

    def prepare(self, local: Local) -> None:
        for world in self.worlds.values():
            with torch_threads(1):
                route = self._route(self._featured.of(world), local)
            if route.name == "fused" and self.device.type == "cpu":
                fused_cpu.warm_up()

    def _world(self, stamped: Stamped) -> World:
        return self._featured.of(super()._world(stamped))

    def routes(self) -> Mapping[str, str]:
        return self._routes

    def close(self) -> None:
        self.loop.close()
        self._pool.shutdown()

    def carry_out(self, works: Sequence[Work]) -> list[Any]:
        answers: list[Any] = [None] * len(works)
        with torch_threads(1), products_in(self.precision):
            for numbers in self._together(works):
                for number, answer in zip(numbers, self._train([works[i] for i in numbers]), strict=True):
                    answers[number] = answer
            others = [i for i, work in enumerate(works) if not isinstance(work.ask, Train)]
            for number, answer in zip(others, self._without_training([works[i] for i in others]), strict=True):
                answers[number] = answer
        return answers

    def _without_training(self, works: Sequence[Work]) -> list[Any]:
        """Asks that train nothing, on the CPU side by side where that is safe."""
        if not works:
            return []
        works = [at_hand(work) if isinstance(self._keep(work.world).dense, DenseArrays) else work for work in works]
        with one_thread():
            dense = self.device.type == "cpu" and all(self._keep(work.world).dense is not None for work in works)
            spread: Spread = self._spread if dense else map
            juries = {world: jury for world in {work.world for work in works} if (jury := self._jury(world, spread)) is not None}
            found: dict[int, Any] = dict(judged_together(works, juries, spread))
            for numbers in self._probing(works):
                route = self._vectorised(works[numbers[0]].world, self._keep(works[numbers[0]].world), exact=False)
                found |= zip(numbers, gradients_together([works[i] for i in numbers], route), strict=True)
            left = [i for i in range(len(works)) if i not in found]
            alone = spread if len(works) == 1 else map  # then it has the cores to itself
            found |= zip(left, spread(lambda i: self._answer(works[i], alone), left), strict=True)
            return [found[i] for i in range(len(works))]

    def _probing(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks for gradients that are answered together: of one world whose trainings are stacked on the device."""
        found: dict[World, list[int]] = {}
        for number, work in enumerate(works):
            if self.holds and isinstance(work.ask, Gradient) and self._keep(work.world).stacks:
                found.setdefault(work.world, []).append(number)
        return list(found.values())

    def _jury(self, world: World, spread: Spread) -> Jury | None:
        """What judges models on the same samples; None where probabilities are needed to tell."""
        kept = self._keep(world)
        if isinstance(kept.dense, DenseArrays):
            return Jury(partial(kept.dense.judge, spread=spread), kept.panels)
        if isinstance(kept.dense, DenseTensors):
            return Jury(kept.dense.judge_many, kept.panels)
        return None if self.device.type == "cpu" else Jury(self.loop.space(world).judge_many, kept.panels)

    def _spread(self, work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterable[Any]:
        """`map`, by the engine's threads: one piece, or one thread, is not worth handing over."""
        listed = list(pieces)
        return map(work, listed) if self.threads == 1 or len(listed) < 2 else among(self._pool, self.threads - 1, work, listed)

    def _answer(self, work: Work, spread: Spread = map) -> Any:
        """Everything that is not training."""
        ask, kept, federation = work.ask, self._keep(work.world), work.world.federation
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

    def _each(self, world: World, kept: "_Kept", spread: Spread) -> Each | None:
        """What judges many models, each on samples of its own; None where they are judged one after the other."""
        if kept.dense is not None:
            return each_of(kept.dense, spread)
        return StackedEach(self._vectorised(world, kept, exact=False), world.federation.task) if self.holds and kept.stacks else None

    def _judge(self, world: World, kept: "_Kept", spread: Spread) -> Judge | None:
        """The likeliest classes, where they can be had without the probabilities: on a GPU they are found there."""
        dense = kept.dense
        if isinstance(dense, DenseArrays):
            return lambda model, rows: dense.judge([model], rows, spread)[0]
        if isinstance(dense, DenseTensors):
            return dense.judge
        return None if self.device.type == "cpu" else self.loop.space(world).judge

    def _train(self, works: Sequence[Work]) -> Sequence[Any]:
        """Asks of one world and one optimiser, in one job."""
        asks = [work.ask for work in works if isinstance(work.ask, Train)]
        world, kept = works[0].world, self._keep(works[0].world)
        route = self._route(world, asks[0].local)
        if route.name == "loop" or self._needs_loop(works[0]):
            return [self.loop.answer(work) for work in works]
        apart = (self.holds or route.name != "fused") and asks[0].local.rule is None
        job = merge(works, asks, kept.sizes, apart=apart)
        if (rule := asks[0].local.rule) is not None:
            extra = {name: np.concatenate([ask.extra[name] for ask in asks]) for name in asks[0].extra}
            vectors, steps, more = self._vectorised(world, kept, exact=False).train_by_rule(RuleJob(job, rule, asks[0].local, extra))
            return share_out(asks, job.samples(), vectors, steps, more)
        if route.name == "fused":
            vectors, steps = self._fused(job, kept)
        elif route.name == "alone":
            there, steps = self._alone(world, kept).train_on_device(job, asks[0].local)
            vectors = self._left(there, job)
        else:
            assert asks[0].local.optimizer != "adamw"  # whose route is the loop
            there, steps = self._vectorised(world, kept, exact=route.name == "exact").train_on_device(job, asks[0].local.optimizer)
            vectors = self._left(there, job)
        return share_out(asks, job.samples(), vectors, steps)

    def _needs_loop(self, work: Work) -> bool:
        """Whether somebody's last batch would be too small for the model: the loop joins it to the one before."""
        assert isinstance(work.ask, Train)
        if (
            self._keep(work.world).sizes
            or self._route(work.world, work.ask.local).name == "alone"
            or self.loop.space(work.world).least == 1
        ):
            return False
        return leaves_one_over(work.world.federation.train.sizes, work.ask.local.batch_size)

    def _fused(self, job: FusedJob, kept: "_Kept") -> tuple[Floats, Ints]:
        if self.device.type == "cuda":
            assert isinstance(kept.dense, DenseTensors)
            there, steps = fused_gpu.train_on_device(job, resident=(kept.dense.x, kept.dense.y))
            return self._left(there, job), steps
        if not self.holds:
            return fused_cpu.train(job, self.threads)
        arrays = {"models": all_on(job.models, self.device).numpy()}
        arrays |= {name: np.asarray(rows) for name in ("anchors", "linear") if (rows := getattr(job, name)) is not None}
        vectors, steps = fused_cpu.train(replace(job, **arrays), self.threads)  # type: ignore[arg-type]
        return self._left(torch.from_numpy(vectors), job), steps

    def _alone(self, world: World, kept: "_Kept") -> OneByOne:
        if kept.alone is None:
            x, y = as_tensor(world.federation.x), as_tensor(world.federation.y)
            settings = {"device": self.device, "precision": self.precision, "microbatch": self.microbatch}
            kept.alone = OneByOne(world.model.module(), world.loss, x, y, **settings)  # type: ignore[arg-type]
        return kept.alone

    def _left(self, vectors: torch.Tensor, job: FusedJob) -> Floats:
        """Trained models as replies have them: where they are, or fetched. Those that did not fit a GPU are on the host already."""
        if not self.holds or vectors.device.type != self.device.type:
            return fetched(vectors)
        return TensorRows.trained(vectors, all_on(job.models, vectors.device), job.start).as_array()

    def _vectorised(self, world: World, kept: "_Kept", *, exact: bool) -> Vectorised:
        if exact not in kept.vectorised:
            module = world.model.module()
            kept.vectorised[exact] = Vectorised(
                module,
                world.loss,
                as_tensor(world.federation.x),
                as_tensor(world.federation.y),
                device=self.device,
                memory=stacked_memory(self.device, one_body=stacks_by_itself(module)),
                exact=exact,
                convolutions=convolutions(self.device),
                known=knows_layers(self.device),
                precision=self.precision,
            )
        return kept.vectorised[exact]

    def _together(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks to train, those of one world and one optimiser together; by a local rule, those of the same settings."""
        buckets: dict[tuple[int, str, Local | str | None, bool], list[int]] = {}
        for number, work in enumerate(works):
            if isinstance(work.ask, Train):
                local = work.ask.local
                key = (id(work.world), local.optimizer, local if local.rule is not None else local.augment, self._needs_loop(work))
                buckets.setdefault(key, []).append(number)
        return list(buckets.values())

    def _route(self, world: World, local: Local) -> Route:
        by = f" by {type(local.rule).__name__}" if local.rule is not None else ""
        by += f", augmented by {local.augment}" if local.augment is not None else ""
        kind, kept = f"{world.model.text} with {local.optimizer}{by}", self._keep(world)
        if kind not in kept.routes:
            route = route_for(world, local, self.device)
            if self._pinned.get(kind, route.name) != route.name:
                raise UserError(
                    f"The study was begun on the {self._pinned[kind]} route, which is not to be had here ({route.why}): "
                    "resume it where it was begun, or begin anew."
                )
            kept.routes[kind] = route
            self._routes[kind] = route.name
        return kept.routes[kind]

    def _keep(self, world: World) -> "_Kept":
        if world not in self._kept:
            self._kept[world] = _Kept(world, self.device, self.threads, holds=self.holds)
        return self._kept[world]


class _Kept:
    """What is kept for a world: its layer sizes and data where the model is a dense network, and the routes chosen."""

    def __init__(self, world: World, device: torch.device, threads: int, *, holds: bool) -> None:
        self.sizes = layer_sizes(world)
        self.dense = dense_for(world.federation, self.sizes, device, threads, holds=holds)
        self.panels = Panels(world.federation)
        self.vectorised: dict[bool, Vectorised] = {}  # by whether batches are of exact size
        self.alone: OneByOne | None = None
        self.routes: dict[str, Route] = {}

    @property
    def stacks(self) -> bool:
        """Whether trainings of this world were found to be stacked: then gradients can be."""
        return self.dense is None and any(route.name == "vectorised" for route in self.routes.values())
