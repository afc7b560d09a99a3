"""The batched engine: clients, seeds and methods are one batch dimension.

All asks to train that arrive together become one job, executed by the fastest route that suits the world (see `routes`). Everything else
is a few matrix products. Fused trainings and predictions depend on the ask alone: they are computed in pieces of fixed shape, whatever else
is asked at the same time. Stacked networks agree with themselves within float32 rounding.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie._util.errors import UserError
from coterie._util.threads import count_cores
from coterie.core.arrays import Floats, Ints
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines.device import Precision, fetch_tensor, limit_torch_threads, raise_device_errors, use_precision
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.evaluation.dense import TorchEvaluator
from coterie.engines.features import FeatureWorlds
from coterie.engines.fused import cpu_route as fused_cpu
from coterie.engines.fused import gpu_route as fused_gpu
from coterie.engines.inference import InferenceRunner, WorldCache
from coterie.engines.jobs import TrainingJob, merge_asks, send_rows, split_replies
from coterie.engines.local_engine import LocalEngine, Work
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import Route, choose_ask_route, choose_engine, choose_route, name_kind
from coterie.engines.stacked.local_rules import RuleJob
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
        self.threads = threads or count_cores()
        self.loop = LoopEngine(worlds, device, threads=threads, precision=precision, microbatch=microbatch)
        self._featured = FeatureWorlds(self.device, precision)
        self._pinned = dict(pinned or {})  # routes of a study that is resumed
        self._resident: dict[World, WorldCache] = {}
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="coterie-batched")
        self._answering = InferenceRunner(self._keep, self.loop, self.threads, self._pool, holds=holds)

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
            for number, answer in zip(others, self._answering.answers([works[i] for i in others]), strict=True):
                answers[number] = answer
        return answers

    def _train(self, works: Sequence[Work]) -> Sequence[Any]:
        """Asks of one world and one optimiser, in one job."""
        asks = [work.ask for work in works if isinstance(work.ask, Train)]
        kept = self._keep(works[0].world)
        route = self._route_ask(works[0])
        if route.name == "loop":
            return [self.loop.answer(work) for work in works]
        apart = (self.holds or route.name != "fused") and asks[0].local.rule is None
        job = merge_asks(works, asks, kept.sizes, apart=apart)
        if (rule := asks[0].local.rule) is not None:
            extra = {name: np.concatenate([ask.extra[name] for ask in asks]) for name in asks[0].extra}
            vectors, steps, more = kept.get_stacked_trainer().train_by_rule(RuleJob(job, rule, asks[0].local, extra))
            return split_replies(asks, job.samples(), vectors, steps, more)
        if route.name == "fused":
            vectors, steps = self._fused(job, kept)
        elif route.name == "captured":
            there, steps = kept.captured_trainer.train_on_device(job, asks[0].local)
            vectors = self._store_trained(there, job)
        else:
            assert asks[0].local.optimizer != "adamw"  # whose route is the loop
            there, steps = kept.get_stacked_trainer(exact=route.is_exact).train_on_device(job, asks[0].local.optimizer)
            vectors = self._store_trained(there, job)
        return split_replies(asks, job.samples(), vectors, steps)

    def _route_ask(self, work: Work) -> Route:
        """The route of one ask to train."""
        assert isinstance(work.ask, Train)
        world, local = work.world, work.ask.local

        def find_smallest_batch() -> int:
            return 1 if self._keep(world).sizes else self.loop.space(world).smallest_batch

        return choose_ask_route(self._route(world, local), world.federation.train.sizes, local.batch_size, find_smallest_batch)

    def _fused(self, job: TrainingJob, kept: WorldCache) -> tuple[Floats, Ints]:
        if self.device.type == "cuda":
            assert isinstance(kept.dense, TorchEvaluator)
            there, steps = fused_gpu.train_on_device(job, resident=(kept.dense.x, kept.dense.y))
            return self._store_trained(there, job), steps
        if not self.holds:
            return fused_cpu.train(job, self.threads)
        arrays = {"models": send_rows(job.models, self.device).numpy()}
        arrays |= {name: np.asarray(rows) for name in ("anchors", "linear") if (rows := getattr(job, name)) is not None}
        vectors, steps = fused_cpu.train(replace(job, **arrays), self.threads)  # type: ignore[arg-type]
        return self._store_trained(torch.from_numpy(vectors), job), steps

    def _store_trained(self, vectors: torch.Tensor, job: TrainingJob) -> Floats:
        """Trained models as replies have them: where they are, or fetched. Those that did not fit a GPU are on the host already."""
        if not self.holds or vectors.device.type != self.device.type:
            return fetch_tensor(vectors)
        return DeviceVectors.from_training(vectors, send_rows(job.models, vectors.device), job.start).as_array()

    def _group_trainings(self, works: Sequence[Work]) -> list[list[int]]:
        """The numbers of the asks to train, those of one world and one optimiser together; by a local rule, those of the same settings."""
        buckets: dict[tuple[int, str, Local | str | None, str], list[int]] = {}
        for number, work in enumerate(works):
            if isinstance(work.ask, Train):
                local = work.ask.local
                key = (id(work.world), local.optimizer, local if local.rule is not None else local.augment, str(self._route_ask(work)))
                buckets.setdefault(key, []).append(number)
        return list(buckets.values())

    def _route(self, world: World, local: Local) -> Route:
        kind, kept = name_kind(world.model.text, local), self._keep(world)
        if kind not in kept.routes:
            route = choose_route(world, local, self.device)
            if self._pinned.get(kind, str(route)) != str(route):
                raise UserError(
                    f"The study was started on the route {self._pinned[kind]!r}, which is not available here ({route}: {route.why}): "
                    "resume it on the machine where it was started, or start over."
                )
            kept.routes[kind] = self.chosen[kind] = route
        return kept.routes[kind]

    def _keep(self, world: World) -> WorldCache:
        if world not in self._resident:
            self._resident[world] = WorldCache(world, self.device, self.threads, self.precision, self.microbatch, holds=self.holds)
        return self._resident[world]


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
    """An engine that holds these worlds; `pinned` are the routes of a study that is resumed.

    With `holds`, what was trained on a GPU stays there, and replies are arrays that are fetched when their numbers are asked for.
    """
    found = resolve_device(device)
    if choose_engine(engine, found) == "loop":
        return LoopEngine(worlds, found, threads=threads, precision=precision, microbatch=microbatch)
    return BatchedEngine(worlds, found, threads, pinned, precision, microbatch, holds=holds and found.startswith("cuda"))


def resolve_device(device: str) -> str:
    """A device that is here: "auto" is the GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"The device {device!r} is not available here ({str(error).splitlines()[0]}): use cpu or auto.") from error
    return device
