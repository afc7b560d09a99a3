"""A FLARE process reduced to what Coterie needs, before FLARE's own code runs in it.

FLARE is a platform on which operators run code at sites, look into their folders and connect their processes. Coterie uses it as transport:
every process of a federation starts by `protect`, which leaves the messages of `guard`, the jobs of `jobs` and the commands below.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nvflare

from coterie.core.errors import UserError
from coterie.deploy.flare import guard
from coterie.deploy.flare.local_files import ADMIN
from coterie.deploy.flare.private_sockets import SCHEME, PrivateSocketDriver
from coterie.deploy.removal import RemovedSites

VERSION = "2.9."  # of FLARE: the one whose messages `guard` lists, and that was attacked
SERVER_FOLDER = "COTERIE_SERVER"  # the folder of the server's kit, in the environment of its processes
COMMANDS = {
    *("_cert_login", "_logout", "_commands", "_check_session"),
    *("submit_job", "list_jobs", "abort_job", "enable_client", "disable_client"),
}  # that an operator may give to the server: what `sessions` uses


def check_flare_version() -> None:
    """Refuse another FLARE than the one that this protection was written for."""
    if not nvflare.__version__.startswith(VERSION):
        raise UserError(
            f"NVIDIA FLARE {nvflare.__version__} is installed, and Coterie's protection was written for {VERSION}*: "
            f"run pip install 'nvflare=={VERSION}*'."
        )


def protect() -> None:
    """Reduce FLARE in this process. Whatever cannot be reduced is an error: nothing starts unprotected."""
    check_flare_version()
    _use_private_sockets()
    guard.install(ADMIN, _removed_sites())
    _keep_job_alive()
    _limit_site_orders()
    _limit_operator()


def _removed_sites() -> Callable[[], frozenset[str]]:
    folder = os.environ.get(SERVER_FOLDER)
    return RemovedSites(Path(folder).parent) if folder else frozenset


def _use_private_sockets() -> None:
    """Between a process and its jobs, in place of a TCP port of the machine. No file of a kit or a job has a say in connections."""
    from nvflare.fuel.f3 import communicator
    from nvflare.fuel.f3.comm_config import CommConfigurator

    CommConfigurator._configuration = {"internal": {"scheme": SCHEME, "resources": {}}, "allow_adhoc_conns": False}
    CommConfigurator._config_loaded = True
    communicator.load_comm_drivers()
    communicator.driver_loaded = True
    communicator.driver_mgr.register(PrivateSocketDriver)


def _keep_job_alive() -> None:
    """FLARE ends the server's part of a job, and so the run of all sites, when one site's answer cannot be decoded or was too large."""
    from nvflare.fuel.f3.cellnet import cell

    _require(cell, "_is_server_job_cell")
    cell._is_server_job_cell = lambda my_info: False


def _limit_site_orders() -> None:
    """What a site does for the server: neither shell nor deletion nor restart is there any more."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    known = frozenset().union(*guard.SITE_ORDERS.values())
    kept = [processor for processor in ClientRequestProcessors.request_processors if set(processor.get_topics()) <= known]
    ClientRequestProcessors.request_processors[:] = kept


def _limit_operator() -> None:
    """What an operator's session may ask of the server. `local/authorization.json` does not reach all commands of FLARE."""
    from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
    from nvflare.fuel.hci.server.constants import ConnProps
    from nvflare.fuel.sec.audit import AuditService
    from nvflare.private.fed.server import admin

    _require(admin, "AuthzFilter")

    class ListedCommands(admin.AuthzFilter):
        """Refuses, and writes down, all commands but the listed."""

        def pre_command(self, conn: Any, args: list[str]) -> bool:
            entry = conn.get_prop(ConnProps.CMD_ENTRY, None)
            if entry is not None and entry.name in COMMANDS:
                return bool(super().pre_command(conn, args))
            told = str(conn.command)[: guard.LONGEST]
            AuditService.add_event(user=conn.get_prop(ConnProps.USER_NAME, "?"), action="coterie.refused", msg=told)
            conn.append_error("Coterie does not use this command", meta=make_meta(MetaStatusValue.NOT_AUTHORIZED, "not used"))
            return False

    admin.AuthzFilter = ListedCommands


def _require(module: Any, name: str) -> None:
    if not hasattr(module, name):
        raise RuntimeError(f"{module.__name__} has no {name}: this FLARE is not the one that Coterie's protection was written for")
