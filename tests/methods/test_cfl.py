"""CFL: the criterion and the cut by hand; every client in exactly one group through many splits; controls and serving."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core.asks import LossTable
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.methods.cfl import CFL, CFLState
from coterie.methods.fedavg import FedAvg
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play

ABSOLUTE = CFL(relative=False, eps1=0.5, eps2=0.8, gamma=0.0)
APART = make_trained([0, 1, 2, 3], [[1, 0], [1, 0.2], [-1, 0], [-1, 0.2]], [1, 3, 1, 1])


def fresh(n: int = 4, d: int = 2) -> CFLState:
    return CFLState(np.zeros((1, d), np.float32), np.zeros(n, np.int64), np.ones(n, np.bool_), 0.0)


def test_split_by_hand() -> None:
    # Uniformly the mean update is (0, .1): shorter than .5; the longest is sqrt(1.04): longer than .8. Cosines across the cut are about -1.
    method = replace(ABSOLUTE, weighting="uniform")
    ctx = make_context([1, 3, 1, 1])
    after, _ = run_dialogue(method.round(fresh(), ctx), APART)
    assert after.groups.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(after.models, [[1, 0.1], [-1, 0.1]], rtol=1e-6)
    assert ctx.notes.named["splits"] == 1
    assert ctx.notes.named["cross_cosine 0"] < -0.9
    # By samples it is (1 + 3 - 1 - 1, .6 + .2) / 6 = (.333, .133), of norm .359: also short; the models are weighted in each half.
    after, _ = run_dialogue(ABSOLUTE.round(fresh(), make_context([1, 3, 1, 1])), APART)
    np.testing.assert_allclose(after.models, [[1, 0.15], [-1, 0.1]], rtol=1e-6)


@pytest.mark.parametrize(("eps1", "eps2"), [(0.35, 0.8), (0.5, 1.1)])
def test_no_split_while_moving_or_when_everybody_is_content(eps1: float, eps2: float) -> None:
    # The mean by samples is (2, .8) / 6, of norm .359: not below .35. And no update is longer than 1.1.
    after, _ = run_dialogue(replace(ABSOLUTE, eps1=eps1, eps2=eps2).round(fresh(), make_context([1, 3, 1, 1])), APART)
    assert after.groups.tolist() == [0, 0, 0, 0]
    assert len(after.models) == 1


def test_relative_to_the_longest_mean_update() -> None:
    method = CFL(eps1=0.5, eps2=0.2, gamma=0.0, weighting="uniform")
    first, _ = run_dialogue(method.round(fresh(), make_context([1] * 4)), make_trained([0, 1, 2, 3], [[3, 4]] * 4, [1] * 4))
    assert first.scale == 5
    assert first.groups.tolist() == [0, 0, 0, 0]  # as long as itself: not settled
    # The mean update is now (0, .1), below .5 * 5, and the longest 1.02, above .2 * 5.
    apart = replace(APART, vectors=APART.vectors + np.array([3, 4], np.float32))
    second, _ = run_dialogue(method.round(first, make_context([1] * 4, round_=2)), apart)
    assert second.groups.tolist() == [0, 0, 1, 1]
    assert second.scale == 5  # both halves go on with it
    assert len(run_dialogue(replace(method, eps2=0.21).round(first, make_context([1] * 4)), apart)[0].models) == 1


def test_the_scale_is_the_longest_mean_update_so_far() -> None:
    # Everybody moves alike, by 5, 13 and .1: the scale grows and never shrinks.
    state, scales, at = fresh(), [], np.zeros(2)
    for round_, step in enumerate([(3, 4), (5, 12), (0, 0.1)], start=1):
        at = at + step
        state, _ = run_dialogue(CFL().round(state, make_context([1] * 4, round_=round_)), make_trained([0, 1, 2, 3], [at] * 4, [1] * 4))
        scales.append(state.scale)
    assert scales == [5, 13, 13]


def test_the_scale_is_that_of_any_group() -> None:
    # Group 0 moves by 5, group 1 by 1: both are measured by 5.
    before = replace(fresh(), models=np.zeros((2, 2), np.float32), groups=np.array([0, 0, 1, 1]))
    ctx = make_context([1] * 4)
    after, _ = run_dialogue(CFL().round(before, ctx), make_trained([0, 1, 2, 3], [[3, 4], [3, 4], [0, 1], [0, 1]], [1] * 4))
    assert after.scale == 5
    assert (ctx.notes.named["mean_update 0"], ctx.notes.named["mean_update 1"]) == (1.0, pytest.approx(0.2))


def test_a_cut_counts_only_above_gamma() -> None:
    # The largest cosine across is that of (1, .2) and (-1, .2): -.96 / 1.04, so sqrt((1 + .923) / 2) = .981.
    for gamma, groups in ((0.98, [0, 0, 1, 1]), (0.99, [0, 0, 0, 0])):
        ctx = make_context([1] * 4)
        after, _ = run_dialogue(replace(ABSOLUTE, weighting="uniform", gamma=gamma).round(fresh(), ctx), APART)
        assert after.groups.tolist() == groups
        assert ctx.notes.named["cross_cosine 0"] == pytest.approx(-0.96 / 1.04)
        assert ctx.notes.named["splits"] == len(after.models) - 1
        control, _ = run_dialogue(
            replace(ABSOLUTE, weighting="uniform", gamma=gamma, assign="random").round(fresh(), make_context([1] * 4)), APART
        )
        assert len(control.models) == len(after.models)  # random groups are cut when similar ones would be


def test_all_members_train_in_every_nth_round_and_only_then_is_a_group_looked_at() -> None:
    plan = Plan(cohort=2, local=Local())
    for seed in range(20):
        ctx = make_context([1] * 4, plan=plan, seed=seed, round_=2)
        one, two = ctx.cohort()
        if one < 2 <= two:
            break
    assert one < 2 <= two  # from both sides: their mean is short, and yet they are only a part of the group
    method = replace(ABSOLUTE, weighting="uniform", look=3)
    first, (ask,) = run_dialogue(method.round(fresh(), ctx), APART.of(np.array([one, two])))
    assert ask.clients.tolist() == [one, two]
    assert first.groups.tolist() == [0, 0, 0, 0]
    assert "mean_update 0" not in ctx.notes.named
    second, (ask,) = run_dialogue(method.round(first, make_context([1] * 4, plan=plan, seed=seed, round_=3)), APART)
    assert ask.clients.tolist() == [0, 1, 2, 3]
    assert second.groups.tolist() == [0, 0, 1, 1]
    whole, _ = run_dialogue(
        method.round(fresh(), make_context([1] * 4, round_=2)), APART
    )  # a cohort of everybody is looked at in any round
    assert whole.groups.tolist() == [0, 0, 1, 1]


def test_a_member_that_misses_the_split_takes_the_lowest_loss_next_time() -> None:
    method = replace(ABSOLUTE, weighting="uniform", eps1=1.0)
    first, _ = run_dialogue(method.round(fresh(), make_context([1] * 4)), APART.of(np.array([0, 1, 2])))
    assert first.groups.tolist() == [0, 0, 1, 0]  # for the time being with the larger half
    assert first.settled.tolist() == [True, True, True, False]
    losses = LossTable(np.array([3]), np.array([[0.9, 0.1]]), np.array([1]))
    second, (ask, train) = run_dialogue(
        method.round(first, make_context([1] * 4, round_=2)), losses, remove_clients(APART).of(np.array([0]))
    )
    assert ask.clients.tolist() == [3]
    assert train.start.tolist() == [0, 0, 1, 1]
    assert second is first  # nobody trained
    still = make_trained([0, 1, 2, 3], first.models[[0, 0, 1, 1]], [1] * 4)
    second, _ = run_dialogue(method.round(first, make_context([1] * 4, round_=2)), losses, still)
    assert second.groups.tolist() == [0, 0, 1, 1]
    assert second.settled.all()


def test_single_linkage_chains_and_complete_does_not() -> None:
    # Directions at 0, 28, 60, 88 and 123 degrees, 28, 32, 28 and 35 apart. Single linkage cuts at the widest gap, before the last. Complete
    # linkage joins 0-28 and 60-88, then 123 to the latter (63 degrees wide, against 88 for both pairs together).
    angles = np.deg2rad([0, 28, 60, 88, 123])
    reply = make_trained(list(range(5)), np.column_stack([np.cos(angles), np.sin(angles)]), [1] * 5)
    free = CFL(relative=False, eps1=9, eps2=0, gamma=0)
    single, _ = run_dialogue(free.round(fresh(5), make_context([1] * 5)), reply)
    assert single.groups.tolist() == [0, 0, 0, 0, 1]
    complete, _ = run_dialogue(replace(free, linkage="complete").round(fresh(5), make_context([1] * 5)), reply)
    assert complete.groups.tolist() == [0, 0, 1, 1, 1]


def targets() -> Any:
    """16 clients, two at each of eight corners: 4 along the first axis parts first, then 2, then 1."""
    bits = np.array([[int(b) for b in f"{i // 2:03b}"] for i in range(16)])
    return (2 * bits - 1) * [4.0, 2.0, 1.0] + [0.0, 0.0, 9.0]


def test_three_levels_of_splits_find_the_corners() -> None:
    method, ends = CFL(relative=False, eps1=1e-3, eps2=0.1, gamma=0), targets()
    state, levels = fresh(16, 3), [1]
    order = np.random.default_rng(0).permutation(16)  # neighbours in number are no neighbours in space
    for round_ in range(1, 9):
        reply = make_trained(list(range(16)), ends[order], [1] * 16)
        state, _ = run_dialogue(method.round(state, make_context([1] * 16, 3, round_=round_)), reply)
        levels.append(len(state.models))
    assert [n for n in (1, 2, 4, 8) if n in levels] == [1, 2, 4, 8]
    assert levels[-1] == 8
    for client in range(16):
        np.testing.assert_allclose(state.models[state.groups[client]], ends[order[client]], atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(8, 14), st.floats(0, 0.5), st.sampled_from([None, 5]))
def test_every_client_is_in_exactly_one_group(seed: int, n: int, silent: float, cohort: int | None) -> None:
    """Splits whenever it may (a long mean is short enough), with random updates and silences, for seven rounds."""
    rng = np.random.default_rng(seed)
    method = CFL(relative=False, eps1=1e6, eps2=0.0, gamma=0.0, look=2)
    state, plan = fresh(n, 3), Plan(cohort=cohort, local=Local())
    for round_ in range(1, 8):
        before = state
        script = method.round(state, make_context([1] * n, 3, plan=plan, round_=round_, seed=seed))
        reply: Any = None
        try:
            while True:
                ask: Any = script.send(reply)
                here = ask.clients[rng.random(len(ask.clients)) >= silent]
                if hasattr(ask, "local"):
                    for i, client in enumerate(ask.clients):  # each begins from the model of the group that it is in
                        assert before.settled[client] <= (ask.start[i] == before.groups[client])
                    reply = make_trained(here.tolist(), rng.normal(size=(len(here), 3)), [1] * len(here))
                else:
                    reply = LossTable(here, rng.random((len(here), len(ask.models))), np.ones(len(here), np.int64))
        except StopIteration as end:
            state = end.value
        k = len(state.models)
        assert state.groups.shape == (n,)
        assert sorted(np.unique(state.groups)) == list(range(k))  # no client outside, no group without a client
        assert k >= len(before.models)
        for j in range(len(before.models), k):  # a new group comes out of one old group
            assert len(np.unique(before.groups[(state.groups == j) & before.settled & state.settled])) <= 1
    if silent == 0 and cohort is None:
        assert k >= 8  # a group of two or more is cut in every round: at least three levels


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_without_a_split_it_is_fedavg_exactly(weighting: Any, dropout: float) -> None:
    for plan, look in ((replace(PLAN, dropout=dropout), 5), (replace(PLAN, dropout=dropout, cohort=None), 2)):
        ours = play(CFL(eps1=0.0, weighting=weighting, look=look), plan=plan, rounds=4)
        theirs = play(FedAvg(weighting=weighting), plan=plan, rounds=4)
        assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
        assert [r.cost for r in ours.records] == [r.cost for r in theirs.records]
        assert len(play(CFL(eps1=9, eps2=0, gamma=0, look=2), plan=plan, rounds=4).states[-1].models) > 1  # type: ignore[attr-defined]


def test_identical_clients_and_zero_updates_never_split() -> None:
    free = CFL(relative=False, eps1=9, eps2=0, gamma=0)
    same = make_trained([0, 1, 2, 3], [[1, 0]] * 4, [1] * 4)
    assert len(run_dialogue(free.round(fresh(), make_context([1] * 4)), same)[0].models) == 1
    still = make_trained([0, 1, 2, 3], [[0, 0]] * 4, [1] * 4)
    assert len(run_dialogue(free.round(fresh(), make_context([1] * 4)), still)[0].models) == 1
    plan = replace(PLAN, cohort=None, local=Local(batch_size=None))
    last = play(free, world=worlds.make_identical_world(), plan=plan).states[-1]
    assert isinstance(last, CFLState)
    assert len(last.models) == 1


@pytest.mark.parametrize(("assign", "expected"), [("one", [0, 0, 0, 0]), ("round_robin", [0, 1, 0, 1]), ("oracle", [0, 1, 1, 1])])
def test_controls(assign: Any, expected: list[int]) -> None:
    method = replace(ABSOLUTE, assign=assign)
    after, _ = run_dialogue(method.round(fresh(), make_context([1] * 4, truth=np.array([5, 2, 2, 7]))), APART)
    assert after.groups.tolist() == expected


def test_random_control_keeps_the_sizes() -> None:
    angles = np.deg2rad([0, 2, 4, 180, 182, 184, 186, 188, 190])
    reply = make_trained(list(range(9)), np.column_stack([np.cos(angles), np.sin(angles)]), [1] * 9)
    free = CFL(relative=False, eps1=9, eps2=0, gamma=0, assign="random")
    seen = {tuple(run_dialogue(free.round(fresh(9), make_context([1] * 9, seed=seed)), reply)[0].groups.tolist()) for seed in range(5)}
    assert len(seen) > 1
    assert {tuple(sorted(np.bincount(labels))) for labels in seen} == {(3, 6)}


def test_one_that_missed_a_split_is_served_the_lowest_loss() -> None:
    state = CFLState(np.eye(2, dtype=np.float32), np.array([0, 0, 1, 0]), np.array([True, True, True, False]), 0.0)
    losses = LossTable(np.array([3]), np.array([[0.9, 0.1]]), np.array([1]))
    serving, (ask,) = run_dialogue(CFL().serve(state, np.array([3, 0, 2]), make_context([1] * 4)), losses)
    assert ask.clients.tolist() == [3]
    assert serving.rows.tolist() == [1, 0, 1]


def test_bad_settings() -> None:
    bad: list[dict[str, Any]] = [{"eps1": -1.0}, {"eps2": float("inf")}, {"gamma": 1.1}, {"look": 0}]
    for wrong in bad:
        with pytest.raises(UserError, match=next(iter(wrong))):
            CFL(**wrong)
