"""Who is connected to a federation's server, as the server itself writes it down: readable by jobs and commands without asking FLARE."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time

import psutil

from coterie.core.errors import UserError
from coterie.core.plain import write_json

CONNECTED = "connected.json"
REFRESH = 2.0  # seconds after which it is written again, changed or not
STALE = 15.0  # seconds without a word after which a server counts as stopped


@dataclass(frozen=True)
class Presence:
    """What the server last wrote."""

    written: float  # seconds since 1970; 0 where no server ever wrote
    sites: Mapping[str, float]  # by connected site, when it was last heard of
    process: int = 0  # the server's
    marks: Mapping[str, str] = field(default_factory=dict)  # by connected site, what tells its registration from the next one

    @property
    def alive(self) -> bool:
        """Whether a server runs now."""
        return time() - self.written < STALE and (self.process == 0 or _runs(self.process))


def write_presence(server: Path, sites: Mapping[str, float], marks: Mapping[str, str]) -> None:
    """By the server's process."""
    write_json(server / CONNECTED, {"time": time(), "sites": sites, "process": os.getpid(), "marks": marks})


def read_presence(server: Path) -> Presence:
    """By anybody on the server's machine."""
    try:
        tree = json.loads((server / CONNECTED).read_text(encoding="utf-8"))
        return Presence(float(tree["time"]), dict(tree["sites"]), int(tree["process"]), dict(tree["marks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Presence(0.0, {})


def require_server(folder: Path, server: Path) -> None:
    """Refuse to order something that nobody would begin."""
    if not read_presence(server).alive:
        raise UserError(f"No server runs for {folder}: start it on this machine with 'coterie serve {folder}'.")


def connected_sites(server: Path) -> set[str]:
    """The sites that the server sees now."""
    return set(read_presence(server).sites)


def registrations(server: Path) -> dict[str, str]:
    """The same, each with the mark of its registration: a site that was started anew has another one."""
    return dict(read_presence(server).marks)


def _runs(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)  # in a container nobody may clear them away
    except psutil.NoSuchProcess:
        return False
