"""What comes in over FLARE's own cells is bounded while it comes in."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3 import stats_pool
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.grpc.qq import QueueClosed
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError

from coterie.deploy.flare import transport
from coterie.deploy.flare.processes import wait_until
from coterie.deploy.flare.transport import (
    ASKS,
    OTHERS,
    RESULTS,
    WRAPPING,
    IncomingStreams,
    forget_closed_connections,
    forget_registrations,
    keep_no_statistics,
    limit_frames,
    limit_queues,
)
from coterie.deploy.messages import OversizedMessage
from deploy.running import free_port

SUBMIT, POLL = "submit_update", "get_task"
ALLOWED = 1 << 20


@dataclass
class Line:
    """A server's cell, a site's cell, and what came over."""

    url: str
    server: Cell
    site: Cell
    streams: IncomingStreams
    got: list[int] = field(default_factory=list)
    dropped: list[tuple[str, OversizedMessage]] = field(default_factory=list)

    def send(self, size: int, topic: str = SUBMIT) -> str:
        """A request of so many bytes, streamed; the code of the reply."""
        message = Message({}, bytes(size))
        reply = self.site.send_request(channel=CellChannel.SERVER_COMMAND, target="server", topic=topic, request=message, timeout=10.0)
        return str(reply.get_header(MessageHeaderKey.RETURN_CODE))

    def frame(self, stream: int, number: int, size: int, topic: str = SUBMIT, **headers: Any) -> None:
        """A frame of a stream, by hand."""
        about = {
            StreamHeaderKey.STREAM_ID: stream,
            StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
            StreamHeaderKey.TOPIC: topic,
            StreamHeaderKey.DATA_TYPE: StreamDataType.CHUNK,
            StreamHeaderKey.SEQUENCE: number,
        }
        self.site.core_cell.fire_and_forget(STREAM_CHANNEL, STREAM_DATA_TOPIC, "server", Message({**about, **headers}, bytes(size)))


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    options = {driver: list(driver.GRPC_DEFAULT_OPTIONS) for driver in (grpc_driver, aio_grpc_driver)}
    limit_frames(8 << 20)
    stats_pool.StatsPoolManager.pools.clear()  # FLARE keeps them by name, and a worker may come back to this module
    url = f"grpc://127.0.0.1:{free_port()}"
    server = Cell(fqcn="server", root_url=url, secure=False, credentials={})
    site = Cell(fqcn="a", root_url=url, secure=False, credentials={})
    made = Line(url, server, site, None)  # type: ignore[arg-type]

    def receive(request: Message) -> Message:
        made.got.append(len(request.payload))
        return make_reply(ReturnCode.OK)

    server.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic="*", cb=receive)
    made.streams = IncomingStreams(
        server, lambda name: ALLOWED if name == "a" else 0, lambda name, excess: made.dropped.append((name, excess))
    )
    server.start()
    site.start()
    assert wait_until(lambda: made.send(1, POLL) == ReturnCode.OK, 20)
    yield made
    for task in list(RxTask.rx_task_map.values()):  # streams that never end: somebody reads them
        task.stop(StreamError("the test is over"), notify=False)
    for cell in (site, server):
        with suppress(Exception):
            cell.stop()
        CoreCell.ALL_CELLS.pop(cell.core_cell.my_info.fqcn, None)  # FLARE keeps it, and would send this process's messages there
    for driver, before in options.items():
        driver.GRPC_DEFAULT_OPTIONS[:] = before


@pytest.fixture(autouse=True)
def empty(line: Line) -> None:
    line.got.clear()
    line.dropped.clear()
    line.streams.open.clear()


def test_what_is_allowed_arrives(line: Line) -> None:
    assert line.send(ALLOWED) == ReturnCode.OK
    assert line.send(ALLOWED) == ReturnCode.OK  # streams that are whole are not open any more
    assert line.got == [ALLOWED, ALLOWED]
    assert not line.dropped
    assert not line.streams.open


def test_a_result_that_says_it_is_larger_is_dropped_at_its_first_frame(line: Line) -> None:
    assert line.send(50 * ALLOWED) != ReturnCode.OK
    ((site, excess),) = line.dropped
    assert (site, excess.limit) == ("a", ALLOWED + WRAPPING)
    assert excess.size >= 50 * ALLOWED
    assert not line.got
    assert line.send(1) == ReturnCode.OK  # the next one is heard


def test_a_result_that_does_not_say_how_large_it_is_is_dropped_when_it_is_too_large(line: Line) -> None:
    for number in range(8):
        line.frame(1001, number, 1 << 19)
    assert wait_until(lambda: bool(line.dropped), 10)
    assert len(line.dropped) == 1
    assert not line.got
    task = RxTask.rx_task_map["a", 1001]
    assert wait_until(lambda: task.failed, 10)  # what had come is let go
    assert not task.chunks


def test_many_streams_that_never_end_are_dropped(line: Line) -> None:
    for stream in range(OTHERS + 5):
        line.frame(2000 + stream, 0, 1000, POLL)
    assert wait_until(lambda: len(line.streams.open) == OTHERS, 10)
    for stream in range(RESULTS + 1):
        line.frame(3000 + stream, 0, 1000)
    assert wait_until(lambda: bool(line.dropped), 10)
    assert not line.got


def test_a_stream_of_which_nothing_comes_any_more_makes_room(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in range(RESULTS):
        line.frame(4000 + stream, 0, 1000)
    assert wait_until(lambda: len(line.streams.open) == RESULTS, 10)
    monkeypatch.setattr(transport, "FORGOTTEN", 0.0)
    assert line.send(1) == ReturnCode.OK
    assert RxTask.rx_task_map["a", 4000].failed


@pytest.mark.parametrize("headers", [{StreamHeaderKey.SIZE: "many"}, {StreamHeaderKey.SIZE: -1}, {StreamHeaderKey.SEQUENCE: None}])
def test_headers_of_another_type_are_dropped(line: Line, headers: dict[str, Any]) -> None:
    line.frame(hash(str(headers)) % 10**6 + 10**6, 0, 10, **headers)
    assert wait_until(lambda: bool(line.dropped), 10)
    assert line.send(1) == ReturnCode.OK


def test_what_is_no_result_is_small(line: Line) -> None:
    assert line.send(16 << 20, POLL) != ReturnCode.OK
    assert not line.got
    assert not line.dropped  # nobody waits for it


SENDER = """
import os, sys, traceback
from nvflare.fuel.f3 import stats_pool
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel
from coterie.deploy.flare.processes import wait_until
from deploy.test_transport import Line, POLL
cell = Cell(fqcn="b", root_url=sys.argv[1], secure=False, credentials={})
cell.start()
line = Line(sys.argv[1], None, cell, None)
code = 1
try:
    assert wait_until(lambda: line.send(1, POLL) == "ok", 40)
    for size in map(int, sys.argv[2:]):
        line.frame(size, 0, size)
        assert wait_until(lambda: line.send(1, POLL) == "ok", 40), size
    code = 0
