"""The files of a kit by which FLARE is configured, written by Coterie itself at every start.

A kit is made by somebody else: what it says of FLARE is not believed, but replaced. A job may build the controller at the server and the
executor at a site, nothing else; an operator may submit, list and end jobs and shut sites out, nothing else.
"""

import json
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.deploy.federation import FederationFolder
from coterie.deploy.files import keep_private

PROJECT_SERVER, ORGANISATION = "coterie-server", "coterie"
ADMIN, ROLE = "admin@coterie.local", "project_admin"
CONTROLLER = "coterie.deploy.flare.controller.CoterieController"
EXECUTOR = "coterie.deploy.flare.executor.CoterieExecutor"
WATCH, JOBS = "coterie.deploy.flare.watch.Watch", "coterie.deploy.flare.jobs.OwnJobs"
HEARTBEAT_TIMEOUT = 20  # seconds without a sign of life after which a site counts as gone
MOST_SITES = 1000
OURS = {"resources.json", "authorization.json", "log_config.json"}  # in local/
LEFT_OVER = {"resources.json.default", "authorization.json.default", "log_config.json.default", "privacy.json.sample"}  # of FLARE's
STARTUP = {"fed_client.json", "fed_server.json", "client.crt", "client.key", "server.crt", "server.key", "rootCA.pem"}
SCRIPTS = {"start.sh", "sub_start.sh", "stop_fl.sh"}  # FLARE's, in older kits; nothing runs them

# Rights that are not named are denied: byoc, shell_commands, clone_job, download_job, view, manage_job, operate and all commands of these.
SERVER_RIGHTS = {ROLE: dict.fromkeys(("submit_job", "list_jobs", "abort_job", "enable_client", "disable_client"), "any")}
SITE_RIGHTS = {ROLE: {"submit_job": "any"}}


def write_site_files(kit: Path) -> None:
    """Configure FLARE in a site's kit: where the server is comes from its kit.json, all else from here."""
    _check_known(kit)
    told = read_object(kit / "kit.json", site=str, server=str)
    server = {"name": "coterie", "service": {"target": told["server"], "scheme": "grpc"}, "identity": PROJECT_SERVER}
    client: dict[str, Any] = {"ssl_private_key": "client.key", "ssl_cert": "client.crt", "ssl_root_cert": "rootCA.pem"}
    client |= {"fqsn": told["site"], "is_leaf": True, "connection_security": "mtls"}
    components = [
        _component("resource_manager", "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager", _NO_GPU),
        _component("resource_consumer", "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
        _component("process_launcher", "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"),
    ]
    more = {"allow_log_streaming": False, "client": {"retry_timeout": 30, "compression": "Gzip"}}
    _write(kit, "fed_client.json", {"servers": [server], "client": client}, _resources(EXECUTOR, components, **more), SITE_RIGHTS)


def write_server_files(federation: FederationFolder) -> None:
    """Configure FLARE in the server's folder."""
    folder = federation.server.absolute()
    _check_known(folder)
    where = {"target": f"{federation.host}:{federation.port}", "scheme": "grpc"}
    server = {"name": "coterie", "service": where, "admin_server": PROJECT_SERVER, "admin_port": federation.port}
    server |= {"ssl_private_key": "server.key", "ssl_cert": "server.crt", "ssl_root_cert": "rootCA.pem", "connection_security": "mtls"}
    limits = {"max_num_clients": MOST_SITES, "heart_beat_timeout": HEARTBEAT_TIMEOUT, "check_engine_frequency": 0.5, "shutdown_period": 3.0}
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    often = {"max_jobs": 1, "min_schedule_interval": 0.2, "max_schedule_interval": 2.0}
    components = [
        _component("job_scheduler", "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler", often),
        _component(
            "job_manager",
            "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
            {"uri_root": str(folder / "jobs"), "job_store_id": "job_store"},
        ),
        _component("job_store", storage),
        _component("process_launcher", "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"),
        _component("watch", WATCH),
    ]
    snapshots = {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": {"path": storage, "args": {"root_dir": str(folder / "snapshots"), "uri_root": "/"}}},
    }
    limited = [{"admin_storage": "transfer", "admin_timeout": 10.0, **limits}]
    resources = _resources(CONTROLLER, components, servers=limited, snapshot_persistor=snapshots)
    _write(folder, "fed_server.json", {"servers": [server]}, resources, SERVER_RIGHTS)


_NO_GPU = {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300}  # a site says itself what it trains on
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


def _resources(allowed: str, components: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """`allowed` is the one class that a job may name: FLARE compares whole paths where an entry does not end with a dot."""
    listed = {"class_list_enforcement_mode": "enforce", "class_allow_list": [allowed]}
    return {"format_version": 2, **listed, "app_validator": {"path": JOBS, "args": {}}, "components": components, **more}


def _component(name: str, path: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args or {}}


def _write(folder: Path, startup: str, start: dict[str, Any], resources: dict[str, Any], rights: dict[str, Any]) -> None:
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
    for name in LEFT_OVER:
        (local / name).unlink(missing_ok=True)
    keep_private(local)


def _check_known(folder: Path) -> None:
    """Refuse a kit that brings more than Coterie puts into it: FLARE would read it, and code might be in it."""
    for place, known in (("startup", STARTUP | SCRIPTS), ("local", OURS | LEFT_OVER)):
        for path in sorted((folder / place).glob("*")):
            if path.name not in known or path.is_dir() or path.is_symlink():
                raise UserError(f"{path} is no part of a kit that Coterie makes: ask whoever made the kit what it is for, and remove it.")
