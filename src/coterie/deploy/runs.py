"""Runs of a federation as their folders tell of them: what was ordered, how it stands. `coterie serve` alone begins jobs from them."""

import getpass
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError, suggestion
from coterie.core.json_object import read_object
from coterie.core.plain import write_json
from coterie.deploy.federation import FederationFolder
from coterie.deploy.journal import STATUS
from coterie.deploy.names import LONGEST_NAME, escape_text, is_name
from coterie.deploy.server_run import APPROVALS, Order

ORDER, STOP = "order.json", "stop"
WAITING, SUBMITTED, RUNNING_NOW, AGAIN = "waiting", "submitted", "running", "again"
ENDS = ("complete", "refused", "failed", "aborted")  # what else a run may come to


@dataclass(frozen=True)
class RunFolder:
    """One run: its order, its status, its journal, and the evidence in `study`."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def study(self) -> Path:
        return self.folder / "study"

    @property
    def told(self) -> Mapping[str, Any]:
        """How it stands: the status, and a reason where there is one."""
        return read_object(self.folder / STATUS, status=str)

    @property
    def status(self) -> str:
        return str(self.told["status"])

    def say_status(self, status: str, **told: Any) -> None:
        """Set how it stands."""
        write_json(self.folder / STATUS, {"status": status, **told})

    def place(self, order: Order, timeout: float) -> None:
        """Order it: from now on it waits for the server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / ORDER, {"order": asdict(order), "timeout": timeout})
        self.say_status(WAITING)

    def order(self) -> tuple[Order, float]:
        """What was ordered, and how many seconds sites have for an answer."""
        tree = read_object(self.folder / ORDER, order=dict)
        return Order.read(tree["order"]), float(tree["timeout"])

    @property
    def stop_wanted(self) -> bool:
        return (self.folder / STOP).exists()

    @property
    def pending_sites(self) -> tuple[str, ...]:
        """The sites that had not approved the order when they were last asked."""
        path = self.folder / APPROVALS
        return tuple(read_object(path, pending=list)["pending"]) if path.exists() else ()

    def want_stop(self) -> None:
        """Ask the server to abort it."""
        (self.folder / STOP).touch()

    def stop_done(self) -> None:
        (self.folder / STOP).unlink(missing_ok=True)


def runs_of(federation: FederationFolder) -> list[RunFolder]:
    """All runs, the oldest order first."""
    orders = sorted(federation.runs.glob(f"*/{ORDER}"), key=lambda path: (path.stat().st_mtime, path.parent.name))
    return [RunFolder(path.parent) for path in orders if (path.parent / STATUS).exists()]


def known_run(federation: FederationFolder, name: str) -> RunFolder:
    """The run of a name that somebody gave."""
    names = {run.name: run for run in runs_of(federation)}
    if name not in names:
        raise UserError(f"The federation {federation.folder} has no run {name!r}: {suggestion(name, names)}")
    return names[name]


def new_run(federation: FederationFolder, name: str) -> RunFolder:
    """A run that is not there yet."""
    if not is_name(name):
        raise UserError(f"A run cannot be called {escape_text(name, 100)!r}: use letters, digits, - . = and _, at most {LONGEST_NAME}.")
    folder = federation.runs / name
    if folder.exists():
        raise UserError(f"The federation has a run {name!r} already: choose another --name, or go on with it by --resume.")
    return RunFolder(folder)


def operator_name() -> str:
    """Who orders, as sites are told: the user and the machine."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


def free_name(federation: FederationFolder, stem: str) -> str:
    """A name that no run has: the stem, or the stem with a number."""
    number = 1
    while (federation.runs / (name := stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return name