except BaseException:
    traceback.print_exc()
os._exit(code)
"""


def test_a_frame_that_is_too_large_is_not_read(line: Line) -> None:
    """It ends the connection of who sends it, which may come back. Another process sends it: cells of one process need no connection."""
    below, above = 7 << 20, 9 << 20
    words = [sys.executable, "-c", SENDER, line.url, str(below), str(above)]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False, env=paths)
    assert done.returncode == 0, done.stderr[-1000:]
    assert [(site, excess.size // (1 << 20)) for site, excess in line.dropped] == [("b", 7)]


class Connections:
    """FLARE's queues, with a job that takes frames only when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ConnManager, "process_frame", ConnManager.process_frame)
        monkeypatch.setattr(grpc_driver, "QQ", grpc_driver.QQ)
        limit_queues(relayed=3, unread=5)
        self.manager, self.free, self.done = ConnManager(SimpleNamespace(name="server")), threading.Event(), list[str]()
        monkeypatch.setattr(self.manager, "process_frame_task", self.process)

    def process(self, connection: SimpleNamespace, frame: str) -> None:
        if connection.name == "flood":
            self.free.wait(30)
        self.done.append(frame)

    def connect(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, conn=object(), get_name=lambda: name)


def test_a_site_that_floods_its_job_waits_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Connections(monkeypatch)
    flood, other, sent = lines.connect("flood"), lines.connect("other"), list[int]()

    def send() -> None:
        for i in range(10):
            lines.manager.process_frame(flood, f"flood {i}")
            sent.append(i)

    sender = threading.Thread(target=send)
    sender.start()
    assert wait_until(lambda: len(sent) == 3, 10)
    for i in range(10):
        lines.manager.process_frame(other, f"other {i}")
    assert wait_until(lambda: len(lines.done) == 10, 10)
    assert len(sent) == 3
    lines.free.set()
    sender.join(10)
    assert wait_until(lambda: len(lines.done) == 20, 10)
    lines.manager.frame_mgr_executor.shutdown()
    lines.manager.conn_mgr_executor.shutdown()


