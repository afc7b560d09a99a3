"""What a draw of the data draws."""

import numpy as np
import pytest

import coterie as ct
from coterie.data.content import get_redrawn, is_same_data, share_arrays


@pytest.mark.parametrize(
    ("spec", "redrawn"),
    [
        ("synthetic(1,1)", "everything"),
        ("synthetic(iid,clients=100)/labelswap(groups=2)", "everything"),
        ("digits/rotated(clients=8)", "partition"),
        ("heart", "split"),
        ("goodreads/natural(test=0.2)", "split"),
        ("heart/rotated(groups=2)", "partition"),  # who is turned is drawn, too
        ("no spec at all (", "partition"),
    ],
)
def test_what_is_redrawn(spec: str, redrawn: str) -> None:
    assert get_redrawn(spec) == redrawn


def test_two_draws_are_the_same_data_or_share_their_samples() -> None:
    one, two = ct.load("heart", 0), ct.load("heart", 1)
    assert not is_same_data(one, two)
    assert is_same_data(one, ct.load("heart", 0))
    assert share_arrays(one, two) is two  # its scales are those of its own training part
    one, two = ct.load("digits/iid(clients=3)", 0), ct.load("digits/iid(clients=3)", 1)
    assert share_arrays(one, two).x is one.x
    assert np.array_equal(share_arrays(one, two).test.indices, two.test.indices)
    other = ct.load("synthetic(0,0,clients=5)")
    assert share_arrays(one, other) is other
