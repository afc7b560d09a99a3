"""Which route carries out a problem's trainings: by rule, with the reason, so that it can be written down and kept on resume."""

from dataclasses import dataclass
from typing import Literal

import torch

from coterie.core.local import Local
from coterie.engines.fused.cpu import route as fused_cpu
from coterie.engines.fused.gpu import route as fused_gpu
from coterie.engines.problem import Problem, cross_entropy
from coterie.engines.vectorised.route import Convolutions
from coterie.engines.vectorised.trial import trial
from coterie.models.mlp import Mlp

Name = Literal["fused", "vectorised", "exact", "loop"]  # exact: vectorised, but only batches of equal size together
DEEPEST = 4  # layer sizes of the deepest network with kernels: two hidden layers


@dataclass(frozen=True)
class Route:
    """How trainings are carried out, and why so."""

    name: Name
    why: str


def layer_sizes(problem: Problem) -> tuple[int, ...]:
    """The layer sizes of a dense network with softmax cross-entropy on plain features; empty for any other problem."""
    module = problem.module()
    if type(module) is not Mlp or problem.loss is not cross_entropy or problem.federation.x.dtype.kind != "f":
        return ()
    return module.sizes if module.sizes[-1] > 1 else ()


def choose(problem: Problem, local: Local, device: torch.device) -> Route:
    """The route for a problem and an optimiser on a device."""
    sizes = layer_sizes(problem)
    if sizes and len(sizes) <= DEEPEST and local.optimizer == "sgd":
        if device.type == "cuda" and fused_gpu.available() and fused_gpu.fits(sizes):
            return Route("fused", "a dense network with SGD: whole trainings in Triton kernels")
        if device.type == "cpu" and fused_cpu.available():
            return Route("fused", "a dense network with SGD: whole trainings in compiled kernels")
    if device.type == "cpu" and any(isinstance(part, torch.nn.Conv2d) for part in problem.module().modules()):
        return Route("loop", "convolutions fill a CPU by themselves: stacking clients would not be faster")
    reason = trial(problem, device=device, convolutions=convolutions(device))
    if reason is None:
        return Route("vectorised", "any module, stacked over clients; a trial agreed with the loop")
    if trial(problem, device=device, exact=True, convolutions=convolutions(device)) is None:
        return Route("exact", f"stacked over clients in batches of equal size, since with padded ones {reason}")
    return Route("loop", reason)


def convolutions(device: torch.device) -> Convolutions:
    """How stacked convolutions are carried out: as one matrix product a client on a GPU, in channel groups on a CPU."""
    return "products" if device.type == "cuda" else "grouped"
