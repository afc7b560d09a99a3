"""In the server's parent process: who is connected, written where jobs can read it; and two faults of FLARE 2.9 kept from spreading."""

import threading
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import RunStatus

from coterie.deploy.flare.incoming import limit_frames
from coterie.deploy.presence import REFRESH, write_presence

EVERY = 0.5  # seconds


def mark_of(client: Client) -> str:
    """What tells a registration from the next one. FLARE's token would, but it is a secret."""
    return sha256(str(client.token).encode()).hexdigest()[:16]


class Watch(FLComponent):
    """A component of the server (local/resources.json)."""

    def __init__(self, server: str) -> None:
        super().__init__()
        limit_frames()  # the server's port is opened later
        self.server, self._stop = Path(server), threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            self._spare_others(engine)
            self._close_left_over(engine, fl_ctx)
            threading.Thread(target=self._write, args=(engine,), daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self._stop.set()

    def _spare_others(self, engine: Any) -> None:
        """The process of one site that dies must not end the job for all: the site is gone, and the others go on."""

        def fail_run(job_id: str, process_return_code: Any, fl_ctx: FLContext) -> str:
            self.log_warning(fl_ctx, f"job {job_id}: the process of a site ended with {process_return_code}; the others go on")
            return ""

        engine.job_runner.fail_run = fail_run

    def _close_left_over(self, engine: Any, fl_ctx: FLContext) -> None:
        """A server that was killed leaves jobs that are called running for ever."""
        manager = engine.get_component(SystemComponents.JOB_MANAGER)
        for job in manager.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx) or []:
            manager.set_status(job.job_id, RunStatus.FINISHED_ABORTED, fl_ctx)

    def _write(self, engine: Any) -> None:
        before: dict[str, str] | None = None
        wrote = 0.0
        while not self._stop.wait(EVERY):
            clients = list(engine.client_manager.clients.values())
            marks = {client.name: mark_of(client) for client in clients}
            if marks != before or monotonic() - wrote > REFRESH:
                write_presence(self.server, {client.name: float(client.last_connect_time) for client in clients}, marks)
                before, wrote = marks, monotonic()
