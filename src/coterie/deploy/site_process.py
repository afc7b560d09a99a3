"""The process in which a site answers: it holds the data, and knows nothing of the network but bytes."""

import os
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from coterie.core.disk import write_whole
from coterie.core.errors import UserError
from coterie.core.plain import json_text, read_json
from coterie.deploy.answering import AnswerAll, answer_parcel, site_card
from coterie.deploy.denied import Denied
from coterie.deploy.files import kit_files
from coterie.deploy.held import site_data, site_name
from coterie.deploy.messages import LIMIT, PROTOCOL, Delivery, Hello, MessageError, Parcel, Received, from_message, is_kind, to_message
from coterie.deploy.policy import read_policy
from coterie.deploy.received import write_delivery
from coterie.deploy.site import SiteWorker, open_site
from coterie.engines.make import make_engine
from coterie.engines.world import World

SITE = "site.json"


@dataclass(frozen=True)
class SiteSettings:
    """What `coterie join` was told: the data of the site, which are only ever described here."""

    data: str
    clients: tuple[str, ...] | None = None
    data_seed: int = 0
    data_dir: str | None = None
    engine: str = "auto"
    threads: int | None = None
    where: str | None = None  # the folder in which it was told: file names and modules are looked for there

    def write(self, kit: Path) -> None:
        """Keep it in the kit."""
        write_whole(kit / SITE, json_text(vars(self)), 0o600)

    @classmethod
    def read(cls, kit: Path) -> "SiteSettings":
        tree = read_json(kit / SITE)
        return cls(**{**tree, "clients": tuple(tree["clients"]) if tree["clients"] is not None else None})


class Site:
    """A site's data, its policy, and the worker of the run that goes on."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.settings = kit, SiteSettings.read(kit)
        folder = Path(self.settings.data_dir) if self.settings.data_dir else None
        self.federation = site_data(
            self.settings.data, self.settings.clients, data_seed=self.settings.data_seed, data_dir=folder, site=site_name(kit)
        )
        self.policy = read_policy(kit_files(kit).policy)
        self.worker: SiteWorker | None = None
        self.world: World | None = None

    def answer(self, data: bytes) -> bytes:
        """The answer to a message of any kind."""
        for kind, reply in ((Parcel, self._parcel), (Hello, self._hello), (Delivery, self._delivery)):
            if is_kind(data, kind):
                return reply(data)
        raise MessageError("a message that no site answers")

    def _hello(self, data: bytes) -> bytes:
        hello = from_message(data, Hello, LIMIT)
        denied = self.policy.model_permitted(hello.model)  # before the model is built: building it runs its code
        if denied is not None:
            raise MessageError(denied.reason)
        self.world = World.of(self.federation, self.policy.local_model(hello.model))  # with the site's own files, if it names any
        engine = make_engine(self.world, self.settings.engine, "cpu", self.settings.threads)
        self.worker = open_site(self.kit, self.world, engine, run=hello.run)
        return to_message(self.worker.disclosed_card(site_card(hello, self.world)))

    def _parcel(self, data: bytes) -> bytes:
        if self.worker is None or self.world is None:
            raise MessageError("asks before the server has introduced itself")
        answer: AnswerAll = self.worker.answer
        return answer_parcel(data, self.world, answer, LIMIT)

    def _delivery(self, data: bytes) -> bytes:
        delivery = from_message(data, Delivery, LIMIT)
        if self.world is None:
            raise MessageError("a delivery before the server has introduced itself")
        folder = write_delivery(delivery, self.world, self.kit / "bundles")
        return to_message(Received(PROTOCOL, delivery.run, delivery.number, folder.name))


def work(line: Connection, kit: Path) -> None:
    """Answer until the line is closed. What goes wrong is written into the kit's log, and the server hears that something did."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    site: Site | None = None
    _go_where_told(kit)
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):  # an OSError where the other end was killed in the middle of a message
            return
        try:
            site = site or Site(kit)
            said = site.answer(data)
        except MessageError as error:  # about what was sent, never about data: the server may know it
            _complain(kit, error)
            said = to_message(Denied(str(error), "failure"))
        except Exception as error:  # whatever a user's data or module may raise
            _complain(kit, error)
            said = b""
        line.send_bytes(said)


def _go_where_told(kit: Path) -> None:
    """FLARE works in a folder of its own; what the user wrote is meant from where it was written."""
    where = SiteSettings.read(kit).where
    if where is not None and Path(where).is_dir():
        os.chdir(where)


def _leave_with_parent() -> None:
    """A job process that is killed cannot end this one, which would train on for nobody beside its successor."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _complain(kit: Path, error: Any) -> None:
    with (kit / "site.log").open("a", encoding="utf-8") as log:
        log.write(f"{error if isinstance(error, (UserError, MessageError)) else f'{type(error).__name__}: {error}'}\n")
        log.flush()
        os.fsync(log.fileno())
