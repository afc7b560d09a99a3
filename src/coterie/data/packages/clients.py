"""Downloading by the ordinary clients, so that a user's own mirror and proxy are used: pip for PyPI, apt-get for Debian."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie._util.errors import UserError


@dataclass(frozen=True)
class Wanted:
    """One file of one version."""

    client: Literal["pip", "apt-get"]
    name: str
    version: str
    file: str
    sha256: str


def download(wanted: Wanted, folder: Path) -> None:
    """Download a file into a folder, without what it depends on; nothing is installed."""
    command = _pip(wanted, folder) if wanted.client == "pip" else ["apt-get", "download", f"{wanted.name}={wanted.version}"]
    try:
        # In the folder, which is empty: Python must not find modules where the user happens to be.
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
    except FileNotFoundError:
        raise UserError(f"{_failed(wanted)}: there is no {wanted.client} here; {_by_hand(wanted)}") from None
    if ended.returncode or not (folder / wanted.file).is_file():
        raise UserError(f"{_failed(wanted)}: {_reason(ended.stderr)}; {_by_hand(wanted)}")


def _pip(wanted: Wanted, folder: Path) -> list[str]:
    """pip refuses a file with another hash before it looks into it: a source archive would else be asked for its name by running it."""
    asked = folder / "asked.txt"
    asked.write_text(f"{wanted.name}=={wanted.version} --hash=sha256:{wanted.sha256}\n", encoding="ascii")
    kind = "--only-binary" if wanted.file.endswith(".whl") else "--no-binary"
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    return [sys.executable, "-m", "pip", "download", *quiet, kind, wanted.name, "--dest", str(folder), "--requirement", str(asked)]


def _failed(wanted: Wanted) -> str:
    return f"{wanted.client} could not download {wanted.name} {wanted.version}"


def _by_hand(wanted: Wanted) -> str:
    return f"get {wanted.file} by other means and put it into the folder packages of your data folder."


def _reason(errors: str) -> str:
    """The line of a client's errors that says most: its first error, else its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith(("W:", "WARNING"))]
    marked = [line for line in lines if line.startswith(("ERROR", "E:"))]
    told = (marked or lines[-1:] or ["it gave no reason"])[0]
    return told.removeprefix("ERROR:").removeprefix("E:").strip().rstrip(".")
