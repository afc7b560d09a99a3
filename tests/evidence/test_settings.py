"""Settings: what defines a study, and how a user's text becomes it."""

import json

import pytest

from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence.settings import Settings, parse_seeds
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
        methods=("fedavg", "fedprox(mu=1)"), data="digits/iid", seeds=(0, 3), plan=Plan(rounds=7, local=Local(batch_size=None))
    )
    assert Settings.from_json(json.loads(json.dumps(settings.as_json()))) == settings


def test_a_later_schema_is_refused() -> None:
    tree = Settings(methods=("fedavg",), data="digits/iid").as_json() | {"schema": 99}
    with pytest.raises(UserError, match="schema 99"):
        Settings.from_json(tree)


def test_differences_are_named() -> None:
    one = Settings(methods=("fedavg",), data="digits/iid", plan=Plan(local=Local(lr=0.1)))
    two = Settings(methods=("fedavg",), data="digits/iid", plan=Plan(local=Local(lr=0.2)), seeds=(1,))
    assert one.differences(two) == ["plan.local.lr", "seeds"]


def test_naming_a_method_twice_is_refused() -> None:
    with pytest.raises(UserError, match="fedavg twice"):
        Settings(methods=("fedavg", "fedavg"), data="digits/iid")


@pytest.mark.parametrize("bad", [{"threads": 0}, {"memory": 0.0}, {"checkpoint_every": 0}])
def test_impossible_execution_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        Execution(**bad)  # type: ignore[arg-type]
