"""The site's part of a FLARE job: hands messages to a process of its own, so that what happens to training does not happen to the job."""

import os
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from coterie._util.errors import UserError
from coterie.deploy.flare.jobs import BODY, KIT
from coterie.deploy.flare.transport import ASKS, IncomingStreams
from coterie.deploy.messages import LIMIT, Hello, OversizedMessage, is_kind

TRIES = 2
MEGABYTE = 1_000_000
MOST_ASKS = 64  # of the largest size that the policy takes, in one message
LOOK = 0.2  # seconds between looks at the abort signal


class CoterieExecutor(Executor):
    """Runs in the site's job process. The child is spawned, never forked: it would inherit the threads of gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = Path(os.environ[KIT])
        self.child: Any = None
        self.line: Connection | None = None
        self.hello: bytes | None = None  # the server's introduction, for a child that takes another's place

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            most = _read_limit(self.kit)
            IncomingStreams(fl_ctx.get_engine().get_cell(), lambda sender: most, self._log_oversized, ASKS)
        elif event_type == EventType.END_RUN:
            self._end()

    def _log_oversized(self, sender: str, excess: OversizedMessage) -> None:
        """In a thread of FLARE: asks were dropped while they came in, and the server gets no answer."""
        sentence = f"Asks of {excess.size:,} bytes were dropped: at most {excess.limit:,} are read ('message_megabytes' in policy.toml).\n"
        with (self.kit / "site.log").open("a", encoding="utf-8") as log:
            log.write(sentence)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        data = shareable.get(BODY)
        if not isinstance(data, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        response = self._answer(data, abort_signal)
        if response is None:
            return make_reply(ReturnCode.TASK_ABORTED if abort_signal.triggered else ReturnCode.EXECUTION_EXCEPTION)
        reply = Shareable()
        reply[BODY] = response
        return reply

    def _answer(self, data: bytes, abort: Signal) -> bytes | None:
        """The child's answer. One that died is replaced and asked again, once: what kills two will kill a third."""
        for _ in range(TRIES):
            if abort.triggered:
                return None
            if not self._there() and self.hello is not None and not is_kind(data, Hello) and self._ask(self.hello, abort) is None:
                continue
            response = self._ask(data, abort)
            if response is not None:
                self.hello = data if is_kind(data, Hello) else self.hello
                return response
        return None

    def _there(self) -> bool:
        return self.line is not None and self.child.is_alive()

    def _ask(self, data: bytes, abort: Signal) -> bytes | None:
        """The child's answer to one message; None where it died."""
        line = self._line()
        try:
            line.send_bytes(data)
            while not line.poll(LOOK):
                if abort.triggered:
                    self._end()
                    return None
                if not self.child.is_alive():
                    raise EOFError
            return line.recv_bytes()
        except (EOFError, OSError):
            self._end()
            return None

    def _line(self) -> Connection:
        if self.line is None or not self._there():
            self._end()
            context = get_context("spawn")
            self.line, theirs = context.Pipe()
            self.child = context.Process(target=_run_child, args=(theirs, self.kit), daemon=True)
            self.child.start()
            theirs.close()
        return self.line

    def _end(self) -> None:
        if self.child is not None:
            self.child.terminate()
            self.child.join(5)
            if self.child.is_alive():
                self.child.kill()
        if self.line is not None:
            self.line.close()
        self.child, self.line = None, None


def _read_limit(kit: Path) -> int:
    """How many bytes the asks of one phase may have together."""
    from coterie.deploy.site.policy import read_policy

    try:
        return min(LIMIT, int(read_policy(kit / "policy.toml").message_megabytes * MEGABYTE) * MOST_ASKS)
    except UserError:  # the child refuses to answer with this policy, and reports why
        return LIMIT


def _run_child(line: Connection, kit: Path) -> None:
    """In the child. What trains is imported there alone: the job process, which only hands bytes on, stays small and starts soon."""
    from coterie.deploy.site.process import serve_connection

    serve_connection(line, kit)
