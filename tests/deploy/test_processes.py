"""FLARE's processes: one for a folder, children that end with their parent, and the port of a server."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

import coterie
from coterie._util.errors import UserError
from coterie._util.files import NOTE_START
from coterie.deploy.flare.child_process import SIGNAL, WATCH, child_command
from coterie.deploy.flare.processes import LOCK_FILE, LockHolder, ProcessLock, check_port, wait_until

SOURCE = str(Path(coterie.__file__).parents[1])  # the tree under test, which may be a copy
ENDS = 10.0  # seconds in which a process must have ended
# In the place of FLARE's client: its module is there, so the name is right, and it waits for nothing but its end.
SLEEPING = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"
# Starts a child as `coterie join` starts FLARE's client, says its number, and waits to be killed.
PARENT = """
import os, subprocess, sys, signal
from pathlib import Path
from coterie.deploy.flare.child_process import child_command
from coterie.deploy.flare.processes import ProcessLock
how, folder = sys.argv[1], Path(sys.argv[2])
lock = ProcessLock(folder, "The site a")
words = child_command([sys.executable], "nvflare.private.fed.app.sleeping", how) if how != "orphan" else [
    sys.executable, "-c", "import signal; signal.pause()", "nvflare.private.fed.app.sleeping"]
environment = os.environ | {"PYTHONPATH": os.pathsep.join([sys.argv[3], os.environ["PYTHONPATH"]])}
child = subprocess.Popen(
    [*words, "-m", str(folder)], env=environment, pass_fds=[lock.handle], start_new_session=True)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder with a module that has the name of one of FLARE's."""
    package = tmp_path / "modules"
    for name in ("nvflare", "private", "fed", "app"):
        package = package / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text('__path__ = __import__("pkgutil").extend_path(__path__, __name__)')
    (package / "sleeping.py").write_text(SLEEPING)
    return tmp_path / "modules"


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "kit").mkdir()
    return tmp_path / "kit"


class Family:
    """A holder and its child."""

    def __init__(self, how: str, kit: Path, module: Path) -> None:
        paths = {"PYTHONPATH": SOURCE}
        self.parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, how, str(kit), str(module)], env=os.environ | paths, stdout=subprocess.PIPE, text=True
        )
        assert self.parent.stdout is not None
        self.child = psutil.Process(int(self.parent.stdout.readline()))
        if how != "orphan":  # it looks at its parent before it is ready
            assert self.parent.stdout.readline() == "ready\n"

    def kill_parent(self) -> None:
        self.parent.kill()
        self.parent.wait()

    def end(self) -> None:
        if self.parent.returncode is None:
            self.kill_parent()
        if self.child.is_running():
            self.child.kill()
        assert self.parent.stdout is not None
        self.parent.stdout.close()


@pytest.fixture(params=[SIGNAL, WATCH])
def family(request: pytest.FixtureRequest, kit: Path, module: Path) -> Iterator[Family]:
    made = Family(request.param, kit, module)
    yield made
    made.end()


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)


def test_a_child_ends_with_its_parent(family: Family) -> None:
    assert family.child.is_running()
    family.kill_parent()
    assert wait_until(lambda: has_ended(family.child), ENDS)


def test_a_folder_that_is_held_names_its_holder_and_is_free_after_a_kill(family: Family, kit: Path) -> None:
    with pytest.raises(UserError, match=rf"^The site a runs already, as process {family.parent.pid}: stop it first"):
        ProcessLock(kit, "The site a")
    family.kill_parent()
    with ProcessLock(kit, "The site a"):
        assert has_ended(family.child)
        reported = json.loads((kit / LOCK_FILE).read_text())
        assert reported == {"process": os.getpid(), "started": psutil.Process().create_time(), "host": socket.gethostname()}
        assert (kit / LOCK_FILE).stat().st_mode & 0o777 == 0o600
    with ProcessLock(kit, "The site a"):
        pass


def test_what_a_killed_holder_has_left_is_ended(kit: Path, module: Path) -> None:
    """A child that did not notice: it was stopped, or is of a version that does not look."""
    family = Family("orphan", kit, module)
    try:
        family.child.suspend()
        family.kill_parent()
        assert family.child.is_running()
        with ProcessLock(kit, "The site a"):
            assert has_ended(family.child)
    finally:
        family.end()


def test_a_client_that_was_started_without_the_lock_is_named(kit: Path) -> None:
    words = [sys.executable, "-c", "import signal; signal.pause()", "nvflare.private.fed.app.client.client_train", "-m", str(kit)]
    with subprocess.Popen(words) as other:
        try:
            assert wait_until(lambda: "signal.pause" in " ".join(psutil.Process(other.pid).cmdline()), ENDS)
            with pytest.raises(UserError, match=f"runs already, as process {other.pid}: stop it first"):
                ProcessLock(kit, "The site a")
            assert other.poll() is None
        finally:
            other.kill()


def test_a_note_of_before_a_restart_of_the_machine_holds_nothing(kit: Path) -> None:
    """Its process has ended; another one has its number now."""
    old = LockHolder(os.getpid(), psutil.Process().create_time() - 1000, socket.gethostname())
    assert not old.alive
    assert LockHolder.this().alive
    (kit / LOCK_FILE).write_text(json.dumps(vars(old)))
    with ProcessLock(kit, "The site a"):
        pass


@pytest.mark.parametrize("response", ["", "{", '{"process": 1}', "[]"])
def test_a_note_that_says_nothing(kit: Path, response: str) -> None:
    with ProcessLock(kit, "The site a"):
        (kit / LOCK_FILE).write_text(" " * NOTE_START + response)
        with pytest.raises(UserError, match="was left running by a process that was killed"):
            ProcessLock(kit, "The site a", patience=0.0)


def test_a_kit_on_a_shared_disk_names_the_machine(kit: Path) -> None:
    with ProcessLock(kit, "The site a"):
        (kit / LOCK_FILE).write_text(" " * NOTE_START + json.dumps(vars(LockHolder(7, 0.0, "elsewhere"))))
        with pytest.raises(UserError, match="runs already, as process 7 on elsewhere: stop it there first"):
            ProcessLock(kit, "The site a")


def test_a_child_whose_parent_has_ended_already_does_not_start(module: Path) -> None:
    words = [sys.executable, "-m", "coterie.deploy.flare.child_process", "1" * 9, WATCH, "nvflare.private.fed.app.sleeping"]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(module), SOURCE])}, timeout=60, check=False)
    assert done.returncode == 1


def test_a_child_outlives_the_thread_that_started_it(module: Path) -> None:
    """The kernel would take the end of that thread for the parent's."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        words = child_command([sys.executable], "nvflare.private.fed.app.sleeping")
        paths = {"PYTHONPATH": os.pathsep.join([str(module), SOURCE])}
        started.append(subprocess.Popen(words, env=os.environ | paths, start_new_session=True, stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        assert started[0].stdout.readline() == b"ready\n"

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (child,) = started
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(2)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_a_port_that_somebody_listens_on_is_refused() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(UserError, match="cannot listen on"):
            check_port("127.0.0.1", server.getsockname()[1])


def test_a_server_that_was_killed_may_be_started_again_at_once() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        site = socket.create_connection(("127.0.0.1", port))
        line, _ = server.accept()
    line.close()  # this end first: its line lingers
    site.close()
    check_port("127.0.0.1", port)
