"""How much may come in: bounds on what sites send to the server's processes, kept while it comes in, before it is in memory.

FLARE 2.9 takes a result of 4 GiB, holds it several times over while it is decoded, and ends the job's process where it cannot be decoded.
It has one fixed limit for all streams (`streaming_max_blob_size`); here it is what the ask allows, site by site.

What is used of FLARE: the callback that every cell registers for stream data (`STREAM_CHANNEL`, `STREAM_DATA_TOPIC`), which is wrapped; the
table of streams that come in (`RxTask`); the gRPC drivers' `GRPC_DEFAULT_OPTIONS`; and `_is_server_job_cell`, by which a cell decides to
end its process because of a message.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError

from coterie.deploy.checks import Excess

FRAME = 16 << 20  # bytes of a frame: FLARE streams in chunks of 1 MiB, and what it does not stream is smaller
SMALL = 4 << 20  # bytes of a stream that is no result: questions for work, signs of life, replies of the server's parent
WRAPPING = 64 << 10  # bytes that FLARE adds to a result
HEADERS = 256  # bytes that a frame counts for beside its payload: many empty ones are a flood, too
RESULTS, OTHERS = 2, 8  # streams of a site that may be open at once: each takes one of the 64 threads that FLARE has for all of them
FORGOTTEN = 60.0  # seconds without a frame after which a stream is no longer open
REMEMBERED = 4096  # streams that were dropped, whose frames may still come
SERVER = "server"  # the server's own processes
RESULT = (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE)


def limit_frames(most: int = FRAME) -> None:
    """Have gRPC refuse frames above this size by their length, before they are read. It counts for listeners made later."""
    for driver in (grpc_driver, aio_grpc_driver):
        options = [(name, value) for name, value in driver.GRPC_DEFAULT_OPTIONS if name != "grpc.max_receive_message_length"]
        driver.GRPC_DEFAULT_OPTIONS[:] = [*options, ("grpc.max_receive_message_length", most)]


def survive_bad_messages() -> None:
    """Have a message that cannot be decoded, or that says a reply was too large, fail alone: FLARE would end the server's job."""
    if not hasattr(cells, "_is_server_job_cell"):
        raise RuntimeError("this version of FLARE decides otherwise when a message ends a job: Coterie was checked with 2.9")
    cells._is_server_job_cell = lambda info: False


@dataclass
class _Stream:
    """What has come of a stream."""

    site: str
    is_result: bool
    received: int = 0
    seen: float = 0.0
    frames: set[int] = field(default_factory=set)
    last: int | None = None  # the number of the last frame, once it has come

    @property
    def is_whole(self) -> bool:
        return self.last is not None and len(self.frames) > self.last


class IncomingStreams:
    """Stands between a cell and its receiver of streams, and passes on what is within bounds."""

    def __init__(self, cell: Any, allowed: Callable[[str], int], dropped: Callable[[str, Excess], None]) -> None:
        """`allowed` says how large a site's result can be now; `dropped` is told of a result that is larger, once."""
        self.allowed, self.dropped, self.reject = allowed, dropped, cell.byte_receiver.reject
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
            _stop(old, StreamError("not a frame for too long"))
        if excess is None:
            return self.receive(message)
        error = StreamError(f"more than the {excess.limit:,} bytes that are waited for")
        if not _stop(key, error):
            self.reject(message, error)
        if stream.is_result:
            self.dropped(stream.site, excess)
        return None

    def _stream(self, key: tuple[str, int], message: Any) -> _Stream:
        found = self.open.get(key)
        if found is None:
            about = (message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC))
            found = self.open[key] = _Stream(key[0].partition(".")[0], about == RESULT)
        return found

    def _excess(self, stream: _Stream, message: Any) -> Excess | None:
        """Count a frame; what is too much of it, if anything is."""
        now, length = monotonic(), len(message.payload or b"")
        number, size = message.get_header(StreamHeaderKey.SEQUENCE), message.get_header(StreamHeaderKey.SIZE, 0)
        most = self.allowed(stream.site) + WRAPPING if stream.is_result else SMALL
        stream.seen = now
        stream.received += length + HEADERS
        declared = size if isinstance(size, int) and size >= 0 else most + 1
        if not isinstance(number, int) or declared > most or stream.received > 2 * most:  # a frame may have been sent again
            return Excess(max(declared, stream.received), most)
        stream.frames.add(number)
        if message.get_header(StreamHeaderKey.DATA_TYPE) == StreamDataType.FINAL:
            stream.last = number
        return Excess(stream.received, most) if self._is_crowded(stream, now) else None

    def _is_crowded(self, stream: _Stream, now: float) -> bool:
        """Whether a site has too many streams of a kind open."""

        def count() -> int:
            return sum(each.site == stream.site and each.is_result == stream.is_result for each in self.open.values())

        most = RESULTS if stream.is_result else OTHERS
        if count() <= most or stream.site == SERVER:
            return False
        for key in [key for key, each in self.open.items() if each is not stream and now - each.seen >= FORGOTTEN]:
            del self.open[key]
            self.stale.append(key)
        return count() > most


def _stop(key: tuple[str, int], error: StreamError) -> bool:
    """Have FLARE let go of what has come of a stream, and of the threads that wait for more; whether anything had come."""
    task = RxTask.rx_task_map.get(key)
    if task is None:
        return False
    task.stop(error)
    task.chunks.clear()
    task.out_seq_chunks.clear()
    return True
