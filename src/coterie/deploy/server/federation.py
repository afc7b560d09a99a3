"""A federation's folder on the server: its address, its sites, the operator's roster, and which sites are connected."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import time

from coterie._util.errors import UserError
from coterie._util.files import write_atomic
from coterie._util.json_io import format_json, read_json_object, write_json
from coterie.deploy.files import escape_text, is_name

FEDERATION_FILE = "federation.json"
SERVER_FOLDER = "COTERIE_SERVER"  # the folder of the server's kit, in the environment of its processes
PROJECT = "coterie"  # FLARE's name of a federation
ROSTER_FILE = "roster.json"  # what the operator lets each site claim
AGREED_FILE = "schema.toml"  # the operator's: what the tables of all sites should hold
PREPARED_FILE = "prepared.json"  # the same, with what the sites of the last study were prepared by
SCHEMA_FILE = "schema.json"  # the columns that the sites of the last run agreed on


@dataclass(frozen=True)
class Claim:
    """What a site may claim to have, at most; None: as much as it first claims."""

    clients: int | None = None
    samples: int | None = None  # for training, of all its clients together
    ids: tuple[str, ...] | None = None  # its clients, where the operator lists them

    def __post_init__(self) -> None:
        for what, most in (("clients", self.clients), ("samples", self.samples)):
            if most is not None and (type(most) is not int or most < 1):
                raise UserError(f"A site may have at least one of {what}, not {most!r}.")
        if self.ids is not None and (not self.ids or not all(isinstance(name, str) and name for name in self.ids)):
            raise UserError("List a site's clients by their ids: a,b,c.")

    def __str__(self) -> str:
        most = [
            f"at most {count:,} {what}"
            for what, count in (("clients", self.clients), ("training samples", self.samples))
            if count is not None
        ]
        return ", ".join([*most, *([f"the clients {', '.join(self.ids)}"] if self.ids is not None else [])])


@dataclass(frozen=True)
class FederationFolder:
    """Where the server listens, which sites there are, and where files lie."""

    folder: Path
    host: str
    port: int
    sites: tuple[str, ...]
    removed: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path) -> "FederationFolder":
        if not (folder / FEDERATION_FILE).is_file():
            raise UserError(
                f"{folder} holds no federation: make one with 'coterie federation init {folder} --server HOST:PORT --sites a,b'."
            )
        tree = read_json_object(folder / FEDERATION_FILE, host=str, port=int, sites=list, removed=list)
        for name in (*tree["sites"], *tree["removed"]):
            check_site_name(name if isinstance(name, str) else "")  # a name is a folder's, too
        return cls(folder, tree["host"], tree["port"], tuple(tree["sites"]), tuple(tree["removed"]))

    def write(self) -> None:
        """Keep it."""
        tree = asdict(self)
        tree.pop("folder")
        write_atomic(self.folder / FEDERATION_FILE, format_json(tree), 0o600)

    @property
    def server(self) -> Path:
        """The server's kit."""
        return self.folder / "server"

    @property
    def admin(self) -> Path:
        """The operator's kit: it may submit studies."""
        return self.folder / "admin"

    @property
    def authority(self) -> Path:
        """The authority's folder: it holds its key and certificate, and no other."""
        return self.folder / "authority"

    @property
    def authority_file(self) -> Path:
        """Where FLARE's provisioning looks for the authority."""
        return self.authority / PROJECT / "state" / "cert.json"

    @property
    def runs(self) -> Path:
        """Where studies are written."""
        return self.folder / "runs"

    def kit(self, site: str) -> Path:
        """A site's kit, to be handed to it."""
        return self.folder / "kits" / site


def read_roster(folder: Path) -> dict[str, Claim]:
    """The operator's roster of a federation: by site, what it may claim. Empty where there is none."""
    path = folder / ROSTER_FILE
    if not path.exists():
        return {}
    found = {}
    for site, own in read_json_object(path).items():
        try:
            ids = own.get("ids")
            found[site] = Claim(own.get("clients"), own.get("samples"), None if ids is None else tuple(ids))
        except (AttributeError, TypeError, UserError) as error:
            details = f"{path} has nothing that can be used for the site {site!r}"
            raise UserError(f"{details}: set it again with 'coterie federation roster'.") from error
    return found


def write_roster(folder: Path, roster: Mapping[str, Claim]) -> None:
    """Keep the operator's roster: the next job of every run goes by it."""
    write_atomic(folder / ROSTER_FILE, format_json({site: asdict(claim) for site, claim in roster.items()}), 0o600)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a user writes it."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UserError(f"Cannot read the server {text!r}: write it as HOST:PORT, such as 127.0.0.1:8102.")
    return host, int(port)


def check_site_name(name: str) -> None:
    """A name that can be a certificate's, a folder's and FLARE's."""
    if not is_name(name, 60) or set(name) & set(".=") or name in ("server", "operator", "admin"):
        raise UserError(f"A site cannot be called {escape_text(name, 100)!r}: use letters, digits, - and _.")


CONNECTED_FILE = "connected.json"
REFRESH = 2.0  # seconds after which it is written again, changed or not
STALE = 15.0  # seconds without an update after which a server counts as stopped


@dataclass(frozen=True)
class Presence:
    """What the server last wrote."""

    written: float  # seconds since 1970; 0 where no server ever wrote
    sites: Mapping[str, float]  # by connected site, when it was last heard of
    process: int = 0  # the server's
    marks: Mapping[str, str] = field(default_factory=dict)  # by connected site, the mark of its registration: a restarted one has another
    since: Mapping[str, float] = field(default_factory=dict)  # by site that was ever connected, since when it is there, or gone

    @property
    def alive(self) -> bool:
        """Whether a server runs now."""
        return time() - self.written < STALE and (self.process == 0 or _is_running(self.process))


def write_presence(server: Path, sites: Mapping[str, float], marks: Mapping[str, str], since: Mapping[str, float] | None = None) -> None:
    """By the server's process."""
    tree = {"time": time(), "sites": sites, "process": os.getpid(), "marks": marks, "since": since or {}}
    write_json(server / CONNECTED_FILE, tree)


def note_changes(since: Mapping[str, float], before: Mapping[str, str], marks: Mapping[str, str], now: float) -> dict[str, float]:
    """By site, since when it is connected or gone: now where the mark of its registration is another than before."""
    changed = {site for site in {*before, *marks} if before.get(site) != marks.get(site)}
    return {**since, **dict.fromkeys(changed, now)}


def read_presence(server: Path) -> Presence:
    """Read what `write_presence` wrote; on the server's machine."""
    try:
        tree = json.loads((server / CONNECTED_FILE).read_text(encoding="utf-8"))
        since = {str(site): float(when) for site, when in tree.get("since", {}).items()}
        return Presence(float(tree["time"]), dict(tree["sites"]), int(tree["process"]), dict(tree["marks"]), since)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Presence(0.0, {})


def require_server(folder: Path, server: Path) -> None:
    """Refuse to order something that no server would start."""
    if not read_presence(server).alive:
        raise UserError(f"No server runs for {folder}: start it on this machine with 'coterie serve {folder}'.")


def list_connected_sites(server: Path) -> set[str]:
    """The sites that the server sees now."""
    return set(read_presence(server).sites)


def _is_running(process: int) -> bool:
    import psutil  # here: it comes with nvflare, which a server on another framework does not need

    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)  # in a container they may stay for ever
    except psutil.NoSuchProcess:
        return False
