"""A model by name, its layout, and its values as one flat float32 vector. The only module of the core that needs torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.arrays import Floats
from coterie.core.layout import InitialModels, InputShape, Layout, Slice, TensorKind
from coterie.core.rng import make_key


def get_sent_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """By name, what crosses the wire: the parameters that are trained, in order, and then the buffers.

    Frozen parameters, buffers that a module does not save, and those of its `fixed_parts` never do: they are the same wherever the model is
    built, and belong to what its spec names.
    """
    trained = [(name, w) for name, w in module.named_parameters() if w.requires_grad]
    unsaved, fixed = set(), []
    for path, part in module.named_modules():
        begin = f"{path}." if path else ""
        unsaved |= {begin + name for name in part._non_persistent_buffers_set}
        fixed += [f"{begin}{name}." for name in getattr(part, "fixed_parts", ())]
    kept = [(name, b) for name, b in module.named_buffers() if name not in unsaved and not name.startswith(tuple(fixed))]
    return [*trained, *kept]


def make_layout(module: nn.Module) -> Layout:
    """The layout of a module's vector."""
    norms = {path for path, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)}
    slices: list[Slice] = []
    begin = 0
    for name, tensor in get_sent_tensors(module):
        kind: TensorKind = "weight" if tensor.requires_grad else "statistic" if tensor.is_floating_point() else "counter"
        slices.append(Slice(name, tuple(tensor.shape), begin, kind, norm=name.rpartition(".")[0] in norms))
        begin += tensor.numel()
    return Layout(tuple(slices))


def read_vector(module: nn.Module) -> Floats:
    """What is sent of a module as one flat float32 vector."""
    tensors = [tensor for _, tensor in get_sent_tensors(module)]
    return np.concatenate([t.detach().to(torch.float32).cpu().numpy().ravel() for t in tensors], dtype=np.float32)


@torch.no_grad()
def write_vector(module: nn.Module, vector: torch.Tensor) -> None:
    """Set what is sent of a module from a flat vector."""
    begin = 0
    for _, tensor in get_sent_tensors(module):
        value = vector[begin : begin + tensor.numel()].view(tensor.shape)
        tensor.copy_(value if tensor.is_floating_point() else value.round())
        begin += tensor.numel()


@contextmanager
def use_torch_seed(seed: int) -> Iterator[None]:
    """Torch's global generator, seeded for a block and put back afterwards: the one door through which it is ever used."""
    devices = range(torch.cuda.device_count())  # none on a machine without a GPU
    with torch.random.fork_rng(devices=devices):
        # Where there is no GPU, not by torch.manual_seed: it would note for one, with all of the call stack, that it is to be seeded later.
        (torch.manual_seed if devices else torch.default_generator.manual_seed)(seed & 0x7FFFFFFFFFFFFFFF)
        yield


def make_initial_models(build: Callable[[], nn.Module], seed: int) -> InitialModels:
    """Initial models from the module's own initialisation, keyed by (seed, "init", i)."""

    def init(i: int = 0) -> Floats:
        with use_torch_seed(make_key(seed, "init", i)):
            return read_vector(build())

    return init


MakeModule = Callable[[str, InputShape, int], nn.Module]  # the spec, the shape of a sample, the number of outputs -> a module


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """What is trained, as text; `make` turns the text into a module."""

    text: str
    input_shape: InputShape
    outputs: int
    make: MakeModule

    def build(self) -> nn.Module:
        """A module with initial values from torch's global generator."""
        return self.make(self.text, self.input_shape, self.outputs)

    def module(self) -> nn.Module:
        """A module to be written to: its initial values do not matter, and drawing them leaves torch's global generator alone."""
        with use_torch_seed(0):
            return self.build()

    @cached_property
    def layout(self) -> Layout:
        layout = make_layout(self.module())
        if not layout.weights:
            raise UserError(f"Model {self.text!r} has nothing to train: no parameter asks for a gradient.")
        return layout

    def initial(self, seed: int) -> InitialModels:
        """The keyed factory of initial models of one seed."""
        return make_initial_models(self.build, seed)
