"""Trimmed average: the example of CONTRIBUTING. A method is one file: its settings, its round, and the paper's lines at the lines.

The cohort's models whose updates are longest are left out, the rest are averaged: a plain defence against clients that run away.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.states import Models
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class TrimmedAverage(OneModelMethod):
    """FedAvg without the longest updates."""

    trim: float = 0.25  # the share of the cohort that is left out

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        if not len(trained):  # nobody answered: the state stays as it is
            return state
        updates = ctx.layout.comparable(trained.vectors) - ctx.layout.comparable(state.models)
        lengths = np.linalg.norm(updates.astype(np.float64), axis=1)
        kept = np.argsort(lengths, kind="stable")[: len(trained) - int(self.trim * len(trained))]
        weights = np.zeros(len(trained))
        weights[kept] = trained.sizes[kept]
        return state.with_models(ctx.mix(Mixing.average(trained.clients, weights), trained, state.models))