def test_a_site_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    Connections(monkeypatch)
    queue = grpc_driver.QQ()
    for i in range(5):
        queue.append(i)
    with pytest.raises(QueueClosed):
        queue.append(5)
    assert queue.closed


def test_cells_whose_connections_are_closed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may connect under any number of names, and every job and session has one."""
    monkeypatch.setattr(ConnManager, "close_connection", ConnManager.close_connection)
    forget_closed_connections()
    manager = ConnManager(SimpleNamespace(name="server"))

    def connect(name: str, number: int) -> SimpleNamespace:
        made = SimpleNamespace(name=f"{name} {number}", connector=SimpleNamespace(mode=Mode.PASSIVE, params={}), close=lambda: None)
        made.register_frame_receiver = made.get_conn_properties = lambda *_: None
        manager.handle_new_connection(made)
        manager.update_endpoint(manager.sfm_conns[made.name], {HandshakeKeys.ENDPOINT_NAME: name})
        return made

    for number in range(20):
        manager.close_connection(connect(f"a.{number}", number))
    first = connect("a", 0)
    connect("a", 1)  # a site that has connected again before its first connection has closed
    manager.close_connection(first)
    assert list(manager.sfm_endpoints) == ["a"]
    assert [each.get_name() for each in manager.get_connections("a") or []] == ["a 1"]
    assert list(manager.sfm_conns) == ["a 1"]


def test_no_statistics_are_kept_by_names_that_a_sender_chooses(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for pool, record in ((stats_pool.HistPool, "record_value"), (stats_pool.CounterPool, "increment")):
        monkeypatch.setattr(pool, record, getattr(pool, record))
    keep_no_statistics()
    received, pool = line.server.core_cell._process_received_msg, line.server.core_cell.msg_travel_stats_pool
    before = set(pool.cat_bins)
    for number in range(20):
        with suppress(Exception):  # what comes after the statistics needs a connection
            received(None, None, Message({MessageHeaderKey.ROUTE: [(f"x{number}" * 1000, 0.0)], MessageHeaderKey.MSG_TYPE: "req"}, b""))
    assert set(pool.cat_bins) == before


def test_a_site_that_registers_again_leaves_nothing_behind() -> None:
    clients, tokens, admin = {"new": "a", "other": "b"}, dict.fromkeys(["old", "older", "new", "other"]), {"old": 1, "new": 2, "other": 3}
    server = SimpleNamespace(
        tokens=tokens,
        client_manager=SimpleNamespace(clients=clients),
        admin_server=SimpleNamespace(get_client_tokens=lambda: list(admin), client_dead=lambda token: admin.pop(token, None)),
        remove_client_data=lambda token: tokens.pop(token, None),
    )
    forget_registrations(server)
    assert list(tokens) == list(admin) == list(clients)


def test_asks_are_bounded_at_a_site_while_they_come_in(line: Line) -> None:
    """There the large streams are the replies to requests for work."""
    streams = IncomingStreams(line.site, lambda sender: ALLOWED, lambda *reported: line.dropped.append(reported), ASKS)
    replies: dict[str, int] = {"small": 10, "allowed": ALLOWED, "large": 3 * ALLOWED}
    asked = Counter[str]()

    def reply(request: Message) -> Message:
        asked["n"] += 1
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, bytes(replies[list(replies)[asked["n"] - 1]]))

    line.server.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=POLL, cb=reply)
    about = {"channel": CellChannel.SERVER_COMMAND, "target": "server", "topic": POLL, "request": Message({}, b"")}
    for size in (10, ALLOWED):
        assert len(line.site.send_request(**about, timeout=20.0).payload) == size
    assert line.site.send_request(**about, timeout=2.0).get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK
    ((sender, excess),) = line.dropped
    assert (sender, excess.limit) == ("server", ALLOWED + WRAPPING)
    assert not streams.open
