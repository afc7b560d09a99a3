"""The captured route: large models, client after client, each step replayed as a CUDA graph, several clients in flight where they fit.

A step of a large model is hundreds of operations, each too short to hide the time that Python needs to launch the next. Captured once for
each batch size, they are launched together. The bits are those of the operations: they do not depend on what else is in flight.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Floats, Ints
from coterie.core.local import Local, parse_augmentation
from coterie.core.model import get_sent_tensors, make_layout
from coterie.engines.captured.rewrites import rewrite_module
from coterie.engines.captured.training import CapturedTraining, CaptureSetting, ModelBlocks
from coterie.engines.device import Precision, fetch_tensor, use_precision
from coterie.engines.jobs import TrainingJob, gather_starts, send_rows, send_some_rows
from coterie.engines.loss import Loss
from coterie.engines.sampling import iterate_batches
from coterie.engines.stacked.step import Stack, StepRule
from coterie.engines.workspace import draw_augmentation
from coterie.engines.world import find_smallest_batch

IN_FLIGHT = 8  # trainings at most: beyond that a device is busy anyway
SPARE = 0.3  # share of the device's free memory that is not used


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
        self.loss, self.channels_last = loss, True
        self.x, self.y = x.to(self.device, dtype if x.is_floating_point() else x.dtype), y.to(self.device)
        self.smallest_batch = find_smallest_batch(module, x[:1].float() if x.is_floating_point() else x[:1])
        module = module.to(self.device, dtype).train()
        types = {name: tensor.dtype for name, tensor in get_sent_tensors(module)}
        shortens = precision == "bf16" and dtype == torch.float32
        self.blocks = ModelBlocks(module, make_layout(module), types, shortens=shortens, channels_last=self.channels_last)
        self.module = rewrite_module(module) if self.channels_last else module
        self._trainings: dict[tuple[object, ...], list[CapturedTraining]] = {}

    def train(self, job: TrainingJob, local: Local) -> tuple[Floats, Ints]:
        """The trained models (n, d) and the steps (n,) that each took."""
        vectors, steps = self.train_on_device(job, local)
        return fetch_tensor(vectors), steps

    def train_on_device(self, job: TrainingJob, local: Local) -> tuple[Tensor, Ints]:
        """The same, the models left where they were trained."""
        rule = StepRule("adam" if local.optimizer == "adam" else "sgd", bool(job.weight_decay.any()))
        common = (self.module, self.blocks, self.loss, self.x, self.y, self.dtype, self.precision, self.microbatch)
        setting = CaptureSetting(*common, parse_augmentation(local.augment), rule, self.channels_last)
        models = send_rows(job.models, self.device)  # sent once, however many begin from one
        vectors = gather_starts(models, job.start, self.device)  # a training of no steps returns its start
        plans = [self._batches(job, i) for i in range(len(job.start))]
        steps = np.array([len(plan) for plan in plans], dtype=np.int64)
        with use_precision(self.precision):
            places = self._places(setting, job, models, int((steps > 0).sum()))
            pending = [
                self._train_in_turn(place, job, models, own, plans, local, vectors)
                for place, own in zip(places, share_out(steps, len(places)), strict=True)
            ]
            while pending:  # a step of each in turn: all streams have work
                pending = [training for training in pending if next(training, None) is not None]
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        return vectors, steps

    def _train_in_turn(
        self, place: CapturedTraining, job: TrainingJob, models: Tensor, own: list[int], plans: list[list[Ints]], local: Local, out: Tensor
    ) -> Iterator[int]:
        """These trainings, one after the other, on the place's stream; one step at a time."""
        if not own:
            return
        # Everything is sent before the first step: a copy from the host waits for the stream
        samples = torch.as_tensor(np.concatenate([batch for i in own for batch in plans[i]]), device=self.device)
        draws = self._draws(job, own, plans) if local.augment is not None else None
        if self.device.type == "cuda":
            place.stream.wait_stream(torch.cuda.current_stream(self.device))
        begin = 0
        for i in own:
            left = Counter(len(batch) for batch in plans[i])
            with self._on(place):
                place.load(self._stack(job, models, i, place.setting.rule))
            for batch in plans[i]:
                span = slice(begin, begin + len(batch))
                begin, left[len(batch)] = span.stop, left[len(batch)] - 1
                with self._on(place):
                    place.step(samples[span], None if draws is None else draws[span], left[len(batch)])
                yield i
            with self._on(place):
                out[i] = self.blocks.read_vector(place.stack)

    def _draws(self, job: TrainingJob, own: list[int], plans: list[list[Ints]]) -> Tensor:
        drawn = [draw_augmentation(int(job.keys[i]), t, len(batch)) for i in own for t, batch in enumerate(plans[i])]
        return torch.as_tensor(np.concatenate(drawn), device=self.device)

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
        return places[:wanted]

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
        def own(table: Floats) -> list[Tensor]:
            return self.blocks.gather_weights(send_some_rows(table, np.array([i]), self.device)[0], self.dtype)

        start = models[int(job.start[i])]
        weights, adam = self.blocks.gather_weights(start, self.dtype), rule.optimizer == "adam"
        anchors = [] if not job.mu.any() else [w.clone() for w in weights] if job.anchors is None else own(job.anchors)
        numbers = (job.lr, job.momentum, job.weight_decay, job.mu, job.shifted)
        return Stack(
            weights=weights,
            others=self.blocks.gather_others(start),
            first=[torch.zeros_like(w) for w in weights] if adam or job.momentum.any() else [],
            second=[torch.zeros_like(w) for w in weights] if adam else [],
            anchors=anchors,
            linear=own(job.linear) if job.linear is not None else [],
            settings=[torch.full((1, 1), float(values[i]), dtype=self.dtype, device=self.device) for values in numbers],
        )

    def _on(self, place: CapturedTraining) -> AbstractContextManager[object]:
        return torch.cuda.stream(place.stream) if self.device.type == "cuda" else nullcontext()


def share_out(steps: Ints, places: int) -> list[list[int]]:
    """Which trainings each place takes: the longest first, each by the place that has the fewest steps so far; none of no steps."""
    own: list[list[int]] = [[] for _ in range(places)]
    taken = [0] * places
    for i in np.argsort(-steps, kind="stable"):
        if steps[i]:
            place = taken.index(min(taken))
            own[place].append(int(i))
            taken[place] += int(steps[i])
    return own
