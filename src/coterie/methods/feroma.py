"""FEROMA: each client receives a mixture of all clients' last models, by how near their data was.

Li, Fenoglio, Gjoreski and Langheinrich, "Federated Learning with Profile Mapping under Distribution Shifts and Drifts" (2026). Descriptors
are those of Flux. Steps are those of the method's page.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.distance import cdist

from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints
from coterie.core.asks import Share, Train
from coterie.core.descriptions import Described
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models, grow_rows
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.client_descriptions import BlockScale, ask_descriptors, check_describable, read_blocks
from coterie.methods.one_model import SharedModel

NEAR = 1e-8  # what is added to a distance, so that its inverse is finite


@dataclass(frozen=True)
class FEROMAState(Models):
    """The average of the last round, and each client's last model and descriptor."""

    own: ClientTable  # (n, d) theta_j; of clients that trained after the warm-up
    blocks: Doubles  # (n, B, p) d_j; (n, 0, 0) before the first
    known: Bools  # (n,) clients that have both
    described: Floats  # (1, d) the model that descriptors are of; (0, d) in the warm-up


@dataclass(frozen=True, kw_only=True)
class FEROMA(SharedModel[FEROMAState]):
    """FedAvg for `warmup` rounds; then a client receives all clients' last models, weighted by how near their descriptors are to its own.

    Example: ``ct.FEROMA(warmup=5)``, or the spec ``feroma(warmup=5)``.
    """

    warmup: int = setting(5, "Rounds of FedAvg before.", minimum=0)
    folds: int = setting(2, "Folds of a client's samples that take turns to be described; 1: all samples, always.", minimum=1, maximum=10)
    labels: bool = setting(True, "Describe each class as well, which shows how many samples it has.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0, served=1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[FEROMAState]:
        check_describable("FEROMA", self.labels, ctx)
        yield from ()
        n, model = len(ctx.roster), init()[None, :]
        return FEROMAState(model, ClientTable.empty(n, model[0]), np.zeros((n, 0, 0)), np.zeros(n, dtype=np.bool_), model[:0])

    def round(self, state: FEROMAState, ctx: Context) -> Round[FEROMAState]:
        cohort = ctx.cohort()
        if ctx.round_ <= self.warmup:  # step 1
            trained = yield from Train(cohort, state.models, ctx.local)
            return replace(state, models=average_replies(state, trained, self.weighting, ctx).models)
        n = len(ctx.roster)
        described = state.described if len(state.described) else state.models
        found = yield from ask_descriptors(cohort, described, ctx, labels=self.labels, share=self._get_share(ctx.round_))  # step 2
        starts, rows = self.receive(state, found, cohort, ctx)
        trained = yield from Train(cohort, starts, ctx.local, start=rows)  # step 4
        if not len(trained):
            return state
        both, known = np.intersect1d(trained.clients, found.clients), np.array(grow_rows(state.known, n, False))
        new = read_blocks(found.of(both))
        blocks = np.array(grow_rows(state.blocks, n, 0.0)) if state.known.any() else np.zeros((n, *new.shape[1:]))
        blocks[both], known[both] = new, True
        own = state.own.grow(n).put(both, trained.of(both).vectors)
        return FEROMAState(average_replies(state, trained, self.weighting, ctx).models, own, blocks, known, described)

    def _get_share(self, round_: int) -> Share | None:
        return None if self.folds == 1 else Share(round_ % self.folds, folds=self.folds)

    def receive(self, state: FEROMAState, found: Described, clients: Ids, ctx: Context) -> tuple[Floats, Ints]:
        """The models that clients are sent (k, d), and (n,) the row of each: the average for those of which nothing is known."""
        rows, near = np.zeros(len(clients), dtype=np.int64), np.flatnonzero(state.known)
        if not len(near) or not len(found):
            return state.models, rows
        scale = BlockScale.fit(state.blocks[near])
        apart = cdist(scale.apply(read_blocks(found)), scale.apply(state.blocks[near]))
        sizes = ctx.roster.sizes[near] if self.weighting == "samples" else np.ones(len(near))
        weights = sizes / (apart + NEAR)  # steps 2 and 3: w_ij n_j
        mixing = Mixing(near, weights / weights.sum(axis=1, keepdims=True), np.zeros((len(found), 1)))
        ctx.note("nearest_share", float(mixing.replies.max(axis=1).mean()))
        made = mix(ctx.bound_mixing(mixing), state.own.of(near), state.models)
        place = {int(client): 1 + i for i, client in enumerate(found.clients)}
        return np.concatenate([np.asarray(state.models), np.asarray(made)]), np.array(
            [place.get(int(c), 0) for c in clients], dtype=np.int64
        )

    def serve(self, state: FEROMAState, clients: Ids, ctx: Context) -> Round[Serving]:
        """What each client would receive next (step 5), newcomers too; the average in the warm-up and for one that does not answer."""
        if not state.known.any() or not len(clients):
            return Serving.one(clients, state.models)
        share = self._get_share(ctx.round_ + 1)
        found = yield from ask_descriptors(np.sort(clients), state.described, ctx, labels=self.labels, share=share)
        models, rows = self.receive(state, found, clients, ctx)
        return Serving(clients, models, rows)
