"""The routing table: which route and which backend execute the trainings of a world, and why.

`TABLE` is the only place where this is decided. `choose_route` walks it from the top and takes the first row whose condition holds and
whose check passes. A check trains a few samples on the route and in the loop, and compares the numbers (`route_checks`). The route is
recorded in the evidence, and a resumed study keeps it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import nn

from coterie.core.arrays import Ints
from coterie.core.local import Local
from coterie.engines.fused import cpu_route, gpu_route
from coterie.engines.layer_kernels.chain import read_chain
from coterie.engines.loss import cross_entropy
from coterie.engines.route_checks import CHECK_LOCAL, check_captured, check_stacked
from coterie.engines.rule_jobs import has_kernels
from coterie.engines.sampling import has_single_leftover
from coterie.engines.stacked.route import StackedOptions
from coterie.engines.workspace import LARGE_MODEL
from coterie.engines.world import World
from coterie.models.layers import is_stackable
from coterie.models.mlp import Mlp

RouteName = Literal["loop", "fused", "stacked", "captured"]
Backend = Literal["autograd", "numba", "triton", "cuda graph", "layer kernels", "adapters", "adapters, exact", "vmap", "vmap, exact"]

MOST_LAYER_SIZES = 4  # layer sizes of the deepest network with fused kernels: two hidden layers


@dataclass(frozen=True)
class Route:
    """How trainings are executed, and why. ``str(route)`` is what the evidence records."""

    name: RouteName
    backend: Backend
    why: str
    row: int | None = None  # of the table, from 1

    def __str__(self) -> str:
        return f"{self.name}: {self.backend}"

    @property
    def is_exact(self) -> bool:
        """Whether only batches of equal size are stacked."""
        return self.backend.endswith(", exact")


@dataclass(frozen=True)
class Case:
    """What the conditions of the table are about: a world, the settings of its trainings, and a device."""

    world: World
    local: Local
    device: torch.device

    @cached_property
    def module(self) -> nn.Module:
        return self.world.model.module()

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_rule(self) -> bool:
        return self.local.rule is not None

    @cached_property
    def fused_sizes(self) -> tuple[int, ...]:
        """The layer sizes of a dense network that is trained as fused kernels do it; empty where it is not."""
        sizes = get_layer_sizes(self.world)
        fits = len(sizes) <= MOST_LAYER_SIZES and self.local.optimizer == "sgd"
        return sizes if fits else ()

    @property
    def has_triton_kernel(self) -> bool:
        fits = self.is_cuda and bool(self.fused_sizes) and not self.has_rule
        return fits and gpu_route.is_available() and gpu_route.has_kernel(self.fused_sizes)

    @property
    def has_numba_kernel(self) -> bool:
        fits = self.is_cpu and bool(self.fused_sizes) and not self.has_rule
        return fits and cpu_route.is_available()

    @property
    def has_rule_kernel(self) -> bool:
        fits = self.is_cpu and bool(self.fused_sizes) and self.local.rule is not None and has_kernels(self.local.rule)
        return fits and cpu_route.is_available()

    @cached_property
    def has_convolution(self) -> bool:
        return any(isinstance(part, nn.Conv2d) for part in self.module.modules())

    @cached_property
    def options(self) -> StackedOptions:
        """How the world's trainings are stacked in padded batches."""
        return choose_stacked_options(self.world, self.device)

    @property
    def is_large(self) -> bool:
        """Whether the model fills the device: stacking clients is then slower, except in a chain of layers with kernels of their own."""
        trained = sum(w.numel() for w in self.module.parameters() if w.requires_grad)
        fills = trained > LARGE_MODEL or bool(getattr(self.module, "fills_device", False))
        return fills and self.options.backend != "layer kernels"

    @property
    def can_capture(self) -> bool:
        return self.is_cuda and not self.has_rule and self.local.optimizer != "adamw"

    def check_captured(self) -> str | None:
        return check_captured(self.world, self.device)

    def check_rule(self) -> str | None:
        own = CHECK_LOCAL.replace(rule=self.local.rule, optimizer=self.local.optimizer, momentum=self.local.momentum)
        return check_stacked(self.world, self.device, local=own)

    def check_padded(self) -> str | None:
        return check_stacked(self.world, self.device, self.options)

    def check_exact(self) -> str | None:
        return check_stacked(self.world, self.device, choose_stacked_options(self.world, self.device, exact=True))


@dataclass(frozen=True)
class Row:
    """A row of the table. The check returns why the route cannot be taken, or None; that reason is part of the `why` of a later row."""

    condition: str
    applies: Callable[[Case], bool]
    route: RouteName
    backend: Backend
    why: str
    check: Callable[[Case], str | None] | None = None


