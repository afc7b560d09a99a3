"""FLARE's processes: a server, and a client for each site. Started without a shell, ended by their own numbers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import psutil

from coterie.core.errors import UserError
from coterie.deploy.federation import FederationFolder
from coterie.deploy.flare.child_process import child_command
from coterie.deploy.flare.executor import KIT
from coterie.deploy.flare.local_files import ORGANISATION, write_server_files, write_site_files
from coterie.deploy.flare.protection import SERVER_FOLDER, check_flare_version

HEARTBEAT = 4  # seconds
LOG = "flare.log"
OWNER_ALONE = 0o077  # the umask of all that FLARE's processes write: nobody else may read it


def start_server(federation: FederationFolder, locks: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
    """The server of a federation. A port that is taken is refused: FLARE would share it in silence.

    The process ends with this one, and inherits these `locks` (file descriptors).
    """
    check_flare_version()
    check_port(federation.host, federation.port)
    write_server_files(federation)
    where = {SERVER_FOLDER: str(federation.server.absolute())}
    return _start(federation.server, "nvflare.private.fed.app.server.server_train", "fed_server.json", [], where, locks)


def start_site(kit: Path, site: str, locks: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
    """A site's client, which ends with this process and inherits these `locks` (file descriptors)."""
    check_flare_version()
    write_site_files(kit)
    said = [f"uid={site}", f"heart_beat_interval={HEARTBEAT}"]
    return _start(kit, "nvflare.private.fed.app.client.client_train", "fed_client.json", said, {KIT: str(kit.absolute())}, locks)


def _start(
    workspace: Path, module: str, config: str, said: list[str], more: dict[str, str], locks: Sequence[int]
) -> "subprocess.Popen[bytes]":
    workspace = workspace.absolute()
    (workspace / "transfer").mkdir(exist_ok=True, mode=0o700)
    words = [*child_command([sys.executable, "-u"], module), "-m", str(workspace), "-s", config]
    words += ["--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config", *said]
    paths = os.pathsep.join(path for path in (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")) if path)
    safe = {"PYTHONSAFEPATH": "1"}  # a kit is made by somebody else: no module that lies in it may stand in for an installed one
    quiet = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "4", "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "8"}
    with open(workspace / LOG, "ab", opener=_private) as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | quiet | safe | more,
            cwd=workspace,
            start_new_session=True,
            umask=OWNER_ALONE,
            pass_fds=locks,
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def stop(process: "subprocess.Popen[bytes]", patience: float = 10.0) -> None:
    """End a process and all that it started: politely, then not. Job processes are in groups of their own, so they are looked up first."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.kill()  # by number and time of start: never somebody else's
    process.poll()


def stop_all(processes: Sequence["subprocess.Popen[bytes]"], patience: float) -> None:
    """End several at once: all are asked before any is waited for."""
    with ThreadPoolExecutor(max(len(processes), 1)) as pool:
        list(pool.map(lambda process: stop(process, patience), processes))


def end_of_log(workspace: Path, lines: int = 5) -> str:
    """The last lines that a process has written, for an error."""
    log = workspace / LOG
    found = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return " / ".join(line.strip()[:300] for line in found[-lines:]) or "it wrote nothing"


def check_port(host: str, port: int) -> None:
    """That nobody listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lines of a server that was killed linger, and do no harm
        try:
            probe.bind((host if host[:1].isdigit() else "", port))
        except OSError as error:
            raise UserError(
                f"The server cannot listen on {host}:{port} ({error.strerror}): stop what listens there, or use another port."
            ) from error


def said_since(log: Path, start: int) -> str:
    """What a process has written since a place in its log."""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def wait_for(ready: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Whether something came true in time."""
    end = monotonic() + seconds
    while monotonic() < end:
        if ready():
            return True
        sleep(every)
    return False
