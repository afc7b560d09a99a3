"""Work in pieces: the order of results, and how many pieces are held at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, get_ident
from time import sleep

import pytest

from coterie._util.threads import count_cores, map_in_order, map_with_helpers


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_pieces(workers: int) -> None:
    def slow_first(i: int) -> int:
        sleep(0.02 if i == 0 else 0.0)
        return i * i

    assert list(map_in_order(slow_first, range(8), workers)) == [i * i for i in range(8)]


def test_no_more_pieces_are_taken_than_there_are_workers() -> None:
    taken = []

    def pieces() -> Iterator[int]:
        for i in range(9):
            taken.append(i)
            yield i

    next(iter(map_in_order(lambda i: i, pieces(), 3)))
    assert len(taken) == 3


def test_there_is_a_core() -> None:
    assert count_cores() >= 1


@pytest.mark.parametrize("helpers", [0, 1, 3, 20])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_pieces_among_threads_come_back_in_their_order(helpers: int, count: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert map_with_helpers(pool, helpers, lambda i: i * i, range(count)) == [i * i for i in range(count)]


def test_the_calling_thread_takes_part_and_waits_for_nobody_who_has_not_begun() -> None:
    free = Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(free.wait)  # the only helper is busy elsewhere, until all is done
        found = map_with_helpers(pool, 1, lambda i: (i, get_ident()), range(5))
        free.set()
    assert found == [(i, get_ident()) for i in range(5)]


@pytest.mark.parametrize("by_helper", [False, True])
def test_an_error_of_any_thread_comes_out_and_ends_the_work(by_helper: bool) -> None:
    begun, caller = list[int](), get_ident()
    met = Barrier(2)

    def work(i: int) -> None:
        begun.append(i)
        if i < 2:
            met.wait(10)  # both have a piece
            if (get_ident() != caller) is by_helper:
                raise ValueError("a piece is bad")
            sleep(0.05)
        else:
            sleep(0.002)

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="a piece is bad"):
        map_with_helpers(pool, 1, work, range(10_000))
    assert len(begun) < 10_000
