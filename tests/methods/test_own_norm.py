"""Batch norms that stay with their clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.method import Context, Round, done
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.states import Models, to_bytes
from coterie.engines.engine import StampedAsk
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.methods.own_norm import OwnNorm
from coterie.run.costs import compute_cost
from coterie.testing import worlds
from coterie.testing.play import PLAN, AlteredEngine, make_round_context, pass_unchanged, play, run_generator

WORLD = worlds.make_batch_norm_world()
LAYOUT = WORLD.model.layout
EVERYBODY = replace(PLAN, cohort=None, local=Local(epochs=2, batch_size=None, lr=0.1))
NORM = OwnNorm(method=FedAvg()).find_columns(LAYOUT)
STATISTICS = OwnNorm(method=FedAvg(), keep="statistics").find_columns(LAYOUT)


def test_which_numbers_stay() -> None:
    names = [s.name for s in LAYOUT.slices for _ in range(s.size)]
    assert {names[i] for i in NORM} == {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert {names[i] for i in STATISTICS} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert len(NORM) == 4 * 4 + 1


@pytest.mark.parametrize(("keep", "columns"), [("layers", NORM), ("statistics", STATISTICS)])
def test_two_rounds_are_those_of_clients_that_keep_their_norms(keep: Any, columns: Any) -> None:
    """Worked by asking the clients ourselves: each begins with the shared weights and its own norms, and the weights are averaged."""
    clients, sizes = np.arange(4), WORLD.federation.train.sizes
    shared, own = WORLD.model.initial(0)(), np.repeat(WORLD.model.initial(0)()[None], 4, axis=0)
    for round_ in (1, 2):
        own[:, np.setdiff1d(np.arange(LAYOUT.size), columns)] = np.delete(shared, columns)
        engine = AlteredEngine(pass_unchanged, WORLD)
        [trained] = engine.run([StampedAsk(Train(clients, own, EVERYBODY.local, start=clients), seed=0, round_=round_)])
        own = trained.vectors.copy()
        mean = (sizes[:, None] * own.astype(np.float64)).sum(0) / sizes.sum()
        shared = np.where(np.isin(np.arange(LAYOUT.size), columns), shared, mean).astype(np.float32)
    state: Any = play(OwnNorm(method=FedAvg(), keep=keep), world=WORLD, plan=EVERYBODY, rounds=2).states[-1]
    np.testing.assert_allclose(state.inner.models[0], shared, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.own.get_all_rows(), own[:, columns], rtol=1e-5, atol=1e-6)
    serving = run_generator(OwnNorm(method=FedAvg(), keep=keep).serve(state, clients, make_round_context(WORLD, EVERYBODY)), WORLD)
    served = serving.models[serving.rows]
    np.testing.assert_allclose(served[:, columns], own[:, columns], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.delete(served, columns, 1), np.repeat(np.delete(shared, columns)[None], 4, 0), rtol=1e-5, atol=1e-6)


def test_without_batch_norm_it_is_the_method() -> None:
    plain, wrapped = play(FedAvg(), plan=PLAN), play(OwnNorm(method=FedAvg()), plan=PLAN)
    inner: Any = wrapped.states[-1]
    assert to_bytes(inner.inner) == plain.data[-1]


def test_norms_that_stay_are_not_charged() -> None:
    engine = AlteredEngine(pass_unchanged, WORLD)
    play(OwnNorm(method=FedAvg()), world=WORLD, plan=EVERYBODY, rounds=1, engine=engine)
    ask = next(s.ask for s in engine.asked if isinstance(s.ask, Train))
    [reply] = engine.inner.run([StampedAsk(ask, seed=0, round_=1)])
    found = compute_cost(ask, reply)
    assert found.bytes_down == 4 * 4 * (LAYOUT.size - len(NORM))
    assert found.bytes_up == 4 * 4 * (LAYOUT.size - len(NORM) + 2)  # and how many samples and steps


def test_who_has_not_trained_is_served_the_initial_norms() -> None:
    method, plan = OwnNorm(method=FedAvg()), replace(EVERYBODY, cohort=1)
    state: Any = play(method, world=WORLD, plan=plan, rounds=1).states[-1]
    assert state.own.has_row.sum() == 1
    serving = run_generator(method.serve(state, np.arange(4), make_round_context(WORLD, plan)), WORLD)
    initial = WORLD.model.initial(0)()[NORM]
    same = [bool((serving.models[row][NORM] == initial).all()) for row in serving.rows]
    assert same == (~state.own.has_row).tolist()


def test_methods_that_try_several_models_on_a_client_are_refused() -> None:
    with pytest.raises(UserError, match=r"evaluates several models on a client .* omit fedbn"):
        play(build("ifca(groups=2)+fedbn"), world=WORLD, plan=EVERYBODY, rounds=1)


class Together(FedAvg):
    """Serves everybody the mean of what its one model says."""

    def serve(self, state: Models, clients: Ids, ctx: Context) -> Round[Serving]:
        return done(Serving(clients, state.models, np.full(len(clients), COMBINED), Mixture(np.ones((len(clients), 1)))))


def test_models_that_answer_together_are_refused() -> None:
    method = OwnNorm(method=Together())
    state = play(OwnNorm(method=FedAvg()), world=WORLD, plan=EVERYBODY, rounds=1).states[-1]
    with pytest.raises(UserError, match=r"answer together .* omit fedbn"):
        run_generator(method.serve(state, np.arange(4), make_round_context(WORLD, EVERYBODY)), WORLD)  # type: ignore[arg-type]
