from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Ints
from coterie.core.asks import Evaluate, Gradient, Losses, ModelAsk, Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.run.conditions import apply_conditions

N = 2000
ROSTER = Roster.from_sizes([f"client-{i}" for i in range(N)], np.ones(N, dtype=np.int64))
MODELS = np.zeros((1, 2), np.float32)


def train(epochs: int = 5, partial: bool = False) -> Train:
    return Train(ROSTER.clients, MODELS, Local(epochs=epochs), partial=partial)


def left(ask: ModelAsk[Any], plan: Plan, seed: int = 0, round_: int = 1) -> list[int]:
    after = apply_conditions(ask, plan, ROSTER, seed, round_)
    assert isinstance(after, ModelAsk)
    return list(after.clients)


def epochs(plan: Plan, ask: Train) -> Ints:
    after = apply_conditions(ask, plan, ROSTER, 0, 1)
    assert isinstance(after, Train)
    assert after.epochs is not None
    return after.epochs


def test_a_calm_world_changes_nothing() -> None:
    ask = train()
    assert apply_conditions(ask, Plan(), ROSTER, 0, 1) is ask


def test_dropout_rate() -> None:
    share = 1 - len(left(train(), Plan(dropout=0.3))) / N
    assert abs(share - 0.3) < 0.04  # four standard deviations of a binomial share


def test_a_client_is_gone_for_the_whole_round_whatever_is_asked() -> None:
    plan = Plan(dropout=0.3)
    there = left(train(), plan)
    assert left(Gradient(ROSTER.clients, MODELS), plan) == there
    assert left(Losses(ROSTER.clients, MODELS), plan) == there
    assert left(replace(train(), purpose="warm-up"), plan) == there


def test_rounds_and_seeds_draw_anew() -> None:
    plan = Plan(dropout=0.3)
    first = set(left(train(), plan))
    for other in (left(train(), plan, round_=2), left(train(), plan, seed=1)):
        both = len(first & set(other)) / N
        assert abs(both - 0.49) < 0.05  # independent draws


def test_the_others_have_no_say() -> None:
    plan = Plan(dropout=0.3)
    some = ROSTER.clients[::3]
    assert left(Gradient(some, MODELS), plan) == [c for c in left(train(), plan) if c % 3 == 0]


def test_stragglers_are_dropped_where_partial_work_is_unwelcome() -> None:
    plan = Plan(stragglers=0.9)
    assert abs(len(left(train(), plan)) / N - 0.1) < 0.03
    assert len(left(Gradient(ROSTER.clients, MODELS), plan)) == N  # only training takes long


def test_stragglers_do_one_to_e_minus_one_epochs_where_it_is_welcome() -> None:
    done = epochs(Plan(stragglers=0.8), train(5, partial=True))
    assert len(done) == N
    assert set(done.tolist()) == {1, 2, 3, 4, 5}
    shares = np.bincount(done, minlength=6)[1:] / N
    assert abs(shares[4] - 0.2) < 0.04
    assert np.abs(shares[:4] - 0.2).max() < 0.04  # uniform on [1, 5)


def test_the_same_clients_straggle_for_every_method() -> None:
    plan = Plan(stragglers=0.4)
    kept = left(train(), plan)
    done = epochs(plan, train(5, partial=True))
    assert np.flatnonzero(done == 5).tolist() == kept


def test_one_epoch_cannot_be_cut_short() -> None:
    assert set(epochs(Plan(stragglers=1.0), train(1, partial=True)).tolist()) == {1}


def test_epochs_that_a_method_gives_are_what_is_cut() -> None:
    ask = replace(train(9, partial=True), epochs=np.where(ROSTER.clients % 2, 2, 3))
    done = epochs(Plan(stragglers=1.0), ask)
    assert set(done[1::2].tolist()) == {1}
    assert set(done[::2].tolist()) == {1, 2}


def test_dropouts_and_stragglers_are_drawn_apart() -> None:
    gone = N - len(left(train(), Plan(dropout=0.5)))
    both = N - len(left(train(), Plan(dropout=0.5, stragglers=0.5)))
    assert abs(gone / N - 0.5) < 0.05
    assert abs(both / N - 0.75) < 0.05


def test_a_methods_own_evaluation_loses_the_same_clients() -> None:
    plan = Plan(dropout=0.3, stragglers=0.9)
    there = left(Gradient(ROSTER.clients, MODELS), plan)
    for part in ("train", "validation", "test"):
        after = apply_conditions(Evaluate(Serving.one(ROSTER.clients, MODELS[0]), part), plan, ROSTER, 0, 1)
        assert isinstance(after, Evaluate)
        assert list(after.clients) == there  # and nobody for being late: only training takes long
        assert after.part == part


def test_a_combined_serving_keeps_its_clients_own_weights() -> None:
    weights = np.arange(2.0 * N).reshape(N, 2)
    serving = Serving(ROSTER.clients, np.zeros((2, 2), np.float32), np.full(N, COMBINED), Mixture(weights))
    after = apply_conditions(Evaluate(serving, "train"), Plan(dropout=0.3), ROSTER, 0, 1)
    assert isinstance(after, Evaluate)
    assert 0 < len(after.clients) < N
    assert after.serving.places.tolist() == after.clients.tolist()  # the rows that the mixture knows them by
    assert after.serving.combiner is serving.combiner


def test_the_central_set_does_not_drop_out() -> None:
    ask = Evaluate(Serving.one(ROSTER.clients, MODELS[0]), "central")
    assert apply_conditions(ask, Plan(dropout=0.9, stragglers=0.9), ROSTER, 0, 1) is ask
