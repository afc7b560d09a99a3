"""The batched engine: clients, seeds and methods are one batch dimension.

All asks to train that arrive together become one job, carried out by the fastest route that suits the problem (see `routes`).
Everything else is a few matrix products. An ask's answer depends on the ask alone: fused trainings and
predictions are computed piece by piece in fixed shapes, whatever else is asked at the same time.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from coterie.core.arrays import Floats, Ints
from coterie.core.asks import Error, Evaluate, Gradient, Gradients, Losses, Train
from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.threads import cores, one_thread
from coterie.engines.dense import DenseArrays, DenseDesk, DenseTensors
from coterie.engines.engine import Stamped, to_sharers
from coterie.engines.evaluate import judge
from coterie.engines.fused.cpu import route as fused_cpu
from coterie.engines.fused.gpu import route as fused_gpu
from coterie.engines.job import FusedJob
from coterie.engines.loop import LoopEngine
from coterie.engines.losses import errors, loss_table
from coterie.engines.merge import merge, share_out
from coterie.engines.problem import Problem
from coterie.engines.routes import Route, choose, convolutions, layer_sizes
from coterie.engines.tensors import as_tensor
from coterie.engines.torch_threads import torch_threads
from coterie.engines.vectorised.route import Vectorised

# Bytes that the vectorised route may stack: on a CPU what its caches hold, on a GPU a part of its memory.
MEMORY = {"cpu": 32 << 20, "cuda": 8 << 30}


class BatchedEngine:
    """Carries out asks together. `routes` says, for each kind of training it has met, the route and the reason."""

    name = "batched"

    def __init__(self, device: str = "cpu", threads: int | None = None, pinned: Mapping[str, str] | None = None) -> None:
        self.device = torch.device(device)
        self.threads = threads or cores()
        self.loop = LoopEngine(device, threads=threads)
        self.routes: dict[str, str] = {}
        self._pinned = dict(pinned or {})  # routes of a study that is resumed
        self._desks: WeakKeyDictionary[Problem, _Desk] = WeakKeyDictionary()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="coterie-batched")

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        return to_sharers(asks, self._run)

    def _run(self, asks: Sequence[Stamped]) -> list[Any]:
        answers: list[Any] = [None] * len(asks)
        with torch_threads(1):
            for numbers in _together(asks):
                for number, answer in zip(numbers, self._train([asks[i] for i in numbers]), strict=True):
                    answers[number] = answer
            others = [i for i, s in enumerate(asks) if not isinstance(s.ask, Train)]
            for number, answer in zip(others, self._survey([asks[i] for i in others]), strict=True):
                answers[number] = answer
        return answers

    def _survey(self, asks: Sequence[Stamped]) -> list[Any]:
        """Asks that train nothing, on the CPU side by side where that is safe."""
        if not asks:
            return []
        with one_thread():
            if self.device.type == "cpu" and all(self._desk(s.problem).dense is not None for s in asks):
                return list(self._pool.map(self._answer, asks))
            return [self._answer(s) for s in asks]

    def prepare(self, problem: Problem, local: Local) -> None:
        """Choose the route and compile what it needs ahead of time, so that this is not taken for training's."""
        with torch_threads(1):
            route = self._route(problem, local, self._desk(problem))
        if route.name == "fused" and self.device.type == "cpu":
            fused_cpu.warm_up()

    def _answer(self, stamped: Stamped) -> Any:
        """Everything that is not training."""
        ask, desk, federation = stamped.ask, self._desk(stamped.problem), stamped.problem.federation
        predict = desk.dense.predict if desk.dense is not None else self.loop.desk(stamped.problem).predict
        match ask:
            case Evaluate():
                return judge(ask, federation, predict, stamped.judged())
            case Losses():
                return loss_table(ask, stamped.parts(ask.part), predict)
            case Error():
                return errors(ask, stamped.parts(), federation.y, predict)
            case Gradient() if desk.dense is not None:
                parts = stamped.parts()
                found = [desk.dense.gradient(ask.models[s], parts[c]) for c, s in zip(ask.clients, ask.start, strict=True)]
                vectors, losses = np.stack([v for v, _ in found]), np.array([loss for _, loss in found])
                return Gradients(ask.clients, vectors, parts.sizes[ask.clients], losses)
        return self.loop.answer(ask, stamped)

    def _train(self, stamped: Sequence[Stamped]) -> Sequence[Any]:
        """Asks of one problem and one optimiser, in one job."""
        asks = [s.ask for s in stamped if isinstance(s.ask, Train)]
        desk = self._desk(stamped[0].problem)
        route = self._route(stamped[0].problem, asks[0].local, desk)
        if route.name == "loop":
            return [self.loop.answer(s.ask, s) for s in stamped]
        job = merge(stamped, asks, desk.sizes)
        if route.name == "fused":
            vectors, steps = self._fused(job, desk)
        else:
            vectors, steps = self._vectorised(stamped[0].problem, desk, exact=route.name == "exact").train(job, asks[0].local.optimizer)
        return share_out(asks, job.samples(), vectors, steps)

    def _fused(self, job: FusedJob, desk: "_Desk") -> tuple[Floats, Ints]:
        if self.device.type == "cuda":
            assert isinstance(desk.dense, DenseTensors)
            return fused_gpu.train(job, resident=(desk.dense.x, desk.dense.y))
        return fused_cpu.train(job, self.threads)

    def _vectorised(self, problem: Problem, desk: "_Desk", *, exact: bool) -> Vectorised:
        if desk.vectorised is None:
            desk.vectorised = Vectorised(
                problem.module(),
                problem.loss,
                as_tensor(problem.federation.x),
                as_tensor(problem.federation.y),
                device=self.device,
                memory=MEMORY[self.device.type],
                exact=exact,
                convolutions=convolutions(self.device),
            )
        return desk.vectorised

    def _route(self, problem: Problem, local: Local, desk: "_Desk") -> Route:
        kind = f"{problem.model} with {local.optimizer}"
        if kind not in desk.routes:
            route = choose(problem, local, self.device)
            if self._pinned.get(kind, route.name) != route.name:
                raise UserError(
                    f"The study was begun on the {self._pinned[kind]} route, which is not to be had here ({route.why}): "
                    "resume it where it was begun, or begin anew."
                )
            desk.routes[kind] = route
            self.routes[kind] = route.name
        return desk.routes[kind]

    def _desk(self, problem: Problem) -> "_Desk":
        if problem not in self._desks:
            self._desks[problem] = _Desk(problem, self.device)
        return self._desks[problem]


class _Desk:
    """What is kept for a problem: its layer sizes and data where it is a dense network, and the routes chosen."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.sizes = layer_sizes(problem)
        self.dense: DenseDesk | None = None
        if self.sizes:
            on_gpu = device.type == "cuda"
            self.dense = DenseTensors(problem.federation, self.sizes, device) if on_gpu else DenseArrays(problem.federation, self.sizes)
        self.vectorised: Vectorised | None = None
        self.routes: dict[str, Route] = {}


def _together(asks: Sequence[Stamped]) -> list[list[int]]:
    """The numbers of the asks to train, those of one problem and one optimiser together."""
    buckets: dict[tuple[int, str], list[int]] = {}
    for number, stamped in enumerate(asks):
        if isinstance(stamped.ask, Train):
            buckets.setdefault((id(stamped.problem), stamped.ask.local.optimizer), []).append(number)
    return list(buckets.values())
