"""The one kind of job that a federation runs: what is in it, and the check that a job is of this kind before anything of it is used.

A job names a run. What the run is, the server reads from its own folder; what a site does, its own kit says.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from coterie.deploy.flare.executor import KIT
from coterie.deploy.flare.local_files import ADMIN, CONTROLLER, EXECUTOR, HEARTBEAT_TIMEOUT, ORGANISATION, ROLE
from coterie.deploy.flare.protection import SERVER_FOLDER

POLL = 0.02  # seconds between a site's questions for work
SERVER_APP, SITE_APP = "server_app", "site_app"
SERVER_FILE, SITE_FILE = "config/config_fed_server.json", "config/config_fed_client.json"
RUN = re.compile("[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}")


def write_job(folder: Path, run: str, sites: Sequence[str]) -> Path:
    """The job of a run, as a folder that FLARE submits."""
    job = folder / run
    # With fewer than min_clients left FLARE would end the job; how many a run needs to begin with is the order's affair.
    apps = {SERVER_APP: ["server"], SITE_APP: sorted(sites)}
    meta = {"name": run, "resource_spec": {}, "min_clients": 1, "mandatory_clients": [], "deploy_map": apps}
    files = {"meta.json": meta, f"{SERVER_APP}/{SERVER_FILE}": server_part(run), f"{SITE_APP}/{SITE_FILE}": SITE_PART}
    for path, tree in files.items():
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text(json.dumps(tree, indent=1), encoding="utf-8")
    return job


def server_part(run: str) -> dict[str, Any]:
    """What the server's part of a job holds."""
    return {
        "format_version": 2,
        "server": {"task_request_interval": POLL, "heart_beat_timeout": HEARTBEAT_TIMEOUT},
        "dead_client_grace_period": 5.0,
        "dead_client_check_lead_time": 1.0,
        "end_run_readiness_check_interval": 0.2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "coterie", "path": CONTROLLER, "args": {"run": run}}],
    }


SITE_PART: dict[str, Any] = {
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
    "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}],
}


class OwnJobs(AppValidator):
    """Lets the server and sites run no job but Coterie's own, signed by the operator (`app_validator` of local/resources.json)."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """FLARE asks this before a job counts as deployed; what is refused is removed again."""
        kit = os.environ.get(KIT) or os.environ[SERVER_FOLDER]
        reason = job_fault(Path(app_folder), Path(kit) / "startup" / "rootCA.pem", at_site=KIT in os.environ)
        return (f"refused: {reason}" if reason else ""), {}


def job_fault(app: Path, authority: Path, *, at_site: bool) -> str:
    """Why a part of a job is not Coterie's; empty where it is."""
    wanted = Path(SITE_FILE if at_site else SERVER_FILE)
    found = {path.relative_to(app) for path in app.rglob("*") if not path.is_dir() or path.is_symlink()}
    signatures = {Path(folder) / name for folder in ("", "config") for name in (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)}
    if found != {wanted, *signatures} or any(path.is_symlink() for path in (app, *app.rglob("*"))):
        return "a job with other files than Coterie's"
    verified, signers = verify_folder_signature_and_get_signers(str(app), str(authority))
    if not verified or set(signers) != {(ADMIN, ORGANISATION, ROLE)}:
        return "a job that the operator of this federation has not signed"
    try:
        tree = json.loads((app / wanted).read_text(encoding="utf-8"))
        if at_site:
            return "" if tree == SITE_PART else "a job that does something else than Coterie's"
        run = tree["workflows"][0]["args"]["run"]
    except (ValueError, KeyError, TypeError, IndexError):
        return "a job that cannot be read"
    if not is_run_name(run):
        return "a job of a run without a name"
    return "" if tree == server_part(run) else "a job that does something else than Coterie's"


def is_run_name(name: object) -> bool:
    """Whether a name can be a run's folder: it comes from a job, and must not lead elsewhere."""
    return isinstance(name, str) and RUN.fullmatch(name) is not None
