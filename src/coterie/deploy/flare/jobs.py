"""FLARE's configuration: the files of a kit, the only job that a federation runs, its check, and the executor of its site part.

The files are written by Coterie at every start: what a kit has of FLARE is replaced. A job names a run; what the run is, the server
reads from its own folder, and what a site does comes from its own kit. A job may build the controller at the server and the executor at
a site, nothing else.
"""

import json
import os
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from coterie._util.errors import UserError
from coterie._util.json_io import read_json_object
from coterie.deploy.files import is_name, keep_private
from coterie.deploy.flare.transport import ASKS, IncomingStreams
from coterie.deploy.messages import LIMIT, Hello, OversizedMessage, is_kind
from coterie.deploy.server.federation import SERVER_FOLDER, FederationFolder

KIT = "COTERIE_KIT"  # the folder of the site's kit, set by `coterie join`
TASK, BODY = "coterie", "message"
PROJECT_SERVER, ORGANISATION = "coterie-server", "coterie"
ADMIN, ROLE = "admin@coterie.local", "project_admin"
CONTROLLER = "coterie.deploy.flare.controller.CoterieController"
EXECUTOR = "coterie.deploy.flare.jobs.CoterieExecutor"
MONITOR, JOB_VALIDATOR = "coterie.deploy.flare.transport.ConnectionMonitor", "coterie.deploy.flare.jobs.JobValidator"
HEARTBEAT_TIMEOUT = 20  # seconds without a sign of life after which a site counts as gone
MOST_SITES = 1000
OWN_FILES = {"resources.json", "authorization.json", "log_config.json"}  # in local/
FLARE_FILES = {"resources.json.default", "authorization.json.default", "log_config.json.default", "privacy.json.sample"}  # of FLARE's
STARTUP = {"fed_client.json", "fed_server.json", "client.crt", "client.key", "server.crt", "server.key", "rootCA.pem"}
SCRIPTS = {"start.sh", "sub_start.sh", "stop_fl.sh"}  # FLARE's, in older kits; nothing runs them

# Rights that are not named are denied: byoc, shell_commands, clone_job, download_job, view, manage_job, operate and all commands of these.
SERVER_RIGHTS = {ROLE: dict.fromkeys(("submit_job", "list_jobs", "abort_job", "enable_client", "disable_client"), "any")}
SITE_RIGHTS = {ROLE: {"submit_job": "any"}}


def write_site_files(kit: Path) -> None:
    """Configure FLARE in a site's kit: where the server is comes from its kit.json, all else from here."""
    _check_files(kit)
    details = read_json_object(kit / "kit.json", site=str, server=str)
    server = {"name": "coterie", "service": {"target": details["server"], "scheme": "grpc"}, "identity": PROJECT_SERVER}
    client: dict[str, Any] = {"ssl_private_key": "client.key", "ssl_cert": "client.crt", "ssl_root_cert": "rootCA.pem"}
    client |= {"fqsn": details["site"], "is_leaf": True, "connection_security": "mtls"}
    components = [
        _make_component("resource_manager", "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager", _NO_GPU),
        _make_component("resource_consumer", "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
        _make_component("process_launcher", "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"),
    ]
    more = {"allow_log_streaming": False, "client": {"retry_timeout": 30, "compression": "Gzip"}}
    _write_config(
        kit, "fed_client.json", {"servers": [server], "client": client}, _make_resources(EXECUTOR, components, **more), SITE_RIGHTS
    )


def write_server_files(federation: FederationFolder) -> None:
    """Configure FLARE in the server's folder."""
    folder = federation.server.absolute()
    _check_files(folder)
    where = {"target": f"{federation.host}:{federation.port}", "scheme": "grpc"}
    server = {"name": "coterie", "service": where, "admin_server": PROJECT_SERVER, "admin_port": federation.port}
    server |= {"ssl_private_key": "server.key", "ssl_cert": "server.crt", "ssl_root_cert": "rootCA.pem", "connection_security": "mtls"}
    limits = {"max_num_clients": MOST_SITES, "heart_beat_timeout": HEARTBEAT_TIMEOUT, "check_engine_frequency": 0.5, "shutdown_period": 3.0}
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    often = {"max_jobs": 1, "min_schedule_interval": 0.2, "max_schedule_interval": 2.0}
    components = [
        _make_component("job_scheduler", "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler", often),
        _make_component(
            "job_manager",
            "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
            {"uri_root": str(folder / "jobs"), "job_store_id": "job_store"},
        ),
        _make_component("job_store", storage),
        _make_component("process_launcher", "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"),
        _make_component("watch", MONITOR),
    ]
    snapshots = {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": {"path": storage, "args": {"root_dir": str(folder / "snapshots"), "uri_root": "/"}}},
    }
    limited = [{"admin_storage": "transfer", "admin_timeout": 10.0, **limits}]
    resources = _make_resources(CONTROLLER, components, servers=limited, snapshot_persistor=snapshots)
    _write_config(folder, "fed_server.json", {"servers": [server]}, resources, SERVER_RIGHTS)


_NO_GPU = {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300}  # a site chooses itself what it trains on
_LINE = "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s"
_FILE = {"class": "logging.handlers.RotatingFileHandler", "filename": "log.txt", "maxBytes": 20 << 20, "backupCount": 3}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "fmt": _LINE}},
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"},
        "file": {**_FILE, "formatter": "line"},
    },
    "loggers": {"root": {"level": "INFO", "handlers": ["console", "file"]}},
}


