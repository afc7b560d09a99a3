"""Robust (TKM): trimmed k-means and trimmed means by hand, and how what is no linear mix is recorded."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.methods.fedavg import FedAvg
from coterie.methods.grouped import OneShotState
from coterie.methods.robust import Robust, compute_trimmed_mean
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play
from methods.noted import mixing_of


def test_trimmed_mean_by_hand() -> None:
    # Without the lowest and the highest: first column 2, 3 -> 2.5; second column 5, 6 -> 5.5. Rows 1 and 2 count in the first, 0 and 3
    # in the second: each makes up a quarter of the whole.
    vectors = np.array([[1, 5], [2, 9], [3, -9], [99, 6]], np.float32)
    mean, shares = compute_trimmed_mean(vectors, 1)
    assert mean.tolist() == [2.5, 5.5]
    assert shares.tolist() == [0.25] * 4


def test_trimmed_mean_in_blocks_is_the_mean_without_the_ends() -> None:
    vectors = np.random.default_rng(0).normal(size=(7, 9000)).astype(np.float32)
    mean, shares = compute_trimmed_mean(vectors, 2)
    np.testing.assert_allclose(mean, np.sort(vectors.astype(np.float64), axis=0)[2:5].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(shares.sum(), 1.0)


@given(n=st.integers(5, 40), d=st.integers(1, 5), share=st.floats(0, 0.49), values=st.integers(1, 30), seed=st.integers(0, 1000))
def test_trimmed_means_of_many_are_those_of_few(n: int, d: int, share: float, values: int, seed: int) -> None:
    """Equal numbers too: a stable sort decides which of them count."""
    vectors = np.random.default_rng(seed).integers(values, size=(n, d)).astype(np.float32)
    cut = int(share * n)
    mean, shares = compute_trimmed_mean(vectors, cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.methods.robust.MANY", 1)
        patch.setattr("coterie.methods.robust.MAX_SORTED", 2 * n)
        many, shares_of_many = compute_trimmed_mean(vectors, cut)
    np.testing.assert_allclose(many, mean, rtol=1e-6)
    np.testing.assert_array_equal(shares_of_many, shares)


def rows(values: list[float]) -> list[list[float]]:
    return [[value, 0.0] for value in values]


def test_rounds_by_hand() -> None:
    # Ten clients near 1 and ten near -1, trim .1: in each cluster of ten the lowest and the highest are left out of every coordinate.
    up = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    values = [*up, *(-v for v in up)]
    start = OneShotState(np.zeros((1, 2), np.float32), np.full(20, -1), False)
    ctx = make_context([1] * 20)
    state, _ = run_dialogue(Robust(groups=2, trim=0.1).round(start, ctx), make_trained(list(range(20)), rows(values), [1] * 20))
    assert state.groups.tolist() == [0] * 10 + [1] * 10
    np.testing.assert_allclose(state.models[:, 0], [1.45, -1.45], rtol=1e-6)
    mixing = mixing_of(ctx)
    assert not mixing.averages
    # In the first coordinate eight count; the second is all zeros, and a stable order leaves out the first and the last as well.
    np.testing.assert_allclose(mixing.replies[0, :10], [0, *[0.125] * 8, 0])
    # An attacker in the next round changes nothing beyond its place at the end.
    bad = make_trained(list(range(10)), rows([*up[:9], 1e6]), [1] * 10)
    after, _ = run_dialogue(Robust(groups=2, trim=0.1).round(state, make_context([1] * 20, round_=2)), bad)
    np.testing.assert_allclose(after.models[:, 0], [1.45, -1.45], rtol=1e-6)


def test_where_nothing_is_trimmed_the_matrix_says_all() -> None:
    start = OneShotState(np.zeros((1, 2), np.float32), np.full(3, -1), False)
    ctx = make_context([1, 5, 1])
    state, _ = run_dialogue(Robust(groups=1).round(start, ctx), make_trained([0, 1, 2], rows([1, 2, 6]), [1, 5, 1]))
    np.testing.assert_allclose(state.models, [[3, 0]])  # uniform, and 5 % of three clients is nobody
    assert mixing_of(ctx).averages
    assert ctx.notes.named["odd_clients"].tolist() == []


def test_one_group_untrimmed_is_uniform_fedavg_exactly() -> None:
    plan = replace(PLAN, cohort=None, dropout=0.2)
    ours, theirs = play(Robust(groups=1, trim=0.0), plan=plan, rounds=3), play(FedAvg(weighting="uniform"), plan=plan, rounds=3)
    assert [s.models.tobytes() for s in ours.states][:2] == [s.models.tobytes() for s in theirs.states][:2]  # type: ignore[attr-defined]
    full = replace(PLAN, cohort=None)
    ours, theirs = play(Robust(groups=1, trim=0.0), plan=full, rounds=3), play(FedAvg(weighting="uniform"), plan=full, rounds=3)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    assert play(Robust(groups=1, trim=0.2), plan=full, rounds=3).states[-1].models.tobytes() != theirs.states[-1].models.tobytes()  # type: ignore[attr-defined]


def test_the_random_control_keeps_the_sizes() -> None:
    values = [1.0, 1.1, 1.2, -1.0, -1.1, -1.2, -1.3]
    start = OneShotState(np.zeros((1, 2), np.float32), np.full(7, -1), False)
    reply = make_trained(list(range(7)), rows(values), [1] * 7)
    for seed in range(4):
        state, _ = run_dialogue(Robust(groups=2, assign="random").round(start, make_context([1] * 7, seed=seed)), reply)
        assert sorted(np.bincount(state.groups)) == [3, 4]


def test_nobody_answers() -> None:
    start = OneShotState(np.zeros((1, 2), np.float32), np.full(2, -1), False)
    reply = make_trained([0, 1], rows([1, 2]), [1, 1])
    assert run_dialogue(Robust().round(start, make_context([1, 1])), remove_clients(reply))[0] is start


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="groups"):
        Robust(groups=0)
    for trim in (-0.1, 0.5):
        with pytest.raises(UserError, match="trim"):
            Robust(trim=trim)
