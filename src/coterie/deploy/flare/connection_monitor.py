"""In the server's parent process: records which sites are connected, disconnects revoked ones, and contains two faults of FLARE 2.9."""

import os
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
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.private.defs import CellChannel, CellChannelTopic, JobFailureMsgKey

from coterie.deploy.certificates import RevokedSites
from coterie.deploy.flare.jobs import SERVER_FOLDER
from coterie.deploy.flare.transport import limit_frames, limit_queues
from coterie.deploy.server.federation import REFRESH, write_presence

CHECK_INTERVAL = 0.5  # seconds


def hash_registration(client: Client) -> str:
    """What distinguishes a registration from the next one. FLARE's token would, but it is a secret."""
    return sha256(str(client.token).encode()).hexdigest()[:16]


def _downgrade_failure(message: Any) -> None:
    """A site that calls a job unsafe has failed like any other: FLARE would end the job for all."""
    details = message.payload
    if isinstance(details, dict) and details.get(JobFailureMsgKey.CODE) == ProcessExitCode.UNSAFE_COMPONENT:
        details[JobFailureMsgKey.CODE] = ProcessExitCode.EXCEPTION


class ConnectionMonitor(FLComponent):
    """A component of the server (local/resources.json)."""

    def __init__(self) -> None:
        super().__init__()
        limit_frames()  # the server's port is opened later
        limit_queues()
        self.server, self._stop = Path(os.environ[SERVER_FOLDER]), threading.Event()
        self.removed = RevokedSites(self.server.parent)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            self._contain_failures(engine)
            self._close_stale_jobs(engine, fl_ctx)
            threading.Thread(target=self._write, args=(engine,), daemon=True).start()
            threading.Thread(target=self._disconnect_revoked, args=(engine,), daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self._stop.set()

    def _contain_failures(self, engine: Any) -> None:
        """The process of one site that dies must not end the job for all: the site is gone, and the others go on."""

        def fail_run(job_id: str, process_return_code: Any, fl_ctx: FLContext) -> str:
            self.log_warning(fl_ctx, f"job {job_id}: the process of a site ended with {process_return_code}; the others continue")
            return ""

        engine.job_runner.fail_run = fail_run
        engine.get_cell().core_cell.add_incoming_request_filter(
            CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE, _downgrade_failure
        )

    def _disconnect_revoked(self, engine: Any) -> None:
        """Close the connections of a removed site at once. What it sends over new ones is refused by the guard."""
        manager = engine.get_cell().core_cell.communicator.conn_manager
        before = frozenset[str]()
        while not self._stop.wait(CHECK_INTERVAL):
            removed = self.removed()
            for name in [name for name in list(manager.sfm_endpoints) if name.partition(".")[0] in removed - before]:
                for line in list(manager.get_connections(name) or []):
                    line.conn.close()
            for client in list(engine.client_manager.clients.values()):
                if client.name in removed:
                    engine.server.logout_client(client.token)
            before = removed

    def _close_stale_jobs(self, engine: Any, fl_ctx: FLContext) -> None:
        """A server that was killed leaves jobs that are called running forever."""
        manager = engine.get_component(SystemComponents.JOB_MANAGER)
        for job in manager.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx) or []:
            manager.set_status(job.job_id, RunStatus.FINISHED_ABORTED, fl_ctx)

    def _write(self, engine: Any) -> None:
        before: dict[str, str] | None = None
        wrote = 0.0
        while not self._stop.wait(CHECK_INTERVAL):
            clients = list(engine.client_manager.clients.values())
            marks = {client.name: hash_registration(client) for client in clients}
            if marks != before or monotonic() - wrote > REFRESH:
                write_presence(self.server, {client.name: float(client.last_connect_time) for client in clients}, marks)
                before, wrote = marks, monotonic()
