"""Workers that are tasks of a Ray cluster: connecting to a cluster, starting a local one, and one Ray task a wave.

Off this machine a cluster needs a token.
"""

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

from coterie._util.errors import UserError
from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.workers.executor import Executor, TaskCompleted, WaveReport, WaveTask, WorkerLost, WorkerMessage, run_task

LOOPBACK = "127.0.0.1"
QUIET_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
# With 127.0.0.1 as its address, Ray takes the machine's own address instead and listens on all of them, unless this variable excludes a
# cluster of several machines. It is read when Ray is imported.
ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
POLL_SECONDS = 1.0  # seconds that Ray waits at most before Ctrl-C is heard
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # where Ray notes the address of the last cluster that was started here


def import_ray(*, one_machine: bool = False) -> Any:
    """Ray, if it is installed, without usage statistics. A cluster of `one_machine` stays within it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what a worker does not use stays as it is
    if one_machine and "ray" not in sys.modules:
        os.environ[ONE_MACHINE] = "0"
    try:
        import ray
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'coterie[ray]', or use processes of this machine with --workers.") from error
    return ray


def connect_ray(address: str) -> bool:
    """Connect to the cluster at an address, or use an existing connection; whether the connection is ours to end."""
    if address.startswith("ray://"):
        raise UserError(f"Ray's client protocol ({address}) cannot run a study: start it on a machine of the cluster, with --ray auto.")
    found = _find_current_cluster() if address == "auto" else address
    is_connected = "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
    if found is not None and not is_connected:
        check_token(found)
        _check_reachable(found)
    ray = import_ray(one_machine=found is not None and is_local_address(found))
    own = not ray.is_initialized()
    if own:
        try:
            _init_ray(ray, address=address)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise _make_connection_error(address, reason) from error
    try:
        check_token(str(ray.get_runtime_context().gcs_address))
    except UserError:
        if own:
            ray.shutdown()
        raise
    return own


@contextmanager
def start_local_ray(workers: int) -> Iterator[str]:
    """A cluster of so many workers that only this machine can reach, until the context ends; its address."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # other users of this machine are kept out, too
    ray = import_ray(one_machine=True)
    try:
        _init_ray(ray, address="local", num_cpus=workers, include_dashboard=False, _node_ip_address=LOOPBACK)
    except Exception as error:  # Ray raises nothing more precise where its processes are too slow to come up
        ray.shutdown()
        raise UserError(f"Ray did not start ({str(error).strip().splitlines()[0]}): try again when this machine has less to do.") from error
    try:
        address = str(ray.get_runtime_context().gcs_address)
        if not is_local_address(address):
            raise UserError(f"Ray would listen at {address}, beyond this machine: set {ONE_MACHINE}=0 before Ray is imported.")
        CURRENT_CLUSTER.write_text(address, encoding="utf-8")  # as Ray's own command does, so that `auto` finds it
        yield address
    finally:
        if _find_current_cluster() == str(ray.get_runtime_context().gcs_address):
            CURRENT_CLUSTER.unlink(missing_ok=True)
        ray.shutdown()


def check_token(address: str) -> None:
    """Refuse a cluster that is reached over a network without a token: others there could run code on it, too."""
    if not is_local_address(address) and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise UserError(
            f"The Ray at {address} is reached over a network, and what reaches it can run code on it: start all its machines and "
            "this command with RAY_AUTH_MODE=token and one token (see docs/howto/run-on-ray.md)."
        )


def is_local_address(address: str) -> bool:
    """Whether an address, with or without a port, is one that only this machine can reach."""
    host = (address.rpartition(":")[0] or address).strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _init_ray(ray: Any, **how: Any) -> None:
    """Initialise Ray and restore the handler of SIGTERM, which Ray replaces."""
    is_main = current_thread() is main_thread()  # signals can be set in the main thread only
    before = signal.getsignal(signal.SIGTERM)
    ray.init(**how, **QUIET_OPTIONS)
    if is_main and before is not None:
        signal.signal(signal.SIGTERM, before)


def _check_reachable(address: str) -> None:
    """Refuse at once an address without a server: Ray would try for two minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _make_connection_error(address, error) from error


def _make_connection_error(address: str, reason: object) -> UserError:
    return UserError(f"No Ray cluster answers at {address!r} ({reason}): start one for a test with 'coterie ray up --local 4'.")


def _find_current_cluster() -> str | None:
    """The address that `auto` stands for, as Ray finds it: from the environment, or the last cluster started on this machine."""
    found = os.environ.get("RAY_ADDRESS") or (CURRENT_CLUSTER.read_text(encoding="utf-8").strip() if CURRENT_CLUSTER.is_file() else "")
    return found if found not in ("", "auto", "local") else None


class RayExecutor(Executor):
    """As many waves at once as the cluster has cores or GPUs for; machines may join and leave."""

    def __init__(self, study: Any, execution: Execution) -> None:
        assert execution.ray is not None  # or another executor would be used
        self._own = connect_ray(execution.ray)
        self._ray = import_ray()
        self._most = execution.workers
        self._needs = {"CPU": execution.threads or 1, "GPU": execution.gpus_per_wave}
        self._busy: dict[int, Any] = {}
        try:
            self._check(execution.ray)
            self._study = self._ray.put(study)  # its arrays lie in each machine's object store once, and tasks map them
        except BaseException:
            self.close()
            raise
        needs = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"]}
        self._task = self._ray.remote(max_retries=0, num_returns="streaming", **needs)(_run_wave)

    @property
    def size(self) -> int:
        resources = self._ray.cluster_resources()
        fits = min(int(resources.get(name, 0) // need) for name, need in self._needs.items() if need)
        return max(1, fits if self._most is None else min(fits, self._most))

    def begin(self, number: int, task: WaveTask) -> None:
        self._busy[number] = self._task.remote(self._study, task)

    def wait(self) -> tuple[int, WorkerMessage]:
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(self._busy.values()), num_returns=1, timeout=POLL_SECONDS)
        number = next(number for number, stream in self._busy.items() if stream is ready[0])
        message = self._receive(self._busy[number])
        if isinstance(message, (TaskCompleted, WorkerLost)):
            del self._busy[number]
        return number, message

    def stop(self, number: int) -> None:
        self._ray.cancel(self._busy.pop(number), force=True)

    def close(self) -> None:
        for number in list(self._busy):
            self.stop(number)
        if self._own:
            self._ray.shutdown()

    def _receive(self, stream: Any) -> WorkerMessage:
        errors = self._ray.exceptions
        try:
            message: WorkerMessage = self._ray.get(next(stream))
        except StopIteration:
            return TaskCompleted()
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise UserError(str(cause)) from None
            raise RuntimeError(f"A worker failed.\n{error}") from error
        except errors.RayError as error:  # a process or a machine is gone, or a message that was not fetched
            return WorkerLost(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return message

    def _check(self, address: str) -> None:
        """Refuse a cluster without a machine that could run a wave: Ray would wait for one silently."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= need for name, need in self._needs.items()) for node in nodes):
            needs = ", ".join(f"{need} {name}" for name, need in self._needs.items() if need)
            raise UserError(f"No machine of the Ray at {address} has {needs} for a wave: ask for less with --threads or --gpus-per-wave.")


def _run_wave(study: Any, task: WaveTask) -> Iterator[WorkerHost | WaveReport]:
    yield WorkerHost.current()
    with study.engine(task.execution, task.routes) as engine:
        yield from run_task(study.lanes(), task, engine)
