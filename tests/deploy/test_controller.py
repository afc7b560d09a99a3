"""When a job ends early: somebody waits who is not part of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.signal import Signal

from coterie.deploy.flare.carrier import FIRST, FlareCarrier
from coterie.deploy.flare.controller import CoterieController, _Newcomers
from coterie.deploy.flare.watch import mark_of
from coterie.deploy.presence import write_presence


@pytest.fixture
def controller(tmp_path: Path) -> CoterieController:
    order = {"run": "a-run", "kind": "study", "settings": {}}
    made = CoterieController(order, str(tmp_path / "runs"), str(tmp_path))
    made.began_with = {"a": mark_of(Client("a", "token of a")), "b": mark_of(Client("b", "token of b"))}
    see(made, a="token of a", b="token of b")
    return made


def see(controller: CoterieController, **tokens: str) -> None:
    """The server's parent sees these sites."""
    write_presence(controller.server, dict.fromkeys(tokens, 0.0), {site: mark_of(Client(site, token)) for site, token in tokens.items()})


def over(controller: CoterieController, lost: tuple[str, ...] = ()) -> bool:
    carrier: Any = SimpleNamespace(lost=controller.gone() | set(lost))
    return _Newcomers(controller, carrier).over


def test_a_job_goes_on_while_all_who_are_there_take_part(controller: CoterieController) -> None:
    assert not over(controller)
    see(controller, a="token of a")  # one is away
    assert not over(controller)
    assert controller.gone() == set()  # FLARE will say so, if it is for long


def test_a_newcomer_ends_a_job(controller: CoterieController) -> None:
    see(controller, a="token of a", b="token of b", c="token of c")
    assert over(controller)


def test_a_site_that_was_started_anew_is_not_waited_for_and_ends_the_job(controller: CoterieController) -> None:
    see(controller, a="token of a", b="another token")
    assert controller.gone() == {"b"}
    assert over(controller)


def test_a_site_that_lost_its_job_process_or_was_silent_ends_the_job(controller: CoterieController) -> None:
    assert over(controller, lost=("b",))
    controller._note_site("left", "b")
    assert over(controller)
    controller._note_site("returned", "b")
    assert not over(controller)


def test_sites_have_time_to_load_their_data_before_the_first_answer(controller: CoterieController) -> None:
    carrier = FlareCarrier(controller, None, Signal(), 2.0, set)
    assert carrier.patience == FIRST
    carrier.exchange({})
    assert carrier.patience == 2.0
