"""Who begins when, who is done when, whose answers are there: worked by hand, and what holds of any course."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from coterie.run.async_rounds import BusyClient, Candidate, schedule_round


def test_a_round_ends_with_the_answer_that_is_wanted() -> None:
    """Four clients that take 5, 1, 3 and 2; two answers are wanted: 1 comes at 1, 3 at 2, and the others stay at work."""
    course = schedule_round(0.0, (), [Candidate(i, i, time) for i, time in enumerate((5.0, 1.0, 3.0, 2.0))], 1, 2, 4)
    assert course.asked == (0, 1, 2, 3)
    assert [(each.client, each.end) for each in course.arrived] == [(1, 1.0), (3, 2.0)]
    assert [(each.client, each.end) for each in course.pending] == [(2, 3.0), (0, 5.0)]
    assert course.clock == 2.0


def test_whoever_comes_back_makes_room_for_the_next() -> None:
    """Room for two. By their draws 2 and 0 begin (until 1 and 4); 2 comes back at 1, then 1 begins (until 1 + 2), and comes at 3."""
    candidates = [Candidate(0, 20, 4.0), Candidate(1, 30, 2.0), Candidate(2, 10, 1.0), Candidate(3, 40, 1.0)]
    course = schedule_round(0.0, (), candidates, 1, 2, 2)
    assert course.asked == (2, 0, 1)
    assert [(each.client, each.end) for each in course.arrived] == [(2, 1.0), (1, 3.0)]
    assert [each.client for each in course.pending] == [0]


def test_who_is_at_work_is_not_asked_and_comes_when_done() -> None:
    aloft = [BusyClient(7.0, 1, 0, 0), BusyClient(2.0, 1, 1, 1)]
    course = schedule_round(5.0, aloft, [Candidate(0, 0, 1.0), Candidate(1, 1, 1.0), Candidate(2, 2, 1.0)], 3, 3, 9)
    assert course.asked == (2,)
    assert [(each.client, each.round_) for each in course.arrived] == [(1, 1), (2, 3), (0, 1)]
    assert course.clock == 7.0  # 1 was done at 2 already, and time does not run backwards


def test_who_is_gone_is_asked_and_takes_no_place() -> None:
    candidates = [Candidate(0, 0, 1.0, gone=True), Candidate(1, 1, 2.0), Candidate(2, 2, 1.0, gone=True)]
    course = schedule_round(0.0, (), candidates, 1, 3, 1)
    assert course.asked == (0, 1, 2)
    assert [each.client for each in course.arrived] == [1]
    assert course.clock == 2.0


def test_those_done_together_come_by_round_and_by_draw() -> None:
    aloft = [BusyClient(1.0, 1, 9, 4), BusyClient(1.0, 1, 3, 5)]
    course = schedule_round(0.0, aloft, [Candidate(0, 1, 1.0)], 2, inf, inf)
    assert [each.client for each in course.arrived] == [5, 4, 0]


def test_nobody_to_ask_ends_a_round_at_once() -> None:
    course = schedule_round(3.0, (), [], 1, 2, 2)
    assert (course.asked, course.arrived, course.clock) == ((), (), 3.0)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12),
    st.lists(st.integers(0, 6), max_size=5),
    st.integers(1, 15),
    st.integers(1, 6),
)
def test_what_holds_of_any_course(times: list[tuple[int, bool]], ends: list[int], wanted: int, room: int) -> None:
    aloft = [BusyClient(float(end), 1, i, 100 + i) for i, end in enumerate(ends)]
    candidates = [Candidate(i, (7 * i) % 13, float(time), gone) for i, (time, gone) in enumerate(times)]
    course = schedule_round(2.0, aloft, candidates, 2, wanted, room)
    come, left = [each.client for each in course.arrived], [each.client for each in course.pending]
    answering = [c for c in course.asked if c not in {i for i, (_, gone) in enumerate(times) if gone}]
    assert sorted(come + left) == sorted([each.client for each in aloft] + answering)  # nobody is lost, nobody comes twice
    assert len(come) == wanted or not left  # it ends early only when nobody is at work
    assert len(course.pending) <= max(room, len(ends))
    assert list(course.arrived) == sorted(course.arrived, key=lambda each: max(each.end, 2.0)) or not course.asked
    assert course.clock == max([2.0, *(each.end for each in course.arrived)])
