"""Reaching a Ray cluster, and having one for trying. Whoever reaches one runs code on it, so off this machine it needs a token."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from coterie.core.errors import UserError

LOOPBACK = "127.0.0.1"
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
# Told to keep to 127.0.0.1, Ray takes the machine's own address instead and listens on all of them, unless this says that there is no
# cluster of several machines. It is read when Ray is imported.
ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
CURRENT = Path("/tmp/ray/ray_current_cluster")  # where Ray notes the address of the last cluster that was started here


def import_ray(*, one_machine: bool = False) -> Any:
    """Ray, if it is installed; it tells nobody that it is used. A cluster of `one_machine` stays within it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what a worker does not use stays as it is
    if one_machine and "ray" not in sys.modules:
        os.environ[ONE_MACHINE] = "0"
    try:
        import ray
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'coterie[ray]', or use processes of this machine with --workers.") from error
    return ray


def connected(address: str) -> bool:
    """Reach the cluster at an address, and say whether the connection is ours to end. One that is there already is used as it is."""
    if address.startswith("ray://"):
        raise UserError(f"Ray's client protocol ({address}) cannot carry a study: run it on a machine of the cluster, with --ray auto.")
    found = _current() if address == "auto" else address
    if found is not None and not _reached():
        check_guarded(found)
        _check_there(found)
    ray = import_ray(one_machine=found is not None and is_here(found))
    own = not ray.is_initialized()
    if own:
        try:
            _begin(ray, address=address)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(
                f"No Ray cluster answers at {address!r} ({told}): start one for trying with 'coterie ray up --local 4'."
            ) from error
    try:
        check_guarded(str(ray.get_runtime_context().gcs_address))
    except UserError:
        if own:
            ray.shutdown()
        raise
    return own


@contextmanager
def local_ray(workers: int) -> Iterator[str]:
    """A cluster of so many workers that only this machine can reach, for as long as it is held; its address."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # other users of this machine have no business there either
    ray = import_ray(one_machine=True)
    try:
        _begin(ray, address="local", num_cpus=workers, include_dashboard=False, _node_ip_address=LOOPBACK)
    except Exception as error:  # Ray raises nothing more precise where its processes are too slow to come up
        ray.shutdown()
        raise UserError(f"Ray did not start ({str(error).strip().splitlines()[0]}): try again when this machine has less to do.") from error
    try:
        address = str(ray.get_runtime_context().gcs_address)
        if not is_here(address):
            raise UserError(f"Ray would listen at {address}, beyond this machine: set {ONE_MACHINE}=0 before Ray is imported.")
        CURRENT.write_text(address, encoding="utf-8")  # as Ray's own command does, so that `auto` finds it
        yield address
    finally:
        if _current() == str(ray.get_runtime_context().gcs_address):
            CURRENT.unlink(missing_ok=True)
        ray.shutdown()


def check_guarded(address: str) -> None:
    """Refuse a cluster that is reached over a network without a token: anybody else there could run code on it, too."""
    if not is_here(address) and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise UserError(
            f"The Ray at {address} is reached over a network, and whoever reaches it runs code on it: start all its machines and "
            "this command with RAY_AUTH_MODE=token and one token (see docs/many-machines.md)."
        )


def is_here(address: str) -> bool:
    """Whether an address, with or without a port, is one that only this machine can reach."""
    host = (address.rpartition(":")[0] or address).strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reached() -> bool:
    """Whether this process is at a cluster already."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def _begin(ray: Any, **how: Any) -> None:
    """Let Ray begin, and end on SIGTERM as before: it would have a way of its own."""
    alone = current_thread() is main_thread()  # elsewhere signals cannot be set, and Ray does not
    before = signal.getsignal(signal.SIGTERM)
    ray.init(**how, **QUIET)
    if alone and before is not None:
        signal.signal(signal.SIGTERM, before)


def _check_there(address: str) -> None:
    """Refuse at once an address at which nobody listens: Ray would try for two minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"No Ray cluster answers at {address!r} ({error}): start one for trying with 'coterie ray up --local 4'."
        ) from error


def _current() -> str | None:
    """What `auto` stands for, as Ray finds it: the environment's word, or the last cluster that was started on this machine."""
    said = os.environ.get("RAY_ADDRESS") or (CURRENT.read_text(encoding="utf-8").strip() if CURRENT.is_file() else "")
    return said if said not in ("", "auto", "local") else None
