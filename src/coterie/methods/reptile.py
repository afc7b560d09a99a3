"""FedDist and FedDWS: Reptile's outer step in place of averaging.

Nichol and Schulman, "Reptile: a scalable metalearning algorithm" (2018), as adapted by FeSEM's paper (its baselines 9 and 10).
"""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class Reptile(OneModelMethod, ABC):
    """Move the shared model a share beta of the way to the average of what clients send back: w <- w - beta * mean(w - w_k)."""

    beta: float = setting(0.6, "The share of the way to the average.", above=0)
    weighting: ClassVar[Weighting]

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        mean = Mixing.average(trained.clients, compute_weights(trained, self.weighting))
        step = Mixing(trained.clients, self.beta * mean.replies, np.array([[1.0 - self.beta]]))  # the same step, sorted by terms
        return state.with_models(ctx.mix(step, trained, state.models))


@dataclass(frozen=True, kw_only=True)
class FedDist(Reptile):
    """Reptile's step towards the plain mean of the cohort.

    Example: ``ct.FedDist(beta=0.6)``, or the spec ``feddist(beta=0.6)``.
    """

    weighting = "uniform"


@dataclass(frozen=True, kw_only=True)
class FedDWS(Reptile):
    """Reptile's step towards the mean weighted by samples.

    Example: ``ct.FedDWS(beta=0.6)``, or the spec ``feddws(beta=0.6)``.
    """

    weighting = "samples"
