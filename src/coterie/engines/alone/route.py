"""The route of large models: client after client, each with the device's whole attention, and several in flight where they fit."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Floats, Ints
from coterie.core.augmentation import augmentation_of
from coterie.core.local import Local
from coterie.core.parameters import layout_of, sent
from coterie.engines.alone.training import Setting, Training
from coterie.engines.apart import all_on, begun_from, some_on
from coterie.engines.augment import draws_for
from coterie.engines.batches import batches
from coterie.engines.fitting import smallest_batch
from coterie.engines.job import FusedJob
from coterie.engines.loss import Loss
from coterie.engines.precision import Precision, products_in
from coterie.engines.tensors import fetched
from coterie.engines.vectorised.state import Rule, Stack

IN_FLIGHT = 4  # trainings at most: beyond that a device is busy anyway
SPARE = 0.3  # of the device's free memory that is left alone


class OneByOne:
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
        self.layout, self.loss = layout_of(module), loss
        self.x, self.y = x.to(self.device, dtype if x.is_floating_point() else x.dtype), y.to(self.device)
        self.least = smallest_batch(module, x[:1].float() if x.is_floating_point() else x[:1])
        self.module = module.to(self.device, dtype).train()
        self._kinds = {name: tensor.dtype for name, tensor in sent(self.module)}
        self._trainings: dict[tuple[object, ...], list[Training]] = {}

    def train(self, job: FusedJob, local: Local) -> tuple[Floats, Ints]:
        """The trained models (n, d) and the steps (n,) that each took."""
        vectors, steps = self.train_on_device(job, local)
        return fetched(vectors), steps

    def train_on_device(self, job: FusedJob, local: Local) -> tuple[Tensor, Ints]:
        """The same, the models left where they were trained."""
        rule = Rule("adam" if local.optimizer == "adam" else "sgd", bool(job.weight_decay.any()))
        setting = self._setting(rule, local)
        models = all_on(job.models, self.device)  # sent once, however many begin from one
        vectors = begun_from(job.models, job.start, self.device)  # a training of no steps returns its start
        plans = [self._batches(job, i) for i in range(len(job.start))]
        with products_in(self.precision):
            order = [int(i) for i in np.argsort([-len(plan) for plan in plans], kind="stable") if plans[i]]
            places = self._places(setting, job, models, len(order))
            for begin in range(0, len(order), len(places)):
                group = order[begin : begin + len(places)]
                self._side_by_side(places[: len(group)], job, models, group, plans, local)
                for place, i in zip(places, group, strict=False):
                    vectors[i] = torch.cat([tensor.flatten().to(torch.float32) for tensor in place.stack.models()])
        return vectors, np.array([len(plan) for plan in plans], dtype=np.int64)

    def _side_by_side(
        self, places: list[Training], job: FusedJob, models: Tensor, group: list[int], plans: list[list[Ints]], local: Local
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

    def _draws(self, job: FusedJob, i: int, step: int, samples: int, local: Local) -> Tensor | None:
        if local.augment is None:
            return None
        return torch.as_tensor(draws_for(int(job.keys[i]), step, samples), device=self.device)

    def _batches(self, job: FusedJob, i: int) -> list[Ints]:
        """The batches that the loop would take."""
        own, limit = job.indices[job.offsets[i] : job.offsets[i + 1]], int(job.max_steps[i])
        size, epochs = int(job.batch_size[i]), int(job.epochs[i])
        return list(batches(int(job.keys[i]), own, size, epochs, None if limit < 0 else limit, self.least))

    def _setting(self, rule: Rule, local: Local) -> Setting:
        how = augmentation_of(local.augment)
        return Setting(self.module, self.layout, self.loss, self.x, self.y, self.dtype, self.precision, self.microbatch, how, rule)

    def _places(self, setting: Setting, job: FusedJob, models: Tensor, trainings: int) -> list[Training]:
        """Places for these trainings: as many as fit the device beside each other, by what a step was seen to take."""
        stack = self._stack(job, models, 0, setting.rule)
        key = (setting.rule, setting.augmentation, stack.shapes())
        places = self._trainings.setdefault(key, [])
        if not places:
            places.append(Training(setting, stack))
        wanted = max(1, min(IN_FLIGHT, trainings)) if self.device.type == "cuda" else 1
        if wanted > len(places):
            need = self._needed(places[0], job)
            free = torch.cuda.mem_get_info(self.device)[0] * (1 - SPARE)
            for _ in range(min(wanted, len(places) + int(free // need)) - len(places)):
                places.append(Training(setting, self._stack(job, models, 0, setting.rule)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what was laid out on one stream is used on others
        return places

    def _needed(self, place: Training, job: FusedJob) -> int:
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

    def _stack(self, job: FusedJob, models: Tensor, i: int, rule: Rule) -> Stack:
        """A training's start and settings on the device."""
        slices = self.layout.slices

        def pieces(vector: Tensor, *, trained: bool = True) -> list[Tensor]:
            return [vector[None, s.begin : s.end].to(self._kinds[s.name], copy=True) for s in slices if (s.kind == "weight") is trained]

        def own(table: Floats) -> Tensor:
            return some_on(table, np.array([i]), self.device)[0]

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

    def _numbers(self, rows: Ints) -> Tensor:
        return torch.as_tensor(rows, device=self.device)

    def _on(self, place: Training) -> AbstractContextManager[object]:
        return torch.cuda.stream(place.stream) if self.device.type == "cuda" else nullcontext()
