"""The operator's connection to a server: who is there, submit, follow, abort."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.client import api

from coterie.core.errors import UserError
from coterie.deploy.federation import FederationFolder
from coterie.deploy.flare.provision import ADMIN, HEARTBEAT_TIMEOUT
from coterie.deploy.presence import read_presence
from coterie.deploy.server_run import Order

POLL = 0.02  # seconds between a site's questions for work
ENDED = "FINISHED"
SERVER_APP, SITE_APP = "server_app", "site_app"


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


def submit(session: Session, order: Order, federation: FederationFolder, timeout: float) -> str:
    """Begin a job, or the next one of a run; its number."""
    with TemporaryDirectory() as folder:
        return str(session.submit_job(str(_job(Path(folder), order, federation, timeout))))


def _job(folder: Path, order: Order, federation: FederationFolder, timeout: float) -> Path:
    job = folder / order.run
    for app in (SERVER_APP, SITE_APP):
        (job / app / "config").mkdir(parents=True)
    args = {
        "order": asdict(order),
        "runs": str(federation.runs.absolute()),
        "server": str(federation.server.absolute()),
        "timeout": timeout,
    }
    server: Mapping[str, Any] = {
        "format_version": 2,
        "server": {"task_request_interval": POLL, "heart_beat_timeout": HEARTBEAT_TIMEOUT},
        "dead_client_grace_period": 5.0,
        "dead_client_check_lead_time": 1.0,
        "end_run_readiness_check_interval": 0.2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "coterie", "path": "coterie.deploy.flare.controller.CoterieController", "args": args}],
    }
    client: Mapping[str, Any] = {
        "format_version": 2,
        "default_task_fetch_interval": POLL,
        "get_task_timeout": 60.0,
        "submit_task_result_timeout": 60.0,
        "task_check_interval": 0.5,
        "runner_sync_timeout": 1.0,
        "job_heartbeat_interval": 3.0,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "executors": [{"tasks": ["*"], "executor": {"path": "coterie.deploy.flare.executor.CoterieExecutor", "args": {}}}],
    }
    # What the server is told, with its folders, is no affair of the sites: they get an app of their own.
    apps = {SERVER_APP: ["server"], SITE_APP: sorted(federation.sites)}
    # With fewer than min_clients left FLARE would end the job; how many a run needs to begin with is the order's affair.
    meta = {"name": order.run, "resource_spec": {}, "min_clients": 1, "mandatory_clients": [], "deploy_map": apps}
    files = {
        "meta.json": meta,
        f"{SERVER_APP}/config/config_fed_server.json": server,
        f"{SITE_APP}/config/config_fed_client.json": client,
    }
    for path, tree in files.items():
        (job / path).write_text(json.dumps(tree, indent=1), encoding="utf-8")
    return job


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
