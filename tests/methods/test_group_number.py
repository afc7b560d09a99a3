"""The number of groups by the test of structure: what it asks, and what it may answer."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Gradient
from coterie.core.method import Choice
from coterie.core.plan import Plan
from coterie.data.federation import Federation
from coterie.engines.world import World
from coterie.grouping import structure
from coterie.methods import group_number as asked
from coterie.methods.group_number import choose_from_structure
from coterie.run.driver import run_script
from coterie.testing.play import AlteredEngine, drop_replies, pass_unchanged
from inspect_federations import CLASSES, even, federation

GROUPS = np.arange(24) % 3


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "find_groups", partial(structure.find_groups, draws=39))


def chosen(made: Federation, most: int = 6, seed: int = 0, engine: AlteredEngine | None = None) -> Choice:
    world = World.from_spec(made, "mclr")
    ctx = world.problem.context(Plan(), seed, 0)
    return run_script(
        choose_from_structure(world.model.initial(seed)()[None, :], ctx, most), engine or AlteredEngine(pass_unchanged, world), seed=seed
    )


def test_plain_groups_are_claimed_with_what_they_were_read_from() -> None:
    found = chosen(federation(even(24), groups=GROUPS, moved=True))
    assert (found.k, found.how) == (3, "structure")
    assert found.p is not None
    assert found.p <= 0.05
    assert {name: len(curve) for name, curve in found.curves.items()} == {"share": 7, "expected": 7}  # for 1 to 6 groups, and one more
    assert all(np.isnan(curve[0]) and np.isfinite(curve[1:]).all() for curve in found.curves.values())
    assert found.curves["share"][2] > found.curves["expected"][2]


def test_one_population_is_one_group() -> None:
    answers = [chosen(federation(even(24), seed=seed), seed=seed) for seed in range(4)]
    assert all((found.k == 1) == (found.p is not None and found.p > 0.05) for found in answers)
    assert sum(found.k == 1 for found in answers) >= 3  # at a level of 5 %


def test_no_more_groups_are_claimed_than_may_be() -> None:
    assert chosen(federation(even(24), groups=GROUPS, moved=True), most=2).k <= 2


def test_every_client_is_asked_once_for_each_half_and_class() -> None:
    made = federation(even(8), groups=np.arange(8) % 2, moved=True)
    engine = AlteredEngine(pass_unchanged, World.from_spec(made, "mclr"))
    chosen(made, engine=engine)
    shares = [(s.ask.share.fold, s.ask.share.label) for s in engine.asked if isinstance(s.ask, Gradient) and s.ask.share is not None]
    assert sorted(shares) == [(half, label) for half in (0, 1) for label in range(CLASSES)]
    assert len(shares) == len(engine.asked)


def test_only_a_sample_of_a_large_federation_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MAX_TESTED", 10)
    made = federation(even(24), groups=GROUPS, moved=True)
    engine = AlteredEngine(pass_unchanged, World.from_spec(made, "mclr"))
    chosen(made, engine=engine)
    asked_: set[tuple[Any, ...]] = {tuple(s.ask.clients) for s in engine.asked if isinstance(s.ask, Gradient)}
    (clients,) = asked_
    assert len(clients) == 10


@pytest.mark.parametrize("gone", [np.arange(24), np.arange(1, 24)])
def test_where_fewer_than_two_answer_nothing_is_claimed(gone: Any) -> None:
    made = federation(even(24), groups=GROUPS, moved=True)
    found = chosen(made, engine=AlteredEngine(drop_replies(gone, (0,)), World.from_spec(made, "mclr")))
    assert found.k == 1
    assert found.p is not None
    assert np.isnan(found.p)
