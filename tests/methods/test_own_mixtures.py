"""A client's own mixture weights, from training to prediction: a small FedEM through engines, sites, bundles and the contract battery."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Doubles, Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.states import Models, grow_rows
from coterie.data.catalogue import load
from coterie.deploy.bundle.export import served_result
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.messages import restrict_serving
from coterie.deploy.server.engine import FederatedEngine
from coterie.engines.world import World
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.reporting_rules import WEIGHTS, MixtureRule
from coterie.testing.contracts import CHECKS, Checked
from coterie.testing.play import PLAN, get_loop_engine, make_round_context, play, run_generator
from deploy.in_process import InProcess


@dataclass(frozen=True)
class MixedState(Models):
    """K models, and each client's weights of them."""

    weights: Doubles  # (clients, K)
    seen: Bools  # (clients,)


@dataclass(frozen=True, kw_only=True)
class SmallFedEM(Method[MixedState]):
    """FedEM: K models on weighted samples, averaged by samples; a client is served the mixture of its own weights."""

    components: int = 2

    def start(self, init: InitialModels, ctx: Context) -> Round[MixedState]:
        n, k = len(ctx.roster), self.components
        models = np.stack([init(i) for i in range(k)])
        return done(MixedState(models, np.full((n, k), 1 / k), np.zeros(n, np.bool_)))

    def ask(self, state: MixedState, clients: Ids, ctx: Context, **options: Any) -> Train:
        rule = MixtureRule(components=self.components, trains=options.pop("trains", True))
        weights = grow_rows(state.weights, len(ctx.roster), np.full(self.components, 1 / self.components))[clients]
        extra = rule.bring(state.models, weights)
        return Train(clients, state.models[:1], ctx.local.replace(rule=rule), extra=extra, kept=(WEIGHTS,), **options)

    def round(self, state: MixedState, ctx: Context) -> Round[MixedState]:
        trained = yield from self.ask(state, ctx.cohort(), ctx)
        if not len(trained):
            return state
        n = len(ctx.roster)
        weights = np.array(grow_rows(state.weights, n, np.full(self.components, 1 / self.components)))
        seen = np.array(grow_rows(state.seen, n, False))
        weights[trained.clients], seen[trained.clients] = trained.summary, True
        counts = trained.sizes / trained.sizes.sum()
        models = [counts @ vectors.astype(np.float64) for vectors in (trained.vectors, *np.moveaxis(trained.more, 1, 0))]
        return MixedState(np.stack(models).astype(np.float32), weights, seen)

    def serve(self, state: MixedState, clients: Ids, ctx: Context) -> Round[Serving]:
        n = len(ctx.roster)
        weights = np.array(grow_rows(state.weights, n, np.full(self.components, 1 / self.components)))
        new = clients[~grow_rows(state.seen, n, False)[clients]]
        found = yield from self.ask(state, np.sort(new), ctx, trains=False, alone=True)  # a newcomer runs the E-step alone
        weights[found.clients] = found.summary
        return Serving(clients, state.models, np.full(len(clients), COMBINED), Mixture(weights[clients]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contracts(check: Callable[[Checked], None]) -> None:
    check(Checked(SmallFedEM, aggregate_is_final=False))


def test_clients_have_weights_of_their_own_and_newcomers_too() -> None:
    plan = replace(PLAN, cohort=4)
    history = play(SmallFedEM(components=3), plan=plan, rounds=4)
    state: Any = history.states[-1]
    ctx = make_round_context(plan=plan, round_=4)
    serving = run_generator(SmallFedEM(components=3).serve(state, ctx.roster.clients, ctx), round_=4)
    weights = serving.combiner.weights  # type: ignore[union-attr]
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert len(np.unique(weights.round(9), axis=0)) == len(ctx.roster)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_evaluation_is_of_each_clients_mixture(engine: Literal["loop", "batched"]) -> None:
    data = "digits/rotated(clients=6,groups=2)"
    result = ct.study(
        SmallFedEM(), data=data, rounds=2, execution=ct.Execution(engine=engine, threads=1), local=ct.Local(batch_size=20, lr=0.1)
    )
    federation, right, total = load(data), 0, 0
    bundle = served_result(result).bundle(federation.ids)
    space = get_loop_engine(World.from_spec(federation, "mclr")).space(World.from_spec(federation, "mclr"))
    for client, name in enumerate(federation.ids):
        rows = federation.test[client]
        chances = np.stack([space.predict(model, rows)[0] for model in bundle.models])
        place = list(bundle.clients).index(name)
        by_hand = np.tensordot(bundle.combiner.weights[place], chances, axes=1)  # type: ignore[union-attr]
        found = bundle.answer(federation.x[rows], name)
        np.testing.assert_allclose(found.probabilities, by_hand, atol=1e-6)
        right, total = right + int((by_hand.argmax(axis=1) == federation.y[rows]).sum()), total + len(rows)
    judged = result.evidence.frame("clients")
    judged = judged[judged["round"] == 2].filter(regex="hits_")
    assert judged.to_numpy().sum() == right
    assert 0 < right < total


def test_a_bundle_keeps_the_weights_of_its_clients_alone(tmp_path: Path) -> None:
    result = ct.study(SmallFedEM(), data="heart", rounds=2)
    federation = load("heart")
    bundle = ct.get_bundle(result, federation.ids[2])
    write_bundle(bundle, tmp_path / "own")
    again = read_bundle(tmp_path / "own")
    assert again.combiner.weights.shape == (1, 2)  # type: ignore[union-attr]
    rows = federation.test[2]
    whole = served_result(result).bundle(federation.ids).answer(federation.x[rows], federation.ids[2])
    assert again.answer(federation.x[rows], federation.ids[2]).probabilities.tobytes() == whole.probabilities.tobytes()


def test_a_real_federation_ends_as_the_simulation() -> None:
    federation = load("heart")
    world = World.from_spec(federation, "mclr")
    sites = {name: [name] for name in federation.ids}
    engine = FederatedEngine(InProcess(federation, sites), {name: name for name in federation.ids}, federation.ids, "a-run")
    plan = replace(PLAN, cohort=None, evaluate_every=1)
    real, simulated = play(SmallFedEM(), world=world, engine=engine, plan=plan), play(SmallFedEM(), world=world, plan=plan)
    assert real.data == simulated.data
    for left, right in zip(real.records, simulated.records, strict=True):
        assert left.evaluated is not None
        assert right.evaluated is not None
        assert left.evaluated.hits.tolist() == right.evaluated.hits.tolist()
    serving = run_generator(SmallFedEM().serve(real.states[-1], np.arange(len(federation)), make_round_context(world, plan)), world)  # type: ignore[arg-type]
    own = restrict_serving(serving.take(np.array([1])))
    assert own.combiner.weights.tolist() == serving.combiner.weights[[1]].tolist()  # type: ignore[union-attr]


def test_a_mixture_is_not_fine_tuned() -> None:
    with pytest.raises(UserError, match="A mixture of models cannot be fine-tuned, since clients share them"):
        play(FineTuned(method=SmallFedEM()))
