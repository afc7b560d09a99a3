"""When a job ends early: somebody waits who is not part of it."""

from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.signal import Signal

from coterie._util.errors import UserError
from coterie.deploy.flare.connection_monitor import hash_registration
from coterie.deploy.flare.controller import FIRST_WAIT, LONGEST_WAIT, CoterieController, FlareCarrier, NewcomerClock, compute_patience
from coterie.deploy.flare.jobs import SERVER_FOLDER
from coterie.deploy.server.federation import write_presence
from coterie.deploy.server.runs import Order, RunFolder


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoterieController:
    monkeypatch.setenv(SERVER_FOLDER, str(tmp_path / "server"))
    (tmp_path / "server").mkdir()
    RunFolder(tmp_path / "runs" / "a-run").place(Order("a-run", "study", {}, minimum=2), 30.0)
    made = CoterieController("a-run")
    made.journal.begin(["a", "b"])
    made.journal.say("round")
    made.began_with = {"a": hash_registration(Client("a", "token of a")), "b": hash_registration(Client("b", "token of b"))}
    see(made, a="token of a", b="token of b")
    return made


def see(controller: CoterieController, **tokens: str) -> None:
    """The server's parent sees these sites."""
    write_presence(
        controller.server, dict.fromkeys(tokens, 0.0), {site: hash_registration(Client(site, token)) for site, token in tokens.items()}
    )


def over(controller: CoterieController, lost: tuple[str, ...] = ()) -> bool:
    return NewcomerClock(lambda: controller.waiting(controller.gone() | set(lost)), controller.journal.lines).over


def test_a_job_says_no_more_than_the_name_of_a_run(controller: CoterieController) -> None:
    assert controller.order.minimum == 2
    (controller.folder / "study").mkdir()
    assert CoterieController("a-run").order.minimum == 1  # it has begun, and goes on with those who are there
    for name in ("../a-run", "/tmp/a-run", "", ".", "..", "a/b", "x" * 300):
        with pytest.raises(UserError, match="names a run"):
            CoterieController(name)
    with pytest.raises(UserError):
        CoterieController("another-run")


def test_a_job_goes_on_while_all_who_are_there_take_part(controller: CoterieController) -> None:
    assert not over(controller)
    see(controller, a="token of a")  # one is away
    assert not over(controller)
    assert controller.gone() == set()  # FLARE will say so, if it is for long


def test_no_job_ends_without_a_round(controller: CoterieController) -> None:
    controller.journal.begin(["a", "b"])
    see(controller, a="token of a", b="token of b", c="token of c")
    assert not over(controller)
    controller.journal.say("round")
    assert over(controller)


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
    assert carrier.patience == FIRST_WAIT
    carrier.exchange({})
    assert carrier.patience == 2.0


def test_a_site_of_the_run_that_is_not_part_of_the_job_is_not_waited_for(
    controller: CoterieController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took part in an earlier job, and came too late for this one: FLARE would hold its task until the time is over."""
    sent: list[str] = []
    monkeypatch.setattr(controller, "send", lambda task, fl_ctx, targets: sent.extend(targets), raising=False)
    carrier = FlareCarrier(controller, None, Signal(), 600.0, set, controller.began_with)
    began = monotonic()
    assert carrier.exchange({"late": b"a question"}) == {}
    carrier.post("1", "late", b"a question")
    assert carrier.collect(wait=True) == ("1", None)
    assert monotonic() - began < 5
    carrier.post("2", "a", b"a question")
    assert sent == ["a"]


def job(sites: list[str], rounds: int, let_in: list[str]) -> list[dict[str, Any]]:
    """What the journal says of one job."""
    return [{"what": "began", "sites": sites}, *([{"what": "round"}] * rounds), {"what": "ended", "status": "again", "let_in": let_in}]


def test_a_site_that_breaks_in_every_job_is_taken_in_ever_later() -> None:
    broken = [job(["a", "b"], rounds, ["b"]) for rounds in (3, 2, 4, 8, 16, 32, 64, 64)]
    assert [compute_patience(list(chain(*broken[:jobs])), "b") for jobs in range(9)] == [1, 2, 4, 8, 16, 32, 64, 64, LONGEST_WAIT]
    assert compute_patience(list(chain(*broken)), "a") == 1


def test_a_newcomer_and_a_site_that_held_out_are_taken_in_at_once() -> None:
    assert compute_patience(job(["a"], 3, ["b"]), "b") == 1  # it was let in, and has not broken
    assert compute_patience([*job(["a", "b"], 3, ["b"]), *job(["a", "b"], 500, ["b"])], "b") == 1
    assert compute_patience([*job(["a", "b"], 3, ["b"]), *job(["a"], 3, ["b"])], "b") == 2  # a job it was not in says nothing


def test_the_rounds_of_the_job_that_runs_are_waited_for() -> None:
    lines = [*job(["a", "b"], 3, ["b"]), *job(["a", "b"], 1, ["b"]), {"what": "began", "sites": ["a", "b"]}]
    clock = NewcomerClock(lambda: {"b"}, lambda: lines)
    for _ in range(4):
        assert not clock.over
        lines.append({"what": "round"})
    assert clock.over
    assert clock.let_in == {"b"}