def _make_resources(allowed: str, components: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """`allowed` is the one class that a job may name: FLARE compares whole paths where an entry does not end with a dot."""
    listed = {"class_list_enforcement_mode": "enforce", "class_allow_list": [allowed]}
    return {"format_version": 2, **listed, "app_validator": {"path": JOB_VALIDATOR, "args": {}}, "components": components, **more}


def _make_component(name: str, path: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args or {}}


def _write_config(folder: Path, startup: str, start: dict[str, Any], resources: dict[str, Any], rights: dict[str, Any]) -> None:
    local = folder / "local"
    local.mkdir(exist_ok=True, mode=0o700)
    files = {
        folder / "startup" / startup: {"format_version": 2, **start},
        local / "resources.json": resources,
        local / "authorization.json": {"format_version": "1.0", "permissions": rights},
        local / "log_config.json": LOGGING,
    }
    for path, tree in files.items():
        path.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    for name in FLARE_FILES:
        (local / name).unlink(missing_ok=True)
    keep_private(local)


def _check_files(folder: Path) -> None:
    """Refuse a kit that brings more than Coterie puts into it: FLARE would read it, and code might be in it."""
    for place, known in (("startup", STARTUP | SCRIPTS), ("local", OWN_FILES | FLARE_FILES)):
        for path in sorted((folder / place).glob("*")):
            if path.name not in known or path.is_dir() or path.is_symlink():
                raise UserError(f"{path} is no part of a kit that Coterie makes: ask whoever made the kit what it is for, and remove it.")


TASK_POLL = 0.02  # seconds between a site's questions for work
SERVER_APP, SITE_APP = "server_app", "site_app"
SERVER_FILE, SITE_FILE = "config/config_fed_server.json", "config/config_fed_client.json"


def write_job(folder: Path, run: str, sites: Sequence[str]) -> Path:
    """The job of a run, as a folder that FLARE submits."""
    job = folder / run
    # With fewer than min_clients left FLARE would end the job; how many a run needs to begin with is the order's affair.
    apps = {SERVER_APP: ["server"], SITE_APP: sorted(sites)}
    meta = {"name": run, "resource_spec": {}, "min_clients": 1, "mandatory_clients": [], "deploy_map": apps}
    files = {"meta.json": meta, f"{SERVER_APP}/{SERVER_FILE}": make_server_config(run), f"{SITE_APP}/{SITE_FILE}": SITE_CONFIG}
    for path, tree in files.items():
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text(json.dumps(tree, indent=1), encoding="utf-8")
    return job


def make_server_config(run: str) -> dict[str, Any]:
    """What the server's part of a job holds."""
    return {
        "format_version": 2,
        "server": {"task_request_interval": TASK_POLL, "heart_beat_timeout": HEARTBEAT_TIMEOUT},
        "dead_client_grace_period": 5.0,
        "dead_client_check_lead_time": 1.0,
        "end_run_readiness_check_interval": 0.2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "coterie", "path": CONTROLLER, "args": {"run": run}}],
    }


