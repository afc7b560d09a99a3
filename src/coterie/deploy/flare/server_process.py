"""A federation's server: started, waited for until it listens, and stopped by its own number."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.core.errors import UserError
from coterie.deploy.federation import FederationFolder
from coterie.deploy.flare.processes import end_of_log, start_server, stop, wait_for
from coterie.deploy.presence import read_presence
from coterie.deploy.process_lock import ProcessLock

START = 90.0  # seconds until it must listen


@contextmanager
def running_server(federation: FederationFolder) -> Iterator["subprocess.Popen[bytes]"]:
    """The server, listening. One that runs already is refused by its process; what a killed one has left is ended."""
    with ProcessLock(federation.server, f"A server of {federation.folder}") as lock:
        process = start_server(federation, [lock.handle])
        try:
            ready = wait_for(lambda: process.poll() is not None or _listens(federation, process.pid), START)
            check_alive(federation, process)
            if not ready:
                raise UserError(f"The server did not listen within {START:.0f} s: {end_of_log(federation.server)}")
            yield process
        finally:
            stop(process, 3)


def check_alive(federation: FederationFolder, process: "subprocess.Popen[bytes]") -> None:
    """Refuse a server that has ended by itself."""
    if process.poll() is not None:
        raise UserError(f"The server ended with code {process.returncode}; its log {federation.server}: {end_of_log(federation.server)}")


def _listens(federation: FederationFolder, process: int) -> bool:
    """Whether this process has written who is there: it does so once it has started whole."""
    found = read_presence(federation.server)
    return found.process == process and found.alive
