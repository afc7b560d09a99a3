"""CFL-GP: features of gradients, their directions, matching of labels and the number of groups, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Gradient, Losses, LossTable, Train
from coterie.core.states import ClientTable
from coterie.methods.cflgp import CFLGP, GradientGroups, cut_points, match_labels
from coterie.methods.fedavg import FedAvg
from coterie.testing.fakes import make_context, make_gradients, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play

SIZES = [1, 3, 2, 2]
TWO = CFLGP(groups=2)
PROBES = make_gradients([0, 1, 2, 3], [[1, 0], [0.9, 0.1], [-1, 0], [-1, 0.1]], [1.0] * 4)
REPLY = make_trained([0, 1, 2, 3], [[1, 1], [3, 3], [6, 6], [8, 8]], SIZES)


def state(**changes: Any) -> GradientGroups:
    return replace(GradientGroups(np.array([[0, 0], [9, 9]], np.float32), np.full(4, -1), ()), **changes)


def test_round_by_hand() -> None:
    ctx = make_context(SIZES)
    after, (probe, train) = run_dialogue(TWO.round(state(), ctx), PROBES, REPLY)
    assert isinstance(probe, Gradient)
    assert probe.start.tolist() == [0] * 4  # all at model 0
    assert train.start.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    first = int(train.start[0])
    np.testing.assert_allclose(after.models[[first, 1 - first]], [[2.0, 2.0], [7.0, 7.0]])  # the paper's plain means
    (block,) = after.features
    np.testing.assert_allclose(block.get_all_rows(), PROBES.vectors)
    by_samples, _ = run_dialogue(replace(TWO, weighting="samples").round(state(), make_context(SIZES)), PROBES, REPLY)
    np.testing.assert_allclose(by_samples.models[first], [2.5, 2.5])  # (1 * 1 + 3 * 3) / 4


def test_turns_and_moving_averages_by_hand() -> None:
    """Period 2, K = 2: rounds 1 and 3 (t = 0, 2) fill blocks 0 and 1; round 5 (t = 4) adds to block 0, beta = 1 / (floor(5 / 4) + 1)."""
    now, grad = state(), PROBES.vectors
    for round_, block, expected in ((1, 0, grad), (3, 1, 2 * grad), (5, 0, (grad + 3 * grad) / 2)):
        probes = replace(PROBES, vectors=grad * {1: 1, 3: 2, 5: 3}[round_])
        now, (probe, _) = run_dialogue(TWO.round(now, make_context(SIZES, round_=round_)), probes, REPLY)
        assert probe.start.tolist() == [block] * 4
        np.testing.assert_allclose(now.features[block].get_all_rows(), expected, rtol=1e-6)
    for round_ in (2, 4, 11, 13):  # between periods, and after `until`
        _, (train,) = run_dialogue(TWO.round(now, make_context(SIZES, round_=round_)), REPLY)
        assert isinstance(train, Train)
    assert len(run_dialogue(TWO.round(now, make_context(SIZES, round_=9)), PROBES, REPLY)[1]) == 2


def test_the_code_s_variant_takes_gradients_at_the_client_s_own_model() -> None:
    method = replace(TWO, at="own")
    now, (probe, train) = run_dialogue(method.round(state(), make_context(SIZES)), PROBES, REPLY)
    assert probe.start.tolist() == [0] * 4  # nobody has a group yet
    now, (probe, _) = run_dialogue(method.round(now, make_context(SIZES, round_=3)), PROBES, REPLY)
    assert probe.start.tolist() == train.start.tolist()
    assert len(now.features) == 1


def test_directions_are_those_of_the_largest_singular_values() -> None:
    """P_K' G of the paper, G having a client's blocks in its column, up to signs."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 6, 4)).astype(np.float32)
    blocks = tuple(ClientTable.empty(6, np.zeros(4, np.float32)).put(np.arange(6), block) for block in rows)
    known, points = TWO.compute_points(blocks, make_context([1] * 6))
    g = np.concatenate(list(rows), axis=1).T.astype(np.float64)
    left, _, _ = np.linalg.svd(g, full_matrices=False)
    assert known.tolist() == list(range(6))
    np.testing.assert_allclose(np.abs(points[:, :2].T), np.abs(left[:, :2].T @ g), atol=1e-9)


