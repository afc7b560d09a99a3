"""A FLARE process reduced to what Coterie needs, before FLARE's own code runs in it.

FLARE is a platform on which operators run code at sites, look into their folders and connect their processes. Coterie uses it as
transport. Every process of a federation starts with `protect`, which leaves the messages and commands listed here and the job of `jobs`.
Everything else is refused before any of it is decoded.
"""

import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvflare
from nvflare.fuel.f3.cellnet import core_cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.conn_manager import NullConnection
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import CellMessageHeaderKeys, RequestHeader, TrainingTopic, new_cell_message

from coterie._util.errors import UserError
from coterie.deploy.certificates import RevokedSites
from coterie.deploy.flare.jobs import ADMIN
from coterie.deploy.flare.transport import (
    SCHEME,
    PrivateSocketDriver,
    forget_closed_connections,
    keep_no_statistics,
    survive_bad_messages,
)
from coterie.deploy.server.federation import SERVER_FOLDER

log = logging.getLogger(__name__)
NUMBER = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OPERATOR = re.compile(f"_admin_{NUMBER}")
CELL = re.compile(rf"([A-Za-z0-9_-]{{1,60}})(?:\.({NUMBER}))?")
LONGEST_NOTE = 100  # characters of a field from the wire in a log
SERVER, SERVER_JOB, SITE, SITE_JOB, ADMIN_ROLE = "server", "server job", "site", "site job", "operator"
_BYE = "cellnet.channel/bye"

_WORK = (
    *("server_command:get_task", "server_command:submit_update"),
    *("aux_communication:__sync_runner__", "aux_communication:__task_check__", "aux_communication:__job_heartbeat__"),
)

_SERVER_ORDERS = ("server_command:abort", "server_command:handle_dead_job")

# By receiver and sender, the requests that a federation needs, as channel/topic. What is streamed is named by what is in the stream.
REQUESTS: dict[tuple[str, str], frozenset[str]] = {
    (SERVER, SITE): frozenset(
        {_BYE, *(f"task/{topic}" for topic in ("challenge", "register", "heart_beat", "quit", "report_job_failure"))}
    ),
    (SERVER, SITE_JOB): frozenset({_BYE}),
    (SERVER, ADMIN_ROLE): frozenset(
        {_BYE, "task/challenge", "task/register", "hci_channel/command"}
        | {"aux_communication/ObjectStreamer.Request", "aux_communication/ObjectStreamer.Abort"}
    ),
    (SERVER, SERVER_JOB): frozenset(
        {_BYE, *(f"server_parent_listener/{topic}" for topic in ("get_clients", "heartbeat", "update_run_status"))}
        | {f"return_only/{order}" for order in _SERVER_ORDERS}
    ),
    (SERVER_JOB, SERVER): frozenset({_BYE, *(order.replace(":", "/") for order in _SERVER_ORDERS)}),
    (SERVER_JOB, SITE_JOB): frozenset({*(what.replace(":", "/") for what in _WORK), "return_only/aux_communication:__end_run__"}),
    (SITE, SERVER): frozenset({_BYE, "admin/admin"}),
    (SITE, SITE_JOB): frozenset({_BYE, f"admin/{TrainingTopic.NOTIFY_JOB_STATUS}"}),
    (SITE_JOB, SITE): frozenset({_BYE, "client_command/abort"}),
    (SITE_JOB, SERVER): frozenset({_BYE}),
    (SITE_JOB, SERVER_JOB): frozenset({"aux_communication/__end_run__", *(f"return_only/{what}" for what in _WORK)}),
}

# What a site does for the server and for its own job; the name is in the message, not in its header.
SITE_ORDERS = {
    SERVER: frozenset(
        {TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.DEPLOY, TrainingTopic.START_JOB, TrainingTopic.ABORT}
    ),
    SITE_JOB: frozenset({TrainingTopic.NOTIFY_JOB_STATUS}),
}

STREAMS = {(SERVER, ADMIN_ROLE), (SERVER, SERVER_JOB), (SERVER_JOB, SERVER), (SERVER_JOB, SITE_JOB), (SITE_JOB, SERVER_JOB)}
WHEN_REVOKED = frozenset({"task/challenge", "task/register"})  # FLARE answers both with a refusal that the site can show


