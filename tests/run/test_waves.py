"""What lanes are reckoned to hold, by hand, and what is refused for it."""

from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie._util.formatting import format_bytes
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.run.lanes import Lane, make_lanes
from coterie.run.waves import check_memory, describe_spill, estimate_memory, estimate_minimum, estimate_state_bytes, split_into_waves
from coterie.testing import worlds

MODEL = 18  # numbers of the small world's model, of five features and three classes


def lane(method: str, **plan: Any) -> Lane:
    return make_lanes([(method, build(method))], [0], worlds.make_world().problem, Plan(**{"rounds": 1, **plan}))[0]


@pytest.mark.parametrize(
    ("method", "plan", "models"),
    [
        ("fedavg", {}, 6),  # the whole roster is the cohort
        ("fedavg", {"cohort": 2}, 2),
        ("fesem(groups=2)", {"cohort": 2}, 6),  # its warm-up is by everybody
        ("fesem(groups=2,warmup_by=cohort)", {"cohort": 2}, 6),  # so do newcomers, to be placed
        ("fedgroup(groups=2,alpha=2)", {"cohort": 2}, 6),  # four pre-train, and any newcomer who is evaluated
        ("fedgroup(groups=2,alpha=2)", {"cohort": 2, "evaluate_clients": 3}, 4),
        ("rac(groups=2,alpha=2)", {"cohort": 2}, 4),  # newcomers take a group at random
        ("fedgroup(groups=auto,alpha=3,cold=random)", {"cohort": 2}, 3),  # one group at the least
        ("ifca(groups=3)", {"cohort": 2}, 2),
        ("ifca(groups=auto)", {"cohort": 2}, 2),  # a test of structure sees no models
        ("ifca(groups=auto,choice=gap,probe=5)", {"cohort": 2}, 5),
        ("ifca(groups=auto,choice=trial)", {"cohort": 2}, 6),  # a hundred, or all there are
        ("fesem(groups=auto,choice=trial,warmup_by=cohort,newcomers=loss)", {"cohort": 2}, 6),
        ("flhc", {"cohort": 2}, 6),
        ("fedex", {"cohort": 2}, 6),
        ("cfl", {"cohort": 2}, 6),
        ("local", {"cohort": 2}, 2 + 2),  # one round: no more than two will have taken part
        ("local", {"cohort": 2, "rounds": 2}, 2 + 4),
        ("local", {"cohort": 2, "rounds": 9}, 2 + 6),
        ("local(until=validation)", {"cohort": 2}, 6 + 12),
        ("scaffold", {"cohort": 2, "rounds": 9}, 2 + 6),
        ("moon", {"rounds": 9}, 6 + 6),
        ("ditto", {"cohort": 2, "rounds": 2}, 2 + 4),
        ("neighbourprox", {"cohort": 2, "rounds": 2}, 2 + 8),
        ("fedavg+finetune", {"cohort": 2, "evaluate_clients": 4}, 2 + 4),
        ("scaffold+restarts(starts=3)", {"cohort": 2, "rounds": 9}, 2 + 18),
    ],
)
def test_models_that_a_lane_cannot_do_without(method: str, plan: dict[str, int], models: int) -> None:
    assert estimate_minimum(lane(method, **plan)) == 4 * MODEL * models


def test_newcomers_are_reckoned_as_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    grouping = lane("fedgroup(groups=2,alpha=1)", cohort=2)
    assert estimate_memory(grouping) == 4 * MODEL * (3 * 2 + 8)  # six to be placed are no more than two and their copies
    assert estimate_minimum(grouping) == 4 * MODEL * 6
    monkeypatch.setattr("coterie.core.method.MAX_PLACED_NUMBERS", 5 * MODEL)
    assert estimate_minimum(grouping) == 4 * MODEL * 5
    assert estimate_minimum(lane("fesem(groups=2,warmup_by=cohort,newcomers=loss)", cohort=2)) == 4 * MODEL * 2
    monkeypatch.setattr("coterie.core.method.MAX_PLACED_NUMBERS", MODEL)
    assert estimate_minimum(grouping) == 4 * MODEL * 2  # never fewer than a cohort


