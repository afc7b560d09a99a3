"""Work in pieces: the order of results, and how many pieces are held at once."""

from collections.abc import Iterator
from time import sleep

import pytest

from coterie.core.threads import cores, in_order


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_pieces(workers: int) -> None:
    def slow_first(i: int) -> int:
        sleep(0.02 if i == 0 else 0.0)
        return i * i

    assert list(in_order(slow_first, range(8), workers)) == [i * i for i in range(8)]


def test_no_more_pieces_are_taken_than_there_are_workers() -> None:
    taken = []

    def pieces() -> Iterator[int]:
        for i in range(9):
            taken.append(i)
            yield i

    next(iter(in_order(lambda i: i, pieces(), 3)))
    assert len(taken) == 3


def test_there_is_a_core() -> None:
    assert cores() >= 1
