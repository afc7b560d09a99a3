"""How long clients take: by rule, keyed, or from a file."""

from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.plan import Plan, Speeds, parse_speeds
from coterie.core.roster import Roster

N = 2000
ROSTER = Roster.from_sizes([f"client-{i}" for i in range(N)], np.arange(1, N + 1))


def made(text: str) -> Speeds:
    found = parse_speeds(text)
    assert found is not None
    return found


def test_equal_clients_take_one_each() -> None:
    assert made("equal").times(ROSTER, 0).tolist() == [1.0] * N


def test_logarithms_are_normal_with_median_one_time() -> None:
    logs = np.log(made("lognormal(0.5)").times(ROSTER, 0))
    assert abs(logs.mean()) < 4 * 0.5 / np.sqrt(N)
    assert abs(logs.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * N)
    assert abs(np.mean(logs > 0.5) - 0.159) < 0.033  # a sixth above one standard deviation


def test_a_share_is_slow_and_at_least_one() -> None:
    times = made("slowed(share=0.1,factor=7)").times(ROSTER, 0)
    assert sorted(times.tolist()) == [1.0] * 1800 + [7.0] * 200
    three = Roster.from_sizes(["a", "b", "c"], np.ones(3, np.int64))
    assert sorted(made("slowed").times(three, 0).tolist()) == [1.0, 1.0, 10.0]


def test_times_are_the_clients_own_and_drawn_anew_for_each_seed() -> None:
    some = Roster.from_sizes(["client-7", "newcomer", "client-3"], np.ones(3, np.int64))
    for text in ("lognormal(1.0)", "lognormal"):
        whole, part = made(text).times(ROSTER, 5), made(text).times(some, 5)
        assert part[0] == whole[7]
        assert part[2] == whole[3]
    assert abs(np.corrcoef(made("lognormal").times(ROSTER, 0), made("lognormal").times(ROSTER, 1))[0, 1]) < 0.1


def test_by_samples_a_mean_client_takes_what_it_took() -> None:
    times = made("equal(by_samples=true)").times(Roster.from_sizes(["a", "b"], np.array([1, 3])), 0)
    assert times.tolist() == [0.5, 1.5]


def test_a_file_says_each_clients_time(tmp_path: Path) -> None:
    path = tmp_path / "Times.CSV"
    path.write_text("client,time,remark\nb,2.5,slow\na,1,\n")
    assert made(str(path)).times(Roster.from_sizes(["a", "b"], np.ones(2, np.int64)), 0).tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("client,time\na,1\n", "no time for the client 'b'"),
        ("client,time\na,1\nb,fast\n", "line 3: write a client and its time"),
        ("client;time\na;1\nb;1\n", "line 2: write a client and its time"),
        ("client,time\na,1\nb,0\n", "line 3: the time of 'b' is 0: give a number above 0"),
        ("client,time\na,1\nb,nan\n", "line 3: the time of 'b' is nan"),
        ("", "no time for the client 'a'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=told):
        made(str(path)).times(Roster.from_sizes(["a", "b"], np.ones(2, np.int64)), 0)


def test_a_plan_with_a_file_can_be_read_where_the_file_is_not() -> None:
    plan = Plan(speeds="nowhere/times.csv")
    with pytest.raises(UserError, match=r"nowhere/times\.csv cannot be read"):
        made(str(plan.speeds)).times(ROSTER, 0)


@pytest.mark.parametrize("text", ["lognormal(-1)", "slowed(share=1)", "fast", "equal(1)", "lognormal(sigma=word)"])
def test_other_speeds_are_refused_with_the_plan(text: str) -> None:
    with pytest.raises(UserError):
        Plan(speeds=text)
