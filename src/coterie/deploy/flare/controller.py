"""The server's part of a FLARE job: it runs an order, sends messages as FLARE tasks, and ends the job when a site waits to join."""

import os
import queue
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.defs import SpecialTaskName

from coterie._util.errors import UserError
from coterie._util.files import lock_file
from coterie.deploy.certificates import RevokedSites
from coterie.deploy.files import is_name
from coterie.deploy.flare.jobs import BODY, TASK
from coterie.deploy.flare.transport import IncomingStreams, hash_registration, survive_bad_messages
from coterie.deploy.messages import OversizedMessage, RawMessage
from coterie.deploy.server.federation import SCHEMA_FILE, SERVER_FOLDER, list_connected_sites, read_presence, read_roster
from coterie.deploy.server.introduction import TooFewSitesError
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Journal, RunFolder

LOOK = 0.05  # seconds between looks at the abort signal
FIRST_WAIT = 120.0  # seconds for the first exchange at least: sites then load their data, whatever a phase may take later
SILENT = 3  # phases without an answer after which a site is no longer waited for


class AbortedError(BaseException):
    """The job was aborted from outside: like Ctrl-C, and no failure of a lane, which would be final."""


class FlareCarrier:
    """Sends by the controller's `send`: what a site cannot take now is offered again until the time is over."""

    def __init__(
        self,
        controller: Any,
        fl_ctx: FLContext,
        abort: Signal,
        timeout: float,
        gone: Callable[[], set[str]],
        sites: Collection[str] | None = None,
    ) -> None:
        """`gone` names the sites that FLARE has seen leave, `sites` those that are part of the job; default: all that are asked."""
        self.sites = sites
        self.controller, self.fl_ctx, self.abort, self.timeout, self.gone = controller, fl_ctx, abort, timeout, gone
        self.silent: dict[str, int] = {}
        self.patience = max(timeout, FIRST_WAIT)
        self._posted: dict[str, tuple[str, Task, float]] = {}  # by number, what is not waited for: the site, and until when it counts
        self._come, self._replies = queue.Queue[tuple[str, RawMessage | None]](), queue.Queue[tuple[str, RawMessage | None]]()
        self._most: dict[str, int] = {}  # by site, the bytes that its answer can have
        self._incoming: IncomingStreams | None = None

    @property
    def lost(self) -> set[str]:
        """Sites that are not asked any more in this job: they left, or were silent for too long."""
        return self.gone() | {site for site, phases in self.silent.items() if phases >= SILENT}

    def limit_answers(self, most: Mapping[str, int]) -> None:
        """From now on an answer that is larger is dropped while it comes in, and its site counts as having answered."""
        if self._incoming is None:
            survive_bad_messages()
            self._incoming = IncomingStreams(self.fl_ctx.get_engine().get_cell(), lambda site: self._most.get(site, 0), self._drop)
        at_work = {site for site, _, _ in list(self._posted.values())}
        self._most |= {site: max(own, self._most.get(site, 0)) if site in at_work else own for site, own in most.items()}

    def _drop(self, site: str, excess: OversizedMessage) -> None:
        """In a thread of FLARE: the answer that is waited for, or all that were posted to the site, will not come."""
        self._replies.put((site, excess))
        for number in [number for number, (posted_to, _, _) in list(self._posted.items()) if posted_to == site]:
            self._come.put((number, excess))

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, RawMessage]:
        waiting: dict[str, Task] = {}
        answers: dict[str, RawMessage] = {}
        replies = self._replies = queue.Queue[tuple[str, RawMessage | None]]()
        lost = self.lost
        for site, data in batches.items():
            if site not in lost and self._takes_part(site):
                waiting[site] = self._task(data, replies, site)
                self.controller.send(task=waiting[site], fl_ctx=self.fl_ctx, targets=[site])
        end = monotonic() + self.patience
        while waiting and monotonic() < end:
            if self.abort.triggered:
                raise AbortedError
            try:
                site, response = replies.get(timeout=LOOK)
            except queue.Empty:
                for site in self.gone() & set(waiting):
                    self.controller.cancel_task(waiting.pop(site))
                continue
            task = waiting.pop(site, None)
            if task is None:
                continue  # a second answer: the first one counts
            if isinstance(response, OversizedMessage):
                self.controller.cancel_task(task)
            if response is not None:
                answers[site] = response
            self.silent[site] = 0 if response is not None else self.silent.get(site, 0) + 1
        for site, task in waiting.items():
            self.controller.cancel_task(task)
            self.silent[site] = self.silent.get(site, 0) + 1
        self.patience = self.timeout
        return answers

    def post(self, number: str, site: str, data: bytes) -> None:
        """Send, and do not wait; a site that is not asked any more is silent at once."""
        task = self._task(data, self._come, number)
        self._posted[number] = (site, task, monotonic() + self.patience)
        if site in self.lost or not self._takes_part(site):
            self._come.put((number, None))
        else:
            self.controller.send(task=task, fl_ctx=self.fl_ctx, targets=[site])

    def _takes_part(self, site: str) -> bool:
        """A site of the run may not be part of this job: it came too late, would not fetch what it is asked, and all would wait."""
        return self.sites is None or site in self.sites

    def collect(self, *, wait: bool) -> tuple[str, RawMessage | None] | None:
        """What comes next of all that was posted."""
        while self._posted:
            if self.abort.triggered:
                raise AbortedError
            try:
                number, response = self._come.get(timeout=LOOK) if wait else self._come.get_nowait()
            except queue.Empty:
                if not self._give_up() and not wait:
                    return None
                continue
            if (found := self._posted.pop(number, None)) is not None:  # a second answer does not count
                self.silent[found[0]] = 0 if response is not None else self.silent.get(found[0], 0) + 1
                if isinstance(response, OversizedMessage):
                    self.controller.cancel_task(found[1])
                return number, response
        return None

    def _give_up(self) -> bool:
        """Count as silent the sites that are gone, or took too long; whether there are any."""
        gone, now = self.gone(), monotonic()
        late = [number for number, (site, _, end) in self._posted.items() if site in gone or now > end]
        for number in late:
            self.controller.cancel_task(self._posted[number][1])
            self._come.put((number, None))
        return bool(late)

    def _task(self, data: bytes, replies: "queue.Queue[tuple[str, RawMessage | None]]", name: str) -> Task:
        """A task whose reply, or None, is put into a queue under a name."""

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:  # FLARE calls it with these names
            result: Shareable = client_task.result
            response = result.get(BODY) if result.get_return_code() == ReturnCode.OK else None
            replies.put((name, response if isinstance(response, bytes) else None))
            client_task.result = None  # FLARE would keep it as long as the task

        def done(task: Task, fl_ctx: FLContext) -> None:
            if task.completion_status != TaskCompletionStatus.OK:
                replies.put((name, None))

        body = Shareable()
        body[BODY] = data
        return Task(name=TASK, data=body, timeout=max(int(self.patience), 1), result_received_cb=received, task_done_cb=done)


