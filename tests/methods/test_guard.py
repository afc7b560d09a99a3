"""The guard: what it equals where it does nothing, what each rule makes of a round, and whom it holds out."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.methods.catalogue import build
from coterie.methods.guard import Guard, GuardState, find_outliers, find_outlying_replies
from coterie.testing.fakes import make_context, make_layout, make_model, make_trained, run_dialogue
from coterie.testing.play import PLAN, play
from methods.noted import mixing_of

NEUTRAL = ("guard(rule=trim,trim=0,hold=false)", "guard(rule=krum,trim=0,hold=false)", "guard(rule=clip,bound=inf,hold=false)")
METHODS = ("fedavg", "simprox", "simagg", "fedsim(clusters=2)", "fedgroup(groups=2)", "fesem(groups=2)", "ifca(groups=2)", "feddist")
REPLY = make_trained([0, 1, 2, 3], [[0, 0], [1, 2], [2, 1], [90, 80]], [1, 1, 1, 1])


@pytest.mark.parametrize("spec", METHODS)
def test_a_rule_that_leaves_all_in_is_the_method_exactly(spec: str) -> None:
    plan = replace(PLAN, cohort=None, dropout=0.2)
    plain = play(build(spec), plan=plan, rounds=3)
    for neutral in NEUTRAL:
        guarded = play(build(f"{spec}+{neutral}"), plan=plan, rounds=3)
        for one, two in zip(plain.states, guarded.states, strict=True):
            np.testing.assert_array_equal(two.inner.models, one.models)  # type: ignore[attr-defined]
    assert (play(build(f"{spec}+guard(rule=median)"), plan=plan, rounds=3).states[-1].inner.models != plain.states[-1].models).any()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("trim", [1.5, 1.5]),  # .3 of the weight at each end: .2 of row 2, .2 of row 1 in the first coordinate (values 1, 2)
        ("median", [1.5, 1.5]),
        ("krum", [1.0, 1.0]),  # int(.3 * 4) = 1 is left out: the far one
    ],
)
def test_a_round_of_fedavg_by_hand(rule: Literal["trim", "median", "krum"], expected: list[float]) -> None:
    ctx = make_context([1, 1, 1, 1])
    state, _ = run_dialogue(
        Guard(method=build("fedavg"), rule=rule, trim=0.3, least=3).round(GuardState(make_model(5, 5), *np.zeros((2, 4), int)), ctx), REPLY
    )
    np.testing.assert_allclose(state.inner.models, [expected], rtol=1e-6)
    assert mixing_of(ctx).averages == (rule == "krum")
    np.testing.assert_allclose(mixing_of(ctx).replies.sum(), 1.0)


def test_what_is_kept_of_the_model_before_stays() -> None:
    # Reptile's half step from (4, 4) towards the median (1.5, 1.5)
    guard = Guard(method=build("feddist(beta=0.5)"), rule="median", least=3)
    state, _ = run_dialogue(guard.round(GuardState(make_model(4, 4), *np.zeros((2, 4), int)), make_context([1, 1, 1, 1])), REPLY)
    np.testing.assert_allclose(state.inner.models, [[2.75, 2.75]])


def test_of_two_replies_no_rule_can_tell_which_is_false() -> None:
    guard = Guard(method=build("fedavg"), rule="median", least=1)
    state, _ = run_dialogue(
        guard.round(GuardState(make_model(0, 0), *np.zeros((2, 4), int)), make_context([1, 1, 1, 3])),
        make_trained([0, 3], [[0, 0], [4, 8]], [1, 3]),
    )
    np.testing.assert_allclose(state.inner.models, [[3, 6]])


@pytest.mark.parametrize("spec", [*METHODS, "fedsim(clusters=2,sketch=3)"])
def test_where_too_few_answer_the_method_is_as_it_is_and_a_note_says_so(spec: str) -> None:
    plan = replace(PLAN, cohort=None)  # six clients
    plain, guarded = (play(build(text), plan=plan, rounds=2) for text in (spec, f"{spec}+guard(rule=median,least=7)"))
    assert [record.notes.named["unguarded"] for record in guarded.records[-2:]] == [6, 6]
    for one, two in zip(plain.states, guarded.states, strict=True):
        np.testing.assert_array_equal(two.inner.models, one.models)  # type: ignore[attr-defined]


def test_of_four_replies_no_hostile_one_can_be_told() -> None:
    """Krum's condition, n >= 2f + 3: five replies for one hostile among them."""
    assert Guard(method=build("fedavg")).least == 2 * 1 + 3
    four = replace(PLAN, cohort=4)
    plain, guarded, early = (play(build(text), plan=four, rounds=2) for text in ("simprox", "simprox+guard", "simprox+guard(least=4)"))
    assert (guarded.states[-1].inner.models == plain.states[-1].models).all()  # type: ignore[attr-defined]
    assert guarded.records[-1].notes.named["unguarded"] == 4
    assert (early.states[-1].inner.models != plain.states[-1].models).any()  # type: ignore[attr-defined]
    assert "unguarded" not in early.records[-1].notes.named


