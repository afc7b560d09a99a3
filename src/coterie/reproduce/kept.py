"""What is kept of a reproduction beside the scores of every seed (NAME.csv), so that it can be judged again without a run (NAME.json)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coterie.core.errors import UserError
from coterie.reproduce.made import Made, made_of
from coterie.reproduce.rounds_better import RoundsBetter
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues
from coterie.statistics import Interval


@dataclass(frozen=True)
class KeptPart:
    """How far a part was run, or why it was not."""

    rounds: int
    why_not: str = ""
    made: Made | None = None  # how; not known of pages from before it was kept
    command: str = ""  # that ran it, where it is not the page's last
    date: str = ""
    early: list[str] = field(default_factory=list)  # runs that ended before the last round, and why; not known of older pages


@dataclass(frozen=True)
class Kept:
    """What single seeds' scores do not tell; claims by what they say."""

    command: str  # that ran it, or the last of several
    date: str
    parts: dict[str, KeptPart]
    clients: dict[str, Interval | str] = field(default_factory=dict)  # over test clients and samples, in points
    rounds: dict[str, RoundsBetter] = field(default_factory=dict)


ADAPTER = TypeAdapter(Kept)


def kept_of(runs: Sequence[PartRun], values: Mapping[str, PartValues], command: str, date: str) -> Kept:
    """From what was carried out."""
    parts = {
        run.part.name: KeptPart(run.settings.plan.rounds, run.why_not if run.asked else "", made_of(run), early=list(run.early))
        for run in runs
        if run.settings is not None
    }
    clients = {says: found for own in values.values() for says, found in own.clients.items()}
    rounds = {says: found for own in values.values() for says, found in own.better.items() if isfinite(found.share)}
    return Kept(command, date, parts, clients, rounds)


def kept_text(kept: Kept) -> str:
    """As it is written to the file."""
    return ADAPTER.dump_json(kept, indent=1).decode() + "\n"


def read_kept(scores: Path) -> Kept:
    """The file beside the scores."""
    path = scores.with_suffix(".json")
    try:
        return ADAPTER.validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise UserError(f"Cannot read {path}, which belongs to {scores.name}: {error.strerror or error}.") from error
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"{path} is not what 'coterie reproduce --page' writes: {key or 'the file'!r} ({fault['msg'].lower()}).") from None
