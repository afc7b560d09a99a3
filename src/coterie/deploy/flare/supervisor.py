"""The operator's session with a server, and the supervisor of `coterie serve`, which submits the jobs that runs need."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.client import api

from coterie._util.errors import UserError
from coterie.deploy.flare.jobs import ADMIN, write_job
from coterie.deploy.flare.processes import wait_until
from coterie.deploy.server.federation import FederationFolder, list_connected_sites, read_presence
from coterie.deploy.server.runs import AGAIN, END_STATES, WAITING, RunFolder, list_runs, read_journal

ENDED = "FINISHED"


@contextmanager
def open_session(federation: FederationFolder, timeout: float = 15.0) -> Iterator[Session]:
    """A session, closed in any case: one left open keeps the process from ending."""
    api._print_hci_message = lambda message: None  # it would write into the middle of what a command says
    try:
        session = new_secure_session(ADMIN, str(federation.admin.absolute()), timeout=timeout)
    except NoConnection as error:
        where = f"{federation.host}:{federation.port}"
        raise UserError(f"No server answers at {where}: start it there with 'coterie serve {federation.folder}'.") from error
    try:
        yield session
    finally:
        session.close()


def submit_job(session: Session, run: str, federation: FederationFolder) -> str:
    """Begin a job, or the next one of a run whose order is in its folder; its number."""
    with TemporaryDirectory() as folder:
        return str(session.submit_job(str(write_job(Path(folder), run, federation.sites))))


def list_active_jobs(session: Session) -> dict[str, str]:
    """By run, the number of its job that has not ended."""
    jobs = session.list_jobs()
    return {str(job["job_name"]): str(job["job_id"]) for job in jobs if not str(job["status"]).startswith(ENDED)}


def send_site_command(federation: FederationFolder, what: str, site: str) -> bool:
    """Have a server that runs "disable" or "enable" a site; whether one runs."""
    if not read_presence(federation.server).alive:
        return False
    with open_session(federation) as session:
        (session.disable_client if what == "disable" else session.enable_client)(site)
    return True


TRIES = 3  # jobs of a run that may end without a round before it counts as failed
PATIENCE = 10.0  # seconds for jobs to end when the server is stopped


class Supervisor:
    """Only one process submits, so no run is ever submitted twice. What it knows is on disk: it may be killed at any time."""

    def __init__(self, federation: FederationFolder, say: Callable[[str], None]) -> None:
        self.federation, self.say = federation, say
        self._session: Any = None
        self._opened: Any = None
        self._tries: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """Submit what waits, go on with what ended early, abort what is to be stopped."""
        open_runs = [run for run in list_runs(self.federation) if run.status not in END_STATES]
        open_runs.sort(key=lambda run: run.status == AGAIN and bool(run.pending_sites))  # whose sites have to decide lets others go first
        if not open_runs:
            return
        try:
            active = list_active_jobs(self._connect())
            for run in open_runs:
                self._attend(run, active)
        except UserError:
            self.close()
        except Exception as error:  # whatever a session that has gone stale may raise: the next look opens another
            self.say(f"The server did not answer ({type(error).__name__}: {str(error)[:200]}); trying again.")
            self.close()

    def halt(self) -> None:
        """Before the server stops: end its jobs, and note that their runs go on with the next start."""
        try:
            session = self._connect()
            active = list_active_jobs(session)
            runs = [run for run in list_runs(self.federation) if run.name in active]
            for run in runs:
                session.abort_job(active[run.name])
            wait_until(lambda: all(run.status in END_STATES for run in runs), PATIENCE)
            for run in runs:
                if run.status in ("aborted", "submitted", "running"):
                    run.set_status(AGAIN)
        except Exception as error:  # the server may be dead already
            self.say(f"Jobs could not be ended first ({type(error).__name__}).")
        finally:
            self.close()

    def close(self) -> None:
        """Close the session: one left open would keep this process from ending."""
        if self._opened is not None:
            opened, self._opened, self._session = self._opened, None, None
            opened.__exit__(None, None, None)

    def _connect(self) -> Any:
        if self._session is None:
            opened = open_session(self.federation)
            self._session = opened.__enter__()
            self._opened = opened
        return self._session

    def _attend(self, run: RunFolder, active: dict[str, str]) -> None:
        if run.is_stop_requested:
            if run.name in active:
                self._session.abort_job(active[run.name])
            wait_until(lambda: run.status in END_STATES, 0 if run.status == WAITING else PATIENCE)
            run.set_status("aborted", reason="stopped by the operator")
            run.clear_stop()
            self.say(f"Run {run.name}: stopped.")
            return
        status = run.status
        if run.name in active or status in END_STATES or active:
            return  # one job at a time: the next run waits for its turn
        order, _ = run.order()
        here = list_connected_sites(self.federation.server) - set(self.federation.removed)
        began = run.study.exists()
        if len(here) < (1 if began else order.minimum):
            return
        if not self._may_try(run):
            run.set_status("failed", reason=f"its job ended {TRIES} times without a round: see {self.federation.server / 'log.txt'}")
            return
        run.set_status("submitted")
        submit_job(self._session, run.name, self.federation)
        active[run.name] = ""
        self.say(f"Run {run.name}: {'going on' if began else 'beginning'} with {', '.join(sorted(here))}.")

    def _may_try(self, run: RunFolder) -> bool:
        if run.pending_sites:
            return True  # sites take the time they need to approve an order
        rounds = sum(line["what"] == "round" for line in read_journal(run.folder))
        before, tries = self._tries.get(run.name, (rounds, 0))
        tries = 1 if rounds > before else tries + 1
        self._tries[run.name] = (rounds, tries)
        return tries <= TRIES


def supervise(federation: FederationFolder, ended: Callable[[], bool], say: Callable[[str], None], every: float = 1.0) -> None:
    """Look again and again until something has ended; what is left running is halted when this is interrupted."""
    supervisor = Supervisor(federation, say)
    try:
        while not ended():
            began = monotonic()
            supervisor.federation = FederationFolder.open(federation.folder)  # sites may have been added
            supervisor.look()
            wait_until(ended, max(every - (monotonic() - began), 0.1))
    except KeyboardInterrupt:
        supervisor.halt()
        raise
    finally:
        supervisor.close()
