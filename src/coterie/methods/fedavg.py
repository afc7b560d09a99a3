"""Federated averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), Algorithm 1; with uniform weights it is
Eq. 1 of SimProx (002).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.asks import Train, Trained
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.states import Models
from coterie.methods.one_model import OneModelMethod

Weighting = Literal["samples", "uniform"]


@dataclass(frozen=True, kw_only=True)
class FedAvg(OneModelMethod):
    """Train a sample of clients from the shared model and average what they send back."""

    weighting: Weighting = "samples"

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        trained = yield from Train(cohort, state.models, ctx.local)
        return averaged(state, trained, self.weighting, ctx)


def averaged(state: Models, trained: Trained, weighting: Weighting, ctx: Context) -> Models:
    """The state with its one model replaced by the average of the replies; unchanged when nobody answered."""
    if not len(trained):
        return state
    weights = trained.sizes if weighting == "samples" else np.ones(len(trained))  # n_k / n, or 1 / m
    return state.with_models(ctx.mix(Mixing.average(trained.clients, weights), trained, state.models))
