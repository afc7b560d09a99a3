"""A newcomer's method: one file of under 40 lines, one line to register it, and the whole battery of contracts for free."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.states import Models
from coterie.methods.catalogue import build, methods
from coterie.testing import worlds
from coterie.testing.contracts import CHECKS, Checked
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import make_round_context, play, run_generator
from methods.noted import mixing_of
from methods.trimmed_average import TrimmedAverage


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_entries", dict(methods._entries))  # put back afterwards
    methods.add("trimmed", TrimmedAverage)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Callable[[Checked], None]) -> None:
    check(Checked(partial(build, "trimmed(trim=0.3)")))


def test_the_longest_update_is_left_out() -> None:
    """One equation, by hand: of four clients that move by 1, 2, 3 and 100, a quarter (the last) does not count."""
    ctx = make_round_context(worlds.make_world())
    moves = dict(zip(ctx.cohort().tolist(), (1.0, 2.0, 3.0, 100.0), strict=True))

    def answer(ask: Any, client: int) -> Mapping[str, Any]:
        return {"vectors": np.full(18, moves[client]), "sizes": 10, "steps": 1}

    state = run_generator(
        TrimmedAverage().round(Models(np.zeros((1, 18), np.float32)), ctx), worlds.make_world(), engine=FakeEngine(answer)
    )
    np.testing.assert_allclose(state.models, np.full((1, 18), 2.0), rtol=1e-6)
    assert mixing_of(ctx).replies.tolist() == [[1 / 3, 1 / 3, 1 / 3, 0.0]]


def test_without_trimming_it_is_fedavg() -> None:
    assert play(build("trimmed(trim=0)")).data == play(build("fedavg")).data


def test_it_is_one_short_file() -> None:
    lines = Path(__file__).with_name("trimmed_average.py").read_text().splitlines()
    assert len(lines) < 40
