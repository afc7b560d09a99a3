"""A real federation has real clients: a simulated attack is refused before any site is asked."""

from pathlib import Path
from typing import Any

import pytest

from coterie._util.errors import UserError
from coterie.core.plan import Plan
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Order
from coterie.evidence.settings import Settings


def test_an_attack_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    settings = Settings(methods=("fedavg",), data="sites", plan=Plan(attack="signflip"))
    asked: Any = None  # a carrier that could not carry anything
    with pytest.raises(UserError, match="a real federation has real clients"):
        run_order(Order("run", "study", settings.as_json()), asked, ["a"], tmp_path, clock=asked, report=asked)
    assert not list(tmp_path.iterdir())
