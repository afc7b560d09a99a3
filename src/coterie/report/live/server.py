"""The live page's server: loopback only, a token in the address, read-only.

Whatever does not begin with the token is answered by an empty 403, whichever path or method it has. A request that names another host is,
too, so that a page of a stranger cannot reach it through a name that points here. The page's policy allows its own script and style and
requests to itself, and nothing else.
"""

import asyncio
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from hashlib import sha256
from threading import Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError
from coterie._util.json_io import to_json_value
from coterie.report.live.page import describe_time, render_page, render_sections

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
FRESH, LONGEST = 1.0, 10.0  # seconds for which a state is shown to every viewer, at least and at most
PATIENCE = 4.0  # times the seconds that reading took: a page must not keep a machine busy
LAST_LOOK = 3.0  # seconds in which viewers may fetch the last state before a run's page ends
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class SharedState:
    """The last state, read again when it is old, by one thread at a time, however many viewers there are."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read, self._lock = read, Lock()
        self._next, self._found = 0.0, (dict[str, Any](), dict[str, str](), "")

    def get(self) -> tuple[Mapping[str, Any], Mapping[str, str], str]:
        """The state as JSON, its sections as HTML, and a name of the sections."""
        with self._lock:
            if monotonic() >= self._next:
                began = monotonic()
                self._found = self._make()
                took = monotonic() - began
                self._next = monotonic() + min(max(FRESH, PATIENCE * took), LONGEST)
            return self._found

    def expire(self) -> None:
        """Read again at the next request."""
        self._next = 0.0

    def _make(self) -> tuple[dict[str, Any], dict[str, str], str]:
        try:
            state = dict(to_json_value(self._read()))
        except (UserError, OSError) as error:  # of a folder that was moved, say: the page shows it, and looks again
            state = {**self._found[0], "faults": [str(error)]} if self._found[0] else {}
            if not state:
                raise
        sections = render_sections(state)
        return state, sections, sha256(json.dumps(sections).encode()).hexdigest()[:16]


def make_app(shared: SharedState, token: str) -> "ASGIApp":
    """The application: the page, its sections and its state as JSON, all below the token."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route

    async def show_page(request: "Request") -> "Response":
        state, sections, version = await run_in_threadpool(shared.get)
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(render_page(state, sections, version, nonce), headers={**HEADERS, "Content-Security-Policy": policy})

    async def show_sections(request: "Request") -> "Response":
        state, sections, version = await run_in_threadpool(shared.get)
        same = request.query_params.get("after") == version
        return JSONResponse({"version": version, "time": describe_time(state), "sections": None if same else sections}, headers=HEADERS)

    async def show_state(request: "Request") -> "Response":
        state, _, _ = await run_in_threadpool(shared.get)
        return JSONResponse(state, headers=HEADERS)

    pages = {"": show_page, "sections": show_sections, "state.json": show_state}
    routes = [Route(f"/{token}/{name}", endpoint, methods=["GET"]) for name, endpoint in pages.items()]
    return _Guard(Starlette(routes=routes), token)


class _Guard:
    """Answers what does not have the token, or names another host, with an empty 403."""

    def __init__(self, app: "ASGIApp", token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        given = scope["path"].lstrip("/").partition("/")[0].encode("utf-8", "replace")
        host = next((value for name, value in scope.get("headers", ()) if name == b"host"), b"").rpartition(b":")[0]
        may = secrets.compare_digest(given, self.token) and host in (HOST.encode(), b"localhost")
        if scope["type"] != "http" or not may:
            headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send({"type": "http.response.start", "status": 403, "headers": [*headers, (b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)


class LiveServer:
    """A page at an address of this machine alone.

    Args:
        read: The state, as `summarize_federation` or `summarize_folder` give it; called again and again, by one thread at a time.
        port: The port; 0 takes one that is free.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], port: int = 0) -> None:
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError:
            raise UserError("--web needs starlette and uvicorn, which are not installed: pip install 'coterie[deploy]'.") from None
        self.shared = SharedState(read)
        self.shared.get()  # what cannot be shown is refused before a page is promised
        self.token = secrets.token_urlsafe(24)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
        except OSError as error:
            self._socket.close()
            raise UserError(f"The page cannot listen on {HOST}:{port} ({error.strerror or error}): choose another --port.") from error
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "date_header": False}
        config = uvicorn.Config(make_app(self.shared, self.token), ws="none", lifespan="off", timeout_graceful_shutdown=1, **quiet)
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._thread: Thread | None = None

    @property
    def url(self) -> str:
        """Where the page is, the token included."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}/{self.token}/"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> "LiveServer":
        """Serve in a thread, beside what runs here."""
        self._thread = Thread(target=asyncio.run, args=(self._server.serve(sockets=[self._socket]),), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, after viewers have had a moment to fetch the last state."""
        self.shared.expire()
        if self._server.server_state.total_requests and error[0] is None:
            sleep(LAST_LOOK)
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
