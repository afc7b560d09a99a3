"""The batched engine: clients, seeds and methods are one batch dimension.

All asks to train that arrive together become one job, carried out by the fastest route that suits the world (see `routes`).
Everything else is a few matrix products. Fused trainings and predictions depend on the ask alone: they are computed piece by piece in
fixed shapes, whatever else is asked at the same time. Stacked networks agree with themselves in other company within float32's rounding.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.core.arrays import Floats, Ints
from coterie.core.asks import Train
from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.threads import cores
from coterie.engines.answering import Answering
from coterie.engines.apart import all_on
from coterie.engines.batches import leaves_one_over
from coterie.engines.dense_tensors import DenseTensors
from coterie.engines.device_faults import device_faults_told
from coterie.engines.engine import Stamped
from coterie.engines.features import Featured
from coterie.engines.fused.cpu import route as fused_cpu
from coterie.engines.fused.gpu import route as fused_gpu
from coterie.engines.held.rows import TensorRows
from coterie.engines.job import FusedJob
from coterie.engines.local_engine import LocalEngine, Work
from coterie.engines.loop import LoopEngine
from coterie.engines.merge import merge, share_out
from coterie.engines.precision import Precision, products_in
from coterie.engines.resident import Resident
from coterie.engines.routes import Route, route_for
from coterie.engines.tensors import fetched
from coterie.engines.torch_threads import torch_threads
from coterie.engines.vectorised.by_rule import RuleJob
from coterie.engines.world import World


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
        self._resident: dict[World, Resident] = {}
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="coterie-batched")
        self._answering = Answering(self._keep, self.loop, self.threads, self._pool, holds=holds)

    def prepare(self, local: Local) -> None:
        for world in self.worlds.values():
            with device_faults_told(), torch_threads(1):
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
            for number, answer in zip(others, self._answering.answers([works[i] for i in others]), strict=True):
                answers[number] = answer
        return answers

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
            vectors, steps, more = kept.vectorised().train_by_rule(RuleJob(job, rule, asks[0].local, extra))
            return share_out(asks, job.samples(), vectors, steps, more)
        if route.name == "fused":
            vectors, steps = self._fused(job, kept)
        elif route.name == "alone":
            there, steps = kept.alone().train_on_device(job, asks[0].local)
            vectors = self._left(there, job)
        else:
            assert asks[0].local.optimizer != "adamw"  # whose route is the loop
            there, steps = kept.vectorised(exact=route.name == "exact").train_on_device(job, asks[0].local.optimizer)
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

    def _fused(self, job: FusedJob, kept: Resident) -> tuple[Floats, Ints]:
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

    def _left(self, vectors: torch.Tensor, job: FusedJob) -> Floats:
        """Trained models as replies have them: where they are, or fetched. Those that did not fit a GPU are on the host already."""
        if not self.holds or vectors.device.type != self.device.type:
            return fetched(vectors)
        return TensorRows.trained(vectors, all_on(job.models, vectors.device), job.start).as_array()

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

    def _keep(self, world: World) -> Resident:
        if world not in self._resident:
            self._resident[world] = Resident(world, self.device, self.threads, self.precision, self.microbatch, holds=self.holds)
        return self._resident[world]
