"""SimProx: clients weighted by their similarity to the others and by how little they moved.

El-Niss et al., "SimProx: A Similarity-Based Aggregation in Federated Learning With Client Weight Optimization" (2024), Eqs. 7 to 14.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import log_softmax

from coterie.core.arrays import Doubles, Floats
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round
from coterie.core.mixing import Mixing, compute_weighted_median
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models
from coterie.grouping.landmarks import COMPARED, MANY, compute_mean_similarity
from coterie.grouping.similarity import (
    combine_similarities,
    compute_cosines,
    compute_distances,
    compute_dot_products,
    compute_gaussian,
    compute_gram,
    compute_mean_distance,
    compute_norms,
    estimate_gram,
    shift_gram,
)
from coterie.methods.one_model import OneModelMethod


class Geometry(NamedTuple):
    """What SimProx reads from the cohort's models: n of them."""

    distances: Doubles  # (n, n)
    cosines: Doubles  # (n, n)
    norms: Doubles  # (n,) how far each client moved, g_i
    agreement: float  # sbar, the mean cosine with the common direction
    votes: Doubles | None = None  # (n,) how much each client counts in a median; None: all alike


@dataclass(frozen=True)
class SimProxState(Models):
    """The shared model, and with `previous="own"` the model that each client trained last."""

    last: ClientTable  # (n, d)


@dataclass(frozen=True, kw_only=True)
class SimProx(OneModelMethod):
    """One model, averaged with weights from a hybrid similarity and the proximal norms.

    Example: ``ct.SimProx(tau=0.8)``, or the spec ``simprox(tau=0.8)``.
    """

    similarity_of: Literal["weights", "updates"] = setting("weights", "What is compared.")
    lambda0: float = setting(0.7, "The share of the cosine in the similarity, at most.", minimum=0, maximum=1)
    tau: float = setting(0.9, "The agreement at which the cosine has its full share; not given in the paper.", above=0, maximum=1)
    previous: Literal["received", "own"] = setting("received", "What Eq. 11 measures from: the model received, or the client's own last.")
    softmax: bool = setting(True, "Eq. 14; without it the weights of Eq. 13 are used.")
    temperature: float = setting(1.0, "Of the softmax; inf gives every client the same weight.", above=0, infinite=True)
    scale_norms: bool = setting(False, "Norms divided by their median: exp(-g) then depends on no unit.")
    times_samples: bool = setting(False, "Whether samples count too.")
    robust: bool = setting(False, "Prefer norms near the median to small ones.")
    pairs: Literal["all", "landmarks", "sketches"] = setting("all", "How pairs are compared: exactly, with some clients, or by sketches.")
    compared: int = setting(64, "Landmarks, or numbers of a sketch.", minimum=2)
    shuffled: bool = setting(False, "A control: the same weights, assigned to the cohort at random in every round.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0) if self.previous == "own" else super().memory_needs

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        if self.previous == "received":
            return (yield from super().start(init, ctx))
        model = init()[None, :]
        return SimProxState(model, ClientTable.empty(len(ctx.roster), model[0]))

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        if not len(trained):
            return state
        many = len(trained) > (self.compared if self.pairs == "landmarks" else MANY)
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
        models = ctx.mix(mixing, trained, state.models)
        if not isinstance(state, SimProxState):
            return state.with_models(models)
        last = state.last.grow(len(ctx.roster), state.last.common)
        return SimProxState(models, last.put(trained.clients, trained.vectors))

    def compute_moves(self, trained: Trained, state: Models, ctx: Context) -> Doubles | None:
        """(n,) Eq. 11 from the model that each client trained last, or from the one received where it trains for the first time."""
        if not isinstance(state, SimProxState):
            return None
        place = state.last.grow(len(ctx.roster), state.last.common).place[trained.clients]

        def get_previous(i: int) -> Floats:
            return state.models if place[i] < 0 else np.asarray(state.last.rows[place[i] : place[i] + 1])

        comparable = ctx.layout.comparable
        pairs = ((comparable(trained.vectors[i : i + 1]), comparable(get_previous(i))[0]) for i in range(len(trained)))
        return np.array([float(compute_norms(model, previous)[0]) for model, previous in pairs])

    def geometry(self, trained: Trained, state: Models, ctx: Context) -> Geometry:
        """Everything from one Gram matrix of updates u_i; weights are w_t + u_i. Batch-norm statistics are not compared."""
        models, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models)[0]
        sketch = ctx.sketch(self.compared) if self.pairs == "sketches" else None
        inner = compute_gram(models, origin) if sketch is None else estimate_gram(models, origin, sketch)
        own = self.compute_moves(trained, state, ctx)
        norms = np.sqrt(np.diag(inner)) if own is None else own  # Eq. 11
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
        most = self.compared if self.pairs == "landmarks" else COMPARED
        ctx.note("landmarks", most)
        models, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models)[0]
        seen = compute_mean_similarity(models, origin, ctx.rng("landmarks"), updates=self.similarity_of == "updates", most=most)
        balance = self.compute_cosine_share(seen.agreement)
        mean_similarity, votes = balance * seen.cosine + (1 - balance) * seen.gaussian, ctx.votes(trained.clients)
        own = self.compute_moves(trained, state, ctx)
        return self._compute_weights(mean_similarity, seen.norms if own is None else own, balance, seen.sigma, ctx, votes)

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
