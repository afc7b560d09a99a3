"""FedFew: a few models for many clients, by a smooth form of the worst client's lowest loss.

Guo, Zhang, Lin, Li, Tang and Zhang, "Few-for-Many Personalized Federated Learning" (2026). It minimises
mu log sum over i of 1 / S_i, where S_i = sum over k of exp(-L_ik / mu). Steps are those of the method's page.
"""

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from scipy.special import logsumexp, softmax

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.core.asks import Together, Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.averaging import average_components
from coterie.methods.group_number import GroupNumber, choose_from_structure
from coterie.methods.grouped import find_lowest_loss, name_models
from coterie.methods.reporting_rules import LossRule


@dataclass(frozen=True, kw_only=True)
class FedFew(Method[Models]):
    """All clients train all K models; a client counts most in the model that fits it, and most where no model fits.

    Example: ``ct.FedFew(groups=3)``, or the spec ``fedfew(groups=3)``.
    """

    groups: GroupNumber = setting(3, "Models.", minimum=1)
    mu: float = setting(0.001, "Smoothness, in units of loss: small, and the worst client's best model decides.", above=0)
    most: int = setting(10, "The most models that auto may find.", minimum=1)

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        k, model = self.groups, init()[None, :]
        if k == "auto":
            ctx.notes.choice = yield from choose_from_structure(model, ctx, self.most)
            k = ctx.notes.choice.k
        return Models(np.repeat(model, min(k, len(ctx.roster)), axis=0))  # step 1: copies, which the order of samples parts

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort, local = ctx.cohort(), ctx.local.replace(rule=LossRule(last=True))
        replies: tuple[Trained, ...] = yield from Together(
            *(
                Train(cohort, state.models[k : k + 1], local, purpose=f"train {k}" if k else "train")  # each with shuffles of its own
                for k in range(len(state.models))
            )
        )
        clients = reduce(np.intersect1d, [reply.clients for reply in replies])
        if not len(clients):
            return state
        replies = tuple(reply.of(clients) for reply in replies)
        importance, fit = self.weigh(np.stack([reply.losses[:, -1] for reply in replies], axis=1), replies[0].sizes)
        ctx.note("largest_importance", float(importance.max()))
        vectors = np.stack([np.asarray(reply.vectors) for reply in replies], axis=1)  # (n, K, d)
        trained = replace(replies[0], more=vectors[:, 1:])
        return Models(average_components(trained, (importance[:, None] * fit).T, state.models, ctx))  # step 4

    def weigh(self, losses: Doubles, sizes: Ints) -> tuple[Doubles, Doubles]:
        """(n,) alpha, how much a client counts, and (n, K) w, how its weight is shared among the models, from losses (n, K)."""
        scaled = -(sizes / sizes.sum())[:, None] * losses / self.mu  # step 2
        fit = softmax(scaled, axis=1)  # step 3: w_ik
        importance = softmax(-logsumexp(scaled, axis=1))  # and alpha_i, from 1 / S_i
        return np.asarray(importance), np.asarray(fit)

    def serve(self, state: Models, clients: Ids, ctx: Context) -> Round[Serving]:
        """Step 5: the lowest training loss; a client that does not answer gets the first model."""
        rows = yield from find_lowest_loss(clients, state.models)
        return Serving(clients, state.models, np.maximum(rows, 0))

    def central(self, state: Models) -> NamedModels:
        return name_models(state.models)
