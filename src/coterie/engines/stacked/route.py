"""The stacked route: local trainings of any module, many clients of many lanes at once, through `torch.func`.

The parameters of a chunk of trainings are stacked, the module is mapped over the stack, and one backward pass of the summed losses gives
every training its own gradient. Trainings are sorted by their number of steps, so those that still train are always the first rows. Short
batches are padded with rows of zero weight; for modules that mix samples (batch norm) `exact` steps trainings with equally large batches
together instead. `routes` chooses this route and its options.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from coterie.core.arrays import Floats, Ints
from coterie.core.layout import Slice
from coterie.core.model import make_layout, use_torch_seed
from coterie.engines.device import Precision, autocast_pass, fetch_tensor, use_precision
from coterie.engines.jobs import TrainingJob, gather_starts, send_rows, send_some_rows
from coterie.engines.layer_kernels.chain import ChainStepper, read_chain
from coterie.engines.loss import Loss
from coterie.engines.rule_jobs import RuleJob, RuleResult
from coterie.engines.stacked import schedule
from coterie.engines.stacked.cuda_graphs import CapturedSteps, choose_eviction, round_capacity
from coterie.engines.stacked.local_rules import train_by_rule
from coterie.engines.stacked.schedule import make_step_table_on_device
from coterie.engines.stacked.step import Optimizer, Shared, Stack, StackedStepper, StepRule, concat_tables, find_distinct_rows


def measure_activation_bytes(stepper: StackedStepper, dtype: torch.dtype) -> int:
    """Bytes kept for each sample: four samples against two, so that parameters, kept as well, cancel out."""
    return max(0, _measure_saved_bytes(stepper, dtype, 4) - _measure_saved_bytes(stepper, dtype, 2)) // 2


def _measure_saved_bytes(stepper: StackedStepper, dtype: torch.dtype, samples: int) -> int:
    seen: dict[int, Tensor] = {}  # by address: a tensor kept by two operations is there once

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.data_ptr()] = tensor
        return tensor

    device = stepper.x.device
    numbers = torch.arange(samples, device=device) % len(stepper.x)
    copies = {
        name: tensor.detach()
        .to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        .requires_grad_(tensor.requires_grad)
        for name, tensor in [*stepper.module.named_parameters(), *stepper.module.named_buffers()]
    }
    stepper.module.train()
    rewritten = (stepper.rewrite_convolutions(), stepper.rewrite_for_vmap())
    with use_torch_seed(0), torch.enable_grad(), rewritten[0], rewritten[1], saved_tensors_hooks(keep, lambda tensor: tensor):
        with autocast_pass(stepper.precision, device):  # in bfloat16 half as much is kept of most
            outputs: Tensor = functional_call(stepper.module, copies, (stepper.x[numbers],))
        stepper.loss(outputs.to(dtype), stepper.y[numbers])
    return sum(tensor.nbytes for tensor in seen.values())


TABLES = 4  # of the memory at most the fourth part is tables that tokens are read in
KEPT = 2  # stacks whose captured steps are kept for the next round: chunks of one round are alike, rounds too


@dataclass(frozen=True)
class StackedOptions:
    """How a stack is executed. `routes.choose_stacked_options` chooses it for a world and a device."""

    backend: Literal["vmap", "layer kernels", "adapters"] = "vmap"
    exact: bool = False  # only batches of equal size step together; otherwise short ones are padded
    convolutions: Literal["grouped", "products"] = "grouped"
    shares_tables: bool = False  # whether tables that tokens are read in are stored once, not once a client


class StackedTrainer:
    """The route for one module and its data, which stay on the device; on a GPU captured steps are kept from round to round.

    `memory` in bytes bounds what is stacked at a time. Of a job, `sizes`, `x` and `y` are not read: the module and the tensors on the
    device take their place.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        *,
        device: torch.device | str = "cpu",
        memory: int,
        options: StackedOptions = StackedOptions(),  # noqa: B008 (immutable)
        dtype: torch.dtype = torch.float32,  # float64 for checks: then a kink of the ReLU cannot be mistaken for an error
        precision: Precision = "float32",
    ) -> None:
        self.device, self.memory, self.exact, self.dtype = torch.device(device), memory, options.exact, dtype
        self.captures = self.device.type == "cuda" and not self.exact  # exact batches have too many shapes
        self.layout = make_layout(module)
        self.x, self.y = x.to(self.device, dtype if x.is_floating_point() else x.dtype), y.to(self.device)
        kinds = {"products": options.convolutions == "products", "adapters": options.backend == "adapters"}
        self.stepper = StackedStepper(module, self.layout, loss, self.x, self.y, **kinds, dtype=dtype, precision=precision)
        self.precision = precision
        self.chained: ChainStepper | None = None
        if options.backend == "layer kernels":
            chain = read_chain(module, tuple(x.shape[1:]))
            kernels: Precision = "tf32" if precision == "bf16" else precision
            if chain is None:
                raise ValueError("The module is no chain of layers with kernels: use the backend 'vmap'.")
            self.chained = ChainStepper(chain, self.layout, loss, self.x, self.y, kernels)
        self.lookup = self.stepper.lookup if options.shares_tables else None
        self._activations: int | None = None
        self._side: torch.cuda.Stream | None = None
        self._captured: OrderedDict[tuple[object, ...], CapturedSteps] = OrderedDict()

    def chunks(self, job: TrainingJob, optimizer: Optimizer = "sgd", shared: Shared | None = None) -> list[Ints]:
        """The trainings that are stacked together: by rule from the job and the budget, for the record. Those without steps are in none."""
        sizes = [int(size) for size in np.unique(schedule.compute_buckets(job))]
        common = self.shared if shared is None else shared
        limit = {size: max(1, self.memory // self._estimate_bytes(job, common, optimizer, size)) for size in sizes}
        return schedule.split_chunks(job, limit)

    def train(self, job: TrainingJob, optimizer: Optimizer = "sgd") -> tuple[Floats, Ints]:
        """The trained models (n, d) and the steps (n,) that each took."""
        vectors, steps = self.train_on_device(job, optimizer)
        return fetch_tensor(vectors), steps

    def train_on_device(self, job: TrainingJob, optimizer: Optimizer = "sgd") -> tuple[Tensor, Ints]:
        """`train`, the models left on the device."""
        with use_precision(self.precision), self._stream():
            shared, reads = self._concat_tables(job)
            # Models are spread over clients, and gathered again, on the device: copies of a large stack are slow on the host.
            # a training of no steps returns its start
            vectors = gather_starts(send_rows(job.models, self.device), job.start, self.device)
            for trainings in self.chunks(job, optimizer, shared):
                ended = self._train_chunk(job, trainings, shared, StepRule(optimizer, bool(job.weight_decay.any())), reads)
                rows = self._numbers(trainings).to(vectors.device)
                for s, tensor in zip(self.stepper.slices(shared), ended, strict=True):
                    vectors[rows, s.begin : s.end] = self._to_module_order(s.name, tensor[: len(trainings)]).to(
                        vectors.device, torch.float32
                    )
            return vectors, job.steps()

    def train_by_rule(self, whole: RuleJob) -> RuleResult:
        """The same by a local rule, with all that it sends back."""
        with use_precision(self.precision), self._stream():
            return train_by_rule(self.stepper, self.layout, whole, lambda job: self.chunks(job, "adam"))  # room for two moments

    @property
    def _steps(self) -> StackedStepper | ChainStepper:
        return self.stepper if self.chained is None else self.chained

    def _to_layer_order(self, name: str, rows: Tensor) -> Tensor:
        return rows if self.chained is None else self.chained.to_layer_order(name, rows)

    def _to_module_order(self, name: str, rows: Tensor) -> Tensor:
        return rows if self.chained is None else self.chained.to_module_order(name, rows)

    def _numbers(self, rows: Ints) -> Tensor:
        return torch.as_tensor(rows, device=self.device)

    def _concat_tables(self, job: TrainingJob) -> tuple[Shared, Ints | None]:
        """What the trainings of a job have in common, tables that tokens are read in among it, and which of these each model reads in."""
        table = self.lookup
        if table is None or not len(job.start):
            return self.shared, None
        rows = send_rows(job.models, self.device)[:, table.begin : table.end]
        which, firsts = find_distinct_rows(rows)
        if len(firsts) * table.size * self.dtype.itemsize > self.memory // TABLES:
            return self.shared, None  # a table for each, or nearly
        return {**self.shared, table.name: self.stepper.cast_slice(table.name, concat_tables(rows, firsts, table))}, which

    def _train_chunk(self, job: TrainingJob, trainings: Ints, shared: Shared, rule: StepRule, reads: Ints | None) -> list[Tensor]:
        capacity = round_capacity(len(trainings)) if self.captures else len(trainings)
        stack = self._stack(job, np.append(trainings, np.repeat(trainings[:1], capacity - len(trainings))), shared, rule, reads)
        segments = schedule.compute_segments(job.steps()[trainings])
        if self.captures:
            samples, counts = make_step_table_on_device(job, trainings, capacity, self.device)
            steps = self._captured_steps(stack, shared, rule, samples.shape[2])
            del stack  # its numbers lie in the captured one
            return steps.run_segments(segments, samples, counts)
        table = schedule.make_step_table(job, trainings, capacity)
        samples, counts = torch.as_tensor(table.samples, device=self.device), torch.as_tensor(table.counts, device=self.device)
        clock = torch.zeros((), dtype=torch.float64, device=self.device)
        for segment in segments:
            active = slice(0, segment.active)
            part = stack.cut(active)
            for t in range(segment.begin, segment.end):
                clock += 1
                if self.exact:
                    self.stepper.exact_step(part, shared, samples[t, active], table.counts[t, active], clock, rule)
                else:
                    self._steps.step(part, shared, samples[t, active], counts[t, active], clock, rule)
        return stack.models()

    @cached_property
    def shared(self) -> Shared:
        """What is not sent, and so the same in all the trainings (a frozen body, a table of positions), is not stacked."""
        own = {s.name for s in self.layout.slices}
        everything = [*self.stepper.module.named_parameters(), *self.stepper.module.named_buffers()]
        return {
            name: tensor.detach().to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in everything
            if name not in own
        }

    def _stack(self, job: TrainingJob, rows: Ints, shared: Shared, rule: StepRule, reads: Ints | None) -> Stack:
        def pieces(table: Tensor, which: Ints, slices: list[Slice]) -> list[Tensor]:
            spread = self._numbers(which)
            return [self._to_layer_order(s.name, self.stepper.cast_slice(s.name, table[:, s.begin : s.end][spread])) for s in slices]

        def terms(table: Floats) -> list[Tensor]:
            """Of trainings that have rows of their own; those that fill a stack up repeat its first."""
            used, places = np.unique(rows, return_inverse=True)
            return pieces(send_some_rows(table, used, self.device), places, trained)

        # models were sent once, with the job: every chunk begins from most of them
        models = pieces(send_rows(job.models, self.device), job.start[rows], self.stepper.slices(shared))
        trained = [s for s in self.layout.slices if s.kind == "weight"]
        weights, adam = models[: len(trained)], rule.optimizer == "adam"
        anchors = [] if not job.mu.any() else [w.clone() for w in weights] if job.anchors is None else terms(job.anchors)
        settings = (job.lr, job.momentum, job.weight_decay, job.mu, job.shifted)
        return Stack(
            weights=weights,
            others=models[len(trained) :],
            first=[torch.zeros_like(w) for w in weights] if adam or job.momentum.any() else [],
            second=[torch.zeros_like(w) for w in weights] if adam else [],
            anchors=anchors,
            linear=terms(job.linear) if job.linear is not None else [],
            settings=[torch.as_tensor(values[rows, None], dtype=self.dtype, device=self.device) for values in settings],
            tables=[] if reads is None else [self._numbers(reads[job.start[rows], None])],
        )

    def _captured_steps(self, stack: Stack, shared: Shared, rule: StepRule, width: int) -> CapturedSteps:
        """Captured steps of this shape, the stack's numbers loaded into them."""
        key = (rule, width, stack.shapes(), tuple((name, tensor.shape) for name, tensor in shared.items()))
        steps = self._captured.pop(key, None)
        if steps is not None:
            steps.load(stack, shared)
        else:
            while len(self._captured) >= KEPT:
                del self._captured[choose_eviction(self._captured)]
            steps = CapturedSteps(stack, shared, width, partial(self._steps.step, rule=rule))
        self._captured[key] = steps
        return steps

    def estimate_pass_bytes(self, samples: int) -> int:
        """What a forward and a backward pass of so many samples keep between them."""
        if self._activations is None:
            self._activations = measure_activation_bytes(self.stepper, self.dtype)
        return samples * (2 * self._activations + self.x[:1].nbytes)

    def _estimate_bytes(self, job: TrainingJob, shared: Shared, optimizer: Optimizer, width: int) -> int:
        """What one stacked training needs: parameters and the like, activations and their gradients, and its table of samples."""
        # the model, its gradient, a temporary and the model put aside; then what the settings call for
        copies = 4 + 3 * (optimizer == "adam") + int(job.momentum.any()) + int(job.mu.any()) + (job.linear is not None)
        stacked = sum(s.size * (copies if s.kind == "weight" else 2) for s in self.stepper.slices(shared)) * self.dtype.itemsize
        batch = min(width, int(schedule.compute_batch_widths(job).max(initial=1)))
        return stacked + self.estimate_pass_bytes(batch) + batch * 4 * int(job.steps().max(initial=0))

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """On a GPU all the work goes to a stream of its own, as capturing asks."""
        if self.device.type != "cuda":
            yield
            return
        if self._side is None:  # one for good: freed memory is kept by stream, and a new stream could not use it
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        before = torch.cuda.current_stream(self.device)
        self._side.wait_stream(before)
        with torch.cuda.stream(self._side):
            yield
        before.wait_stream(self._side)
