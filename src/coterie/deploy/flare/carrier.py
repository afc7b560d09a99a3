"""Messages to sites as FLARE tasks: one task for each site, all at once, replies one by one."""

import queue
from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import monotonic
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

TASK, BODY = "coterie", "message"
LOOK = 0.05  # seconds between looks at the abort signal
FIRST = 120.0  # seconds for the first exchange at least: sites then load their data, whatever a phase may take later
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
        """`gone` names the sites that FLARE has seen leave, `sites` those that are part of the job; default: whoever is asked."""
        self.sites = sites
        self.controller, self.fl_ctx, self.abort, self.timeout, self.gone = controller, fl_ctx, abort, timeout, gone
        self.silent: dict[str, int] = {}
        self.patience = max(timeout, FIRST)
        self._posted: dict[str, tuple[str, Task, float]] = {}  # by number, what is not waited for: to whom, and until when it counts
        self._come = queue.Queue[tuple[str, bytes | None]]()

    @property
    def lost(self) -> set[str]:
        """Sites that are not asked any more in this job: they left, or were silent for too long."""
        return self.gone() | {site for site, phases in self.silent.items() if phases >= SILENT}

    def exchange(self, parcels: Mapping[str, bytes]) -> dict[str, bytes]:
        waiting, answers, replies = {}, {}, queue.Queue[tuple[str, bytes | None]]()
        lost = self.lost
        for site, data in parcels.items():
            if site not in lost and self._takes_part(site):
                waiting[site] = self._task(data, partial(_into, replies, site))
                self.controller.send(task=waiting[site], fl_ctx=self.fl_ctx, targets=[site])
        end = monotonic() + self.patience
        while waiting and monotonic() < end:
            if self.abort.triggered:
                raise AbortedError
            try:
                site, said = replies.get(timeout=LOOK)
            except queue.Empty:
                for site in self.gone() & set(waiting):
                    self.controller.cancel_task(waiting.pop(site))
                continue
            if waiting.pop(site, None) is None:
                continue  # a second answer: the first one counts
            if said is not None:
                answers[site] = said
            self.silent[site] = 0 if said is not None else self.silent.get(site, 0) + 1
        for site, task in waiting.items():
            self.controller.cancel_task(task)
            self.silent[site] = self.silent.get(site, 0) + 1
        self.patience = self.timeout
        return answers

    def post(self, number: str, site: str, data: bytes) -> None:
        """Send, and do not wait; a site that is not asked any more is silent at once."""
        task = self._task(data, partial(_into, self._come, number))
        self._posted[number] = (site, task, monotonic() + self.patience)
        if site in self.lost or not self._takes_part(site):
            self._come.put((number, None))
        else:
            self.controller.send(task=task, fl_ctx=self.fl_ctx, targets=[site])

    def _takes_part(self, site: str) -> bool:
        """A site of the run may not be part of this job: it came too late. Nobody would fetch what it is asked, and all would wait."""
        return self.sites is None or site in self.sites

    def collect(self, *, wait: bool) -> tuple[str, bytes | None] | None:
        """What comes next of all that was posted."""
        while self._posted:
            if self.abort.triggered:
                raise AbortedError
            try:
                number, said = self._come.get(timeout=LOOK) if wait else self._come.get_nowait()
            except queue.Empty:
                if not self._give_up() and not wait:
                    return None
                continue
            if (found := self._posted.pop(number, None)) is not None:  # a second answer does not count
                self.silent[found[0]] = 0 if said is not None else self.silent.get(found[0], 0) + 1
                return number, said
        return None

    def _give_up(self) -> bool:
        """Let those count as silent who are gone, or took too long; whether there are any."""
        gone, now = self.gone(), monotonic()
        late = [number for number, (site, _, end) in self._posted.items() if site in gone or now > end]
        for number in late:
            self.controller.cancel_task(self._posted[number][1])
            self._come.put((number, None))
        return bool(late)

    def _task(self, data: bytes, tell: Callable[[bytes | None], None]) -> Task:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:  # FLARE calls it with these names
            result: Shareable = client_task.result
            said = result.get(BODY) if result.get_return_code() == ReturnCode.OK else None
            tell(said if isinstance(said, bytes) else None)
            client_task.result = None  # FLARE would keep it as long as the task

        def done(task: Task, fl_ctx: FLContext) -> None:
            if task.completion_status != TaskCompletionStatus.OK:
                tell(None)

        body = Shareable()
        body[BODY] = data
        return Task(name=TASK, data=body, timeout=max(int(self.patience), 1), result_received_cb=received, task_done_cb=done)


def _into(replies: "queue.Queue[tuple[str, bytes | None]]", name: str, said: bytes | None) -> None:
    replies.put((name, said))
