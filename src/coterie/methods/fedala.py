"""FedALA: each client learns, number by number, how much of the shared model it takes into its own before it trains.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning" (2023), Algorithm 1. A client begins from
theta_i + (theta - theta_i) * W_i, where W_i lies in [0, 1]; below the layers that are adapted it takes the shared model.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels, Layout
from coterie.core.local import Local, LocalRule, Step
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import SharedModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OWN_MODEL, SHARED_MODEL = "own", "shared"


@dataclass(frozen=True, kw_only=True)
class ALARule(LocalRule):
    """What is trained are the weights W, in the place of a model: on the loss of the model that they mix."""

    needs = (OWN_MODEL, SHARED_MODEL)

    rate: float
    adapts: tuple[bool, ...]  # by trained tensor, in the order of the layout

    def objective(self, step: Step) -> "Tensor":
        own, mixed = step.extra[OWN_MODEL], dict(step.extra[SHARED_MODEL])
        for name in step.trained:
            mixed[name] = own[name] + (mixed[name] - own[name]) * step.weights[name]
        return step.loss(step.outputs(mixed))

    def optimizer(self, weights: "list[Tensor]", local: Local) -> "torch.optim.Optimizer":
        """Plain steps, after each of which W is cut to [0, 1]."""
        from torch.optim import SGD

        class Projected(SGD):
            def step(self, closure: object = None) -> None:  # type: ignore[override]
                super().step()
                for group in self.param_groups:
                    for w in group["params"]:
                        w.data.clamp_(0.0, 1.0)

        return Projected([w for w, adapted in zip(weights, self.adapts, strict=True) if adapted], lr=self.rate)


@dataclass(frozen=True)
class ALAState(Models):
    """The shared model, and what each client keeps."""

    own: ClientTable  # (n, d) theta_i, its model after its last training
    mixing: ClientTable  # (n, d) W_i; ones: the shared model


@dataclass(frozen=True, kw_only=True)
class FedALA(SharedModel[ALAState]):
    """FedAvg whose clients begin from a mixture, number by number, of the shared model and their own, which they are served, too.

    Example: ``ct.FedALA()``, or the spec ``fedala``.
    """

    layers: Literal["head", "all"] = setting("head", "What is adapted: the last dense layer, or all layers.")
    rate: float = setting(1.0, "The rate of the weights W.", above=0)
    epochs: int = setting(1, "Epochs for W each time.", minimum=1)
    first_epochs: int = setting(5, "Epochs for W when a client adapts for the first time.", minimum=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=2.0, served=1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[ALAState]:
        model, n = init()[None, :], len(ctx.roster)
        return done(ALAState(model, ClientTable.empty(n, model[0]), ClientTable.empty(n, np.ones_like(model[0]))))

    def round(self, state: ALAState, ctx: Context) -> Round[ALAState]:
        own, mixing = (table.grow(len(ctx.roster)) for table in (state.own, state.mixing))
        before, cohort = state, ctx.cohort()
        state = replace(state, own=own, mixing=mixing)
        serving, mixing = yield from self._adapt(state, cohort, ctx, "adapt")
        trained = yield from Train(cohort, serving.models, ctx.local, start=serving.rows)
        if not len(trained):
            return before
        kept = np.isin(trained.clients, np.flatnonzero(mixing.has_row))
        learned = state.mixing.put(trained.clients[kept], mixing.of(trained.clients[kept]))
        return ALAState(average_replies(state, trained, self.weighting, ctx).models, own.put(trained.clients, trained.vectors), learned)

    def _adapt(self, state: ALAState, clients: Ids, ctx: Context, purpose: str) -> Round[tuple[Serving, ClientTable]]:
        """The model that each client begins from, and the weights W; one without a model of its own takes the shared one."""
        known = clients[state.own.has_row[clients]]
        mixing = state.mixing
        if len(known):
            rule = ALARule(rate=self.rate, adapts=self.find_adapted(ctx.layout))
            extra = {OWN_MODEL: state.own.of(known), SHARED_MODEL: np.repeat(state.models, len(known), axis=0)}
            epochs = np.where(mixing.has_row[known], self.epochs, self.first_epochs)
            local = ctx.local.replace(rule=rule, mu=0.0, max_steps=None)
            weights = mixing.of(known)
            found = yield from Train(
                known,
                weights,
                local,
                start=np.arange(len(known)),
                extra=extra,
                kept=tuple(extra),
                epochs=epochs,
                purpose=purpose,
                alone=True,
            )
            mixing = mixing.put(found.clients, found.vectors)
        return self._serve_mixed(state, mixing, clients, known), mixing

    def find_adapted(self, layout: Layout) -> tuple[bool, ...]:
        """By trained tensor, whether it is adapted; in a model without a dense layer at its end all are."""
        return tuple(self.layers == "all" or not layout.head or s in layout.head for s in layout.weights)

    def _serve_mixed(self, state: ALAState, mixing: ClientTable, clients: Ids, known: Ids) -> Serving:
        """Each client theta_i + (theta - theta_i) * W_i."""
        share = np.clip(np.asarray(mixing.of(known)), 0.0, 1.0)
        mixed: Floats = share * np.asarray(state.models) + (1 - share) * np.asarray(state.own.of(known))  # of ones it is theta, exactly
        rows = np.zeros(len(clients), dtype=np.int64)
        rows[np.isin(clients, known)] = 1 + np.arange(len(known))
        return Serving(clients, np.concatenate([np.asarray(state.models), mixed.astype(np.float32)]), rows)

    def serve(self, state: ALAState, clients: Ids, ctx: Context) -> Round[Serving]:
        own, mixing = (table.grow(len(ctx.roster)) for table in (state.own, state.mixing))
        serving, _ = yield from self._adapt(replace(state, own=own, mixing=mixing), clients, ctx, "adapt to serve")
        return serving
