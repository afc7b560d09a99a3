"""What `coterie serve` does beside listening: it begins the jobs that runs need, the first and every next one."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from coterie.core.errors import UserError
from coterie.deploy.federation import FederationFolder
from coterie.deploy.flare.processes import wait_for
from coterie.deploy.flare.sessions import active_jobs, operating, submit
from coterie.deploy.journal import journal_lines
from coterie.deploy.presence import connected_sites
from coterie.deploy.runs import AGAIN, ENDS, WAITING, RunFolder, runs_of

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
        open_runs = [run for run in runs_of(self.federation) if run.status not in ENDS]
        open_runs.sort(key=lambda run: run.status == AGAIN and bool(run.pending_sites))  # whose sites have to decide lets others go first
        if not open_runs:
            return
        try:
            active = active_jobs(self._connect())
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
            active = active_jobs(session)
            runs = [run for run in runs_of(self.federation) if run.name in active]
            for run in runs:
                session.abort_job(active[run.name])
            wait_for(lambda: all(run.status in ENDS for run in runs), PATIENCE)
            for run in runs:
                if run.status in ("aborted", "submitted", "running"):
                    run.say_status(AGAIN)
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
            opened = operating(self.federation)
            self._session = opened.__enter__()
            self._opened = opened
        return self._session

    def _attend(self, run: RunFolder, active: dict[str, str]) -> None:
        if run.stop_wanted:
            if run.name in active:
                self._session.abort_job(active[run.name])
            wait_for(lambda: run.status in ENDS, 0 if run.status == WAITING else PATIENCE)
            run.say_status("aborted", reason="stopped by the operator")
            run.stop_done()
            self.say(f"Run {run.name}: stopped.")
            return
        status = run.status
        if run.name in active or status in ENDS or active:
            return  # one job at a time: the next run waits for its turn
        order, _ = run.order()
        here = connected_sites(self.federation.server) - set(self.federation.removed)
        began = run.study.exists()
        if len(here) < (1 if began else order.minimum):
            return
        if not self._may_try(run):
            run.say_status("failed", reason=f"its job ended {TRIES} times without a round: see {self.federation.server / 'log.txt'}")
            return
        run.say_status("submitted")
        submit(self._session, run.name, self.federation)
        active[run.name] = ""
        self.say(f"Run {run.name}: {'going on' if began else 'beginning'} with {', '.join(sorted(here))}.")

    def _may_try(self, run: RunFolder) -> bool:
        if run.pending_sites:
            return True  # sites take the time they need to approve an order
        rounds = sum(line["what"] == "round" for line in journal_lines(run.folder))
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
            wait_for(ended, max(every - (monotonic() - began), 0.1))
    except KeyboardInterrupt:
        supervisor.halt()
        raise
    finally:
        supervisor.close()
