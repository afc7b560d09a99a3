"""FLARE's connections: private sockets between a process and its jobs, bounds on what sites send, and which sites are connected.

Bounds apply while a message comes in, before it is in memory.
"""

import os
import socket
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from time import monotonic, time
from typing import Any
from urllib.parse import quote, unquote

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ServerCommandNames, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import RunStatus
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3 import stats_pool
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.sfm import conn_manager
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.private.defs import CellChannelTopic, JobFailureMsgKey

from coterie.deploy.certificates import RevokedSites
from coterie.deploy.messages import OversizedMessage
from coterie.deploy.server.federation import REFRESH, SERVER_FOLDER, note_changes, read_presence, write_presence

SCHEME = "private"
SOCKET_FOLDER = "sockets"  # in the workspace of the process
LONGEST_PATH = 100  # bytes of a socket's path that every system takes


class PrivateSocketConnection(SocketConnection):
    """A connection between a process and its job."""


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
        url = f"{scheme}://0{quote(str(make_socket_folder(Path.cwd()) / str(os.getpid())))}"
        return url, url

    def listen(self, connector: ConnectorInfo) -> None:
        self.connector = connector
        path = _get_path(connector)
        path.unlink(missing_ok=True)
        with _ShortPath(path) as name:
            self.server = _Server(name, self, connector)
        try:
            self.server.serve_forever()
        finally:
            self.server.server_close()
            path.unlink(missing_ok=True)

    def connect(self, connector: ConnectorInfo) -> None:
        self.connector = connector
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            with _ShortPath(_get_path(connector)) as name:
                line.connect(name)
            connection = PrivateSocketConnection(line, connector, False)
            self.add_connection(connection)
            connection.read_loop()
            self.close_connection(connection)

    def shutdown(self) -> None:
        self.close_all()
        if self.server is not None:
            self.server.shutdown()


def make_socket_folder(workspace: Path) -> Path:
    """The folder of a process's sockets, which only its user may enter; sockets of processes that are gone are removed."""
    folder = workspace.absolute() / SOCKET_FOLDER
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
        """The folder keeps others out; this does so once more where the system reports the user that connects."""
        if not hasattr(socket, "SO_PEERCRED"):
            return True
        details = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", details)[1] == os.getuid())


