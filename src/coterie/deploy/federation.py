"""A federation's folder: what its operator keeps on the server. Kits for sites are cut from it."""

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.core.plain import write_json
from coterie.deploy.names import escape_text, is_name

FILE = "federation.json"


@dataclass(frozen=True)
class FederationFolder:
    """Where the server listens, who the sites are, and where things lie."""

    folder: Path
    host: str
    port: int
    sites: tuple[str, ...]
    removed: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path) -> "FederationFolder":
        if not (folder / FILE).is_file():
            raise UserError(
                f"{folder} holds no federation: make one with 'coterie federation init {folder} --server HOST:PORT --sites a,b'."
            )
        tree = read_object(folder / FILE, host=str, port=int, sites=list, removed=list)
        for name in (*tree["sites"], *tree["removed"]):
            check_site_name(name if isinstance(name, str) else "")  # a name is a folder's, too
        return cls(folder, tree["host"], tree["port"], tuple(tree["sites"]), tuple(tree["removed"]))

    def write(self) -> None:
        """Keep it."""
        tree = asdict(self)
        tree.pop("folder")
        write_json(self.folder / FILE, tree)

    def but(self, **changes: tuple[str, ...]) -> "FederationFolder":
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def server(self) -> Path:
        """The server's kit."""
        return self.folder / "server"

    @property
    def admin(self) -> Path:
        """The operator's kit: it may submit studies."""
        return self.folder / "admin"

    @property
    def runs(self) -> Path:
        """Where studies are written."""
        return self.folder / "runs"

    def kit(self, site: str) -> Path:
        """A site's kit, to be handed to it."""
        return self.folder / "kits" / site


def server_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a user writes it."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UserError(f"Cannot read the server {text!r}: write it as HOST:PORT, such as 127.0.0.1:8102.")
    return host, int(port)


def check_site_name(name: str) -> None:
    """A name that can be a certificate's, a folder's and FLARE's."""
    if not is_name(name, 60) or set(name) & set(".=") or name in ("server", "operator", "admin"):
        raise UserError(f"A site cannot be called {escape_text(name, 100)!r}: use letters, digits, - and _.")