SITE_CONFIG: dict[str, Any] = {
    "format_version": 2,
    "default_task_fetch_interval": TASK_POLL,
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


class JobValidator(AppValidator):
    """Lets the server and sites run no job but Coterie's own, signed by the operator (`app_validator` of local/resources.json)."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """FLARE asks this before a job counts as deployed; what is refused is removed again."""
        kit = os.environ.get(KIT) or os.environ[SERVER_FOLDER]
        reason = find_job_fault(Path(app_folder), Path(kit) / "startup" / "rootCA.pem", at_site=KIT in os.environ)
        return (f"refused: {reason}" if reason else ""), {}


def find_job_fault(app: Path, authority: Path, *, at_site: bool) -> str:
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
            return "" if tree == SITE_CONFIG else "a job that does something else than Coterie's"
        run = tree["workflows"][0]["args"]["run"]
    except (ValueError, KeyError, TypeError, IndexError):
        return "a job that cannot be read"
    if not is_name(run):
        return "a job of a run without a name"
    return "" if tree == make_server_config(run) else "a job that does something else than Coterie's"


MAX_ATTEMPTS = 2
MEGABYTE = 1_000_000
MOST_ASKS = 64  # of the largest size that the policy takes, in one message
EXECUTOR_POLL = 0.2  # seconds between looks at the abort signal


class CoterieExecutor(Executor):
    """Runs in the site's job process. The child is spawned, never forked: it would inherit the threads of gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = Path(os.environ[KIT])
        self.child: Any = None
        self.line: Connection | None = None
        self.hello: bytes | None = None  # the server's introduction, for a child that takes another's place

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            most = _read_limit(self.kit)
            IncomingStreams(fl_ctx.get_engine().get_cell(), lambda sender: most, self._log_oversized, ASKS)
        elif event_type == EventType.END_RUN:
            self._end()

    def _log_oversized(self, sender: str, excess: OversizedMessage) -> None:
        """In a thread of FLARE: asks were dropped while they came in, and the server gets no answer."""
        sentence = f"Asks of {excess.size:,} bytes were dropped: at most {excess.limit:,} are read ('message_megabytes' in policy.toml).\n"
        with (self.kit / "site.log").open("a", encoding="utf-8") as log:
            log.write(sentence)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        data = shareable.get(BODY)
        if not isinstance(data, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        response = self._answer(data, abort_signal)
        if response is None:
            return make_reply(ReturnCode.TASK_ABORTED if abort_signal.triggered else ReturnCode.EXECUTION_EXCEPTION)
        reply = Shareable()
        reply[BODY] = response
        return reply

    def _answer(self, data: bytes, abort: Signal) -> bytes | None:
        """The child's answer. One that died is replaced and asked again, once: what kills two will kill a third."""
        for _ in range(MAX_ATTEMPTS):
            if abort.triggered:
                return None
            if not self._there() and self.hello is not None and not is_kind(data, Hello) and self._ask(self.hello, abort) is None:
                continue
            response = self._ask(data, abort)
            if response is not None:
                self.hello = data if is_kind(data, Hello) else self.hello
                return response
        return None

    def _there(self) -> bool:
        return self.line is not None and self.child.is_alive()

    def _ask(self, data: bytes, abort: Signal) -> bytes | None:
        """The child's answer to one message; None where it died."""
        line = self._line()
        try:
            line.send_bytes(data)
            while not line.poll(EXECUTOR_POLL):
                if abort.triggered:
                    self._end()
                    return None
                if not self.child.is_alive():
                    raise EOFError
            return line.recv_bytes()
        except (EOFError, OSError):
            self._end()
            return None

    def _line(self) -> Connection:
        if self.line is None or not self._there():
            self._end()
            context = get_context("spawn")
            self.line, theirs = context.Pipe()
            self.child = context.Process(target=_run_child, args=(theirs, self.kit), daemon=True)
            self.child.start()
            theirs.close()
        return self.line

    def _end(self) -> None:
        if self.child is not None:
            self.child.terminate()
            self.child.join(5)
            if self.child.is_alive():
                self.child.kill()
        if self.line is not None:
            self.line.close()
        self.child, self.line = None, None


def _read_limit(kit: Path) -> int:
    """How many bytes the asks of one phase may have together."""
    from coterie.deploy.site.policy import read_policy

    try:
        return min(LIMIT, int(read_policy(kit / "policy.toml").message_megabytes * MEGABYTE) * MOST_ASKS)
    except UserError:  # the child refuses to answer with this policy, and reports why
        return LIMIT


def _run_child(line: Connection, kit: Path) -> None:
    """In the child. What trains is imported there alone: the job process, which only hands bytes on, stays small and starts soon."""
    from coterie.deploy.site.process import serve_connection

    serve_connection(line, kit)
