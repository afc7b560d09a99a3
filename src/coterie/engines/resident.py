"""What is kept for a world on a device: its data, the routes that were chosen, and what trains and judges its models there."""

import torch

from coterie.engines.alone.route import OneByOne
from coterie.engines.dense_choice import dense_for
from coterie.engines.free_memory import stacked_memory
from coterie.engines.panels import Panels
from coterie.engines.precision import Precision
from coterie.engines.routes import Route, convolutions, knows_layers, layer_sizes
from coterie.engines.tensors import as_tensor
from coterie.engines.vectorised.route import Vectorised
from coterie.engines.world import World
from coterie.models.stacking import stacks_by_itself


class Resident:
    """One world. A dense network has its layer sizes and data from the beginning, everything else is made when it is first asked for."""

    def __init__(
        self, world: World, device: torch.device, threads: int, precision: Precision, microbatch: int | None, *, holds: bool
    ) -> None:
        self.world, self.device, self.precision, self.microbatch = world, device, precision, microbatch
        self.sizes = layer_sizes(world)
        self.dense = dense_for(world.federation, self.sizes, device, threads, holds=holds)
        self.panels = Panels(world.federation)
        self.routes: dict[str, Route] = {}
        self._vectorised: dict[bool, Vectorised] = {}  # by whether batches are of exact size
        self._alone: OneByOne | None = None

    @property
    def stacks(self) -> bool:
        """Whether trainings of this world were found to be stacked: then gradients can be."""
        return self.dense is None and any(route.name == "vectorised" for route in self.routes.values())

    def alone(self) -> OneByOne:
        """What trains large models one by one."""
        if self._alone is None:
            x, y = as_tensor(self.world.federation.x), as_tensor(self.world.federation.y)
            settings = {"device": self.device, "precision": self.precision, "microbatch": self.microbatch}
            self._alone = OneByOne(self.world.model.module(), self.world.loss, x, y, **settings)  # type: ignore[arg-type]
        return self._alone

    def vectorised(self, *, exact: bool = False) -> Vectorised:
        """What trains and judges stacks of models."""
        if exact not in self._vectorised:
            module = self.world.model.module()
            self._vectorised[exact] = Vectorised(
                module,
                self.world.loss,
                as_tensor(self.world.federation.x),
                as_tensor(self.world.federation.y),
                device=self.device,
                memory=stacked_memory(self.device, one_body=stacks_by_itself(module)),
                exact=exact,
                convolutions=convolutions(self.device),
                known=knows_layers(self.device),
                precision=self.precision,
            )
        return self._vectorised[exact]
