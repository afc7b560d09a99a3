"""CLoVE: clients are clustered by loss vectors, and clusters are matched to models.

Bhatia, Papadis, Kodialam, Lakshman and Chakrabarty, "CLoVE: Personalized Federated Learning through Clustering of Loss Vector Embeddings"
(2026). Steps are those of the method's page.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.core.asks import Losses, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round
from coterie.core.settings import setting
from coterie.core.states import grow_rows
from coterie.grouping.clustering import find_nearest
from coterie.grouping.kmeans import kmeans
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import get_true_groups
from coterie.methods.group_number import GroupNumber, GroupNumberMixin
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, match_models


@dataclass(frozen=True)
class LossGroups(Groups):
    """One model a group, and what the clustering by losses remembers."""

    centres: Doubles  # (K, K) the mean loss vector of each group's clients; infinite for a model that no cluster has had
    kept: Ints  # (clients,) rounds in a row in which a client had the same model
    stable: bool  # clustering is over


@dataclass(frozen=True, kw_only=True)
class CLoVE(GroupedMethod[LossGroups], GroupNumberMixin):
    """Clients are clustered by their losses under all models; each cluster trains the model that fits it best.

    Example: ``ct.CLoVE(groups=4)``, or the spec ``clove(groups=4)``.
    """

    groups: GroupNumber = setting(3, "Models.", minimum=1)
    patience: int = setting(3, "Rounds for which all clients of a round have kept their model when clustering stops.", minimum=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")
    most: int = setting(15, "The most groups that auto may find.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(gathered=self.count_trial_clients(self.groups))

    def start(self, init: InitialModels, ctx: Context) -> Round[LossGroups]:
        n = len(ctx.roster)
        if self.assign == "oracle":
            known: int | None = int(get_true_groups(ctx).max()) + 1
        else:
            known = yield from self.ask_number(self.groups, init()[None, :], init, ctx)
        k = min(self.most if known is None else known, n)
        models = np.stack([init(i) for i in range(k)])  # step 1: different starts, so that losses differ
        return LossGroups(models, np.full(n, -1, dtype=np.int64), np.full((k, k), np.inf), np.zeros(n, dtype=np.int64), stable=False)

    def round(self, state: LossGroups, ctx: Context) -> Round[LossGroups]:
        cohort = ctx.cohort()
        groups, centres = yield from self._cluster(state, cohort, ctx)
        cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])  # step 5
        if not len(trained):
            return state
        clients, took, after = trained.clients, groups[trained.clients], state.all_groups(ctx)
        kept, before = np.array(grow_rows(state.kept, len(after), 0)), after[clients]
        kept[clients], after[clients] = np.where(before == took, kept[clients] + 1, 1), took
        ctx.note("switched", int(np.sum((before != took) & (before >= 0))))
        weights = compute_weights(trained, self.weighting)
        models = average_within_groups(state, trained, took, weights, len(state.models), ctx)
        stable = state.stable or bool((kept[clients] >= self.patience).all())  # step 6
        return LossGroups(models, after, centres, kept, stable)

    def _cluster(self, state: LossGroups, cohort: Ids, ctx: Context) -> Round[tuple[Ids, Doubles]]:
        """(roster,) each client's group, and the groups' centres. A client that does not answer keeps the model it had."""
        if self.assign != "similar" or state.stable or len(state.models) == 1:  # a control, or clustering is over: only newcomers join
            groups = yield from self.joined(state, cohort, ctx)
            return groups, state.centres
        groups, centres = state.all_groups(ctx), state.centres.copy()
        table = yield from Losses(cohort, state.models)  # step 2
        if len(table):
            found = groups[table.clients] = self.match(table.losses, ctx)
            for j in np.unique(found):
                centres[j] = table.losses[found == j].mean(axis=0)
        return groups, centres

    def match(self, losses: Doubles, ctx: Context) -> Ids:
        """(n,) the model of each client's cluster, from loss vectors (n, K)."""
        reads = self.groups == "auto" and self.choice not in ("structure", "trial")  # step 7: of more models than there may be groups
        number = min(self.read_number(None if reads else losses.shape[1], losses, ctx), losses.shape[1])
        return match_models(losses, kmeans(losses, number, ctx.rng("clusters")))  # steps 3 and 4

    def place(self, state: LossGroups, new: Ids, ctx: Context) -> Round[Ids]:
        """Step 8: a late client joins the nearest centre of loss vectors; before there are any, late clients make them."""
        if len(state.models) == 1:
            return np.zeros(len(new), dtype=np.int64)
        rows = np.full(len(new), -1, dtype=np.int64)
        table = yield from Losses(new, state.models)
        if len(table):
            known = bool(np.isfinite(state.centres).any())
            rows[np.isin(new, table.clients)] = find_nearest(table.losses, state.centres) if known else self.match(table.losses, ctx)
        return rows
