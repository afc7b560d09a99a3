"""The site's own log: every ask, and what was sent. Lines are only ever added, and each holds the hash of the one before.

The chain shows that a line was changed, taken out or put in. Whoever may write the file can write it anew from some line on, or cut its
end: to be held to it by others, tell them the last hash from time to time (`AuditCheck.last`).
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.locks import locked
from coterie.core.plain import as_json

FIRST = "0" * 64  # what the first line holds in place of an earlier hash


class Audit:
    """Appends to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line; it is on the disk when this returns."""
        with locked(self.path):
            number, previous, torn = _end(self.path)
            body = {**entry, "line": number + 1, "previous": previous}
            line = as_json({**body, "hash": _hash(body)})
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                text = (b"\n" if torn else b"") + line.encode() + b"\n"
                if os.write(handle, text) < len(text):
                    raise OSError(f"the audit log {self.path} could not be written whole: is the disk full?")
                os.fsync(handle)
            finally:
                os.close(handle)

    def last_value(self, key: str) -> Any:
        """What the last line that has this key says; None where no line has it."""
        mark = json.dumps(key).encode()
        return next((entry[key] for line in _from_end(self.path) if mark in line and (entry := _entry(line)) and key in entry), None)


@dataclass(frozen=True)
class AuditCheck:
    """What a log's chain says."""

    lines: int
    last: str  # the hash that the next line will hold
    faults: tuple[str, ...]  # in words, in the order of the lines; none where the log is whole


def verify_audit(path: Path, last: str | None = None) -> AuditCheck:
    """Check every line. With the last hash that was noted elsewhere, a log that was cut or written anew is noticed, too."""
    if not path.exists():
        raise UserError(f"There is no audit log {path}: check the path.")
    faults: list[str] = []
    number, previous, seen = 0, FIRST, {FIRST}
    for place, entry in enumerate(_lines(path), start=1):
        if entry is None:
            faults.append(f"Line {place} cannot be read: it was cut short or changed.")
            continue
        if entry["hash"] != _hash({name: value for name, value in entry.items() if name != "hash"}):
            faults.append(f"Line {place} (number {entry['line']}) was changed.")
        elif entry["line"] != number + 1:
            faults.append(_gap(number, entry["line"], place))
        elif entry["previous"] != previous:
            faults.append(f"Line {place - 1} was replaced: line {place} follows another one.")
        number, previous = entry["line"], entry["hash"]
        seen.add(previous)
    if last is not None and last not in seen:
        faults.append("The hash that was noted is in no line: the end of the log was cut off, or the log was written anew.")
    return AuditCheck(number, previous, tuple(faults))


def _gap(before: int, number: int, place: int) -> str:
    if number <= before:
        return f"Line {place} has number {number} after number {before}: lines were moved or put in."
    missing = f"Number {before + 1} is" if number == before + 2 else f"Numbers {before + 1} to {number - 1} are"
    return f"{missing} missing before line {place}."


def _hash(body: Mapping[str, Any]) -> str:
    return sha256(as_json(body).encode()).hexdigest()


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Each line as it was written; None where it cannot be read."""
    with path.open("rb") as file:
        for line in file:
            yield _entry(line)


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        whole = isinstance(entry, dict) and isinstance(entry["line"], int) and isinstance(entry["hash"], str) and "previous" in entry
    except (ValueError, KeyError):
        return None
    return entry if whole and line.endswith(b"\n") else None


def _from_end(path: Path, block: int = 1 << 16) -> Iterator[bytes]:
    """The lines of a file, the last one first."""
    if not path.exists():
        return
    with path.open("rb") as file:
        begin = file.seek(0, os.SEEK_END)
        rest = b""
        while begin > 0:
            size = min(block, begin)
            begin -= size
            file.seek(begin)
            lines = (file.read(size) + rest).splitlines(keepends=True)
            rest = lines[0]  # it may begin further up
            yield from reversed(lines[1:])
        if rest:
            yield rest


def _end(path: Path) -> tuple[int, str, bool]:
    """The number and hash of the last whole line, and whether half a line follows it (the machine stopped while it was written)."""
    if not path.exists():
        return 0, FIRST, False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        reach = 1 << 16
        while True:
            begin = max(0, size - reach)
            file.seek(begin)
            tail = file.read()
            lines = tail.splitlines(keepends=True)[0 if begin == 0 else 1 :]  # the first may lack its beginning
            whole = [entry for entry in map(_entry, reversed(lines)) if entry is not None]
            if whole or begin == 0:
                torn = bool(tail) and not tail.endswith(b"\n")
                return (whole[0]["line"], whole[0]["hash"], torn) if whole else (0, FIRST, torn)
            reach *= 4
