"""FLARE's processes: a server, and a client for each site. Started without a shell, ended by their own process ids.

A lock allows one `coterie serve` for a server's folder and one `coterie join` for a kit.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil
from filelock import lock_descriptor

from coterie._util.errors import UserError
from coterie._util.files import read_note, write_note
from coterie.deploy.flare.child_process import child_command
from coterie.deploy.flare.jobs import KIT, ORGANISATION, write_server_files, write_site_files
from coterie.deploy.flare.protection import check_flare_version
from coterie.deploy.server.federation import SERVER_FOLDER, FederationFolder, read_presence

if TYPE_CHECKING:
    from coterie.deploy.site.data import SiteSettings


LOCK_FILE = "process.lock"
PATIENCE = 15.0  # seconds for processes without a parent to end
FLARE_MODULES = "nvflare.private.fed.app."  # in the command line of each of its processes, before the folder


@dataclass(frozen=True)
class LockHolder:
    """A process that holds, or held, a folder."""

    process: int
    started: float
    host: str

    @classmethod
    def this(cls) -> "LockHolder":
        return cls(os.getpid(), psutil.Process().create_time(), socket.gethostname())

    @property
    def alive(self) -> bool:
        """Whether it runs on this machine; another process of the same number started at another time."""
        try:
            found = psutil.Process(self.process)
            return bool(abs(found.create_time() - self.started) < 1 and found.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


class ProcessLock:
    """Held from its making until `close` or the end of this process and of all that inherited `handle`."""

    def __init__(self, folder: Path, what: str, patience: float = PATIENCE) -> None:
        """Take the folder; processes that a killed holder left there are ended, in so many seconds. A folder that another process holds
        is refused with that process; `what` begins the sentence: "A server of fed"."""
        if os.name == "nt":
            raise UserError("Servers and sites of a federation run on Linux and macOS: on Windows, use WSL.")
        self.folder, self.what = folder.absolute(), what
        try:
            self.handle = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
        try:
            self._take(monotonic() + patience)
            write_note(self.handle, json.dumps(asdict(LockHolder.this())))
            self._end_orphans()
        except BaseException:
            os.close(self.handle)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others take the folder, as soon as what was started there has ended."""
        write_note(self.handle, "")
        os.close(self.handle)

    def _take(self, end: float) -> None:
        while True:
            if lock_descriptor(self.handle, blocking=False):
                return
            holder = self._read_holder()
            if holder is not None and holder.host != socket.gethostname():
                raise UserError(f"{self.what} runs already, as process {holder.process} on {holder.host}: stop it there first.")
            if holder is not None and holder.alive:
                raise UserError(f"{self.what} runs already, as process {holder.process}: stop it first (kill {holder.process}).")
            self._end_orphans()
            if monotonic() > end:
                left = ", ".join(str(process.pid) for process in _find_flare_processes(self.folder)) or "which cannot be seen from here"
                raise UserError(f"{self.what} was left running by a process that was killed (process {left}): stop it first.")
            sleep(0.2)

    def _end_orphans(self) -> None:
        """End what a killed holder left. What has its parent belongs to a process that works without the lock: it is named instead."""
        found = list(_find_flare_processes(self.folder))
        for process in found:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if not _is_orphan(process):
                    raise UserError(f"{self.what} runs already, as process {process.pid}: stop it first (kill {process.pid}).")
        for process in found:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for one in (*process.children(recursive=True), process):
                    one.kill()  # by number and time of start: never another process
        psutil.wait_procs(found, timeout=5)

    def _read_holder(self) -> LockHolder | None:
        try:
            return LockHolder(**json.loads(read_note(self.handle)))
        except (ValueError, TypeError):  # its holder has not written it yet
            return None


