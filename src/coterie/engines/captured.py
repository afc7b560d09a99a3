"""The captured route: large models, client after client, each step replayed as a CUDA graph, several clients in flight where they fit.

A step of a large model is hundreds of operations, each too short to hide the time that Python needs to launch the next. Captured once for
each batch size, they are launched together. The bits are those of the operations: they do not depend on what else is in flight.
"""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.arrays import Floats, Ints
from coterie.core.layout import Layout
from coterie.core.local import Augmentation, Local, parse_augmentation
from coterie.core.model import get_sent_tensors, make_layout
from coterie.engines.device import Precision, autocast_pass, fetch_tensor, use_precision
from coterie.engines.jobs import TrainingJob, gather_starts, send_rows, send_some_rows
from coterie.engines.loss import Loss
from coterie.engines.sampling import iterate_batches
from coterie.engines.stacked.cuda_graphs import GraphCache
from coterie.engines.stacked.step import Stack, StepRule, update
from coterie.engines.workspace import DRAWS, augment_images, draw_augmentation
from coterie.engines.world import find_smallest_batch

STEPS_WORTH_CAPTURE = 8  # steps of one size of batch, taken or to come, that repay a capture
IN_FLIGHT = 4  # trainings at most: beyond that a device is busy anyway
SPARE = 0.3  # share of the device's free memory that is not used


@dataclass(frozen=True)
class CaptureSetting:
    """What all trainings of a world have in common: the model, the data on the device, and how a pass is made."""

    module: nn.Module
    layout: Layout
    loss: Loss
    x: Tensor
    y: Tensor
    dtype: torch.dtype
    precision: Precision
    microbatch: int | None
    augmentation: Augmentation | None
    rule: StepRule


class CapturedTraining:
    """A place for one training after the other."""

    def __init__(self, setting: CaptureSetting, stack: Stack) -> None:
        self.setting, self.stack = setting, stack
        self.device = setting.x.device
        self.captures = self.device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(self.device) if self.captures else None  # type: ignore[no-untyped-call]
        self.clock = torch.zeros((), dtype=torch.float64, device=self.device)
        self._places: dict[int, tuple[Tensor, Tensor]] = {}  # by size of batch: sample numbers and draws, where a captured step reads them
        self._graphs = GraphCache(STEPS_WORTH_CAPTURE, self.stream)

    def load(self, stack: Stack) -> None:
        """Begin another training."""
        self.stack.load(stack)
        self.clock.zero_()

    def step(self, samples: Tensor, draws: Tensor | None, left: int) -> None:
        """One step on these samples; `left` of this size are to come."""
        size = len(samples)
        if size not in self._places:
            self._places[size] = torch.zeros_like(samples), torch.zeros((size, DRAWS), device=self.device)
        place, drawn = self._places[size]
        place.copy_(samples)
        if draws is not None:
            drawn.copy_(draws)
        if self.captures:
            self._graphs.run(self._once, size, left)
        else:
            self._once(size)

    def _once(self, size: int) -> None:
        setting, stack = self.setting, self.stack
        weights = [w.view(s.shape).detach().requires_grad_() for s, w in zip(setting.layout.weights, stack.weights, strict=True)]
        others = [s for s in setting.layout.slices if s.kind != "weight"]
        tensors = {s.name: w for s, w in zip(setting.layout.weights, weights, strict=True)}
        tensors |= {s.name: tensor.view(s.shape) for s, tensor in zip(others, stack.others, strict=True)}
        self.clock.add_(1)
        gradients: list[Tensor | None] = [None] * len(weights)
        piece = setting.microbatch or size
        for begin in range(0, size, piece):
            found = torch.autograd.grad(self._loss(tensors, size, slice(begin, begin + piece)), weights, allow_unused=True)
            gradients = [g if old is None else old if g is None else old + g for old, g in zip(gradients, found, strict=True)]
        update(stack, gradients, self.clock, setting.rule)

    def _loss(self, tensors: dict[str, Tensor], size: int, piece: slice) -> Tensor:
        """The piece's share of the mean loss over the batch."""
        setting, (place, draws) = self.setting, self._places[size]
        numbers = place[piece]
        with torch.enable_grad():
            x = setting.x[numbers]
            if setting.augmentation is not None:
                x = augment_images(x, draws[piece], setting.augmentation)
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            with autocast_pass(setting.precision, self.device):
                outputs: Tensor = functional_call(setting.module, tensors, (x,))
            return setting.loss(outputs.to(setting.dtype), setting.y[numbers]).sum() / size


