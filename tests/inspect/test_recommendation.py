"""One recommendation out of five, its reason and the next command."""

import shlex
from dataclasses import replace

import numpy as np
import pytest

from coterie.core.arrays import Array
from coterie.inspect import InspectPlan, PilotPlan, inspect_data
from coterie.inspect.answers import write_answers
from coterie.inspect.inspection import Inspection
from coterie.inspect.pilot import Pilot, ServingScores, ServingWay
from coterie.inspect.recommendation import choose_way, recommend

N = 10


def made(scores: dict[ServingWay, float], *, common: float = 0.1, p_random: float = 0.05, clients: int = N) -> Pilot:
    """A pilot in which every client scores so much, on 100 samples."""
    judged = np.full(clients, 100)
    credits: dict[ServingWay, Array] = {way: np.full(clients, 100 * score) for way, score in scores.items()}
    as_good = round(p_random * 20) - 1
    random = np.stack([credits["groups"] + (1 if i < as_good else -1) for i in range(19)])
    ways = ServingScores(np.arange(clients), judged, credits, common, 0.1)
    return Pilot(np.arange(clients), judged, credits["one"], credits["groups"], random, "validation parts", ways=ways)


BASE: dict[ServingWay, float] = {"one": 0.7, "tuned": 0.7, "alone": 0.6, "groups": 0.7}


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        (BASE, "one"),  # of equals the simplest
        (BASE | {"tuned": 0.702}, "one"),  # a quarter of a point is too little
        (BASE | {"tuned": 0.71}, "tuned"),
        (BASE | {"tuned": 0.71, "alone": 0.8}, "alone"),
        (BASE | {"tuned": 0.71, "groups": 0.8}, "groups"),
    ],
)
def test_the_simplest_of_the_best_is_chosen(scores: dict[ServingWay, float], chosen: ServingWay) -> None:
    assert choose_way(made(scores)) == chosen


def test_groups_that_chance_makes_as_well_are_not_recommended() -> None:
    assert choose_way(made(BASE | {"groups": 0.8}, p_random=0.5)) == "one"
    assert choose_way(made(BASE | {"groups": 0.8}, p_random=0.5, clients=4)) == "groups"  # of four clients random groups say little


@pytest.fixture(scope="module")
def rotated() -> Inspection:
    plan = InspectPlan(references=19, pilot=PilotPlan(rounds=6, randoms=3))
    return inspect_data("digits/rotated(clients=12,groups=2)", plan=plan, watch=lambda *told: None)


def test_two_worlds_get_groups_and_the_command_to_compare_them(rotated: Inspection) -> None:
    found = recommend(rotated)
    assert found is not None
    assert found.way == "groups"
    words = shlex.split(found.command)
    assert words[:2] == ["coterie", "compare"]
    assert words[words.index("--data") + 1] == "digits/rotated(clients=12,groups=2)"
    launched = recommend(rotated, "fed")
    assert launched is not None
    assert shlex.split(launched.command)[:2] == ["coterie", "launch"]


def test_one_population_gets_one_model() -> None:
    plan = InspectPlan(references=19, pilot=PilotPlan(rounds=6, randoms=3))
    found = recommend(inspect_data("digits/iid(clients=12)", plan=plan, watch=lambda *told: None))
    assert found is not None
    assert found.way == "one"
    assert "coterie run fedavg" in found.command


def test_a_pilot_that_has_not_learned_recommends_more_data(rotated: Inspection) -> None:
    pilot = made({"one": 0.09, "tuned": 0.1, "alone": 0.1, "groups": 0.09}, common=0.11)
    found = recommend(replace(rotated, pilot=pilot))
    assert found is not None
    assert found.way == "more data"
    assert "has not learned" in found.reason
    assert "--check" in found.command


def test_without_a_pilot_nothing_is_recommended(rotated: Inspection) -> None:
    assert recommend(replace(rotated, pilot=None)) is None


def test_why_there_are_no_groups_names_what_failed_and_nothing_else(rotated: Inspection) -> None:
    """What is printed as found again must not be called not found again."""
    groups = replace(rotated.groups, distinct=False, p_any=0.01, p_company=1.0)
    steady = np.ones_like(groups.stability)

    def told(**held: Array) -> str:
        found = write_answers(replace(rotated, groups=replace(groups, **held)))  # type: ignore[arg-type]
        return next(answer.evidence for answer in found if "groups" in answer.question)

    both = told(stability=steady, recurrence=steady)
    assert "not found again" not in both
    assert "are not distinct" in both
    halves = told(stability=0 * steady, recurrence=steady)
    assert "not found again on the other half (agreement 0.00" in halves
    assert "among other clients" not in halves.split(";")[0]
