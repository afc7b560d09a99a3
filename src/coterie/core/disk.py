"""Files that are either the old or the new one after a crash: on the disk before they have their name, and hashes of what is there."""

import hashlib
import os
from pathlib import Path


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """A file that is either the old or the new one after a crash; with mode 0o600, readable by its owner only."""
    draft = path.with_name(f".draft-{path.name}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    flush(path.parent)


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_hash(text: str) -> str:
    """SHA-256 of a text as it stands in a file."""
    return hashlib.sha256(text.encode()).hexdigest()