class _Handler(BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        connection = PrivateSocketConnection(self.request, self.server.connector, False)
        self.server.driver.add_connection(connection)
        connection.read_loop()
        self.server.driver.close_connection(connection)


class _ShortPath:
    """A path to a socket that is short enough for the system: where it is not, by way of its folder's open descriptor."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, -1

    def __enter__(self) -> str:
        if len(os.fsencode(self.path)) <= LONGEST_PATH:
            return str(self.path)
        self.folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self.folder}/{self.path.name}"

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self.folder)


def _get_path(connector: ConnectorInfo) -> Path:
    return Path(unquote(str(connector.params[DriverParams.PATH.value])))


FRAME = 16 << 20  # bytes of a frame: FLARE streams in chunks of 1 MiB, and what it does not stream is smaller
SMALL = 4 << 20  # bytes of a stream that is no result: questions for work, signs of life, replies of the server's parent
WRAPPING = 64 << 10  # bytes that FLARE adds to a result
HEADERS = 256  # bytes that a frame counts for beside its payload: many empty ones are a flood, too
RESULTS, OTHERS = 2, 8  # streams of a site that may be open at once: each takes one of the 64 threads that FLARE has for all of them
FORGOTTEN = 60.0  # seconds without a frame after which a stream is no longer open
REMEMBERED = 4096  # streams that were dropped, whose frames may still come
SERVER = "server"  # the server's own processes

# What is streamed between the two parts of a job: a site's replies, and the asks that it gets when it asks for work
RESULT = (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE)
ASKS = (CellChannel.RETURN_ONLY, f"{CellChannel.SERVER_COMMAND}:{ServerCommandNames.GET_TASK}")
RELAYED = 64  # frames of one connection that wait to be relayed; its sender then waits
UNREAD = 256  # frames that wait for a site to read them; FLARE has at most 16 MiB of a stream pending


def limit_frames(most: int = FRAME) -> None:
    """Have gRPC refuse frames above this size by their length, before they are read. It counts for listeners made later."""
    for driver in (grpc_driver, aio_grpc_driver):
        options = [(name, value) for name, value in driver.GRPC_DEFAULT_OPTIONS if name != "grpc.max_receive_message_length"]
        driver.GRPC_DEFAULT_OPTIONS[:] = [*options, ("grpc.max_receive_message_length", most)]


def limit_queues(relayed: int = RELAYED, unread: int = UNREAD) -> None:
    """Bound what the server's parent holds for a connection between a site and its job: FLARE has queues without an end.

    A site that sends faster than the job reads is not read from meanwhile. One that does not read what it gets is disconnected.
    """
    submit = conn_manager.ConnManager.process_frame

    def process_frame(self: Any, connection: Any, frame: Any) -> None:
        if isinstance(connection.conn, PrivateSocketConnection):  # of the job, which must always be read: it would wait for the sites
            submit(self, connection, frame)
            return
        slots = vars(connection).setdefault("coterie_slots", threading.Semaphore(relayed))
        slots.acquire()
        try:
            self.frame_mgr_executor.submit(self.process_frame_task, connection, frame).add_done_callback(lambda _: slots.release())
        except RuntimeError:  # FLARE is ending
            slots.release()

    class UnreadFrames(grpc_driver.QQ):
        def append(self, i: Any) -> None:
            if self.q.qsize() >= unread:
                self.close()
            super().append(i)

    conn_manager.ConnManager.process_frame = process_frame
    grpc_driver.QQ = UnreadFrames


def forget_closed_connections() -> None:
    """Have a process forget a cell once its last connection has closed: FLARE keeps one for every job, session and name that ever was."""
    close = conn_manager.ConnManager.close_connection

    def close_connection(self: Any, connection: Any) -> None:
        found = self.sfm_conns.get(connection.name)
        close(self, connection)
        cell = found and found.sfm_endpoint
        if cell and not cell.connections and self.sfm_endpoints.get(cell.endpoint.name) is cell:
            del self.sfm_endpoints[cell.endpoint.name]
            if cell.connections:  # opened meanwhile
                self.sfm_endpoints[cell.endpoint.name] = cell

    conn_manager.ConnManager.close_connection = close_connection


def keep_no_statistics() -> None:
    """Have FLARE count no messages: it does so by names that a sender chooses, keeps them all, and no command that is left shows them."""
    for pool, record in ((stats_pool.HistPool, "record_value"), (stats_pool.CounterPool, "increment")):
        if not hasattr(pool, record):
            raise RuntimeError(f"{pool.__name__} has no {record}: this FLARE is not the one that Coterie's protection was written for")
        setattr(pool, record, lambda self, *args, **kwargs: None)


def forget_registrations(server: Any) -> None:
    """Have FLARE's server forget the tokens of sites that have registered again: it does so only for sites that stay away."""
    kept = {*server.tokens, *server.admin_server.get_client_tokens()}  # before the clients: a new one is added there first
    for token in kept - set(server.client_manager.clients):
        server.remove_client_data(token)
        server.admin_server.client_dead(token)


def survive_bad_messages() -> None:
    """Have a message that cannot be decoded, or that reports a reply as too large, fail alone: FLARE would end the job of all sites."""
    if not hasattr(cells, "_is_server_job_cell"):
        raise RuntimeError("this version of FLARE decides otherwise when a message ends a job: Coterie was checked with 2.9")
    cells._is_server_job_cell = lambda info: False


@dataclass
class _Stream:
    """What has come of a stream."""

    site: str
    is_large: bool
    received: int = 0
    seen: float = 0.0
    frames: set[int] = field(default_factory=set)
    last: int | None = None  # the number of the last frame, once it has come

    @property
    def is_whole(self) -> bool:
        return self.last is not None and len(self.frames) > self.last


class IncomingStreams:
    """Stands between a cell and its receiver of streams, and passes on what is within bounds."""

    def __init__(
        self,
        cell: Any,
        allowed: Callable[[str], int],
        dropped: Callable[[str, OversizedMessage], None],
        large: tuple[str, str] = RESULT,
    ) -> None:
        """Take the place of a cell's receiver. `allowed` is how many bytes a large stream of a sender can have now, `dropped` is called
        once for one that has more, and `large` are channel and topic of large streams: results at the server, asks at a site."""
        self.allowed, self.dropped, self.large, self.reject = allowed, dropped, large, cell.byte_receiver.reject
        self.open: dict[tuple[str, int], _Stream] = {}
        self.refused: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.stale: list[tuple[str, int]] = []  # to be stopped once the lock is free
        self.lock = threading.Lock()
        self.receive = cell.core_cell.req_reg.find(STREAM_CHANNEL, STREAM_DATA_TOPIC).cb
        cell.core_cell.register_request_cb(STREAM_CHANNEL, STREAM_DATA_TOPIC, self._take)

    def _take(self, message: Any) -> Any:
        """A frame: to the receiver, or nowhere."""
        key = (str(message.get_header(MessageHeaderKey.ORIGIN)), message.get_header(StreamHeaderKey.STREAM_ID))
        with self.lock:
            if key in self.refused:
                return None
            stream = self._stream(key, message)
            excess = self._excess(stream, message)
            if excess is None and stream.is_whole:
                del self.open[key]
            if excess is not None:
                self.open.pop(key, None)
                self.refused[key] = None
                if len(self.refused) > REMEMBERED:
                    self.refused.popitem(last=False)
            stale, self.stale = self.stale, []
        for old in stale:
            _drop_stream(old, StreamError("not a frame for too long"))
        if excess is None:
            return self.receive(message)
        error = StreamError(f"more than the {excess.limit:,} bytes that are waited for")
        if not _drop_stream(key, error):
            self.reject(message, error)
        if stream.is_large:
            self.dropped(stream.site, excess)
        return None

    def _stream(self, key: tuple[str, int], message: Any) -> _Stream:
        found = self.open.get(key)
        if found is None:
            about = (message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC))
            found = self.open[key] = _Stream(key[0].partition(".")[0], about == self.large)
        return found

    def _excess(self, stream: _Stream, message: Any) -> OversizedMessage | None:
        """Count a frame; what is too much of it, if anything is."""
        now, length = monotonic(), len(message.payload or b"")
        number, size = message.get_header(StreamHeaderKey.SEQUENCE), message.get_header(StreamHeaderKey.SIZE, 0)
        most = self.allowed(stream.site) + WRAPPING if stream.is_large else SMALL
        stream.seen = now
        stream.received += length + HEADERS
        declared = size if isinstance(size, int) and size >= 0 else most + 1
        if not isinstance(number, int) or declared > most or stream.received > 2 * most:  # a frame may have been sent again
            return OversizedMessage(max(declared, stream.received), most)
        stream.frames.add(number)
        if message.get_header(StreamHeaderKey.DATA_TYPE) == StreamDataType.FINAL:
            stream.last = number
        return OversizedMessage(stream.received, most) if self._is_crowded(stream, now) else None

    def _is_crowded(self, stream: _Stream, now: float) -> bool:
        """Whether a site has too many streams of a kind open."""

        def count() -> int:
            return sum(each.site == stream.site and each.is_large == stream.is_large for each in self.open.values())

        most = RESULTS if stream.is_large else OTHERS
        if count() <= most or stream.site == SERVER:
            return False
        for key in [key for key, each in self.open.items() if each is not stream and now - each.seen >= FORGOTTEN]:
            del self.open[key]
            self.stale.append(key)
        return count() > most


