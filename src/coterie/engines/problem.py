"""A problem: what is learned (a model and its loss) and from what (a federation)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.errors import UserError
from coterie.core.layout import InitialModels, Layout
from coterie.core.parameters import initial_models, layout_of, torch_seeded
from coterie.core.roster import Roster
from coterie.data.federation import Federation
from coterie.models.catalogue import build

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (n, C) and class numbers (n,) -> losses (n,), one a sample


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy; with a single output, logistic loss of a two-class task."""
    if outputs.shape[-1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs[..., 0], targets.to(outputs.dtype), reduction="none")
    return functional.cross_entropy(outputs, targets, reduction="none")


def probabilities(outputs: Tensor) -> Tensor:
    """(n, C) class probabilities from a model's outputs; one output means two classes."""
    if outputs.shape[-1] == 1:
        one = torch.sigmoid(outputs)
        return torch.cat([1 - one, one], dim=-1)
    return torch.softmax(outputs, dim=-1)


@dataclass(frozen=True, eq=False)  # compared by identity: engines keep compiled things and tensors for each problem
class Problem:
    """A federation, the module its clients train, and the loss."""

    federation: Federation
    model: str  # the spec, for the record
    build: Callable[[], nn.Module]
    loss: Loss = field(default=cross_entropy)

    @classmethod
    def of(cls, federation: Federation, model: str, loss: Loss = cross_entropy) -> "Problem":
        """The problem of training the model that a spec names."""
        shape, outputs = federation.input_shape, len(federation.classes)
        return cls(federation, model, lambda: build(model, shape, outputs), loss)

    def module(self) -> nn.Module:
        """A module to be written to: its initial values do not matter, and drawing them leaves torch's global generator alone."""
        with torch_seeded(0):
            return self.build()

    @cached_property
    def layout(self) -> Layout:
        layout = layout_of(self.module())
        if not any(s.kind == "weight" for s in layout.slices):
            raise UserError(f"Model {self.model!r} has nothing to train: no parameter asks for a gradient.")
        return layout

    @cached_property
    def roster(self) -> Roster:
        return Roster.of(self.federation.ids, self.federation.train.sizes, self.federation.groups)

    def at(self, round_: int) -> "Problem":
        """The problem as a round finds it: itself, or, where the world drifts, the same object for every round of a phase."""
        world = self.federation.at(round_)
        if world is self.federation:
            return self
        if id(world) not in self._phases:
            self._phases[id(world)] = replace(self, federation=world)
        return self._phases[id(world)]

    @cached_property
    def _phases(self) -> dict[int, "Problem"]:
        return {}

    def roster_at(self, round_: int) -> Roster:
        """The roster as a round finds it: clients that have not arrived yet cannot be reached."""
        roster = self.at(round_).roster
        if self.federation.arrivals is None:
            return roster
        return replace(roster, reachable=self.federation.arrivals <= round_)

    def initial(self, seed: int) -> InitialModels:
        """The keyed factory of initial models of one seed."""
        return initial_models(self.build, seed)
