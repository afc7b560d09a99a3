"""What looks at dense networks: arrays on the CPU, tensors on a GPU and wherever trained models are held in tensors."""

from functools import partial

import torch

from coterie.data.federation import Federation
from coterie.engines.dense import Dense, Spread
from coterie.engines.dense_arrays import DenseArrays
from coterie.engines.dense_each import DenseEach, losses_of
from coterie.engines.dense_tensors import DenseTensors
from coterie.engines.dense_tensors_each import TensorsEach
from coterie.engines.losses import LossesOf
from coterie.engines.own_models import Each


def dense_for(federation: Federation, sizes: tuple[int, ...], device: torch.device, threads: int, *, holds: bool) -> Dense | None:
    """Networks of these layer sizes on a federation's data; none where the world's model is no such network."""
    if not sizes:
        return None
    return DenseTensors(federation, sizes, device) if holds or device.type == "cuda" else DenseArrays(federation, sizes, threads)


def each_of(dense: Dense | None, spread: Spread) -> Each | None:
    """What asks many models, each about samples of its own, in few calls."""
    if isinstance(dense, DenseTensors):
        return TensorsEach(dense)
    return DenseEach(dense, spread) if isinstance(dense, DenseArrays) else None


def losses_alone(dense: Dense | None, spread: Spread) -> LossesOf | None:
    """The shorter way to losses where no probabilities are wanted."""
    if isinstance(dense, DenseTensors):
        return dense.losses_of
    return partial(losses_of, dense, spread=spread) if isinstance(dense, DenseArrays) else None