def test_clients_that_take_no_part_are_reckoned_as_newcomers() -> None:
    """They are all served, however few of the others are evaluated."""
    there = World.from_spec(load("digits/iid(clients=10)/unseen(0.7)"), "mclr")
    plan = Plan(rounds=1, cohort=1, evaluate_clients=2)
    methods = ("fedgroup(groups=1,alpha=1)", "fesem(groups=2)", "fedavg")
    lanes = make_lanes([(name, build(name)) for name in methods], [0], there.problem, plan)
    assert [estimate_minimum(each) // (4 * there.problem.layout.size) for each in lanes] == [7, 7, 1]


def test_the_reckoning_of_a_wave_knows_what_is_kept() -> None:
    assert estimate_memory(lane("fedavg", cohort=2)) == 4 * MODEL * (3 * 2 + 8)
    assert estimate_memory(lane("local", cohort=2, rounds=3)) == 4 * MODEL * (3 * 2 + 8 + 3 * 6)
    assert estimate_state_bytes(lane("local", cohort=2, rounds=3)) == 4 * MODEL * 6
    assert estimate_state_bytes(lane("local", cohort=2, rounds=3), rounds=2) == 4 * MODEL * 4
    assert estimate_memory(lane("local", cohort=2, rounds=3), rounds=1) == 4 * MODEL * (3 * 2 + 8 + 3 * 2)
    methods = [(name, build(name)) for name in ("fedavg", "local")]
    lanes = make_lanes(methods, [0, 1, 2], worlds.make_world().problem, Plan(rounds=1, cohort=2))
    one = estimate_memory(lanes[0]) + estimate_memory(lanes[1])
    assert [len(wave) for wave in split_into_waves(lanes, 2 * one)] == [4, 2]
    assert [len(wave) for wave in split_into_waves(lanes, 2 * one - 1)] == [2, 2, 2]


def test_a_seed_that_does_not_fit_a_gpu_is_cut_into_lanes_that_do() -> None:
    """What is held there cannot be swapped: with whole seeds 15 methods among 3,550 clients would not fit any GPU."""
    methods = [(name, build(name)) for name in ("fedavg", "fedprox", "local")]
    lanes = make_lanes(methods, [0, 1], worlds.make_world().problem, Plan(rounds=1, cohort=2))
    one, large = estimate_memory(lanes[0]), estimate_memory(lanes[2])

    def cut(memory: int, seeds: int | None = None) -> list[list[tuple[str, int]]]:
        made = list(split_into_waves(lanes, memory, seeds, whole_seeds=False))
        assert [each for wave in made for each in wave] == lanes
        return [[(each.label, each.seed) for each in wave] for wave in made]

    assert [len(wave) for wave in cut(4 * one + 2 * large)] == [6]
    assert [len(wave) for wave in cut(2 * one + large)] == [3, 3]
    assert cut(2 * one + large - 1) == [
        [("fedavg", 0), ("fedprox", 0)], [("local", 0)], [("fedavg", 1), ("fedprox", 1)], [("local", 1)],
    ]  # fmt: skip
    assert [len(wave) for wave in cut(2 * one - 1)] == [1] * 6
    assert [len(wave) for wave in cut(0)] == [1] * 6  # a lane at least
    alike = make_lanes([(f"fedavg {i}", build("fedavg")) for i in range(15)], [0], worlds.make_world().problem, Plan(rounds=1, cohort=2))
    assert [len(wave) for wave in split_into_waves(alike, 15 * one - 1, whole_seeds=False)] == [8, 7]  # not 14 and 1
    assert [len(wave) for wave in split_into_waves(alike, 6 * one, whole_seeds=False)] == [5, 5, 5]
    assert [len(wave) for wave in cut(10**9, seeds=1)] == [3, 3]
    assert [len(wave) for wave in split_into_waves(lanes, 0)] == [3, 3]  # the host's seeds stay whole


def test_what_is_kept_on_the_host_for_want_of_a_larger_gpu_is_told() -> None:
    waves_ = [[lane("fedavg", cohort=2)], [lane("fesem", cohort=2)]]
    assert describe_spill(waves_, 4 * MODEL * 6) is None  # everybody warms FeSEM up
    told = describe_spill(waves_, 4 * MODEL * 6 - 1)
    assert told is not None
    assert "What clients of fesem send back at once (432 bytes) is more than the 431 bytes that stay on the GPU" in told
    both = describe_spill([[*waves_[0], *waves_[1]]], 4 * MODEL * 7)
    assert both is not None
    assert "What clients of 2 lanes send back at once (576 bytes)" in both
    assert describe_spill([], 0) is None


def test_what_cannot_fit_is_refused_in_a_sentence_that_names_the_method() -> None:
    lanes = [lane("fedavg", cohort=2), lane("local", cohort=2, rounds=3)]
    check_memory(lanes, room=4 * MODEL * 10)
    with pytest.raises(UserError, match=r"One seed of this study holds 720 bytes .* 576 bytes of them for local, and 719 bytes of memory"):
        check_memory(lanes, room=4 * MODEL * 10 - 1)


def test_a_study_that_cannot_fit_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.run.waves.get_host_memory", lambda: 1000)
    with pytest.raises(UserError, match="of memory are free"):
        ct.study("local", data="synthetic(0,0,clients=3)", rounds=1)


def test_sizes_in_words() -> None:
    assert [format_bytes(n) for n in (1, 720, 1500, 2.5e6, 640e6, 4.56e9, 12e12)] == [
        "1 byte",
        "720 bytes",
        "1.5 kB",
        "2.5 MB",
        "640 MB",
        "4.56 GB",
        "12 TB",
    ]


def test_a_study_goes_on_in_waves_of_the_memory_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on with what it was begun with, so that one that had been too large for a GPU was so again."""
    said: list[int] = []

    def noted(lanes: list[Lane], memory: int, *args: Any, **options: Any) -> Any:
        said.append(memory)
        return split_into_waves(lanes, memory, *args, **options)

    monkeypatch.setattr("coterie.run.driver.split_into_waves", noted)
    for rounds, memory in ((1, 1.0), (2, 0.25), (3, None)):
        ct.study(
            "fedavg", data=worlds.make_federation(), rounds=rounds, out=tmp_path, resume=rounds > 1, execution=ct.Execution(memory=memory)
        )
    assert said == [1 << 30, 1 << 28, 1 << 30]
