"""Survival times by hand: positions, curves, weights, scores; and numbers that scikit-survival and lifelines give for the same samples."""

import numpy as np
import pytest
import torch

from coterie.core.asks import Evaluated
from coterie.core.survival import (
    compute_brier_scores,
    compute_censoring,
    compute_kaplan_meier,
    compute_likelihoods,
    compute_mean_times,
    compute_time_weights,
    count_concordant_pairs,
    count_exits,
    count_expected_events,
    place_times,
    restore_times,
)
from coterie.core.tasks import Task, compute_credits
from coterie.engines.loss import SurvivalLoss, compute_scores, survival_loss

GRID = np.array([0.0, 10.0, 20.0, 40.0])
# dies in interval 0; censored within 1; dies at the end of 1; dies in 2; survives the grid; censored at the end of 0; dies beyond the grid
TIMES = np.array([5.0, 15.0, 20.0, 30.0, 40.0, 10.0, 60.0])
EVENTS = np.array([1, 0, 1, 1, 0, 0, 1])
Y = np.stack([place_times(TIMES, GRID), EVENTS], axis=1).astype(np.float32)


def test_times_have_positions_from_which_they_come_back() -> None:
    assert place_times(TIMES, GRID).tolist() == [0.5, 1.5, 2.0, 2.5, 3.0, 1.0, 4.0]
    np.testing.assert_allclose(restore_times(place_times(TIMES, GRID), GRID), TIMES)
    np.testing.assert_allclose(Task("survival", grid=tuple(GRID)).in_units(Y), np.stack([TIMES, EVENTS], axis=1))


def test_exits_and_curves_by_hand() -> None:
    """At risk are 7 - 0 (interval 0), 5 - 1 (1: the one censored within it does not count) and 3 (2)."""
    exits = count_exits(Y, 3)
    assert exits.tolist() == [[1, 1, 1, 0], [0, 2, 0, 2]]
    np.testing.assert_allclose(compute_kaplan_meier(exits), [1, 6 / 7, 6 / 7 * 3 / 4, 6 / 7 * 3 / 4 * 2 / 3])
    np.testing.assert_allclose(compute_censoring(exits), [1, 1, 4 / 6, 4 / 6])


def test_the_loss_by_hand() -> None:
    """With hazards 0.2, 0.5 and 0.75: -log of 0.2; 0.8; 0.8 x 0.5; 0.8 x 0.5 x 0.75; 0.8 x 0.5 x 0.25; 0.8; 0.8 x 0.5 x 0.25."""
    outputs = torch.logit(torch.tensor([0.2, 0.5, 0.75])).expand(7, 3)
    chances = np.array([0.2, 0.8, 0.4, 0.3, 0.1, 0.8, 0.1])
    np.testing.assert_allclose(survival_loss(outputs, torch.from_numpy(Y)).numpy(), -np.log(chances), rtol=1e-6)
    curve = np.broadcast_to(np.array([0.8, 0.4, 0.1]), (7, 3))
    np.testing.assert_allclose(compute_likelihoods(curve, Y), chances)


def test_outputs_of_zero_are_the_curve_of_all_training_samples() -> None:
    task = Task("survival", grid=tuple(GRID), censoring=(1.0, 1.0, 1.0), reference=(0.8, 0.4, 0.1))
    np.testing.assert_allclose(compute_scores(torch.zeros(1, 3), task).numpy(), [[0.8, 0.4, 0.1]], rtol=1e-5)
    found = SurvivalLoss(task.reference)(torch.zeros(7, 3), torch.from_numpy(Y))
    np.testing.assert_allclose(found.numpy(), -np.log([0.2, 0.8, 0.4, 0.3, 0.1, 0.8, 0.1]), rtol=1e-5)


def test_the_brier_score_by_hand() -> None:
    """Ends 10, 20 and 40 count 10, 15 and 10 of 40; who is censored before an end does not count there."""
    np.testing.assert_allclose(compute_time_weights(GRID), [0.25, 0.375, 0.25])
    curve = np.broadcast_to(np.array([0.8, 0.4, 0.1]), (7, 3))
    found = compute_brier_scores(curve, Y, GRID, np.array([1.0, 2 / 3, 0.5]))
    dead, alive = np.array([0.64, 0.16, 0.01]), np.array([0.04, 0.36, 0.81]) / np.array([1.0, 2 / 3, 0.5])
    weights = np.array([0.25, 0.375, 0.25])
    expected = [
        dead @ weights,
        alive[0] * 0.25,
        alive[0] * 0.25 + (dead[1:] / (2 / 3)) @ weights[1:],
        alive[:2] @ weights[:2] + dead[2] / 0.5 * 0.25,
        alive @ weights,
        alive[0] * 0.25,
        alive @ weights,
    ]
    np.testing.assert_allclose(found, expected)


