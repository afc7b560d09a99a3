"""The site's own log: hellos, approvals, asks, deliveries, what was refused, and what was sent. Lines are only ever added, and each holds
the hash of the one before.

The chain shows that a line was changed, taken out or put in. `coterie policy audit` keeps the last hash in the kit, and so notices the
next time that the end was cut off. With write access to the kit both can be rewritten: for others to check the log, send them the
last hash from time to time (`AuditCheck.last`).
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError
from coterie._util.files import lock_file, write_atomic
from coterie._util.json_io import to_json_line
from coterie.deploy.files import SHOWN_TEXT, shorten_text

FIRST_HASH = "0" * 64  # what the first line holds in place of an earlier hash
HEAD_FILE = "audit.head.json"  # the last hash that was checked
FLARE_LOG = "audit.log"  # what NVIDIA FLARE itself logs, in the same folder
LONGEST_FIELD = 2 * SHOWN_TEXT  # characters of a text in an entry; a server or a client's id may have sent any
MOST_NAMES = 10_000  # names in one list of an entry


class Audit:
    """Appends to one file."""

    def __init__(self, path: Path, order: str = "") -> None:
        """`order` is the hash of the order that all that is logged here is part of."""
        self.path, self.order = path, order

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line; it is on the disk when this returns. Where it cannot be written whole (a full disk), nothing of it stays."""
        stamp = {"order": self.order} if self.order else {}
        with lock_file(self.path):
            number, previous, torn = read_audit_head(self.path)
            body = {**stamp, **_shorten_value(entry), "line": number + 1, "previous": previous}
            line = to_json_line({**body, "hash": _hash_line(body)})
            self._write((b"\n" if torn else b"") + line.encode() + b"\n")

    def log(self, event: str, **details: Any) -> None:
        """Add a line about something other than an ask."""
        self.append({"event": event, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **details})

    def chain_flare_log(self) -> None:
        """Add a line with the hash of what NVIDIA FLARE has added to its own log since the last such line; none where nothing was."""
        path = self.path.with_name(FLARE_LOG)
        if not path.exists():
            return
        begin = max((piece["end"] for piece in find_flare_hashes(self.path)), default=0)
        end = next((end for end, line in _read_backwards(path) if line.endswith(b"\n")), 0)
        if end > begin:
            self.log("flare log", begin=begin, end=end, sha256=_hash_range(path, begin, end))

    def last_value(self, key: str) -> Any:
        """The value of the last line that has this key; None where no line has it."""
        mark = json.dumps(key).encode()
        lines = (line for _, line in _read_backwards(self.path) if mark in line)
        return next((entry[key] for line in lines if (entry := _parse_line(line)) and key in entry), None)

    def _write(self, text: bytes) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            try:
                if os.write(handle, text) < len(text):
                    raise OSError(f"the audit log {self.path} could not be written whole: is the disk full?")
                os.fsync(handle)
            except OSError:
                with suppress(OSError):  # half a line would look like a log that was tampered with
                    os.ftruncate(handle, size)
                    os.fsync(handle)
                raise
        finally:
            os.close(handle)