SHORT_STAY = 100  # rounds: a site that is lost sooner than that is lost again for the same reason
LONGEST_WAIT = 64  # rounds at most until such a site is taken in again


class NewcomerClock:
    """The clock of a run's job: over after the round in which a site waits that may join."""

    def __init__(self, waiting: Callable[[], set[str]], lines: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """`waiting` names the sites that are there and take no part; `lines` is the run's journal."""
        self.waiting, self.lines = waiting, lines
        self.let_in: set[str] = set()

    @property
    def over(self) -> bool:
        if not self.let_in and (waiting := self.waiting()):
            lines = self.lines()
            began = max((place for place, line in enumerate(lines) if line["what"] == "began"), default=0)
            rounds = _count_rounds(lines[began:])
            self.let_in = {site for site in waiting if rounds >= compute_patience(lines[:began], site)}
        return bool(self.let_in)

    def begin_wave(self) -> bool:
        return not self.over


def compute_patience(lines: Sequence[Mapping[str, Any]], site: str) -> int:
    """Rounds until a site may end the job to come in: one at first, and ever more for one whose part broke in one job after the other.

    All sites wait for seconds while a job starts. A site whose process dies in each must not cost the others a job a round.
    """
    lost = 0
    for job in _split_jobs(lines):
        took_part, let_in = site in job[0].get("sites", ()), site in job[-1].get("let_in", ())
        if took_part:
            lost = lost + 1 if let_in and _count_rounds(job) < SHORT_STAY else 0
    return min(1 << lost, LONGEST_WAIT)


def _split_jobs(lines: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    jobs: list[list[Mapping[str, Any]]] = []
    for line in lines:
        if line["what"] == "began":
            jobs.append([])
        if jobs:
            jobs[-1].append(line)
    return jobs


def _count_rounds(lines: Sequence[Mapping[str, Any]]) -> int:
    return sum(line["what"] == "round" for line in lines)


CHECK = 0.1  # seconds between FLARE's looks at tasks that failed; there is no setting for it
HOLD = 2.0  # seconds that a site's request for work is held while there is none
MOST_HELD = 32  # requests held at once: each takes one of the 64 threads that FLARE has for all requests


class TaskRequests:
    """Holds a site's request for work until there is some. FLARE would have every site ask again and again, which costs all of them time.

    One request of a site is held. Where too many are, a site is asked to try again, as FLARE does.
    """

    def __init__(self, answer: Callable[[Client, FLContext], tuple[str, str, Any]]) -> None:
        """`answer` is FLARE's own, which does not wait."""
        self.answer = answer
        self.changed = threading.Condition()
        self.sent = Counter[str]()  # tasks by site
        self.held: set[str] = set()
        self.closed = False

    def notify(self, site: str) -> None:
        """There is a task for a site."""
        with self.changed:
            self.sent[site] += 1
            self.changed.notify_all()

    def close(self) -> None:
        """Answer all that are held, and hold none any more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def __call__(self, client: Client, fl_ctx: FLContext) -> tuple[str, str, Any]:
        end = monotonic() + HOLD
        while True:
            sent = self.sent[client.name]
            answer = self.answer(client, fl_ctx)
            if answer[0] != SpecialTaskName.TRY_AGAIN or not self._wait(client.name, sent, end):
                return answer

    def _wait(self, site: str, sent: int, end: float) -> bool:
        """Wait for a task that was not there when `sent` was read; whether to look again."""
        with self.changed:
            if self.closed or site in self.held or len(self.held) >= MOST_HELD:
                return False
            self.held.add(site)
            try:
                return self.changed.wait_for(lambda: self.closed or self.sent[site] != sent, end - monotonic())
            finally:
                self.held.discard(site)


class CoterieController(Controller):
    """Runs in a process of its own on the server, one for each job."""

    def __init__(self, run: str) -> None:
        """A job holds no more than a run's name: where runs lie and what was ordered, the server knows itself."""
        super().__init__()
        if not is_name(run):
            raise UserError("A job names a run by letters, digits, - . = and _.")
        self.server = Path(os.environ[SERVER_FOLDER])
        self.folder = self.server.parent / "runs" / run
        order, self.timeout = RunFolder(self.folder).order()
        # A run that has begun continues with the sites that are connected.
        self.order = replace(order, minimum=1) if (self.folder / "study").exists() else order
        self.left: set[str] = set()
        self.began_with: dict[str, str] = {}  # by site, the mark of its registration
        self.removed = RevokedSites(self.server.parent)
        self.journal = Journal(self.folder)
        self.requests: TaskRequests | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        self.communicator._task_check_period = CHECK
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        self.requests = runner.process_task_request = TaskRequests(runner.process_task_request)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        if self.requests is not None:
            self.requests.close()

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str], **options: Any) -> None:
        """Offer a task to sites, and answer what they have asked for work."""
        super().send(task, fl_ctx, targets, **options)
        for site in targets:
            if self.requests is not None:
                self.requests.notify(site)

    def process_result_of_unknown_task(self, client: Client, task_name: str, client_task_id: str, result: Any, fl_ctx: FLContext) -> None:
        """An answer that came too late does not count, and is written down."""
        self.journal.append("late", {"site": client.name})

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.CLIENT_DISCONNECTED:
            self._note_site("left", fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self._note_site("returned", fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME))

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        with lock_file(self.folder / "run"):  # the job of a server that was killed outlives it by seconds
            self._run_order(abort_signal, fl_ctx)

    def _run_order(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self.began_with = {client.name: hash_registration(client) for client in fl_ctx.get_engine().get_clients()}
        sites = sorted(self.began_with)
        carrier = FlareCarrier(self, fl_ctx, abort_signal, self.timeout, self.gone, self.began_with)
        self.journal.begin(sites)
        newcomers = NewcomerClock(lambda: self.waiting(carrier.lost), self.journal.lines)
        try:
            complete = run_order(
                self.order,
                carrier,
                sites,
                self.folder,
                clock=newcomers,
                report=self.journal.fault,
                watchers=[self.journal],
                roster=read_roster(self.server.parent),
                schema_file=self.server.parent / SCHEMA_FILE,
            )
            if complete:
                self.journal.end("complete")
            else:
                self.journal.end("again", let_in=sorted(newcomers.let_in))
        except TooFewSitesError as error:  # one that was there a moment ago: the next job begins when enough are
            self.journal.end("again", reason=str(error))
        except AbortedError:
            self.journal.end("aborted")
        except UserError as error:
            self.journal.end("refused", reason=str(error))
        except Exception as error:
            self.journal.end("failed", reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
            raise

    def gone(self) -> set[str]:
        """Sites whose part of this job is over: FLARE saw them leave, they were restarted, or the operator removed them, which FLARE
        does not report to the job."""
        now = read_presence(self.server).marks
        return self.left | self.removed() | {site for site, mark in self.began_with.items() if now.get(site, mark) != mark}

    def waiting(self, lost: set[str]) -> set[str]:
        """Sites that are there and take no part in this job."""
        return list_connected_sites(self.server) - (set(self.began_with) - lost) - self.removed()

    def _note_site(self, what: str, site: str | None) -> None:
        if site is None:
            return
        (self.left.add if what == "left" else self.left.discard)(site)
        self.journal.append(what, {"site": site})
