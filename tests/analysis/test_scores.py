"""Scores of runs, and which runs count, on records written by hand."""

from math import isnan, nan

import numpy as np
import pytest

from analysis.made_records import ALONE, AVG, GROUP, SIM, by_hand, flat
from coterie._util.errors import UserError
from coterie.analysis.findings import compute_findings
from coterie.analysis.metrics import SCORES
from coterie.analysis.scores import TAIL_ROUNDS, compute_partial_curves, compute_scores, find_scope, score_curves
from coterie.core.arrays import Array
from coterie.evidence.records import DIVERGED, LaneEnd


def test_scores_by_hand() -> None:
    curve = np.array([[[0], [50], [70], [60]]])  # one seed, rounds 0 to 3, one client of 100 samples
    validation = np.array([[[nan, 0.4, 0.3, 0.4]]])
    found = compute_findings(by_hand({AVG: curve}, validation=validation), scores=("final", "last10", "mean", "validated", "max"))
    scores = {name: estimate.mean for name, estimate in found.methods[AVG].scores.items()}
    # round 0 is the start and counts in none; of the rounds that validate equally well the first is taken
    assert scores == pytest.approx({"final": 0.6, "last10": 0.6, "mean": 0.6, "validated": 0.5, "max": 0.7})
    assert "max" not in compute_findings(by_hand({AVG: curve})).methods[AVG].scores
    stability = found.methods[AVG].stability
    assert stability.change.mean == pytest.approx((0.2 + 0.1) / 2)
    assert stability.median_rounds == 2  # the target is FedAvg's own mean score, .6
    assert found.methods[AVG].spending.passes == 4
    assert found.methods[AVG].spending.passes_to_target == 3  # rounds 0, 1 and 2


def test_final_is_the_last_round_and_never_the_best() -> None:
    # The best round is in the middle: a curve that rises to .9 and falls back to .4.
    curve = np.array([[0.5, 0.9, 0.6, 0.4]])
    scores = {name: float(values[0]) for name, values in score_curves(curve).items()}
    assert scores == pytest.approx({"final": 0.4, "last10": 0.6, "mean": 0.6, "max": 0.9, "median": 0.55, "change": (0.4 + 0.3 + 0.2) / 3})
    records = by_hand({AVG: np.array([[[99], [50], [90], [60], [40]]])})  # a start at .99 counts in none
    found = compute_scores(records, find_scope(records), 0)
    assert found["final"] == found["macro"] == found["worst"] == pytest.approx([0.4])
    assert found["max"] == pytest.approx([0.9])
    long = np.array([np.r_[np.full(5, 0.1), np.full(TAIL_ROUNDS, 0.7)]])
    assert score_curves(long)["last10"] == pytest.approx([0.7])


def test_a_run_that_diverged_has_no_score_at_all() -> None:
    right = {AVG: flat(50, seeds=3, rounds=4), GROUP: flat(60, seeds=3, rounds=4)}
    right[GROUP][1, 3:] = -1  # the second seed ended after round 2, with the best numbers of its life
    right[GROUP][1, 2] = 100
    groups = {GROUP: np.tile(np.arange(4) % 2, (3, 5, 1))}
    groups[GROUP][1, 3:] = -1
    validation = np.full((2, 3, 5), 0.5)
    validation[1, 1, 3:] = nan
    records = by_hand(right, groups, validation, stopped={(GROUP, 1): LaneEnd(2, DIVERGED, "in round 3")})
    scope = find_scope(records)
    assert (scope.seeds.tolist(), scope.last) == ([0, 1, 2], 4)
    found = compute_scores(records, scope, 1)
    assert set(found) == set(SCORES) - {"auroc", "mae", "rmse", "perplexity", "unseen", "concordance", "brier", "calibration"}
    for name, values in found.items():
        assert np.isfinite(values).tolist() == [True, False, True], name
    assert all(np.isfinite(values).all() for values in compute_scores(records, scope, 0).values() if not np.isnan(values).all())
    (own,) = [finding for label, finding in compute_findings(records).methods.items() if label == GROUP]
    assert own.scores["final"].mean == pytest.approx((60 + 62) / 200)
    assert own.stopped == {(0, 1): "diverged in round 3"}


@pytest.mark.parametrize("curve", [[0.5, 0.9, nan], [nan, nan, nan]])
def test_curves_that_do_not_end_have_no_scores(curve: list[float]) -> None:
    found = score_curves(np.array([curve, [0.1, 0.2, 0.3]]))
    assert all(isnan(values[0]) and np.isfinite(values[1]) for values in found.values())


def stopped_at(rounds: dict[tuple[str, int], int]) -> dict[tuple[str, int], LaneEnd]:
    return {lane: LaneEnd(round_, DIVERGED, f"in round {round_ + 1}") for lane, round_ in rounds.items()}


def cut(values: Array, seed: int, last: int) -> None:
    values[seed, last + 1 :] = -1


def test_where_every_run_diverged_none_is_taken_for_complete() -> None:
    """The farthest that any came is no last round: nothing more will come."""
    one = flat(50, seeds=2, rounds=4)
    cut(one, 0, 2)
    cut(one, 1, 1)
    records = by_hand({AVG: one}, stopped=stopped_at({(AVG, 0): 2, (AVG, 1): 1}))
    scope = find_scope(records)
    assert (scope.seeds.tolist(), scope.last) == ([0, 1], 4)
    assert all(np.isnan(values).all() for values in compute_scores(records, scope, 0).values())
    at_once = flat(50, seeds=1, rounds=4)
    cut(at_once, 0, 0)
    assert find_scope(by_hand({AVG: at_once}, stopped=stopped_at({(AVG, 0): 0}))).last == 4


def test_a_seed_in_which_every_run_diverged_counts_beside_the_others() -> None:
    one, two = flat(50, seeds=3, rounds=4), flat(60, seeds=3, rounds=4)
    for values in (one, two):
        cut(values, 1, 1)
    ended = stopped_at({(AVG, 1): 1, (SIM, 1): 1})
    scope = find_scope(by_hand({AVG: one, SIM: two}, stopped=ended))
    assert (scope.seeds.tolist(), scope.last) == ([0, 1, 2], 4)
    for values in (one, two):  # and in a study that stands at round 3
        values[:, 4:] = -1
    records = by_hand({AVG: one, SIM: two}, stopped=ended)
    scope = find_scope(records)
    assert (scope.seeds.tolist(), scope.last) == ([0, 1, 2], 3)
    assert np.isfinite(compute_scores(records, scope, 1)["final"]).tolist() == [True, False, True]


def test_seeds_that_are_not_as_far_as_others_do_not_count_yet() -> None:
    one = flat(50, seeds=3, rounds=4)
    cut(one, 2, 2)
    scope = find_scope(by_hand({AVG: one, ALONE: one}))
    assert (scope.seeds.tolist(), scope.last) == ([0, 1], 4)
    nothing = np.full((2, 5, 4), -1)
    nothing[:, 0] = 50
    with pytest.raises(UserError, match="no evaluated round yet"):
        find_scope(by_hand({AVG: nothing}))


def test_a_live_curve_is_of_the_clients_that_were_evaluated() -> None:
    one = flat(50, seeds=2, rounds=3)
    one[0, 2] = [90, -1, 50, 50]
    scores, clients = compute_partial_curves(by_hand({AVG: one}))
    assert scores[0, 0] == pytest.approx([0.5, 0.5, 190 / 300, 0.5])
    assert clients[0].tolist() == [[4, 4, 3, 4], [4, 4, 4, 4]]