def _find_flare_processes(folder: Path) -> Iterator[Any]:
    """FLARE's servers, clients and their jobs that work in a folder."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(folder) in words and any(word.startswith(FLARE_MODULES) for word in words[: words.index(str(folder))]):
            yield process


def _is_orphan(process: Any) -> bool:
    """Whether the process that started it has ended, or is one of FLARE's that is an orphan itself."""
    words = process.cmdline()
    parent = process.parent()
    if parent is None or process.ppid() == 1:
        return True
    if FLARE_MODULES in " ".join(parent.cmdline()):
        return _is_orphan(parent)
    started_by = [int(word) for word, after in pairwise(words) if after in ("signal", "watch") and word.isdigit()]
    return bool(started_by) and started_by[0] != parent.pid


HEARTBEAT = 4  # seconds
LOG_FILE = "flare.log"
OWNER_ALONE = 0o077  # the umask of all that FLARE's processes write: no other user may read it


def start_server(federation: FederationFolder, locks: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
    """The server of a federation. A port that is taken is refused: FLARE would share it in silence.

    The process ends with this one, and inherits these `locks` (file descriptors).
    """
    check_flare_version()
    check_port(federation.host, federation.port)
    write_server_files(federation)
    where = {SERVER_FOLDER: str(federation.server.absolute())}
    return _start_process(federation.server, "nvflare.private.fed.app.server.server_train", "fed_server.json", [], where, locks)


def start_site(kit: Path, site: str, locks: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
    """A site's client, which ends with this process and inherits these `locks` (file descriptors)."""
    check_flare_version()
    write_site_files(kit)
    more = [f"uid={site}", f"heart_beat_interval={HEARTBEAT}"]
    where = {KIT: str(kit.absolute())}
    return _start_process(kit, "nvflare.private.fed.app.client.client_train", "fed_client.json", more, where, locks)


def _start_process(
    workspace: Path, module: str, config: str, options: list[str], more: dict[str, str], locks: Sequence[int]
) -> "subprocess.Popen[bytes]":
    workspace = workspace.absolute()
    (workspace / "transfer").mkdir(exist_ok=True, mode=0o700)
    words = [*child_command([sys.executable, "-u"], module), "-m", str(workspace), "-s", config]
    words += ["--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config", *options]
    paths = os.pathsep.join(path for path in (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")) if path)
    safe = {"PYTHONSAFEPATH": "1"}  # a kit is made by others: no module that lies in it may stand in for an installed one
    quiet = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "4", "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "8"}
    with open(workspace / LOG_FILE, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
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


def stop_process(process: "subprocess.Popen[bytes]", patience: float = 10.0) -> None:
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
            child.kill()  # by number and time of start: never another process
    process.poll()


def stop_processes(processes: Sequence["subprocess.Popen[bytes]"], patience: float) -> None:
    """End several at once: all are asked before any is waited for."""
    with ThreadPoolExecutor(max(len(processes), 1)) as pool:
        list(pool.map(lambda process: stop_process(process, patience), processes))


def read_log_tail(workspace: Path, lines: int = 5) -> str:
    """The last lines that a process has written, for an error."""
    log = workspace / LOG_FILE
    found = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return " / ".join(line.strip()[:300] for line in found[-lines:]) or "it wrote nothing"


def check_port(host: str, port: int) -> None:
    """Check that no process listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lines of a server that was killed linger, and do no harm
        try:
            probe.bind((host if host[:1].isdigit() else "", port))
        except OSError as error:
            raise UserError(
                f"The server cannot listen on {host}:{port} ({error.strerror}): stop what listens there, or use another port."
            ) from error


def read_log_since(log: Path, start: int) -> str:
    """What a process has written since a place in its log."""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def wait_until(ready: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Whether something came true in time."""
    end = monotonic() + seconds
    while monotonic() < end:
        if ready():
            return True
        sleep(every)
    return False


START_TIMEOUT = 90.0  # seconds until it must listen


@contextmanager
def run_server(federation: FederationFolder) -> Iterator["subprocess.Popen[bytes]"]:
    """The server, listening. One that runs already is refused by its process; what a killed one has left is ended."""
    with ProcessLock(federation.server, f"A server of {federation.folder}") as lock:
        process = start_server(federation, [lock.handle])
        try:
            ready = wait_until(lambda: process.poll() is not None or _is_listening(federation, process.pid), START_TIMEOUT)
            check_server_running(federation, process)
            if not ready:
                raise UserError(f"The server did not listen within {START_TIMEOUT:.0f} s: {read_log_tail(federation.server)}")
            yield process
        finally:
            stop_process(process, 3)


def check_server_running(federation: FederationFolder, process: "subprocess.Popen[bytes]") -> None:
    """Refuse a server that has ended by itself."""
    if process.poll() is not None:
        raise UserError(f"The server ended with code {process.returncode}; its log {federation.server}: {read_log_tail(federation.server)}")


def _is_listening(federation: FederationFolder, process: int) -> bool:
    """Whether this process has written which sites are there: it does so once it has started whole."""
    found = read_presence(federation.server)
    return found.process == process and found.alive


REGISTERED = "Successfully registered client"

# Words of FLARE's log, and what they mean; {site} and {server} are filled in.
LOG_MESSAGES = (
    ("is disabled", "The operator has removed {site} from the federation: ask for another kit."),
    ("Maximum number of clients reached", "The server takes no more sites: ask its operator."),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "The server at {server} has a certificate of another authority than this kit: is it the right server? Ask its operator for a kit.",
    ),
    ("TLSV1_ALERT_UNKNOWN_CA", "The server at {server} does not know this kit's authority: ask its operator for a new kit."),
    ("requires identity", "The server at {server} takes this kit for another site's: ask its operator for a new kit."),
    ("CNMismatch", "The certificate is not that of {site}: ask the operator for a new kit."),
)


@contextmanager
def run_sites(
    kits: Mapping[str, Path], server: str, patience: float, settings: "Mapping[str, SiteSettings] | None" = None
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The clients of these sites, started at once, all taken in by the server within so many seconds.

    A kit that is in use is refused, with the process that uses it. `settings` are written into a kit once it is held.
    """
    settings = settings or {}
    with ExitStack() as held:
        locks = {site: held.enter_context(ProcessLock(kit, f"The site {site} of {kit}")) for site, kit in kits.items()}
        begins = {site: (kit / LOG_FILE).stat().st_size if (kit / LOG_FILE).exists() else 0 for site, kit in kits.items()}
        processes: list[subprocess.Popen[bytes]] = []
        held.callback(lambda: stop_processes(processes, 5))
        for site, kit in kits.items():
            if site in settings:
                settings[site].write(kit)
            processes.append(start_site(kit, site, [locks[site].handle]))
        for (site, kit), process in zip(kits.items(), processes, strict=True):
            response = _wait_for_outcome(kit / LOG_FILE, begins[site], process, patience)
            if REGISTERED not in response:
                raise UserError(explain_refusal(response, site, server, patience))
        yield processes


def _wait_for_outcome(log: Path, begin: int, process: "subprocess.Popen[bytes]", patience: float) -> str:
    """What a client has written once its fate is known, or its time is over."""

    def decided() -> bool:
        response = read_log_since(log, begin)
        return process.poll() is not None or REGISTERED in response or any(words in response for words, _ in LOG_MESSAGES)

    wait_until(decided, patience)
    return read_log_since(log, begin)


def explain_refusal(response: str, site: str, server: str, patience: float) -> str:
    """Why a site was not taken in, from what its client wrote."""
    return _find_known_cause(response, site, server) or (
        f"The server at {server} did not take {site} in within {patience:.0f} s: is 'coterie serve' running there, "
        f"and may this machine reach that port?"
    )


def _find_known_cause(text: str, site: str, server: str) -> str:
    return next((sentence.format(site=site, server=server) for words, sentence in LOG_MESSAGES if words in text), "")


def check_site_running(kit: Path, site: str, server: str, process: "subprocess.Popen[bytes]") -> None:
    """Refuse a client that has ended by itself."""
    if process.poll() is not None:
        log = kit / LOG_FILE
        known = _find_known_cause(read_log_since(log, max(log.stat().st_size - 20_000, 0)), site, server)
        raise UserError(known or f"The client of {site} ended with code {process.returncode}: {read_log_tail(kit)}")
