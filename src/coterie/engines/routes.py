"""Which route executes a world's trainings: by rule, with the reason, so that it can be recorded and kept on resume.

`WorldCache` keeps, for each world, the routes chosen and the objects that train and evaluate its models.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from coterie.core.local import Local
from coterie.engines.captured import CapturedTrainer
from coterie.engines.device import Precision, as_tensor, get_stacked_memory
from coterie.engines.evaluation.batch import EvalSets
from coterie.engines.evaluation.dense import make_dense_evaluator
from coterie.engines.fused import cpu_route as fused_cpu
from coterie.engines.fused import gpu_route as fused_gpu
from coterie.engines.layer_kernels.chain import read_chain
from coterie.engines.loss import cross_entropy
from coterie.engines.route_checks import CHECK_LOCAL as TRIAL
from coterie.engines.route_checks import check_captured, check_stacked
from coterie.engines.stacked.route import ConvMode, StackedTrainer
from coterie.engines.workspace import LARGE_MODEL
from coterie.engines.world import World
from coterie.models.layers import is_stackable
from coterie.models.mlp import Mlp

RouteName = Literal["fused", "vectorised", "exact", "alone", "loop"]  # exact: vectorised, but only batches of equal size together


MOST_LAYER_SIZES = 4  # layer sizes of the deepest network with kernels: two hidden layers


@dataclass(frozen=True)
class Route:
    """How trainings are carried out, and why so."""

    name: RouteName
    why: str


def get_layer_sizes(world: World) -> tuple[int, ...]:
    """The layer sizes of a dense network with softmax cross-entropy on plain features; empty for any other world."""
    module, federation = world.model.module(), world.federation
    softmax = world.loss is cross_entropy and federation.task.counts_classes
    if type(module) is not Mlp or not softmax or federation.x.dtype.kind != "f":
        return ()
    return module.sizes if module.sizes[-1] > 1 else ()


def choose_route(world: World, local: Local, device: torch.device) -> Route:
    """The route for a world and an optimiser on a device."""
    if local.augment is not None:
        return _choose_captured(world, local, device, "images are augmented client by client")
    sizes = get_layer_sizes(world)
    if sizes and len(sizes) <= MOST_LAYER_SIZES and local.optimizer == "sgd" and local.rule is None:
        if device.type == "cuda" and fused_gpu.is_available() and fused_gpu.has_kernel(sizes):
            return Route("fused", "a dense network with SGD: whole trainings in Triton kernels")
        if device.type == "cpu" and fused_cpu.is_available():
            return Route("fused", "a dense network with SGD: whole trainings in compiled kernels")
    if device.type == "cpu" and any(isinstance(part, torch.nn.Conv2d) for part in world.model.module().modules()):
        return Route("loop", "convolutions fill a CPU by themselves: stacking clients would not be faster")
    if local.optimizer == "adamw" and local.rule is None:
        return Route("loop", "stacked trainings know SGD and Adam")
    module = world.model.module()
    if is_device_filling(module) and not (can_use_layer_kernels(device) and read_chain(module, world.federation.input_shape)):
        return _choose_captured(world, local, device, "a large model fills the device by itself")
    if local.rule is not None:
        reason = check_stacked(
            world, device=device, local=TRIAL.replace(rule=local.rule, optimizer=local.optimizer, momentum=local.momentum)
        )
        return Route("loop", reason) if reason else Route("vectorised", "a local rule, stacked over clients; a trial agreed with the loop")
    reason = check_stacked(world, device=device, convolutions=choose_conv_mode(device), known=can_use_layer_kernels(device))
    if reason is None:
        return Route("vectorised", "any module, stacked over clients; a trial agreed with the loop")
    if check_stacked(world, device=device, exact=True, convolutions=choose_conv_mode(device)) is None:
        return Route("exact", f"stacked over clients in batches of equal size, since with padded ones {reason}")
    return Route("loop", reason)


def is_device_filling(module: torch.nn.Module) -> bool:
    """Whether stacking clients would not pay: too much is trained, and not by adapters."""
    trained = sum(w.numel() for w in module.parameters() if w.requires_grad)
    return trained > LARGE_MODEL or bool(getattr(module, "fills_device", False))


def _choose_captured(world: World, local: Local, device: torch.device, why: str) -> Route:
    """Captured steps on a GPU where they give what the loop gives, and the loop anywhere else."""
    if device.type != "cuda" or local.rule is not None or local.optimizer == "adamw":
        return Route("loop", why)
    reason = check_captured(world, device)
    return Route("loop", f"{why}, and {reason}") if reason else Route("alone", f"{why}: its steps are captured, several clients in flight")


def choose_conv_mode(device: torch.device) -> ConvMode:
    """How stacked convolutions are carried out: as one matrix product a client on a GPU, in channel groups on a CPU."""
    return "products" if device.type == "cuda" else "grouped"


def can_use_layer_kernels(device: torch.device) -> bool:
    """Whether chains of known layers are stacked layer by layer, which is for GPUs; torch maps the rest, and on a CPU everything."""
    return device.type == "cuda"


class WorldCache:
    """One world. A dense network has its layer sizes and data from the beginning, everything else is made when it is first asked for."""

    def __init__(
        self, world: World, device: torch.device, threads: int, precision: Precision, microbatch: int | None, *, holds: bool
    ) -> None:
        self.world, self.device, self.precision, self.microbatch = world, device, precision, microbatch
        self.sizes = get_layer_sizes(world)
        self.dense = make_dense_evaluator(world.federation, self.sizes, device, threads, holds=holds)
        self.panels = EvalSets(world.federation)
        self.routes: dict[str, Route] = {}
        self._vectorised: dict[bool, StackedTrainer] = {}  # by whether batches are of exact size
        self._alone: CapturedTrainer | None = None

    @property
    def has_stacked_route(self) -> bool:
        """Whether trainings of this world were found to be stacked: then gradients can be."""
        return self.dense is None and any(route.name == "vectorised" for route in self.routes.values())

    def alone(self) -> CapturedTrainer:
        """What trains large models one by one."""
        if self._alone is None:
            x, y = as_tensor(self.world.federation.x), as_tensor(self.world.federation.y)
            settings = {"device": self.device, "precision": self.precision, "microbatch": self.microbatch}
            self._alone = CapturedTrainer(self.world.model.module(), self.world.loss, x, y, **settings)  # type: ignore[arg-type]
        return self._alone

    def get_stacked_trainer(self, *, exact: bool = False) -> StackedTrainer:
        """What trains and judges stacks of models."""
        if exact not in self._vectorised:
            module = self.world.model.module()
            self._vectorised[exact] = StackedTrainer(
                module,
                self.world.loss,
                as_tensor(self.world.federation.x),
                as_tensor(self.world.federation.y),
                device=self.device,
                memory=get_stacked_memory(self.device, one_body=is_stackable(module)),
                exact=exact,
                convolutions=choose_conv_mode(self.device),
                known=can_use_layer_kernels(self.device),
                precision=self.precision,
            )
        return self._vectorised[exact]
