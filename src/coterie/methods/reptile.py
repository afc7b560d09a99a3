"""FedDist and FedDWS: Reptile's outer step in place of averaging.

Nichol and Schulman, "Reptile: a scalable metalearning algorithm" (2018), as adapted by FeSEM's paper (004, baselines 9 and 10).
"""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.core.asks import Train
from coterie.core.errors import UserError
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.states import Models
from coterie.methods.fedavg import Weighting
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class Reptile(OneModelMethod, ABC):
    """Move the shared model a share beta of the way to the average of what clients send back: w <- w - beta * mean(w - w_k)."""

    beta: float = 0.6
    weighting: ClassVar[Weighting]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.beta > 0 and np.isfinite(self.beta)):
            raise UserError(f"Reptile's step cannot be beta={self.beta!r}: give a finite number above 0.")

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        if not len(trained):
            return state
        mean = Mixing.average(trained.clients, trained.sizes if self.weighting == "samples" else np.ones(len(trained)))
        step = Mixing(trained.clients, self.beta * mean.replies, np.array([[1.0 - self.beta]]))  # the same step, sorted by terms
        return state.with_models(ctx.mix(step, trained, state.models))


@dataclass(frozen=True, kw_only=True)
class FedDist(Reptile):
    """Reptile's step towards the plain mean of the cohort."""

    weighting = "uniform"


@dataclass(frozen=True, kw_only=True)
class FedDWS(Reptile):
    """Reptile's step towards the mean weighted by samples."""

    weighting = "samples"
