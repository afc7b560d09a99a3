"""Agreement of groups between seeds and draws, by hand."""

from math import isnan

import numpy as np
import pytest

from coterie.analysis.groups import compute_group_agreement


def test_seeds_and_draws_by_hand() -> None:
    # Two draws of two seeds. In draw 0 both seeds agree (names do not matter); in draw 1 they cross: no pair is together in both. With four
    # clients in pairs: together 0, expected 2 * 2 / 6, most 2, so (0 - 2/3) / (2 - 2/3) = -1/2.
    labels = np.array([[[0, 0, 1, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [0, 1, 0, 1]]])
    found = compute_group_agreement(labels, same_clients=True)
    assert found.between_seeds == pytest.approx((1 - 0.5) / 2)
    assert found.between_draws == pytest.approx((1 - 0.5 + 1 - 0.5) / 4)
    assert isnan(compute_group_agreement(labels, same_clients=False).between_draws)


def test_one_run_agrees_with_nobody() -> None:
    found = compute_group_agreement(np.array([[[0, 1, 1]]]), same_clients=True)
    assert isnan(found.between_seeds)
    assert isnan(found.between_draws)


def test_clients_in_no_group_do_not_count() -> None:
    labels = np.array([[[0, 0, 1, -1]], [[1, 1, 0, 0]], [[-1, -1, -1, -1]]])
    assert compute_group_agreement(labels, same_clients=True).between_draws == 1