def _shorten_value(value: Any) -> Any:
    """An entry whose texts have a bounded length: what a server sends must not fill the disk."""
    if isinstance(value, str):
        return shorten_text(value, LONGEST_FIELD)
    if isinstance(value, Mapping):
        return {shorten_text(str(name), LONGEST_FIELD): _shorten_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        more = [f"... ({len(value):,} in all)"] if len(value) > MOST_NAMES else []
        return [*map(_shorten_value, value[:MOST_NAMES]), *more]
    return value


@dataclass(frozen=True)
class AuditCheck:
    """The result of checking a log's chain."""

    lines: int
    last: str  # the hash that the next line will hold
    faults: tuple[str, ...]  # in words, in the order of the lines; none where the log is whole
    entries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # the last ones, as many as were wanted


def verify_audit(path: Path, last: str | None = None, *, entries: int = 0) -> AuditCheck:
    """Check every line. With the `last` hash that was noted elsewhere, a log that was cut or rewritten is noticed, too.

    So many of the last `entries` are returned.
    """
    if not path.exists():
        raise UserError(f"There is no audit log {path}: check the path.")
    faults: list[str] = []
    found = deque[Mapping[str, Any]](maxlen=entries)
    number, previous, seen = 0, FIRST_HASH, {FIRST_HASH}
    for place, entry in enumerate(_read_lines(path), start=1):
        if entry is None:
            faults.append(f"Line {place} cannot be read: it was cut short or changed.")
            continue
        if entry["hash"] != _hash_line({name: value for name, value in entry.items() if name != "hash"}):
            faults.append(f"Line {place} (number {entry['line']}) was changed.")
        elif entry["line"] != number + 1:
            faults.append(_describe_gap(number, entry["line"], place))
        elif entry["previous"] != previous:
            faults.append(f"Line {place - 1} was replaced: line {place} follows another one.")
        number, previous = entry["line"], entry["hash"]
        seen.add(previous)
        found.append(entry)
    if last is not None and last not in seen:
        faults.append("The hash that was noted is in no line: the end of the log was cut off, or the log was rewritten.")
    return AuditCheck(number, previous, (*faults, *_find_flare_faults(path)), tuple(found))


def verify_kit_log(path: Path, last: str | None = None, *, entries: int = 0) -> AuditCheck:
    """Check a kit's log against the head that the last check left in the kit, too, and leave the new head there.

    A head is kept only of a log without faults: one that was cut is reported until its end is there again.
    """
    head = path.with_name(HEAD_FILE)
    noted = _read_head(head)
    if noted is not None and not path.exists():
        raise UserError(f"There is no audit log {path}, and it had {noted[0]} lines when it was last checked: it was removed.")
    found = verify_audit(path, last, entries=entries)
    if noted is not None and noted[0] and noted not in ((entry["line"], entry["hash"]) for entry in _read_lines(path) if entry is not None):
        cut = f"Line {noted[0]} was the last one when the log was last checked, and is gone: the end was cut off, or the log rewritten."
        found = AuditCheck(found.lines, found.last, (*found.faults, cut), found.entries)
    if not found.faults:
        write_atomic(head, to_json_line({"line": found.lines, "hash": found.last}) + "\n", 0o600)
    return found


def _read_head(path: Path) -> tuple[int, str] | None:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return int(tree["line"]), str(tree["hash"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"The head of the audit log {path} cannot be read ({error}): remove it, and compare with a hash noted elsewhere (--last)."
        ) from error


def find_flare_hashes(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log that hold a hash of FLARE's own log."""
    if not path.exists():
        return []
    with path.open("rb") as file:  # only those lines are parsed: this happens at every job
        found = [_parse_line(line) for line in file if b'"event": "flare log"' in line]
    return [one for one in found if one is not None and all(type(one.get(name)) is int for name in ("begin", "end"))]


def _find_flare_faults(path: Path) -> Iterator[str]:
    """What is wrong with FLARE's own log beside a log, by the hashes in its chain."""
    other = path.with_name(FLARE_LOG)
    for piece in find_flare_hashes(path):
        begin, end = piece["begin"], piece["end"]
        if not other.exists() or other.stat().st_size < end:
            yield f"FLARE's log {other.name} was cut off: line {piece['line']} has its first {end} bytes, it has fewer."
            return
        if _hash_range(other, begin, end) != piece.get("sha256"):
            yield f"FLARE's log {other.name} was changed between bytes {begin} and {end}, of which line {piece['line']} has the hash."


def _hash_range(path: Path, begin: int, end: int) -> str:
    made = sha256()
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end and (data := file.read(min(1 << 20, end - begin))):
            made.update(data)
            begin += len(data)
    return made.hexdigest()


def _describe_gap(before: int, number: int, place: int) -> str:
    if number <= before:
        return f"Line {place} has number {number} after number {before}: lines were moved or put in."
    missing = f"Number {before + 1} is" if number == before + 2 else f"Numbers {before + 1} to {number - 1} are"
    return f"{missing} missing before line {place}."


def _hash_line(body: Mapping[str, Any]) -> str:
    return sha256(to_json_line(body).encode()).hexdigest()


def _read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Each line as it was written; None where it cannot be read."""
    with path.open("rb") as file:
        for line in file:
            yield _parse_line(line)


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        whole = isinstance(entry, dict) and isinstance(entry["line"], int) and isinstance(entry["hash"], str) and "previous" in entry
    except (ValueError, KeyError):
        return None
    return entry if whole and line.endswith(b"\n") else None


def _read_backwards(path: Path, block: int = 1 << 16) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, the last one first, each with the place of its end."""
    if not path.exists():
        return
    with path.open("rb") as file:
        begin = file.seek(0, os.SEEK_END)
        rest, end = b"", begin
        while begin > 0 or rest:
            size = min(block, begin)
            begin -= size
            file.seek(begin)
            lines = (file.read(size) + rest).splitlines(keepends=True)
            rest = lines[0] if begin else b""  # it may begin further up
            for line in reversed(lines[1 if begin else 0 :]):
                yield end, line
                end -= len(line)


def read_audit_head(path: Path) -> tuple[int, str, bool]:
    """The number and hash of the last whole line, and whether half a line follows it (the machine stopped while it was written).

    Nothing is checked: `verify_audit` does that.
    """
    torn = False
    for _, line in _read_backwards(path):
        if (entry := _parse_line(line)) is not None:
            return entry["line"], entry["hash"], torn
        torn = torn or not line.endswith(b"\n")
    return 0, FIRST_HASH, torn