@dataclass(frozen=True)
class Party:
    """The process that a cell belongs to."""

    role: str
    site: str = ""
    job: str = ""

    @classmethod
    def of(cls, name: object) -> "Party | None":
        """The party of a cell's name; None for a name that no cell of a federation has."""
        if not isinstance(name, str):
            return None
        if OPERATOR.fullmatch(name):
            return cls(ADMIN_ROLE)
        found = CELL.fullmatch(name)
        if found is None or found[1].startswith("_"):
            return None
        if found[1] == SERVER:
            return cls(SERVER_JOB, job=found[2]) if found[2] else cls(SERVER)
        return cls(SITE_JOB, found[1], found[2]) if found[2] else cls(SITE, found[1])

    @property
    def is_job(self) -> bool:
        return self.role in (SERVER_JOB, SITE_JOB)


@dataclass(frozen=True)
class MessageInfo:
    """What of a message decides whether it is accepted."""

    link: str  # "network", "private" or "self"
    peer: object  # the cell at the other end of the connection
    common_name: object  # of its certificate, at the server
    headers: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.headers.get(_FIELDS[name])

    @property
    def subject(self) -> str:
        """Channel and topic, of what is in a stream those of the stream."""
        channel, topic = self.channel, self.topic
        if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
            channel, topic = self.headers.get(StreamHeaderKey.CHANNEL), self.headers.get(StreamHeaderKey.TOPIC)
        return f"{channel}/{topic}"


_FIELDS = {
    "origin": MessageHeaderKey.ORIGIN,
    "destination": MessageHeaderKey.DESTINATION,
    "kind": MessageHeaderKey.MSG_TYPE,
    "channel": MessageHeaderKey.CHANNEL,
    "topic": MessageHeaderKey.TOPIC,
    "number": MessageHeaderKey.REQ_ID,
    "client_name": CellMessageHeaderKeys.CLIENT_NAME,
}


