"""SimProx: clients weighted by their similarity to the others and by how little they moved.

El-Niss et al., "SimProx: A Similarity-Based Aggregation in Federated Learning With Client Weight Optimization" (2024), Algorithm 1.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import log_softmax

from coterie.core.arrays import Doubles
from coterie.core.asks import Train, Trained
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing, compute_weighted_median
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.grouping.landmarks import MANY, compute_mean_similarity
from coterie.grouping.similarity import (
    combine_similarities,
    compute_cosines,
    compute_distances,
    compute_dot_products,
    compute_gaussian,
    compute_gram,
    compute_mean_distance,
    shift_gram,
)
from coterie.methods.grouped import note_landmarks
from coterie.methods.one_model import OneModelMethod


class Geometry(NamedTuple):
    """What SimProx reads from the cohort's models: n of them."""

    distances: Doubles  # (n, n)
    cosines: Doubles  # (n, n)
    norms: Doubles  # (n,) how far each client moved, g_i
    agreement: float  # sbar, the mean cosine with the common direction
    votes: Doubles | None = None  # (n,) how much each client counts in a median; None: all alike


@dataclass(frozen=True, kw_only=True)
class SimProx(OneModelMethod):
    """One model, averaged with weights from a hybrid similarity and the proximal norms.

    Example: ``ct.SimProx(tau=0.8)``, or the spec ``simprox(tau=0.8)``.
    """

    similarity_of: Literal["weights", "updates"] = setting("weights", "What is compared.")
    lambda0: float = setting(0.7, "The share of the cosine in the similarity, at most.", minimum=0, maximum=1)
    tau: float = setting(0.9, "The agreement at which the cosine has its full share; not given in the paper.", above=0, maximum=1)
    softmax: bool = setting(True, "Eq. 14; without it the weights of Eq. 13 are used.")
    temperature: float = setting(1.0, "Of the softmax; inf gives every client the same weight.", above=0, infinite=True)
    scale_norms: bool = setting(False, "Norms divided by their median: exp(-g) then depends on no unit.")
    times_samples: bool = setting(False, "Whether samples count too.")
    robust: bool = setting(False, "Prefer norms near the median to small ones.")
    shuffled: bool = setting(False, "A control: the same weights, assigned to the cohort at random in every round.")

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        if not len(trained):
            return state
        many = len(trained) > MANY
        weights = self.compute_weights_of_many(trained, state, ctx) if many else self.weights(self.geometry(trained, state, ctx), ctx)
        if self.times_samples:
            weights = weights * trained.sizes
        if self.shuffled:
            weights = weights[np.argsort(ctx.draws("shuffled weights", trained.clients), kind="stable")]
        mixing = Mixing.average(trained.clients, weights)
        shares = mixing.replies[0]
        ctx.note("weights", shares)  # a softmax of numbers that sum to one differs by a factor e at most
        ctx.note("flatness", float(shares.max() / shares.min()) if shares.min() > 0 else np.inf)
        ctx.note("effective_clients", float(1 / np.sum(shares**2)))
        return state.with_models(ctx.mix(mixing, trained, state.models))

    def geometry(self, trained: Trained, state: Models, ctx: Context) -> Geometry:
        """Everything from one Gram matrix of updates u_i; weights are w_t + u_i. Batch-norm statistics are not compared."""
        models, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models)[0]
        inner = compute_gram(models, origin)
        norms = np.sqrt(np.diag(inner))  # Eq. 11, the previous model being the one received
        if self.similarity_of == "updates":
            along, square = inner.mean(axis=1), float(inner.mean())  # against the mean update
            compared = inner
        else:
            along = compute_dot_products(models, origin, origin)
            square = float(np.dot(origin.astype(np.float64), origin))
            compared = shift_gram(inner, along, square)
            along = along + square
        lengths = np.sqrt(np.maximum(np.diag(compared), 0.0) * max(square, 0.0))
        agreement = float(np.mean(np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0)))
        return Geometry(compute_distances(inner), compute_cosines(compared), norms, agreement, ctx.votes(trained.clients))

    def weights(self, seen: Geometry, ctx: Context) -> Doubles:
        """(n,) the weights up to a common factor."""
        n, balance = len(seen.norms), self.compute_cosine_share(seen.agreement)
        similarity = combine_similarities(seen.cosines, compute_gaussian(seen.distances), balance)  # Eq. 7-10
        mean_similarity = (similarity.sum(axis=1) - np.diag(similarity)) / max(n - 1, 1)
        return self._compute_weights(mean_similarity, seen.norms, balance, compute_mean_distance(seen.distances), ctx, seen.votes)

    def compute_weights_of_many(self, trained: Trained, state: Models, ctx: Context) -> Doubles:
        """The same without a matrix of pairs: Gaussian similarities and sigma are means over landmarks."""
        note_landmarks(ctx)
        models, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models)[0]
        seen = compute_mean_similarity(models, origin, ctx.rng("landmarks"), updates=self.similarity_of == "updates")
        balance = self.compute_cosine_share(seen.agreement)
        mean_similarity, votes = balance * seen.cosine + (1 - balance) * seen.gaussian, ctx.votes(trained.clients)
        return self._compute_weights(mean_similarity, seen.norms, balance, seen.sigma, ctx, votes)

    def compute_cosine_share(self, agreement: float) -> float:
        """The share of the cosine in the similarity."""
        return self.lambda0 * float(np.clip(agreement / self.tau, 0.0, 1.0))

    def _compute_weights(
        self, mean_similarity: Doubles, norms: Doubles, balance: float, sigma: float, ctx: Context, votes: Doubles | None
    ) -> Doubles:
        # Eq. 12 as a logarithm, since exp(-g) underflows for large models; the floor is for opposite clients at lambda = 1
        log_alpha = self.compute_log_proximity(norms, votes) + np.log(np.maximum(1 + mean_similarity, 1e-300))
        log_alpha = log_softmax(log_alpha)  # Eq. 13
        ctx.note("lambda", balance)
        ctx.note("sigma", sigma)
        ctx.note("norms", norms)
        score = np.exp(log_alpha) if self.softmax else log_alpha  # Eq. 14 is the softmax of the weights themselves
        return np.asarray(np.exp((score - score.max()) / self.temperature))

    def compute_log_proximity(self, norms: Doubles, votes: Doubles | None = None) -> Doubles:
        """(n,) the logarithm of Eq. 12's factor exp(-g), or of its robust form exp(-|g - median| / MAD)."""
        median = compute_weighted_median(norms, votes)
        if not self.robust:
            return -norms / median if self.scale_norms and median > 0 else -norms
        away = np.abs(norms - median)
        away[away <= 1e-5 * median] = 0.0  # the rounding of float32 models is no deviation
        scale = compute_weighted_median(away, votes) or float(away.mean()) or 1.0
        return -away / scale