TABLE = (
    Row("augmented images, GPU, SGD or Adam", lambda c: c.local.augment is not None and c.can_capture, "captured", "cuda graph",
        "images are augmented client by client; several clients are in flight", Case.check_captured),
    Row("augmented images", lambda c: c.local.augment is not None, "loop", "autograd",
        "images are augmented client by client"),
    Row("dense network with at most two hidden layers, SGD, GPU", lambda c: c.has_triton_kernel, "fused", "triton",
        "a whole local training is one kernel"),
    Row("dense network with at most two hidden layers, SGD, CPU", lambda c: c.has_numba_kernel, "fused", "numba",
        "a whole local training is one compiled function"),
    Row("the same by a local rule that weighs samples", lambda c: c.has_rule_kernel, "fused", "numba",
        "each loop of the rule is such a training"),
    Row("convolutions, CPU", lambda c: c.is_cpu and c.has_convolution, "loop", "autograd",
        "convolutions fill a CPU: stacking clients is not faster"),
    Row("AdamW", lambda c: c.local.optimizer == "adamw" and not c.has_rule, "loop", "autograd",
        "the other routes have SGD and Adam"),
    Row("large model, GPU", lambda c: c.is_large and c.can_capture, "captured", "cuda graph",
        "a large model fills the device; several clients are in flight", Case.check_captured),
    Row("large model", lambda c: c.is_large, "loop", "autograd",
        "a large model fills the device"),
    Row("local rule of a method", lambda c: c.has_rule, "stacked", "vmap",
        "the rule's objective is mapped over clients", Case.check_rule),
    Row("local rule that cannot be stacked", lambda c: c.has_rule, "loop", "autograd",
        "its stacked training differs from the loop"),
    Row("chain of dense and convolutional layers, GPU", lambda c: c.options.backend == "layer kernels", "stacked", "layer kernels",
        "the layers have kernels for many clients", Case.check_padded),
    Row("adapters on a frozen body", lambda c: c.options.backend == "adapters", "stacked", "adapters",
        "the samples of all clients pass the frozen body as one batch", Case.check_padded),
    Row("any other module", lambda c: c.options.backend == "vmap", "stacked", "vmap",
        "torch.func maps the module over clients", Case.check_padded),
    Row("adapters that mix samples", lambda c: is_stackable(c.module), "stacked", "adapters, exact",
        "only batches of equal size are stacked", Case.check_exact),
    Row("module that mixes samples (batch norm)", lambda c: not is_stackable(c.module), "stacked", "vmap, exact",
        "only batches of equal size are stacked", Case.check_exact),
    Row("all others", lambda c: True, "loop", "autograd",
        "no stacked training agrees with the loop"),
)  # fmt: skip

SINGLE_SAMPLE = Route("loop", "autograd", "a last batch of one sample joins the batch before it")


def choose_route(world: World, local: Local, device: torch.device) -> Route:
    """The route of a world's trainings with these settings on a device. Checks take a moment: keep the result."""
    case, reason = Case(world, local, device), None
    for number, row in enumerate(TABLE, start=1):
        if not row.applies(case):
            continue
        failed = row.check(case) if row.check is not None else None
        if failed is None:
            return Route(row.route, row.backend, row.why if reason is None else f"{row.why} ({reason})", number)
        reason = reason or failed
    raise AssertionError("the last row applies to every case")


def choose_ask_route(route: Route, samples: Ints, batch_size: int | None, find_smallest_batch: Callable[[], int]) -> Route:
    """The route of one ask: its world's, except where some client's last batch has one sample and the stacked model needs more."""
    leaves_one = route.name == "stacked" and has_single_leftover(samples, batch_size)
    return SINGLE_SAMPLE if leaves_one and find_smallest_batch() > 1 else route


def choose_stacked_options(world: World, device: torch.device, *, exact: bool = False) -> StackedOptions:
    """How a world's trainings are stacked on a device: with layer kernels, with adapters, or mapped by torch."""
    module, on_gpu = world.model.module(), device.type == "cuda"
    chained = on_gpu and not exact and read_chain(module, world.federation.input_shape) is not None
    return StackedOptions(
        backend="layer kernels" if chained else "adapters" if is_stackable(module) else "vmap",
        exact=exact,
        convolutions="products" if on_gpu else "grouped",
        shares_tables=on_gpu and not exact,
    )


def choose_engine(engine: str, device: str) -> Literal["loop", "batched"]:
    """The engine of this name; Apple's GPUs have no float64, which the checks of the batched engine need."""
    return "loop" if engine == "loop" or device.startswith("mps") else "batched"


def get_layer_sizes(world: World) -> tuple[int, ...]:
    """The layer sizes of a dense network with softmax cross-entropy on plain features; empty for any other world."""
    module, federation = world.model.module(), world.federation
    softmax = world.loss is cross_entropy and federation.task.counts_classes
    if type(module) is not Mlp or not softmax or federation.x.dtype.kind != "f":
        return ()
    return module.sizes if module.sizes[-1] > 1 else ()


def name_kind(model: str, local: Local) -> str:
    """The kind of training that a route is recorded for: the model, its optimiser, and what else a route depends on."""
    rule = f" by {type(local.rule).__name__}" if local.rule is not None else ""
    augmented = f", augmented by {local.augment}" if local.augment is not None else ""
    return f"{model} with {local.optimizer}{rule}{augmented}"
