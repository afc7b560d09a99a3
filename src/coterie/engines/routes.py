"""Which route carries out a world's trainings: by rule, with the reason, so that it can be written down and kept on resume."""

from dataclasses import dataclass
from typing import Literal

import torch

from coterie.core.local import Local
from coterie.engines.alone.trial import why_not_alone
from coterie.engines.fused.cpu import route as fused_cpu
from coterie.engines.fused.gpu import route as fused_gpu
from coterie.engines.loss import cross_entropy
from coterie.engines.stacked.chain import chain_of
from coterie.engines.vectorised.route import Convolutions
from coterie.engines.vectorised.trial import LOCAL as TRIAL
from coterie.engines.vectorised.trial import why_not_stacked
from coterie.engines.workspace import LARGE_MODEL
from coterie.engines.world import World
from coterie.models.mlp import Mlp

Name = Literal["fused", "vectorised", "exact", "alone", "loop"]  # exact: vectorised, but only batches of equal size together
DEEPEST = 4  # layer sizes of the deepest network with kernels: two hidden layers


@dataclass(frozen=True)
class Route:
    """How trainings are carried out, and why so."""

    name: Name
    why: str


def layer_sizes(world: World) -> tuple[int, ...]:
    """The layer sizes of a dense network with softmax cross-entropy on plain features; empty for any other world."""
    module, federation = world.model.module(), world.federation
    softmax = world.loss is cross_entropy and federation.task.counts_classes
    if type(module) is not Mlp or not softmax or federation.x.dtype.kind != "f":
        return ()
    return module.sizes if module.sizes[-1] > 1 else ()


def route_for(world: World, local: Local, device: torch.device) -> Route:
    """The route for a world and an optimiser on a device."""
    if local.augment is not None:
        return _one_by_one(world, local, device, "images are augmented client by client")
    sizes = layer_sizes(world)
    if sizes and len(sizes) <= DEEPEST and local.optimizer == "sgd" and local.rule is None:
        if device.type == "cuda" and fused_gpu.available() and fused_gpu.fits(sizes):
            return Route("fused", "a dense network with SGD: whole trainings in Triton kernels")
        if device.type == "cpu" and fused_cpu.available():
            return Route("fused", "a dense network with SGD: whole trainings in compiled kernels")
    if device.type == "cpu" and any(isinstance(part, torch.nn.Conv2d) for part in world.model.module().modules()):
        return Route("loop", "convolutions fill a CPU by themselves: stacking clients would not be faster")
    if local.optimizer == "adamw" and local.rule is None:
        return Route("loop", "stacked trainings know SGD and Adam")
    module = world.model.module()
    if fills_device(module) and not (knows_layers(device) and chain_of(module, world.federation.input_shape)):
        return _one_by_one(world, local, device, "a large model fills the device by itself")
    if local.rule is not None:
        reason = why_not_stacked(world, device=device, local=TRIAL.but(rule=local.rule, optimizer=local.optimizer, momentum=local.momentum))
        return Route("loop", reason) if reason else Route("vectorised", "a local rule, stacked over clients; a trial agreed with the loop")
    reason = why_not_stacked(world, device=device, convolutions=convolutions(device), known=knows_layers(device))
    if reason is None:
        return Route("vectorised", "any module, stacked over clients; a trial agreed with the loop")
    if why_not_stacked(world, device=device, exact=True, convolutions=convolutions(device)) is None:
        return Route("exact", f"stacked over clients in batches of equal size, since with padded ones {reason}")
    return Route("loop", reason)


def fills_device(module: torch.nn.Module) -> bool:
    """Whether stacking clients would not pay: too much is trained, and not by adapters."""
    trained = sum(w.numel() for w in module.parameters() if w.requires_grad)
    return trained > LARGE_MODEL or bool(getattr(module, "fills_device", False))


def _one_by_one(world: World, local: Local, device: torch.device, why: str) -> Route:
    """Captured steps on a GPU where they give what the loop gives, and the loop anywhere else."""
    if device.type != "cuda" or local.rule is not None or local.optimizer == "adamw":
        return Route("loop", why)
    reason = why_not_alone(world, device)
    return Route("loop", f"{why}, and {reason}") if reason else Route("alone", f"{why}: its steps are captured, several clients in flight")


def convolutions(device: torch.device) -> Convolutions:
    """How stacked convolutions are carried out: as one matrix product a client on a GPU, in channel groups on a CPU."""
    return "products" if device.type == "cuda" else "grouped"


def knows_layers(device: torch.device) -> bool:
    """Whether chains of known layers are stacked layer by layer, which is for GPUs; torch maps the rest, and on a CPU everything."""
    return device.type == "cuda"
