"""Worlds whose model has a frozen body, as worlds of what the body makes of each sample: computed once, where the samples are.

The head is then a small model like any other, and takes the route of one. Its vector is the whole model's, of which only the head is sent.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Array, Floats
from coterie.core.inputs import InputShape
from coterie.core.model import ModelSpec
from coterie.core.threads import cores
from coterie.engines.kept_features import kept
from coterie.engines.precision import Precision, passes_in, products_in
from coterie.engines.tensors import as_tensor
from coterie.engines.workspace import chunk_for
from coterie.engines.world import World
from coterie.models.frozen import FrozenBody

NUMBERS = 1 << 20  # of the samples of a piece


class Featured:
    """Worlds and the worlds of their features, kept; draws and seeds that share their samples share the features."""

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device, self.precision = device, precision
        self._worlds: dict[World, World] = {}
        self._made: dict[
            tuple[str, int], tuple[Array, Floats]
        ] = {}  # by model and samples, which are held so that their number stays theirs

    def of(self, world: World) -> World:
        """The world of features where the model has a frozen body; otherwise the world itself."""
        if world not in self._worlds:
            module = world.model.module()
            self._worlds[world] = self._featured(world, module) if isinstance(module, FrozenBody) else world
        return self._worlds[world]

    def _featured(self, world: World, module: FrozenBody) -> World:
        federation, model = world.federation, world.model
        body = module.body.to(self.device)
        x = self._features(model.text, body, federation.x)
        central = federation.central
        if central is not None:
            central = (self._features(model.text, body, central[0]), central[1])

        def head(text: str, shape: InputShape, outputs: int) -> nn.Module:
            built = model.build()
            assert isinstance(built, FrozenBody)
            return built.head

        spec = ModelSpec(model.text, tuple(x.shape[1:]), model.outputs, head)
        return replace(world, federation=federation.with_(x=x, central=central, later=()), model=spec, attack=None)

    def _features(self, text: str, body: nn.Module, x: Array) -> Floats:
        key = (text, id(x))
        if key not in self._made:
            how = f"{self.device.type} {self.precision} {type(body).__name__} {getattr(body, 'pool', '')}{getattr(body, 'told', '')}"
            self._made[key] = x, kept(body, x, how, lambda: computed(body, x, self.device, self.precision))
        return self._made[key][1]


def piece_for(body: nn.Module, x: Array) -> int:
    """Samples that go through a body at a time: fewer of large ones, since a convolution's layers are many times as large as an image."""
    return max(1, min(chunk_for(body), NUMBERS // max(x[:1].size, 1)))


def computed(body: nn.Module, x: Array, device: torch.device, precision: Precision) -> Floats:
    """(N, f) what the body makes of each sample: in pieces of one size, on a CPU one thread a piece, so that cores do not change bits."""

    @torch.no_grad()
    def made(begin: int) -> Floats:
        piece = as_tensor(np.asarray(x[begin : begin + size]), device)
        with passes_in(precision, device):
            features: Tensor = body(piece.float() if piece.is_floating_point() else piece)
        return features.float().cpu().numpy()

    size, threads = piece_for(body, x), cores() if device.type == "cpu" else 1
    with products_in(precision), ThreadPoolExecutor(threads, "coterie-features", torch.set_num_threads, (1,)) as pool:
        return np.concatenate(list(pool.map(made, range(0, len(x), size))))
