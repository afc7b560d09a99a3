"""Sockets between a FLARE process and its jobs that no other user can reach: a driver for FLARE, which itself has TCP ports only."""

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from typing import Any
from urllib.parse import quote, unquote

from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection

SCHEME = "private"
FOLDER = "sockets"  # in the workspace of the process
LONGEST = 100  # bytes of a socket's path that every system takes


class PrivateSocketDriver(BaseDriver):
    """Frames over a socket in a folder of mode 700; the other end must be of the same user."""

    def __init__(self) -> None:
        super().__init__()
        self.server: _Server | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        return [SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: False}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """Where jobs connect and where this process listens: FLARE wants a host in both."""
        url = f"{scheme}://0{quote(str(private_folder(Path.cwd()) / str(os.getpid())))}"
        return url, url

    def listen(self, connector: ConnectorInfo) -> None:
        self.connector = connector
        path = _path(connector)
        path.unlink(missing_ok=True)
        with _short(path) as name:
            self.server = _Server(name, self, connector)
        try:
            self.server.serve_forever()
        finally:
            self.server.server_close()
            path.unlink(missing_ok=True)

    def connect(self, connector: ConnectorInfo) -> None:
        self.connector = connector
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            with _short(_path(connector)) as name:
                line.connect(name)
            connection = SocketConnection(line, connector, False)
            self.add_connection(connection)
            connection.read_loop()
            self.close_connection(connection)

    def shutdown(self) -> None:
        self.close_all()
        if self.server is not None:
            self.server.shutdown()


def private_folder(workspace: Path) -> Path:
    """The folder of a process's sockets, which only its user may enter; sockets of processes that are gone are removed."""
    folder = workspace.absolute() / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise CommError(CommError.BAD_CONFIG, f"{folder} is not a folder of this user: remove it.")
    folder.chmod(0o700)
    for old in folder.iterdir():
        if old.name.isdigit() and not Path(f"/proc/{old.name}").exists() and Path("/proc").exists():
            old.unlink(missing_ok=True)
    return folder


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, name: str, driver: PrivateSocketDriver, connector: ConnectorInfo) -> None:
        self.driver, self.connector = driver, connector
        super().__init__(name, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """The folder keeps others out; this does so once more where the system tells who connects."""
        if not hasattr(socket, "SO_PEERCRED"):
            return True
        told = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", told)[1] == os.getuid())


class _Handler(BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        connection = SocketConnection(self.request, self.server.connector, False)
        self.server.driver.add_connection(connection)
        connection.read_loop()
        self.server.driver.close_connection(connection)


class _short:
    """A path to a socket that is short enough for the system: where it is not, by way of its folder's open descriptor."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, -1

    def __enter__(self) -> str:
        if len(os.fsencode(self.path)) <= LONGEST:
            return str(self.path)
        self.folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self.folder}/{self.path.name}"

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self.folder)


def _path(connector: ConnectorInfo) -> Path:
    return Path(unquote(str(connector.params[DriverParams.PATH.value])))
