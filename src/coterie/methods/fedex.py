"""FedEx: experts for clusters of clients, and an online layer that combines their answers.

Miles et al., "FedEx: An Exploration of Clustering Clients in Federated Learning": clusters in one round (see `experts`), FedAvg in each,
Algorithm 2 at inference (see `combiners`).
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.asks import Evaluate, Train
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round, done
from coterie.core.serving import COMBINED, Combiner, NamedModels, Serving
from coterie.core.settings import setting
from coterie.methods.averaging import weights_of
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online
from coterie.methods.experts import ExpertClusters, Experts
from coterie.methods.grouped import named_models, within_groups


@dataclass(frozen=True, kw_only=True)
class FedEx(ExpertClusters):
    """Cluster all clients in the first round, train an expert in each cluster, combine the experts' answers."""

    fraction: float | None = setting(None, "Share of each cluster that trains in a round; FedAvg's unless given.", above=0, most=1)
    combiner: Literal["online", "mean", "confident", "gate", "own"] = setting("online", "How experts answer clients' own test parts.")
    per_class: bool = setting(False, "Whether the online layer counts time for each class.")
    frozen: bool = setting(False, "Whether the online layer stays at the weights it begins with.")
    gate_part: Literal["train", "validation"] = setting("validation", "Where clients count hits for the accuracy gate.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Experts]:
        if self.combiner not in ("mean", "own") and not ctx.task.counts_classes:
            raise UserError(f"FedEx's combiner {self.combiner!r} goes by classes, and this is a {ctx.task}: use combiner=mean or own.")
        if self.combiner == "gate" and self.gate_part == "validation" and not ctx.validation:
            raise UserError("FedEx's accuracy gate counts on validation parts: give the data validation=0.1 or the method gate_part=train.")
        w0 = init()[None, :]
        count = self.most if self.groups == "auto" else self.groups
        fresh = np.stack([init(1 + i) for i in range(min(count, len(ctx.roster)))]) if self.start_from == "fresh" else None
        return done(Experts(w0, np.full(len(ctx.roster), -1, dtype=np.int64), w0, None, fresh, None))

    def round(self, state: Experts, ctx: Context) -> Round[Experts]:
        if state.centres is None:  # it counts as a round
            state, clients = yield from self.clustered(state, ctx)
            return (yield from self._counted(state, clients, ctx))
        groups = yield from self.admitted(state, ctx)
        cohort = self._cohort(groups, ctx)
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])
        if not len(trained):
            return state if np.array_equal(groups, state.groups) else replace(state, groups=groups)
        models = within_groups(state, trained, groups[trained.clients], weights_of(trained, "samples"), len(state.models), ctx)
        return (yield from self._counted(replace(state, models=models, groups=groups), trained.clients, ctx))

    def _cohort(self, groups: Ids, ctx: Context) -> Ids:
        """ceil(fraction * |cluster|) clients of each cluster; one cluster draws the very cohort that FedAvg draws."""
        available = ctx.roster.available
        fraction = len(ctx.cohort()) / max(len(available), 1) if self.fraction is None else self.fraction
        picked = [available[:0]]
        for j in range(int(groups.max()) + 1):
            members = available[groups[available] == j]
            picked.append(ctx.sample(members, ceil(fraction * len(members) - 1e-9), "cohort"))
        return np.sort(np.concatenate(picked))

    def _counted(self, state: Experts, clients: Ids, ctx: Context) -> Round[Experts]:
        """With the accuracy gate's weights: clients count predictions and hits of every expert as it now is, where the gate answers."""
        if self.combiner != "gate" or len(state.models) == 1:
            return state
        hits, predictions = [], []
        for j in range(len(state.models)):
            judged = yield from Evaluate(Serving(clients, state.models, np.full(len(clients), j)), self.gate_part)
            if not len(judged):
                return state
            sizes = judged.sizes.astype(np.float64)
            factors = ctx.bound_weights(judged.clients, sizes) / np.maximum(sizes, 1)  # ones, or less for a site with too many samples
            hits.append(factors @ judged.hits)
            predictions.append(factors @ judged.predicted)
        return replace(state, gate=AccuracyGate.of(np.array(hits), np.array(predictions)).weights)

    def _combiners(self, state: Experts) -> dict[str, Combiner]:
        """By name. Before anybody was asked the gate knows nothing and is the mean."""
        online = Online(per_class=self.per_class, frozen=self.frozen)
        found: dict[str, Combiner] = {"online": online, "mean": Mean(), "confident": MostConfident()}
        if self.combiner == "gate":
            found["gate"] = Mean() if state.gate is None else AccuracyGate(state.gate)
        return found

    def serve(self, state: Experts, clients: Ids, ctx: Context) -> Round[Serving]:
        if self.combiner == "own" or len(state.models) == 1:
            return (yield from super().serve(state, clients, ctx))
        rows = np.full(len(clients), COMBINED, dtype=np.int64)
        return Serving(clients, state.models, rows, self._combiners(state)[self.combiner])

    def central(self, state: Experts) -> NamedModels:
        """Every expert, and the ways to combine them, in one table; "online" is the paper's."""
        named = named_models(state.models)
        if len(state.models) == 1:
            return named
        combiners, experts = self._combiners(state), len(state.models)
        rows = np.concatenate([np.arange(experts), np.full(len(combiners), COMBINED)])
        serving = Serving(np.arange(len(rows)), state.models, rows, ByRow((*(None,) * experts, *combiners.values())))
        return NamedModels((*named.names, *combiners), serving)
