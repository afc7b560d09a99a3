"""Worlds whose model has a frozen body, as worlds of the body's features: computed once, where the samples are.

The head is then a small model like any other, and takes its route. Features of a large body are cached on disk.
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from coterie._util.threads import count_cores
from coterie.core.arrays import Array, Floats
from coterie.core.layout import InputShape
from coterie.core.model import ModelSpec
from coterie.data.readers.files import get_cache_folder
from coterie.engines.device import Precision, as_tensor, autocast_pass, use_precision
from coterie.engines.workspace import LARGE_MODEL, get_chunk_size
from coterie.engines.world import World
from coterie.models.layers import FrozenBody

SMALL_SAMPLE = 1 << 10  # numbers: through an image goes each weight of a convolution many times
PIECE = 1 << 14  # samples hashed at a time: they may be mapped from a file larger than memory


def load_or_compute(body: nn.Module, x: Array, how: str, compute: Callable[[], Floats]) -> Floats:
    """What `compute` gives, or gave for the same body, samples and `how` before. A small body is quicker than a file, on small samples."""
    if sum(w.numel() for w in body.parameters()) <= LARGE_MODEL and x[:1].size <= SMALL_SAMPLE:
        return compute()
    place = get_cache_folder() / "features" / f"{_hash_inputs(body, x, how)}.npy"
    with suppress(OSError, ValueError, EOFError):  # what cannot be read is computed again
        found: Floats = np.load(place, allow_pickle=False)
        if found.dtype == np.float32 and len(found) == len(x):
            return found
    made = compute()
    draft = place.with_name(f".draft-{os.getpid()}-{place.name}")
    with suppress(OSError):  # a full disk costs the next run its time, and this one nothing
        place.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            np.save(file, made, allow_pickle=False)
        draft.replace(place)
    return made


def _hash_inputs(body: nn.Module, x: Array, how: str) -> str:
    sum_ = hashlib.sha256(f"{how} {torch.__version__} {x.shape} {x.dtype}".encode())
    for name, tensor in body.state_dict().items():
        sum_.update(name.encode())
        sum_.update(tensor.cpu().numpy().tobytes())
    for begin in range(0, len(x), PIECE):
        sum_.update(x[begin : begin + PIECE].tobytes())
    return sum_.hexdigest()


NUMBERS = 1 << 20  # of the samples of a piece


class FeatureWorlds:
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
        return replace(world, federation=federation.replace(x=x, central=central, later=()), model=spec, attack=None)

    def _features(self, text: str, body: nn.Module, x: Array) -> Floats:
        key = (text, id(x))
        if key not in self._made:
            how = f"{self.device.type} {self.precision} {type(body).__name__} {getattr(body, 'pool', '')}{getattr(body, 'cache_key', '')}"
            self._made[key] = x, load_or_compute(body, x, how, lambda: compute_features(body, x, self.device, self.precision))
        return self._made[key][1]


def get_piece_size(body: nn.Module, x: Array) -> int:
    """Samples that go through a body at a time: fewer of large ones, since a convolution's layers are many times as large as an image."""
    return max(1, min(get_chunk_size(body), NUMBERS // max(x[:1].size, 1)))


def compute_features(body: nn.Module, x: Array, device: torch.device, precision: Precision) -> Floats:
    """(N, f) what the body makes of each sample: in pieces of one size, on a CPU one thread a piece, so that cores do not change bits."""

    @torch.no_grad()
    def made(begin: int) -> Floats:
        piece = as_tensor(np.asarray(x[begin : begin + size]), device)
        with autocast_pass(precision, device):
            features: Tensor = body(piece.float() if piece.is_floating_point() else piece)
        return features.float().cpu().numpy()

    size, threads = get_piece_size(body, x), count_cores() if device.type == "cpu" else 1
    with use_precision(precision), ThreadPoolExecutor(threads, "coterie-features", torch.set_num_threads, (1,)) as pool:
        return np.concatenate(list(pool.map(made, range(0, len(x), size))))
