"""Continuum: a model for each client, with weights on all clients that balance variance and bias. For clients without distinct groups.

Client i averages the models of all clients with weights w on the simplex that minimise

    sum_j w_j^2 s_j / n_j + || sum_j w_j (g_j - g_i) ||^2

(1): the variance of a weighted mean of gradients, and the squared bias of following other clients' gradients. Products of gradients are
taken between two halves of each client's samples, so that their noise has mean zero; s is what one sample's gradient scatters, from the
difference of the halves. Equal clients give weights by samples (FedAvg), clients that have nothing in common train alone.
"""

from dataclasses import dataclass

import numpy as np

from coterie._util.errors import UserError
from coterie._util.threads import use_one_thread
from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Method, Round, done
from coterie.core.mixing import Mixing
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import Models, grow_rows
from coterie.grouping.similarity import project_on_simplex
from coterie.methods.client_probes import ask_probes

MAX_CLIENTS = 1000  # a model and a row of weights for each
ITERATIONS = 300


@dataclass(frozen=True)
class ContinuumState(Models):
    """A model for each client (models), and the weights that make it."""

    weights: Doubles  # (clients, clients) rows sum to one
    common: Floats  # (d,) the mean by samples: what newcomers get


def compute_neighbour_weights(halves: Doubles, sizes: Ints) -> Doubles:
    """(n, n) row i: the weights of client i. `halves` (2, n, q) are mean gradients, `sizes` (2, n) their samples."""
    n = len(sizes.T)
    product = halves[0] @ halves[1].T
    values, directions = np.linalg.eigh((product + product.T) / 2)
    product = (directions * np.maximum(values, 0.0)) @ directions.T  # noise makes some directions negative: no bias is below zero
    pairs = sizes[0] * sizes[1] / np.maximum(sizes.sum(axis=0), 1)
    scatter = float(np.sum(pairs * np.sum((halves[0] - halves[1]) ** 2, axis=1)) / max(n, 1))  # of one sample
    form = product + np.diag(scatter / np.maximum(sizes.sum(axis=0), 1))  # (1) is w'(K + V)w - 2 w'K_i + K_ii
    step = 1 / max(float(np.linalg.eigvalsh(form)[-1]), 1e-300)
    weights = np.tile(sizes.sum(axis=0) / sizes.sum(), (n, 1))
    ahead, momentum = weights, 1.0
    for _ in range(ITERATIONS):  # accelerated projected gradient, all rows at once
        new = project_on_simplex(ahead - step * (ahead @ form - product))
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead, weights, momentum = new + (momentum - 1) / following * (new - weights), new, following
    return np.asarray(weights)


@dataclass(frozen=True, kw_only=True)
class Continuum(Method[ContinuumState]):
    """A model for each client: a weighted mean of all clients' models, by the variance and bias of their gradients.

    Example: ``ct.Continuum()``, or the spec ``continuum``.
    """

    every: int = setting(5, "Rounds between two estimates of the weights.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0, served=1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[ContinuumState]:
        n = len(ctx.roster)
        if n > MAX_CLIENTS:
            raise UserError(f"Continuum keeps a model for each client, at most {MAX_CLIENTS}, and there are {n}: use a method with groups.")
        shares = np.maximum(ctx.roster.sizes, 1) / np.maximum(ctx.roster.sizes, 1).sum()
        model = init()
        state = ContinuumState(np.repeat(model[None, :], n, axis=0), np.tile(shares, (n, 1)), model)
        return (yield from self._estimate(state, ctx))

    def _estimate(self, state: ContinuumState, ctx: Context) -> Round[ContinuumState]:
        """The weights at the mean model. A client that does not answer keeps the weights it had."""
        clients = ctx.roster.available
        probes = yield from ask_probes(state.common[None, :], clients, ctx.outputs, ctx, labels=False)
        if len(probes.clients) < 2:
            return state
        weights = np.array(state.weights)
        with use_one_thread():
            found = compute_neighbour_weights(probes.halves, probes.sizes)
        weights[probes.clients] = 0.0
        weights[np.ix_(probes.clients, probes.clients)] = found
        ctx.note("effective_clients", float(np.mean(1 / np.sum(found**2, axis=1))))
        return ContinuumState(state.models, weights, state.common)

    def _grow(self, state: ContinuumState, ctx: Context) -> ContinuumState:
        """With a row for every client: newcomers count for themselves alone until the weights are estimated again."""
        n, known = len(ctx.roster), len(state.models)
        if n == known:
            return state
        weights = np.eye(n)
        weights[:known, :known] = state.weights
        return ContinuumState(grow_rows(np.asarray(state.models), n, state.common), weights, state.common)

    def round(self, state: ContinuumState, ctx: Context) -> Round[ContinuumState]:
        state = self._grow(state, ctx)
        if ctx.round_ > 1 and (ctx.round_ - 1) % self.every == 0:
            state = yield from self._estimate(state, ctx)
        cohort = ctx.cohort()
        trained = yield from Train(cohort, state.models, ctx.local, start=cohort)
        if not len(trained):
            return state
        replies = state.weights[:, trained.clients]  # what is missing stays as it was: rows sum to one
        before = np.diag(1 - replies.sum(axis=1))
        models = ctx.mix(Mixing(trained.clients, replies, before), trained, state.models)
        shares = ctx.bound_weights(trained.clients, trained.sizes / trained.sizes.sum())
        common = np.asarray(shares @ np.asarray(trained.vectors, np.float64), np.float32)
        return ContinuumState(models, state.weights, common)

    def serve(self, state: ContinuumState, clients: Ids, ctx: Context) -> Round[Serving]:
        """Each client its own model; a newcomer the mean by samples."""
        known, models = len(state.models), np.concatenate([state.models, state.common[None, :]])
        return done(Serving(clients, models, np.where(clients < known, clients, known)))
