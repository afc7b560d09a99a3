"""SimAgg: each tensor averaged by nearness to the plain mean, beside the sample counts.

Khan et al., "Adaptive Weight Aggregation in Federated Learning for Brain Tumor Segmentation" (2022); a baseline of SimProx.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.core.vectors import as_vectors
from coterie.grouping.similarity import compute_norms
from coterie.methods.averaging import compute_tensor_mixing
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class SimAgg(OneModelMethod):
    """Half a client's weight comes from how near its tensor is to the cohort's mean, half from its samples.

    Example: ``ct.SimAgg()``, or the spec ``simagg``.
    """

    distance: Literal["l2", "sums"] = setting("l2", "How far a tensor is from the mean; sums of entries are the authors' code.")
    epsilon: float = setting(1e-5, "Added to distances.", above=0)

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        if not len(trained):
            return state
        samples = trained.sizes / trained.sizes.sum()  # v_i

        def weigh(replies: Floats, before: Floats) -> Doubles:
            return np.asarray((self.compute_similarity(replies) + samples) / 2)  # u_i + v_i, renormalised

        mixing = compute_tensor_mixing(weigh, trained, state.models, ctx)
        ctx.note("weights", mixing.replies[0])
        return state.with_models(ctx.mix(mixing, trained, state.models))

    def compute_similarity(self, replies: Floats) -> Doubles:
        """(n,) u_i = sum_j d_j / (d_i + epsilon), normalised; all alike where no client differs from the mean."""
        mean = as_vectors(replies).mean_row()
        d = compute_norms(replies, mean) if self.distance == "l2" else np.abs(replies.sum(axis=1, dtype=np.float64) - mean.sum())
        u = d.sum() / (d + self.epsilon)
        return np.asarray(u / u.sum()) if u.sum() > 0 else np.full(len(d), 1 / len(d))
