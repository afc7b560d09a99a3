"""When a job ends early: somebody waits who is not part of it."""

import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.signal import Signal
from nvflare.private.defs import SpecialTaskName

from coterie._util.errors import UserError
from coterie.deploy.flare import controller as controllers
from coterie.deploy.flare.controller import (
    FIRST_WAIT,
    LONGEST_WAIT,
    CoterieController,
    FlareCarrier,
    NewcomerClock,
    TaskRequests,
    compute_patience,
)
from coterie.deploy.flare.transport import hash_registration
from coterie.deploy.server.federation import SERVER_FOLDER, write_presence
from coterie.deploy.server.runs import Order, RunFolder


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoterieController:
    monkeypatch.setenv(SERVER_FOLDER, str(tmp_path / "server"))
    (tmp_path / "server").mkdir()
    RunFolder(tmp_path / "runs" / "a-run").place(Order("a-run", "study", {}, minimum=2), 30.0)
    made = CoterieController("a-run")
    made.journal.begin(["a", "b"])
    made.journal.append("round", {})
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
    controller.journal.append("round", {})
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


class Tasks:
    """FLARE's answers to requests for work: a task for each site that has one."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.asked: list[str] = []
        self.requests = TaskRequests(self.answer)

    def answer(self, client: Client, fl_ctx: Any) -> tuple[str, str, Any]:
        self.asked.append(client.name)
        return ("a task", "1", None) if client.name in self.ready else (SpecialTaskName.TRY_AGAIN, "", None)

    def request(self, site: str, during: Callable[[], None] = lambda: None) -> tuple[str, float]:
        """What a site gets, and after how long, where `during` happens while it waits."""
        found: list[str] = []
        began = monotonic()
        waiting = threading.Thread(target=lambda: found.append(self.requests(Client(site, ""), None)[0]))
        waiting.start()
        while not self.requests.held and waiting.is_alive():
            pass
        during()
        waiting.join()
        return found[0], monotonic() - began

    def add(self, site: str) -> None:
        self.ready.add(site)
        self.requests.notify(site)


def test_a_request_for_work_is_held_until_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "HOLD", 30.0)
    tasks = Tasks()
    found, seconds = tasks.request("a", lambda: tasks.add("a"))
    assert (found, tasks.asked) == ("a task", ["a", "a"])
    assert seconds < 20
    tasks = Tasks()
    found, seconds = tasks.request("a", tasks.requests.close)  # the run is over
    assert found == SpecialTaskName.TRY_AGAIN
    assert seconds < 20


def test_a_request_for_work_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "HOLD", 0.2)
    tasks = Tasks()
    found, seconds = tasks.request("a", lambda: tasks.add("b"))  # another site's
    assert found == SpecialTaskName.TRY_AGAIN
    assert 0.1 < seconds < 20
    assert not tasks.requests.held


def test_one_request_of_a_site_is_held_and_not_more_than_there_are_threads_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "HOLD", 30.0)
    tasks = Tasks()

    def others() -> None:
        assert tasks.requests(Client("a", ""), None)[0] == SpecialTaskName.TRY_AGAIN
        monkeypatch.setattr(controllers, "MOST_HELD", 1)
        assert tasks.requests(Client("b", ""), None)[0] == SpecialTaskName.TRY_AGAIN
        tasks.add("a")

    assert tasks.request("a", others)[0] == "a task"
