"""The operator's connection to a server: who is there, submit, follow, abort."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.client import api

from coterie.core.errors import UserError
from coterie.deploy.federation import FederationFolder
from coterie.deploy.flare.jobs import write_job
from coterie.deploy.flare.local_files import ADMIN
from coterie.deploy.presence import read_presence

ENDED = "FINISHED"


@contextmanager
def operating(federation: FederationFolder, timeout: float = 15.0) -> Iterator[Session]:
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


def submit(session: Session, run: str, federation: FederationFolder) -> str:
    """Begin a job, or the next one of a run whose order is in its folder; its number."""
    with TemporaryDirectory() as folder:
        return str(session.submit_job(str(write_job(Path(folder), run, federation.sites))))


def active_jobs(session: Session) -> dict[str, str]:
    """By run, the number of its job that has not ended."""
    jobs = session.list_jobs()
    return {str(job["job_name"]): str(job["job_id"]) for job in jobs if not str(job["status"]).startswith(ENDED)}


def tell_server(federation: FederationFolder, what: str, site: str) -> bool:
    """Have a server that runs "disable" or "enable" a site; whether one runs."""
    if not read_presence(federation.server).alive:
        return False
    with operating(federation) as session:
        (session.disable_client if what == "disable" else session.enable_client)(site)
    return True