def test_weights_of_training_samples_add_up_to_their_number() -> None:
    """So the Brier score of the Kaplan-Meier curve at an end is S (1 - S), as that of a share."""
    rng = np.random.default_rng(0)
    y = np.stack([rng.uniform(0.01, 5.5, 300), rng.integers(2, size=300)], axis=1)
    exits = count_exits(y, 5)
    curve, known, grid = compute_kaplan_meier(exits)[1:], compute_censoring(exits)[1:], np.arange(6.0)
    assert known.min() > 0.05
    mean = compute_brier_scores(np.broadcast_to(curve, (300, 5)), y, grid, known).mean()
    assert mean == pytest.approx(float((curve * (1 - curve)) @ compute_time_weights(grid)))


def test_the_concordance_index_by_hand() -> None:
    """Of (1, event), (2, censored), (3, event), (3, censored), (4, event): the first is compared with all four, the third with the
    censored one of its time and the last, the others with none: 6 pairs."""
    y = np.array([[1, 1], [2, 0], [3, 1], [3, 0], [4, 1]], dtype=np.float64)
    assert count_concordant_pairs(np.array([1.0, 2, 3, 4, 5]), y) == (6.0, 6)
    assert count_concordant_pairs(np.array([5.0, 4, 3, 2, 1]), y) == (0.0, 6)
    assert count_concordant_pairs(np.array([2.0, 2, 3, 3, 1]), y) == (0.5 + 1 + 1 + 0.5, 6)  # ties: with the second, and with the censored
    assert count_concordant_pairs(np.zeros(5), y) == (3.0, 6)


def test_concordance_and_curves_are_those_of_scikit_survival_and_lifelines() -> None:
    """`concordance_index_censored` of scikit-survival 0.28 and `concordance_index` of lifelines 0.30 give 0.4620991253644315 for these 40
    samples; `KaplanMeierFitter` of lifelines gives the curve for the rounded times."""
    rng = np.random.default_rng(7)
    times = np.round(rng.exponential(10, 40), 1) + 0.1
    events, risk = rng.integers(0, 2, 40), np.round(rng.normal(size=40), 1)
    right, pairs = count_concordant_pairs(-risk, np.stack([times, events], axis=1))
    assert right / pairs == pytest.approx(0.4620991253644315, abs=1e-15)
    assert pairs == 343
    y = np.stack([place_times(times, np.array([0.0, 5.0, 10.0, 20.0, 40.0])), events], axis=1)
    np.testing.assert_allclose(compute_kaplan_meier(count_exits(y, 4))[1:], [0.83870968, 0.54516129, 0.20967742, 0.0], atol=1e-8)


def test_expected_events_and_mean_times_by_hand() -> None:
    curve = np.broadcast_to(np.array([0.8, 0.4, 0.1]), (7, 3))
    np.testing.assert_allclose(count_expected_events(curve, Y), [0.2, 0.2, 0.7, 1.45, 1.45, 0.2, 1.45])
    np.testing.assert_allclose(compute_mean_times(curve, GRID), [0.25 * 0.8 + 0.375 * 0.4 + 0.25 * 0.1] * 7)


def test_a_score_is_one_less_the_brier_score_over_that_of_all() -> None:
    sums = np.array([[4, 0.4, 0, 0, 1.0, 0, 0], [6, 0.6, 0, 0, 1.0, 0, 0]])
    nothing = np.zeros((2, 0), dtype=np.int64)
    reply = Evaluated(np.arange(2), nothing, nothing, nothing, np.zeros(2), np.zeros(2), sums=sums)
    np.testing.assert_allclose(compute_credits(reply, Task("survival")), [4 - 0.4 / 0.2, 6 - 0.6 / 0.2])


@pytest.mark.parametrize("change", [{"grid": [0.0, 2.0, 1.0]}, {"grid": [1.0, 2.0, 3.0]}, {"censoring": [1.0]}, {"reference": [2.0, 0.1]}])
def test_a_stored_grid_that_cannot_be_right_is_refused(change: dict[str, list[float]]) -> None:
    task = Task("survival", grid=(0.0, 1.0, 2.0), censoring=(1.0, 0.9), reference=(0.8, 0.5))
    assert Task.from_dict(task.to_dict()) == task
    with pytest.raises(ValueError, match="grid"):
        Task.from_dict(task.to_dict() | change)