class Guard:
    """The rules as one process of a federation applies them."""

    def __init__(self, name: str, operator: str, removed: Callable[[], frozenset[str]] = frozenset) -> None:
        """`name` is the process's own cell, `operator` the common name of the operator's certificate; `removed` names sites."""
        own = Party.of(name)
        if own is None or own.role == ADMIN_ROLE:
            raise ValueError(f"{name!r} is no cell of a federation")
        self.name, self.own, self.operator, self.removed = name, own, operator, removed

    def refusal(self, info: MessageInfo, waits: Callable[[object], bool]) -> str | None:
        """Why a message is refused; None where it is accepted. `waits` is whether a reply to a number is waited for."""
        if info.link == "self":
            return None
        peer, origin, destination = (Party.of(name) for name in (info.peer, info.origin, info.destination))
        if peer is None or origin is None or destination is None:
            return "a name that no process of a federation has"
        if any(info.headers.get(key) for key in (MessageHeaderKey.CONN_URL, MessageHeaderKey.SECURE, MessageHeaderKey.ENCRYPTED)):
            return "a connection beside the server, or an encryption, that no run uses"
        if not self._proved(info, peer):
            return "not the process that its connection proves"
        if not self._speaks_for(peer, origin, info):
            return "an origin that is not its own"
        if self.own.role == SERVER and peer.site and info.subject not in WHEN_REVOKED and peer.site in self.removed():
            return "a removed site"
        if info.destination != self.name and not self._passes_on(origin, destination):
            return "not for this process"
        if info.kind != MessageType.REQ:
            return None if info.destination == self.name and waits(info.number) else "a reply that is not expected"
        return None if self._is_needed(info, origin, destination) else "no message that a run needs"

    def _proved(self, info: MessageInfo, peer: Party) -> bool:
        """Whether the other end of the connection may be there."""
        if info.link == "private":  # a process and its jobs
            return {peer.role, self.own.role} in ({SERVER, SERVER_JOB}, {SITE, SITE_JOB}) and peer.site == self.own.site
        if self.own.role != SERVER:
            return info.peer == SERVER  # whose certificate the connection has checked
        if peer.role == ADMIN_ROLE:
            return info.common_name == self.operator
        return peer.role in (SITE, SITE_JOB) and info.common_name == peer.site and info.client_name in (None, peer.site)

    def _speaks_for(self, peer: Party, origin: Party, info: MessageInfo) -> bool:
        """Whether what comes from the peer may have been sent by the origin."""
        if info.origin == info.peer:
            return True
        if self.own.role == SERVER:
            return peer.role == SITE and origin.role == SITE_JOB and origin.site == peer.site
        if self.own.role == SITE:
            return peer.role == SERVER and origin.role == SERVER_JOB
        # A job hears of the other jobs of its run by its parent or by the server.
        return (
            not peer.is_job
            and origin.is_job
            and origin.job == self.own.job
            and (origin.role == SERVER_JOB) != (self.own.role == SERVER_JOB)
        )

    def _passes_on(self, origin: Party, destination: Party) -> bool:
        """Between the server's and a site's part of one job, and nothing else."""
        roles = {origin.role, destination.role} == {SERVER_JOB, SITE_JOB} and origin.job == destination.job
        return roles and not self.own.is_job and (self.own.role == SERVER or self.own.site in (origin.site, destination.site))

    def _is_needed(self, info: MessageInfo, origin: Party, destination: Party) -> bool:
        ends = (destination.role, origin.role)
        if (info.channel, info.topic) == (STREAM_CHANNEL, STREAM_ACK_TOPIC):
            # The server's job ends a stream that is too large; no other process ends another's.
            ended = info.headers.get(StreamHeaderKey.DATA_TYPE) == StreamDataType.ERROR
            return ends in STREAMS and (not ended or ends == (SITE_JOB, SERVER_JOB))
        if info.channel == STREAM_CHANNEL and (info.topic != STREAM_DATA_TOPIC or ends not in STREAMS):
            return False
        return info.subject in REQUESTS.get(ends, frozenset())

    def order_refusal(self, order: object, origin: object) -> str | None:
        """Why a site does not do what the server or its own job asks of it."""
        sender = Party.of(origin)
        if not isinstance(order, AdminMessage) or sender is None or order.topic not in SITE_ORDERS.get(sender.role, frozenset()):
            return "no order that a run needs"
        job, meta = order.get_header(RequestHeader.JOB_ID), order.get_header(RequestHeader.JOB_META)
        if not isinstance(job, str) or not re.fullmatch(NUMBER, job):
            return "a job without a number"
        if isinstance(meta, dict) and meta.get("job_id", job) != job:
            return "the description of another job"
        return None


class RefusalLog:
    """What was refused, in FLARE's log and audit log: each kind at its 1st, 2nd, 4th, 8th, ... time, so that no sender can fill a disk."""

    MOST = 10_000  # kinds

    def __init__(self) -> None:
        self.counts, self.lock = Counter[tuple[str, ...]](), threading.Lock()

    def note(self, reason: str, **fields: object) -> None:
        """Write a refusal down."""
        details = {name: str(value)[:LONGEST_NOTE] for name, value in fields.items()}
        kind = (reason, *details.values())
        with self.lock:
            if kind not in self.counts and len(self.counts) >= self.MOST:
                return
            self.counts[kind] += 1
            count = self.counts[kind]
        if count & (count - 1) == 0:
            text = f"{reason}: " + ", ".join(f"{name} {value!r}" for name, value in details.items()) + f" ({count})"
            log.warning("refused %s", text)
            AuditService.add_event(user=details.get("peer", ""), action="coterie.refused", msg=text)


