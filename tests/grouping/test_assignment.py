"""Partners: where everybody is nearest to who stands in its place, the Hungarian algorithm says the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coterie.grouping.assignment import find_best_assignment, is_identity_best


def test_partners_by_hand() -> None:
    assert find_best_assignment(np.array([[1.0, 5.0], [4.0, 7.0]])).tolist() == [1, 0]  # 5 + 4 is more than 1 + 7


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.0, 2.0), st.integers(0, 999))
def test_who_stays_in_order_is_in_the_best_order(n: int, f: int, noise: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    ours = draw.normal(size=(n, f))
    theirs = ours + noise * draw.normal(size=(n, f))
    products = ours @ theirs.T
    kept = products.copy()
    stays = is_identity_best(products, (theirs**2).sum(axis=1))
    assert np.array_equal(products, kept)
    if stays:
        assert find_best_assignment(products).tolist() == list(range(n))


def test_near_neurons_stay_and_twins_are_searched() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])  # the third has the largest product with everybody, and is far from them
    assert is_identity_best(rows @ rows.T, (rows**2).sum(axis=1))
    twins = np.array([[1.0, 0.0], [1.0, 0.0]])  # either order is as good: it is not for us to say
    assert not is_identity_best(twins @ twins.T, (twins**2).sum(axis=1))
    assert not is_identity_best(rows @ rows[[1, 0, 2]].T, (rows**2).sum(axis=1)[[1, 0, 2]])
    assert is_identity_best(np.ones((1, 1)), np.ones(1))
