"""pFedGraph: each client's model is a mixture of all clients' models, with weights from a graph of similarities.

Ye, Ni, Wu, Chen and Wang, "Personalized Federated Learning with Inferred Collaboration Graphs" (2023). Row i of the graph minimises
alpha x'x + (d_i - 2 alpha p)'x on the simplex, where d_ij = -cos(theta_i - theta_0, theta_j - theta_0) and p are the shares of samples.
That is ||x - (p - d_i / (2 alpha))||^2 up to a constant, so the minimum is a projection: no solver is needed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.local import LocalRule, Step
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models
from coterie.grouping.similarity import compute_cosines, compute_gram, project_on_simplex
from coterie.methods.averaging import average_replies
from coterie.methods.one_model import SharedModel

if TYPE_CHECKING:
    from torch import Tensor

NEIGHBOURS = "neighbours"
ALIKE = -0.9  # the authors' code: d_ij below this is -1


@dataclass(frozen=True, kw_only=True)
class GraphRule(LocalRule):
    """The study's loss, and the cosine of the client's model with those that it is mixed of, weighted as they are."""

    needs = (NEIGHBOURS,)

    weight: float  # lambda; negative where models are pulled towards each other

    def objective(self, step: Step) -> "Tensor":
        pairs = [(step.weights[name], step.extra[NEIGHBOURS][name]) for name in step.trained]
        square = sum((own**2).sum() for own, _ in pairs) + 1e-12  # a model of zeros has no direction
        return step.loss(step.outputs()) + self.weight * sum((own * others).sum() for own, others in pairs) / square**0.5


@dataclass(frozen=True)
class GraphState(Models):
    """The clients' average, and each client's own model."""

    own: ClientTable  # (n, d) theta_i; theta_0 until a client has taken part
    neighbours: ClientTable  # (n, d) sum_j x_ij theta_j / ||theta_j||, where lambda is not 0


@dataclass(frozen=True, kw_only=True)
class PFedGraph(SharedModel[GraphState]):
    """A model of its own for each client, mixed of all clients' by their samples and the similarity of their updates.

    Example: ``ct.PFedGraph(alpha=0.8)``, or the spec ``pfedgraph(alpha=0.8)``.
    """

    alpha: float = setting(0.8, "How near the weights are held to the shares of samples; inf is FedAvg.", above=0, infinite=True)
    lam: float = setting(0.01, "Weight of the cosine with the clients that a model is mixed of, in local training.", minimum=0)
    pull: Literal["apart", "together"] = setting("apart", "Its sign: as the authors' code has it, or as its purpose would have it.")
    shuffled: bool = setting(False, "A control: each client has the similarities of another, drawn in every round.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=2.0 if self.lam else 1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[GraphState]:
        model, n = init()[None, :], len(ctx.roster)
        return done(GraphState(model, ClientTable.empty(n, model[0]), ClientTable.empty(n, np.zeros_like(model[0]))))

    def round(self, state: GraphState, ctx: Context) -> Round[GraphState]:
        cohort, local, extra = ctx.cohort(), ctx.local, {}
        own, neighbours = (rows.grow(len(ctx.roster)) for rows in (state.own, state.neighbours))
        if neighbours.has_row.any():  # not in the first round
            local = local.replace(rule=GraphRule(weight=self.lam if self.pull == "apart" else -self.lam))
            extra = {NEIGHBOURS: neighbours.of(cohort)}
        models, start = own.get_starts(cohort)
        trained = yield from Train(cohort, models, local, start=start, extra=extra)
        if not len(trained):
            return state
        shared = average_replies(state, trained, "samples", ctx).models  # for clients that have taken no part
        graph = ctx.bound_mixing(Mixing(trained.clients, self.compute_graph(trained, own.common, ctx), np.zeros((len(trained), 1))))
        own = own.put(trained.clients, ctx.mix(graph, trained, state.models))  # theta_i = sum_j x_ij theta_j
        if self.lam:
            neighbours = neighbours.put(trained.clients, _mix_directions(graph, trained, ctx))
        return GraphState(shared, own, neighbours)

    def compute_graph(self, trained: Trained, origin: Floats, ctx: Context) -> Doubles:
        """(n, n) the weights x_ij: rows on the simplex."""
        inner = compute_gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(origin[None, :])[0])
        gaps = -compute_cosines(inner)
        gaps[gaps < ALIKE] = -1.0
        if self.shuffled:
            order = np.argsort(ctx.draws("shuffled similarities", trained.clients), kind="stable")
            gaps = gaps[np.ix_(order, order)]
        shares = trained.sizes / trained.sizes.sum()
        gaps -= gaps.min(axis=1, keepdims=True)  # the same for all j changes nothing: of equal similarities the shares are left exactly
        return project_on_simplex(shares - gaps / (2 * self.alpha))

    def serve(self, state: GraphState, clients: Ids, ctx: Context) -> Round[Serving]:
        return done(state.own.grow(len(ctx.roster)).serving(clients, state.models))


def _mix_directions(graph: Mixing, trained: Trained, ctx: Context) -> Floats:
    """(n, d) sum_j x_ij theta_j / ||theta_j|| for each client: its product with a direction is the weighted mean of the cosines."""
    lengths = np.sqrt(np.diag(compute_gram(ctx.layout.comparable(trained.vectors))))
    scaled = Mixing(graph.clients, graph.replies / np.where(lengths > 0, lengths, 1.0), np.zeros((len(trained), 1)))
    return mix(scaled, trained.vectors, trained.vectors[:1])