def install_guard(operator: str, removed: Callable[[], frozenset[str]]) -> None:
    """Put the guard before every cell that this process will make."""
    cell, refusals = core_cell.CoreCell, RefusalLog()
    made, received = cell.__init__, cell.process_message

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.coterie_guard = Guard(self.get_fqcn(), operator, removed)
        self.add_incoming_request_filter(CellChannel.CLIENT_MAIN, "*", lambda message: _check_order(self, message, refusals))

    def process_message(self: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        name = (connection.get_conn_properties() or {}).get(DriverParams.PEER_CN.value)
        info = MessageInfo(_get_link(connection), endpoint.name, name, message.headers or {})
        reason = self.coterie_guard.refusal(info, lambda number: _is_expected(self, number))
        if reason is None:
            received(self, endpoint, connection, app_id, message)
            return
        fields = {"peer": info.peer, "origin": info.origin, "destination": info.destination, "about": info.subject}
        refusals.note(reason, **fields)
        if reason == "a removed site":
            connection.close()

    cell.__init__, cell.process_message = make, process_message


def _check_order(cell: Any, message: Any, refusals: RefusalLog) -> Any:
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    reason = cell.coterie_guard.order_refusal(message.payload, origin)
    if reason is None:
        return None
    refusals.note(reason, peer=origin, about=getattr(message.payload, "topic", ""))
    return new_cell_message(make_reply("ok").headers, error_reply("refused"))


def _get_link(connection: Any) -> str:
    if isinstance(connection, NullConnection):
        return "self"
    return "private" if connection.connector.params.get(DriverParams.SCHEME.value) == SCHEME else "network"


def _is_expected(cell: Any, numbers: object) -> bool:
    """Whether a reply to one of these requests is waited for."""
    names = numbers if isinstance(numbers, list) else [numbers]
    return any(isinstance(name, str) and name in cell.waiters for name in names)


VERSION = "2.9."  # of FLARE: the one whose messages `protection` lists, and that was attacked

COMMANDS = {
    *("_cert_login", "_logout", "_commands", "_check_session"),
    *("submit_job", "list_jobs", "abort_job", "enable_client", "disable_client"),
}  # that an operator may give to the server: what the operator's session uses


def check_flare_version() -> None:
    """Refuse another FLARE than the one that this protection was written for."""
    if not nvflare.__version__.startswith(VERSION):
        raise UserError(
            f"NVIDIA FLARE {nvflare.__version__} is installed, and Coterie's protection was written for {VERSION}*: "
            f"run pip install 'nvflare=={VERSION}*'."
        )


def protect() -> None:
    """Reduce FLARE in this process. Whatever cannot be reduced is an error: nothing starts unprotected."""
    check_flare_version()
    _use_private_sockets()
    folder = os.environ.get(SERVER_FOLDER)
    install_guard(ADMIN, RevokedSites(Path(folder).parent) if folder else frozenset)
    survive_bad_messages()
    forget_closed_connections()
    keep_no_statistics()
    _limit_site_orders()
    _limit_operator()


def _use_private_sockets() -> None:
    """Between a process and its jobs, in place of a TCP port of the machine. No file of a kit or a job changes connections."""
    from nvflare.fuel.f3 import communicator
    from nvflare.fuel.f3.comm_config import CommConfigurator

    CommConfigurator._configuration = {"internal": {"scheme": SCHEME, "resources": {}}, "allow_adhoc_conns": False}
    CommConfigurator._config_loaded = True
    communicator.load_comm_drivers()
    communicator.driver_loaded = True
    communicator.driver_mgr.register(PrivateSocketDriver)


def _limit_site_orders() -> None:
    """What a site does for the server: neither shell nor deletion nor restart is there any more."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    known = frozenset().union(*SITE_ORDERS.values())
    kept = [processor for processor in ClientRequestProcessors.request_processors if set(processor.get_topics()) <= known]
    ClientRequestProcessors.request_processors[:] = kept


def _limit_operator() -> None:
    """What an operator's session may ask of the server. `local/authorization.json` does not reach all commands of FLARE."""
    from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
    from nvflare.fuel.hci.server.constants import ConnProps
    from nvflare.fuel.sec.audit import AuditService
    from nvflare.private.fed.server import admin

    if not hasattr(admin, "AuthzFilter"):
        raise RuntimeError(f"{admin.__name__} has no AuthzFilter: this FLARE is not the one that Coterie's protection was written for")

    class ListedCommands(admin.AuthzFilter):
        """Refuses, and writes down, all commands but the listed."""

        def pre_command(self, conn: Any, args: list[str]) -> bool:
            entry = conn.get_prop(ConnProps.CMD_ENTRY, None)
            if entry is not None and entry.name in COMMANDS:
                return bool(super().pre_command(conn, args))
            details = str(conn.command)[:LONGEST_NOTE]
            AuditService.add_event(user=conn.get_prop(ConnProps.USER_NAME, "?"), action="coterie.refused", msg=details)
            conn.append_error("Coterie does not use this command", meta=make_meta(MetaStatusValue.NOT_AUTHORIZED, "not used"))
            return False

    admin.AuthzFilter = ListedCommands
