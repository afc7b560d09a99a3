"""Settings: what defines a study, and how a user's text becomes it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence.settings import FORMAT, Settings, parse_seeds
from coterie.run.execution import Execution


@pytest.mark.parametrize(("text", "seeds"), [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0,2,5-6", (0, 2, 5, 6)), ("1, 1-2", (1, 2))])
def test_seeds_are_read(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "0-x", "-1"])
def test_bad_seeds_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="seeds"):
        parse_seeds(text)


def test_settings_survive_json() -> None:
    settings = Settings(
        methods=("fedavg", "fedprox(mu=1)"),
        data="digits/iid",
        seeds=(0, 3),
        draws=(2, 1),
        plan=Plan(rounds=7, local=Local(batch_size=None)),
    )
    assert Settings.from_json(json.loads(json.dumps(settings.as_json()))) == settings


@pytest.mark.parametrize("written", [99, None, 2])
def test_another_format_is_refused(written: int | None) -> None:
    tree = Settings(methods=("fedavg",), data="digits/iid").as_json()
    assert tree["format"] == FORMAT
    with pytest.raises(UserError, match=f"written in format {written}"):
        Settings.from_json(tree | {"format": written})


def test_a_setting_that_is_not_known_is_refused_and_one_that_came_later_is_at_its_default() -> None:
    settings = Settings(methods=("fedavg",), data="digits/iid", draws=(3, 1), plan=Plan(rounds=7, local=Local(lr=0.3)))
    tree = settings.as_json()
    for place in (tree, tree["plan"], tree["plan"]["local"]):
        place["warp"] = 9
        with pytest.raises(UserError, match=r"settings cannot be read .*warp"):
            Settings.from_json(tree)
        del place["warp"]
    del tree["model"], tree["plan"]["stragglers"], tree["plan"]["local"]["momentum"]
    assert Settings.from_json(tree) == settings
    del tree["draws"]
    with pytest.raises(UserError, match=r"settings cannot be read .*draws"):
        Settings.from_json(tree)


def test_what_is_not_said_and_the_order_of_what_is_are_no_part_of_the_identity() -> None:
    one = Settings(methods=("fedavg", "local"), data="digits/iid", seeds=(0, 1), draws=(2, 3))
    other = Settings(methods=("local", "fedavg"), data="digits/iid", seeds=(1, 0), draws=(3, 2), plan=Plan())
    assert one.identity() == other.identity()
    assert not [name for name in one.identity() if name.startswith("plan")]  # all of it is at its default
    for change in ({"model": "mlp"}, {"seeds": (0, 2)}, {"draws": (2,)}, {"methods": ("fedavg",)}, {"data": "heart"}):
        assert replace(one, **change).identity() != one.identity()
    faster = replace(one, plan=Plan(local=Local(lr=0.2)))
    assert faster.identity() == one.identity() | {"plan.local.lr": 0.2}


def test_differences_are_named() -> None:
    one = Settings(methods=("fedavg",), data="digits/iid", plan=Plan(local=Local(lr=0.1)))
    two = Settings(methods=("fedavg",), data="digits/iid", plan=Plan(local=Local(lr=0.2)), seeds=(1,))
    assert one.differences(two) == ["plan.local.lr", "seeds"]
    assert one.differences(replace(one, draws=(4,))) == ["draws"]
    assert one.differences(one) == []


@pytest.mark.parametrize(
    ("twice", "sentence"),
    [({"methods": ("local", "local")}, "method local"), ({"seeds": (3, 3)}, "seed 3"), ({"draws": (4, 1, 4)}, "draw 4")],
)
def test_naming_anything_twice_is_refused(twice: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"the {sentence} twice"):
        replace(Settings(methods=("fedavg",), data="digits/iid"), **twice)


@pytest.mark.parametrize("nothing", [{"methods": ()}, {"seeds": ()}, {"draws": ()}])
def test_a_study_of_nothing_is_refused(nothing: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="needs at least one"):
        replace(Settings(methods=("fedavg",), data="digits/iid"), **nothing)


@pytest.mark.parametrize("bad", [{"threads": 0}, {"memory": 0.0}, {"checkpoint_every": 0}])
def test_impossible_execution_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        Execution(**bad)  # type: ignore[arg-type]