def _drop_stream(key: tuple[str, int], error: StreamError) -> bool:
    """Have FLARE let go of what has come of a stream, and of the threads that wait for more; whether anything had come."""
    task = RxTask.rx_task_map.get(key)
    if task is None:
        return False
    task.stop(error)
    task.chunks.clear()
    task.out_seq_chunks.clear()
    return True


CHECK_INTERVAL = 0.5  # seconds


def hash_registration(client: Client) -> str:
    """What distinguishes a registration from the next one. FLARE's token would, but it is a secret."""
    return sha256(str(client.token).encode()).hexdigest()[:16]


def _downgrade_failure(message: Any) -> None:
    """A site that calls a job unsafe has failed like any other: FLARE would end the job for all."""
    details = message.payload
    if isinstance(details, dict) and details.get(JobFailureMsgKey.CODE) == ProcessExitCode.UNSAFE_COMPONENT:
        details[JobFailureMsgKey.CODE] = ProcessExitCode.EXCEPTION


class ConnectionMonitor(FLComponent):
    """A component of the server (local/resources.json)."""

    def __init__(self) -> None:
        super().__init__()
        limit_frames()  # the server's port is opened later
        limit_queues()
        self.server, self._stop = Path(os.environ[SERVER_FOLDER]), threading.Event()
        self.removed = RevokedSites(self.server.parent)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            self._contain_failures(engine)
            self._close_stale_jobs(engine, fl_ctx)
            threading.Thread(target=self._write, args=(engine,), daemon=True).start()
            threading.Thread(target=self._disconnect_revoked, args=(engine,), daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self._stop.set()

    def _contain_failures(self, engine: Any) -> None:
        """The process of one site that dies must not end the job for all: the site is gone, and the others continue."""

        def fail_run(job_id: str, process_return_code: Any, fl_ctx: FLContext) -> str:
            self.log_warning(fl_ctx, f"job {job_id}: the process of a site ended with {process_return_code}; the others continue")
            return ""

        engine.job_runner.fail_run = fail_run
        engine.get_cell().core_cell.add_incoming_request_filter(
            CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE, _downgrade_failure
        )

    def _disconnect_revoked(self, engine: Any) -> None:
        """Close the connections of a removed site at once. What it sends over new ones is refused by the guard."""
        manager = engine.get_cell().core_cell.communicator.conn_manager
        before = frozenset[str]()
        while not self._stop.wait(CHECK_INTERVAL):
            removed = self.removed()
            for name in [name for name in list(manager.sfm_endpoints) if name.partition(".")[0] in removed - before]:
                for line in list(manager.get_connections(name) or []):
                    line.conn.close()
            for client in list(engine.client_manager.clients.values()):
                if client.name in removed:
                    engine.server.logout_client(client.token)
            before = removed

    def _close_stale_jobs(self, engine: Any, fl_ctx: FLContext) -> None:
        """A server that was killed leaves jobs that are called running forever."""
        manager = engine.get_component(SystemComponents.JOB_MANAGER)
        for job in manager.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx) or []:
            manager.set_status(job.job_id, RunStatus.FINISHED_ABORTED, fl_ctx)

    def _write(self, engine: Any) -> None:
        before: dict[str, str] | None = None
        since = dict(read_presence(self.server).since)  # a site that left before the server restarted is gone since then
        wrote = 0.0
        while not self._stop.wait(CHECK_INTERVAL):
            forget_registrations(engine.server)
            clients = list(engine.client_manager.clients.values())
            marks = {client.name: hash_registration(client) for client in clients}
            if marks != before or monotonic() - wrote > REFRESH:
                since = note_changes(since, before or {}, marks, time())
                write_presence(self.server, {client.name: float(client.last_connect_time) for client in clients}, marks, since)
                before, wrote = marks, monotonic()
