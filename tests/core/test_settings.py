"""Settings that know themselves: bounds, types, choices, each refused in one sentence."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import Bounds, check_settings, setting
from coterie.methods.moon import MOONRule


@dataclass(frozen=True, kw_only=True)
class Things:
    count: int = setting(3, "How many.", minimum=1)
    share: float = setting(0.5, "Which share.", minimum=0, below=1)
    rate: float = setting(0.1, "How fast.", above=0)
    heat: float = setting(1.0, "How hot.", above=0, infinite=True)
    most: int | None = setting(None, "At most.", minimum=2)
    groups: int | Literal["auto"] = setting(3, "How many groups.", minimum=1)
    way: Literal["left", "right"] = setting("left", "Which way.")
    on: bool = setting(False, "Whether.")
    free: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 1),
        ("share", 0),
        ("rate", 1e-9),
        ("heat", float("inf")),
        ("most", None),
        ("groups", "auto"),
        ("way", "right"),
        ("on", True),
    ],
)
def test_what_is_within_bounds_is_taken(name: str, value: Any) -> None:
    assert getattr(Things(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("count", 0, "Things cannot use count=0: give 1 or more."),
        ("count", 1.5, "Things cannot use count=1.5: give a whole number."),
        ("count", True, "Things cannot use count=True: give a whole number."),
        ("count", "many", "Things cannot use count='many': give a whole number."),
        ("share", 1.0, "Things cannot use share=1.0: give 0 or more and below 1."),
        ("rate", 0.0, "Things cannot use rate=0.0: give a number above 0."),
        ("rate", float("nan"), "Things cannot use rate=nan: give a number above 0."),
        ("rate", float("inf"), "Things cannot use rate=inf: give a number above 0."),
        ("heat", 0.0, "Things cannot use heat=0.0: give a number above 0, or inf."),
        ("most", 1, "Things cannot use most=1: give 2 or more or none."),
        ("groups", 0, "Things cannot use groups=0: give 1 or more or auto."),
        ("groups", "many", "Things cannot use groups='many': choose from auto."),
        ("way", "lefft", "Things cannot use way='lefft': did you mean 'left'?"),
        ("way", 3, "Things cannot use way=3: give left or right."),
        ("on", "yes", "Things cannot use on='yes': give true or false."),
        ("on", None, "Things cannot use on=None: give true or false."),
    ],
)
def test_what_is_not_is_refused_in_one_sentence(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        Things(**{name: value})
    assert str(caught.value) == sentence


def test_a_field_without_bounds_is_checked_for_its_type_only() -> None:
    assert Things(free=float("inf")).free == float("inf")
    with pytest.raises(UserError, match="free='x'"):
        Things(free="x")  # type: ignore[arg-type]


def test_bounds_say_themselves() -> None:
    assert str(Bounds(minimum=0, maximum=1)) == "0 or more and at most 1"
    assert str(Bounds(above=0, maximum=1)) == "a number above 0 and at most 1"
    assert not Bounds(above=0).allow(0.0)
    assert not Bounds(below=1).allow(1.0)
    assert not Bounds().allow(float("inf"))


def test_a_local_rule_is_a_methods() -> None:
    with pytest.raises(UserError, match="part of a method"):
        Plan(local=Local(rule=MOONRule(mu=1.0, temperature=1.0)))
