"""What a draw of the data draws."""

import numpy as np
import pytest

import coterie as ct
from coterie.data.redrawing import same_data, sharing, what_is_redrawn


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
    assert what_is_redrawn(spec) == redrawn


def test_two_draws_are_the_same_data_or_share_their_samples() -> None:
    one, two = ct.load("heart", 0), ct.load("heart", 1)
    assert not same_data(one, two)
    assert same_data(one, ct.load("heart", 0))
    assert sharing(one, two) is two  # its scales are those of its own training part
    one, two = ct.load("digits/iid(clients=3)", 0), ct.load("digits/iid(clients=3)", 1)
    assert sharing(one, two).x is one.x
    assert np.array_equal(sharing(one, two).test.indices, two.test.indices)
    other = ct.load("synthetic(0,0,clients=5)")
    assert sharing(one, other) is other
