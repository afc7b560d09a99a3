"""Who takes part: fresh samples, and windows that slide over a random order of all clients."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core import roster
from coterie.core.plan import Plan
from coterie.core.rng import make_key
from coterie.core.roster import MAX_CACHED, Roster
from coterie.testing.fakes import make_context

SIZES = [1] * 20
WINDOWS = Plan(selection="windows")


@given(st.integers(1, 40), st.integers(1, 50))
def test_a_sample_is_of_the_lowest_draws(n: int, size: int) -> None:
    ctx = make_context([1] * n, plan=Plan(cohort=size), round_=3)
    draws = [make_key(ctx.seed, "cohort", 3, name) for name in ctx.roster.ids]
    assert ctx.cohort().tolist() == sorted(sorted(range(n), key=lambda client: draws[client])[:size])


def test_windows_take_everybody_once_before_anybody_twice() -> None:
    """20 clients, 30 %: windows of 6, 6, 6 and the 2 that are left; then a new order."""
    rounds = [make_context(SIZES, plan=WINDOWS, round_=t).cohort() for t in range(1, 9)]
    assert [len(picked) for picked in rounds] == [6, 6, 6, 2, 6, 6, 6, 2]
    for one_pass in (rounds[:4], rounds[4:]):
        assert sorted(np.concatenate(one_pass).tolist()) == list(range(20))
    assert rounds[0].tolist() != rounds[4].tolist()
    assert all(np.all(np.diff(picked) > 0) for picked in rounds)


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 5))
def test_a_pass_is_a_partition_of_the_clients(n: int, share: float, number: int) -> None:
    size = max(round(share * n), 1)
    per_pass = -(-n // size)
    plan = replace(WINDOWS, window=share)
    rounds = [make_context([1] * n, plan=plan, round_=1 + number * per_pass + i).cohort() for i in range(per_pass)]
    assert sorted(np.concatenate(rounds).tolist()) == list(range(n))


def test_a_cohort_sets_the_size_of_the_window() -> None:
    picked = [make_context(SIZES, plan=replace(WINDOWS, cohort=9), round_=t).cohort() for t in (1, 2, 3)]
    assert [len(p) for p in picked] == [9, 9, 2]


def test_seeds_and_purposes_have_their_own_orders() -> None:
    def first(seed: int, purpose: str) -> tuple[int, ...]:
        return tuple(make_context(SIZES, plan=WINDOWS, seed=seed).cohort(purpose).tolist())

    assert len({first(0, "cohort"), first(1, "cohort"), first(0, "probe")}) == 3


def test_a_client_that_cannot_be_reached_misses_its_turn_only() -> None:
    for t in (1, 2, 3, 4):
        ctx = make_context(SIZES, plan=WINDOWS, round_=t)
        gone = replace(ctx, roster=replace(ctx.roster, reachable=np.arange(20) != 7))
        assert gone.cohort().tolist() == [c for c in ctx.cohort().tolist() if c != 7]


def test_the_first_window_serves_the_start_too() -> None:
    assert make_context(SIZES, plan=WINDOWS, round_=0).cohort().tolist() == make_context(SIZES, plan=WINDOWS, round_=1).cohort().tolist()


@pytest.mark.parametrize("wrong", [{"window": 0.0}, {"window": 1.1}, {"selection": "some"}])
def test_wrong_settings_are_refused(wrong: dict[str, float | str]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Plan(**wrong)  # type: ignore[arg-type]


def test_cohorts_of_late_are_kept_and_are_those_that_are_drawn() -> None:
    everybody = Roster.from_sizes([f"client {i}" for i in range(40)], np.ones(40, dtype=np.int64))
    for round_ in (1, 2, 1):
        for seed in range(200):  # more than are kept
            kept, drawn = (roster.select_uniform(everybody, 7, seed, "cohort", round_) for _ in range(2))
            assert kept is drawn
            assert not kept.flags.writeable
            assert kept.tolist() == everybody.lowest(make_key(seed, "cohort", round_), everybody.available, 7).tolist()
    assert len(everybody._recent) <= MAX_CACHED
    assert [len(roster.select_uniform(everybody, size, 0, "cohort", 1)) for size in (7, 3, 40, 50)] == [7, 3, 40, 40]
    fewer = replace(everybody, reachable=np.arange(40) % 2 == 0)
    assert set(roster.select_uniform(fewer, 7, 0, "cohort", 1)) <= set(fewer.available)


def test_large_cohorts_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.core.roster.MAX_CACHED_SIZE", 6)
    everybody = Roster.from_sizes([f"client {i}" for i in range(40)], np.ones(40, dtype=np.int64))
    assert roster.select_uniform(everybody, 7, 0, "cohort", 1) is not roster.select_uniform(everybody, 7, 0, "cohort", 1)
