"""A model by name: enough for a server and a site to build the same module and to start from the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from coterie.core.errors import UserError
from coterie.core.inputs import InputShape
from coterie.core.layout import InitialModels, Layout
from coterie.core.parameters import initial_models, layout_of, torch_seeded

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
        with torch_seeded(0):
            return self.build()

    @cached_property
    def layout(self) -> Layout:
        layout = layout_of(self.module())
        if not layout.weights:
            raise UserError(f"Model {self.text!r} has nothing to train: no parameter asks for a gradient.")
        return layout

    def initial(self, seed: int) -> InitialModels:
        """The keyed factory of initial models of one seed."""
        return initial_models(self.build, seed)