def test_a_block_that_was_not_sent_is_the_mean_of_the_others() -> None:
    blocks = [ClientTable.empty(3, np.zeros(1, np.float32)) for _ in range(2)]
    blocks[0] = blocks[0].put(np.array([0, 1]), np.array([[1], [3]], np.float32))
    blocks[1] = blocks[1].put(np.array([0, 1]), np.array([[4], [8]], np.float32))
    known, full = TWO.compute_points(tuple(blocks), make_context([1] * 3))
    assert known.tolist() == [0, 1]  # nothing is known of client 2
    blocks[0] = blocks[0].put(np.array([2]), np.array([[2]], np.float32))
    known, points = TWO.compute_points(tuple(blocks), make_context([1] * 3))
    assert known.tolist() == [0, 1, 2]
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), [17**0.5, 73**0.5, 40**0.5])  # (2, 6)
    assert full.shape[0] == 2


def test_labels_are_renamed_so_that_most_clients_stay() -> None:
    def matched(labels: Any, before: Any, count: int = 3) -> list[int]:
        return list(match_labels(np.array(labels), np.array(before), count))

    assert matched([0, 0, 1, 1, 2], [2, 2, 0, 0, 1]) == [2, 2, 0, 0, 1]
    assert matched([0, 0, 1, 1, 1], [1, 1, 1, 1, 0]) == [1, 1, 0, 0, 0]  # 2 + 1 stay; the other way round only 2
    assert matched([0, 1, 1], [-1, -1, -1]) == [0, 1, 1]
    assert matched([0, 4, 4], [-1, 4, 4]) == [0, 4, 4]  # an oracle may know more groups


def test_a_number_of_groups_is_read_from_the_first_features() -> None:
    # Largest gap of singular values after the first, but three directions at least.
    points = np.diag([9.0, 2.0, 1.5, 1.0])
    assert cut_points(points).shape == (4, 3)
    assert cut_points(np.diag([9.0, 8.0, 7.0, 6.0, 1.0])).shape == (5, 4)
    method = CFLGP(groups="auto", choice="silhouette", most=3)
    before = GradientGroups(np.zeros((3, 2), np.float32), np.full(4, -1), ())
    ctx = make_context(SIZES)
    after, (probe, _) = run_dialogue(method.round(before, ctx), PROBES, REPLY)
    assert probe.models.shape == (3, 2)
    assert after.models.shape == (2, 2)
    assert ctx.notes.choice is not None
    assert (ctx.notes.choice.k, ctx.notes.choice.how) == (2, "silhouette")
    again, _ = run_dialogue(method.round(after, make_context(SIZES, round_=3)), PROBES, REPLY)
    assert again.models.shape == (2, 2)


def test_a_client_without_features_joins_by_its_loss() -> None:
    probes, losses = PROBES.of(np.array([0, 2, 3])), LossTable(np.array([1]), np.array([[0.5, 0.2]]), np.array([3]))
    after, (_, table, train) = run_dialogue(TWO.round(state(), make_context(SIZES)), probes, losses, REPLY)
    assert table.clients.tolist() == [1]
    assert train.start[1] == 1
    assert after.groups[1] == 1


def test_a_round_without_gradients_groups_nobody_anew() -> None:
    grouped = state(groups=np.array([0, 0, 1, 1]))
    after, (_, train) = run_dialogue(TWO.round(grouped, make_context(SIZES)), remove_clients(PROBES), REPLY)
    assert after.features == ()
    assert train.start.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_group_is_fedavg_exactly(weighting: Any, dropout: float) -> None:
    plan, engine = replace(PLAN, dropout=dropout), AlteredEngine(pass_unchanged)
    one = play(CFLGP(groups=1, weighting=weighting), plan=plan, rounds=4, engine=engine)
    avg = play(FedAvg(weighting=weighting), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in one.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]
    assert not any(isinstance(s.ask, Gradient | Losses) for s in engine.asked)


def test_random_groups_have_the_sizes_of_the_similar_ones() -> None:
    plan = replace(PLAN, cohort=None)
    control = play(CFLGP(groups=2, assign="random"), plan=plan, rounds=2)
    similar = play(CFLGP(groups=2), plan=plan, rounds=2)
    groups = [s.states[-1].groups for s in (control, similar)]  # type: ignore[attr-defined]
    assert np.sort(np.bincount(groups[0])).tolist() == np.sort(np.bincount(groups[1])).tolist()