class CapturedTrainer:
    """The route for one module and its data, which stay on the device, and so do the places of trainings.

    Of the job, `sizes`, `x` and `y` are not looked at: the module and the resident tensors stand in their place.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision = "float32",
        microbatch: int | None = None,
    ) -> None:
        self.device, self.dtype, self.precision, self.microbatch = torch.device(device), dtype, precision, microbatch
        self.layout, self.loss = make_layout(module), loss
        self.x, self.y = x.to(self.device, dtype if x.is_floating_point() else x.dtype), y.to(self.device)
        self.smallest_batch = find_smallest_batch(module, x[:1].float() if x.is_floating_point() else x[:1])
        self.module = module.to(self.device, dtype).train()
        self._kinds = {name: tensor.dtype for name, tensor in get_sent_tensors(self.module)}
        self._trainings: dict[tuple[object, ...], list[CapturedTraining]] = {}

    def train(self, job: TrainingJob, local: Local) -> tuple[Floats, Ints]:
        """The trained models (n, d) and the steps (n,) that each took."""
        vectors, steps = self.train_on_device(job, local)
        return fetch_tensor(vectors), steps

    def train_on_device(self, job: TrainingJob, local: Local) -> tuple[Tensor, Ints]:
        """The same, the models left where they were trained."""
        rule = StepRule("adam" if local.optimizer == "adam" else "sgd", bool(job.weight_decay.any()))
        common = (self.module, self.layout, self.loss, self.x, self.y, self.dtype, self.precision, self.microbatch)
        setting = CaptureSetting(*common, parse_augmentation(local.augment), rule)
        models = send_rows(job.models, self.device)  # sent once, however many begin from one
        vectors = gather_starts(job.models, job.start, self.device)  # a training of no steps returns its start
        plans = [self._batches(job, i) for i in range(len(job.start))]
        with use_precision(self.precision):
            order = [int(i) for i in np.argsort([-len(plan) for plan in plans], kind="stable") if plans[i]]
            places = self._places(setting, job, models, len(order))
            for begin in range(0, len(order), len(places)):
                group = order[begin : begin + len(places)]
                self._train_concurrently(places[: len(group)], job, models, group, plans, local)
                for place, i in zip(places, group, strict=False):
                    vectors[i] = torch.cat([tensor.flatten().to(torch.float32) for tensor in place.stack.models()])
        return vectors, np.array([len(plan) for plan in plans], dtype=np.int64)

    def _train_concurrently(
        self, places: list[CapturedTraining], job: TrainingJob, models: Tensor, group: list[int], plans: list[list[Ints]], local: Local
    ) -> None:
        """These trainings, step by step in turn, each on a stream of its own."""
        rows, left = [], []
        for place, i in zip(places, group, strict=True):
            if self.device.type == "cuda":  # what the training before left here is still being read
                place.stream.wait_stream(torch.cuda.current_stream(self.device))
            with self._on(place):
                place.load(self._stack(job, models, i, place.setting.rule))
                rows.append(torch.split(torch.as_tensor(np.concatenate(plans[i]), device=self.device), [len(b) for b in plans[i]]))
                left.append(Counter(len(b) for b in plans[i]))
        for t in range(max(len(plans[i]) for i in group)):
            for place, i, own, coming in zip(places, group, rows, left, strict=True):
                if t < len(own):
                    coming[len(own[t])] -= 1
                    with self._on(place):
                        place.step(own[t], self._draws(job, i, t, len(own[t]), local), coming[len(own[t])])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _draws(self, job: TrainingJob, i: int, step: int, samples: int, local: Local) -> Tensor | None:
        if local.augment is None:
            return None
        return torch.as_tensor(draw_augmentation(int(job.keys[i]), step, samples), device=self.device)

    def _batches(self, job: TrainingJob, i: int) -> list[Ints]:
        own, limit = job.indices[job.offsets[i] : job.offsets[i + 1]], int(job.max_steps[i])
        size, epochs = int(job.batch_size[i]), int(job.epochs[i])
        return list(iterate_batches(int(job.keys[i]), own, size, epochs, None if limit < 0 else limit, self.smallest_batch))

    def _places(self, setting: CaptureSetting, job: TrainingJob, models: Tensor, trainings: int) -> list[CapturedTraining]:
        """Places for these trainings: as many as fit the device beside each other, by what a step was seen to take."""
        stack = self._stack(job, models, 0, setting.rule)
        key = (setting.rule, setting.augmentation, stack.shapes())
        places = self._trainings.setdefault(key, [])
        if not places:
            places.append(CapturedTraining(setting, stack))
        wanted = max(1, min(IN_FLIGHT, trainings)) if self.device.type == "cuda" else 1
        if wanted > len(places):
            need = self._measure_step_memory(places[0], job)
            free = torch.cuda.mem_get_info(self.device)[0] * (1 - SPARE)
            for _ in range(min(wanted, len(places) + int(free // need)) - len(places)):
                places.append(CapturedTraining(setting, self._stack(job, models, 0, setting.rule)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what was laid out on one stream is used on others
        return places

    def _measure_step_memory(self, place: CapturedTraining, job: TrainingJob) -> int:
        """Bytes that a step on the largest batch takes at its peak, seen by taking one; what it trains is overwritten afterwards."""
        size = int(np.minimum(job.batch_size, job.samples()).max())
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        with self._on(place):
            place.step(torch.zeros(size, dtype=torch.int64, device=self.device), None, 0)
        torch.cuda.synchronize(self.device)
        own = sum(tensor.nbytes for part in (place.stack.models(), place.stack.first, place.stack.second) for tensor in part)
        return 2 * (torch.cuda.max_memory_allocated(self.device) - before) + own

    def _stack(self, job: TrainingJob, models: Tensor, i: int, rule: StepRule) -> Stack:
        slices = self.layout.slices

        def pieces(vector: Tensor, *, trained: bool = True) -> list[Tensor]:
            return [vector[None, s.begin : s.end].to(self._kinds[s.name], copy=True) for s in slices if (s.kind == "weight") is trained]

        def own(table: Floats) -> Tensor:
            return send_some_rows(table, np.array([i]), self.device)[0]

        start = models[int(job.start[i])]
        weights, adam = pieces(start), rule.optimizer == "adam"
        anchors = [] if not job.mu.any() else pieces(start if job.anchors is None else own(job.anchors))
        numbers = (job.lr, job.momentum, job.weight_decay, job.mu, job.shifted)
        return Stack(
            weights=weights,
            others=pieces(start, trained=False),
            first=[torch.zeros_like(w) for w in weights] if adam or job.momentum.any() else [],
            second=[torch.zeros_like(w) for w in weights] if adam else [],
            anchors=anchors,
            linear=pieces(own(job.linear)) if job.linear is not None else [],
            settings=[torch.full((1, 1), float(values[i]), dtype=self.dtype, device=self.device) for values in numbers],
        )

    def _on(self, place: CapturedTraining) -> AbstractContextManager[object]:
        return torch.cuda.stream(place.stream) if self.device.type == "cuda" else nullcontext()
