"""The vectorised route: local trainings of any module, many clients of many lanes at once, through `torch.func`.

The parameters of a chunk of trainings are stacked, the module is mapped over the stack, and one backward pass of the summed losses
gives every training its own gradient. Trainings are sorted by their number of steps, so those that still train are always the first
rows. Short batches are padded with rows that weigh nothing; for modules that mix samples (batch norm) `exact` steps trainings with
equally large batches together instead. Whether a module may come here is decided by `vector_trial.trial`, by its numbers.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Floats, Ints
from coterie.core.layout import Slice
from coterie.core.parameters import layout_of
from coterie.engines.apart import all_on, begun_from, some_on
from coterie.engines.job import FusedJob
from coterie.engines.loss import Loss
from coterie.engines.precision import Precision, products_in
from coterie.engines.stacked.chain import chain_of
from coterie.engines.stacked.steps import ChainSteps
from coterie.engines.tensors import fetched
from coterie.engines.vectorised import plan
from coterie.engines.vectorised.by_rule import RuleJob, train_by_rule
from coterie.engines.vectorised.device_table import table_on
from coterie.engines.vectorised.graphs import CapturedSteps, capacity_for, given_up
from coterie.engines.vectorised.lookups import distinct, end_to_end
from coterie.engines.vectorised.memory import activation_bytes
from coterie.engines.vectorised.state import Optimizer, Rule, Shared, Stack
from coterie.engines.vectorised.step import Stepper

TABLES = 4  # of the memory at most the fourth part is tables that tokens are read in
KEPT = 2  # stacks whose captured steps are kept for the next round: chunks of one round are alike, rounds too
Convolutions = Literal["grouped", "products"]


def train(
    job: FusedJob,
    module: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    *,
    optimizer: Optimizer = "sgd",
    device: torch.device | str = "cpu",
    memory: int,
    exact: bool = False,
    convolutions: Convolutions = "grouped",
) -> tuple[Floats, Ints]:
    """The trained models (n, d) and the steps (n,) that each took; `memory` in bytes bounds what is stacked at a time."""
    route = Vectorised(module, loss, x, y, device=device, memory=memory, exact=exact, convolutions=convolutions)
    return route.train(job, optimizer)


class Vectorised:
    """The route for one module and its data, which stay on the device; on a GPU captured steps are kept from round to round.

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
        memory: int,
        exact: bool = False,
        convolutions: Convolutions = "grouped",
        dtype: torch.dtype = torch.float32,  # float64 for trials: then a kink of the ReLU cannot be mistaken for a fault
        known: bool = False,  # whether what is known of a module is used: of chains, layers are stacked, of tables, one a seed (`lookups`)
        precision: Precision = "float32",
    ) -> None:
        self.device, self.memory, self.exact, self.dtype = torch.device(device), memory, exact, dtype
        self.captures = self.device.type == "cuda" and not exact  # exact batches have too many shapes
        self.layout = layout_of(module)
        self.x, self.y = x.to(self.device, dtype if x.is_floating_point() else x.dtype), y.to(self.device)
        self.stepper = Stepper(
            module, self.layout, loss, self.x, self.y, products=convolutions == "products", dtype=dtype, precision=precision
        )
        self.precision = precision
        chain = chain_of(module, tuple(x.shape[1:])) if known and not exact else None
        self.chained = (
            None if chain is None else ChainSteps(chain, self.layout, loss, self.x, self.y, "tf32" if precision == "bf16" else precision)
        )
        self.lookup = self.stepper.lookup if known and not exact else None
        self._activations: int | None = None
        self._side: torch.cuda.Stream | None = None
        self._captured: OrderedDict[tuple[object, ...], CapturedSteps] = OrderedDict()

    def chunks(self, job: FusedJob, optimizer: Optimizer = "sgd", shared: Shared | None = None) -> list[Ints]:
        """The trainings that are stacked together: by rule from the job and the budget, for the record. Those without steps are in none."""
        sizes = [int(size) for size in np.unique(plan.buckets(job))]
        common = self.shared if shared is None else shared
        limit = {size: max(1, self.memory // self._bytes(job, common, optimizer, size)) for size in sizes}
        return plan.chunks(job, limit)

    def train(self, job: FusedJob, optimizer: Optimizer = "sgd") -> tuple[Floats, Ints]:
        """The trained models (n, d) and the steps (n,) that each took."""
        vectors, steps = self.train_on_device(job, optimizer)
        return fetched(vectors), steps

    def train_on_device(self, job: FusedJob, optimizer: Optimizer = "sgd") -> tuple[Tensor, Ints]:
        """`train`, the models left on the device."""
        with products_in(self.precision), self._stream():
            shared, reads = self._with_tables(job)
            # Models are spread over clients, and gathered again, on the device: copies of a large stack are slow on the host.
            vectors = begun_from(job.models, job.start, self.device)  # a training of no steps returns its start
            for trainings in self.chunks(job, optimizer, shared):
                ended = self._train_chunk(job, trainings, shared, Rule(optimizer, bool(job.weight_decay.any())), reads)
                rows = self._numbers(trainings).to(vectors.device)
                for s, tensor in zip(self.stepper.slices(shared), ended, strict=True):
                    vectors[rows, s.begin : s.end] = self._restored(s.name, tensor[: len(trainings)]).to(vectors.device, torch.float32)
            return vectors, job.steps()

    def train_by_rule(self, whole: RuleJob) -> tuple[Floats, Ints, Floats]:
        """The same by a local rule; and what its further loops trained (n, l, d)."""
        with products_in(self.precision), self._stream():
            return train_by_rule(self.stepper, self.layout, whole, lambda job: self.chunks(job, "adam"))  # room for two moments

    @property
    def _steps(self) -> Stepper | ChainSteps:
        return self.stepper if self.chained is None else self.chained

    def _arranged(self, name: str, rows: Tensor) -> Tensor:
        return rows if self.chained is None else self.chained.arranged(name, rows)

    def _restored(self, name: str, rows: Tensor) -> Tensor:
        return rows if self.chained is None else self.chained.restored(name, rows)

    def _numbers(self, rows: Ints) -> Tensor:
        return torch.as_tensor(rows, device=self.device)

    def _with_tables(self, job: FusedJob) -> tuple[Shared, Ints | None]:
        """What the trainings of a job have in common, tables that tokens are read in among it, and which of these each model reads in."""
        table = self.lookup
        if table is None or not len(job.start):
            return self.shared, None
        rows = all_on(job.models, self.device)[:, table.begin : table.end]
        which, firsts = distinct(rows)
        if len(firsts) * table.size * self.dtype.itemsize > self.memory // TABLES:
            return self.shared, None  # a table for each, or nearly
        return {**self.shared, table.name: self.stepper.typed(table.name, end_to_end(rows, firsts, table))}, which

    def _train_chunk(self, job: FusedJob, trainings: Ints, shared: Shared, rule: Rule, reads: Ints | None) -> list[Tensor]:
        """What the trainings of a chunk leave behind, as ``Stack.models()`` has it."""
        capacity = capacity_for(len(trainings)) if self.captures else len(trainings)
        stack = self._stack(job, np.append(trainings, np.repeat(trainings[:1], capacity - len(trainings))), shared, rule, reads)
        segments = plan.shrinking_prefixes(job.steps()[trainings])
        if self.captures:
            samples, counts = table_on(job, trainings, capacity, self.device)
            steps = self._captured_steps(stack, shared, rule, samples.shape[2])
            del stack  # its numbers lie in the captured one
            return steps.walk(segments, samples, counts)
        table = plan.table(job, trainings, capacity)
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

    def _stack(self, job: FusedJob, rows: Ints, shared: Shared, rule: Rule, reads: Ints | None) -> Stack:
        """The trainings' starts and settings on the device."""

        def pieces(table: Tensor, which: Ints, slices: list[Slice]) -> list[Tensor]:
            spread = self._numbers(which)
            return [self._arranged(s.name, self.stepper.typed(s.name, table[:, s.begin : s.end][spread])) for s in slices]

        def terms(table: Floats) -> list[Tensor]:
            """Of trainings that have rows of their own; those that fill a stack up repeat its first."""
            used, places = np.unique(rows, return_inverse=True)
            return pieces(some_on(table, used, self.device), places, trained)

        # models were sent once, with the job: every chunk begins from most of them
        models = pieces(all_on(job.models, self.device), job.start[rows], self.stepper.slices(shared))
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

    def _captured_steps(self, stack: Stack, shared: Shared, rule: Rule, width: int) -> CapturedSteps:
        """Captured steps of this shape, the stack's numbers loaded into them."""
        key = (rule, width, stack.shapes(), tuple((name, tensor.shape) for name, tensor in shared.items()))
        steps = self._captured.pop(key, None)
        if steps is not None:
            steps.load(stack, shared)
        else:
            while len(self._captured) >= KEPT:
                del self._captured[given_up(self._captured)]
            steps = CapturedSteps(stack, shared, width, partial(self._steps.step, rule=rule))
        self._captured[key] = steps
        return steps

    def passed_bytes(self, samples: int) -> int:
        """What a forward and a backward pass of so many samples keep on their way."""
        if self._activations is None:
            self._activations = activation_bytes(self.stepper, self.dtype)
        return samples * (2 * self._activations + self.x[:1].nbytes)

    def _bytes(self, job: FusedJob, shared: Shared, optimizer: Optimizer, width: int) -> int:
        """What one stacked training needs: parameters and the like, activations and their gradients, and its table of samples."""
        # the model, its gradient, a temporary and the model put aside; then what the settings call for
        copies = 4 + 3 * (optimizer == "adam") + int(job.momentum.any()) + int(job.mu.any()) + (job.linear is not None)
        stacked = sum(s.size * (copies if s.kind == "weight" else 2) for s in self.stepper.slices(shared)) * self.dtype.itemsize
        batch = min(width, int(plan.widths(job).max(initial=1)))
        return stacked + self.passed_bytes(batch) + batch * 4 * int(job.steps().max(initial=0))

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
