"""What methods ask is known before the first round. Needs no Flower."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from coterie.core.model import make_layout
from coterie.core.plan import Plan
from coterie.evidence.settings import Settings
from coterie.flower.rehearsal import MOST_NUMBERS, rehearse, shrink_layout
from coterie.methods.catalogue import build
from coterie.run.study import Study
from coterie.testing.worlds import make_world

EXPECTED = {
    "fedavg": {"Train", "Evaluate"},
    "fesem(groups=2)": {"Train", "Evaluate"},
    "fedgroup(groups=2)": {"Train", "Evaluate"},
    "fedsim(clusters=2)": {"Train", "Gradient", "Evaluate"},
    "fedsim(clusters=2,sketch=3)": {"Train", "SketchedGradient", "Evaluate"},
    "ifca(groups=2)": {"Train", "Losses", "Evaluate"},
    "clove(groups=2)": {"Train", "Losses", "Evaluate"},
    "scaffold": {"Train", "Evaluate"},
    "pacfl(groups=2)": {"Train", "AskSubspaces", "Evaluate"},
}


def rehearse_method(spec: str) -> list[object]:
    problem = make_world().problem
    settings = Settings(methods=(spec,), data="tiny", model="mclr", plan=Plan(rounds=3, cohort=4))
    study = Study(settings, problems={0: replace(problem, central=False)}, rosters={}, methods=(build(spec),), changing=True)
    return [stamped.ask for stamped in rehearse(study)[spec]]


@pytest.mark.parametrize("spec", EXPECTED)
def test_the_asks_of_a_method_are_those_of_its_rounds(spec: str) -> None:
    assert {ask.kind for ask in rehearse_method(spec)} == EXPECTED[spec]  # type: ignore[attr-defined]


def test_scaffold_is_seen_to_train_with_a_linear_term() -> None:
    assert any(getattr(ask, "linear", None) is not None for ask in rehearse_method("scaffold"))


def test_a_large_model_is_rehearsed_with_few_numbers_of_the_same_names() -> None:
    whole = make_layout(nn.Sequential(nn.Linear(1000, 50), nn.BatchNorm1d(50), nn.Linear(50, 2)))
    small = shrink_layout(whole)
    assert [(s.name, s.kind, s.norm) for s in small.slices] == [(s.name, s.kind, s.norm) for s in whole.slices]
    assert max(length for s in small.slices for length in s.shape) == MOST_NUMBERS
    assert np.array_equal(np.cumsum([s.size for s in small.slices])[:-1], [s.begin for s in small.slices][1:])