def test_of_five_replies_one_hostile_moves_little() -> None:
    vectors = [[0, 0], [1, 0], [0, 1], [1, 1], [900, 900]]
    for rule in ("trim", "median", "krum", "geometric", "clip"):
        guard, ctx = Guard(method=build("fedavg"), rule=rule), make_context([1] * 5)
        state, _ = run_dialogue(
            guard.round(GuardState(make_model(5, 5), *np.zeros((2, 5), int)), ctx), make_trained(range(5), vectors, [1] * 5)
        )
        assert np.abs(state.inner.models).max() <= 1.5, rule  # the mean is 180.4
        assert "unguarded" not in ctx.notes.named


def crowd(n: int, odd: int, seed: int = 0) -> np.ndarray:
    """Updates in two groups of directions, the last `odd` turned round."""
    rng = np.random.default_rng(seed)
    centres = np.array([[3.0, 1, 0, 0, 0, 0], [1, 3, 0, 0, 0, 0]])
    updates = centres[np.arange(n) % 2] + rng.normal(scale=0.3, size=(n, 6))
    updates[n - odd :] *= -1
    return updates.astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_those_who_stand_apart_are_found_and_nobody_else(seed: int) -> None:
    assert np.flatnonzero(find_outliers(crowd(30, 6, seed))).tolist() == list(range(24, 30))
    assert not find_outliers(crowd(30, 0, seed)).any()
    assert not find_outliers(np.zeros((30, 4), np.float32)).any()


@pytest.mark.parametrize("seed", range(3))
def test_among_many_the_same_are_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = np.full((1, 6), 7.0, np.float32)
    exact = find_outliers(crowd(300, 40, seed))
    monkeypatch.setattr("coterie.methods.guard.MANY", 10)
    monkeypatch.setattr("coterie.methods.guard.LANDMARKS", 100)
    assert np.flatnonzero(exact).tolist() == list(range(260, 300))
    assert find_outliers(crowd(300, 40, seed)).tolist() == exact.tolist() == find_outliers(crowd(300, 40, seed) + origin, origin).tolist()
    assert not find_outliers(crowd(300, 0, seed)).any()
    assert not find_outliers(np.zeros((30, 4), np.float32)).any()


def test_only_updates_from_one_model_are_compared_and_not_few() -> None:
    models = np.array([[0.0] * 6, [50.0] * 6], np.float32)
    start = np.array([0] * 24 + [1] * 6)
    ask = Train(np.arange(30), models, Local(), start=start)
    reply = make_trained(range(30), models[start] + crowd(30, 6), [1] * 30)
    compared, apart = find_outlying_replies(ask, reply, make_layout((6, "weight")))
    assert compared.tolist() == [True] * 24 + [False] * 6
    assert not apart.any()


def test_who_stands_apart_more_often_than_not_stays_out() -> None:
    n = 30
    guard, ctx = Guard(method=build("fedavg"), rule="trim", trim=0.0), make_context([1] * n, 6)
    reply = make_trained(range(n), crowd(n, 6), [1] * n)
    state, _ = run_dialogue(guard.round(GuardState(make_model(*[0.0] * 6), *np.zeros((2, n), int)), ctx), reply)
    np.testing.assert_allclose(state.inner.models[0], crowd(n, 6)[:24].mean(axis=0), rtol=1e-5)
    assert ctx.notes.named["held_out"].tolist() == list(range(24, 30))
    assert state.apart.tolist() == [0] * 24 + [1] * 6
    assert state.judged.tolist() == [1] * n
    few = make_trained(range(20, 30), np.ones((10, 6)), [1] * 10)  # too few to compare: what was seen before decides
    ctx = make_context([1] * n, 6, round_=2)
    again, _ = run_dialogue(guard.round(state, ctx), few)
    assert mixing_of(ctx).clients.tolist() == [20, 21, 22, 23]
    assert again.judged.tolist() == [1] * n
