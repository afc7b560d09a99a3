"""FedDANE: a federated Newton-type method.

Li et al., "FedDANE: A Federated Newton-Type Method" (2019), Algorithm 2.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.asks import Gradient, Train
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.averaging import Weighting, average_replies, compute_weights
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class FedDANE(OneModelMethod):
    """Local training corrected by the difference between an estimate of the global gradient and the client's own.

    Example: ``ct.FedDANE(mu=0.1)``, or the spec ``feddane(mu=0.1)``.
    """

    mu: float = setting(0.1, "Weight of the proximal term.", minimum=0)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def trains_once(self) -> bool:
        return False  # it asks for gradients first

    @property
    def proximal(self) -> float:
        return self.mu

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        first, second = ctx.cohort("gradient cohort"), ctx.cohort()  # S and S': two draws; the second is the one FedAvg would train
        probes = yield from Gradient(np.union1d(first, second), state.models)  # every client's grad F_k(w_t), asked once
        asked, own = probes.of(first), probes.of(second)
        ctx.note("gradients", len(asked))
        if not len(asked) or not len(own):
            return state  # no direction, or no client to correct
        mean = ctx.bound_mixing(Mixing.average(asked.clients, compute_weights(asked, self.weighting)))
        slope = mix(mean, asked.vectors, state.models)  # g_t, from S
        # min F_k(w) + <g_t - grad F_k(w_t), w> + mu/2 ||w - w_t||^2
        trained = yield from Train(own.clients, state.models, ctx.local.replace(mu=self.mu), linear=slope - own.vectors)
        return average_replies(state, trained, self.weighting, ctx)
