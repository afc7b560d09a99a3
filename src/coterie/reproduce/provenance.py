"""How a part was made (commit, versions, device, digest, seeds and draws) and what is kept beside its scores in NAME.json."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coterie._util.errors import UserError
from coterie._util.json_io import read_json_object
from coterie.evidence.reader import Evidence
from coterie.evidence.verify import digest
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues, RoundsBetter
from coterie.run.environment import describe_environment
from coterie.statistics import Interval

SHOWN_PACKAGES = ("coterie", "torch", "numpy", "scipy", "scikit-learn")  # of the versions, those that compute


@dataclass(frozen=True)
class Provenance:
    """What somebody who doubts a number needs to know. What was not recorded is empty."""

    commit: str = ""
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    digest: str = ""  # SHA-256 of the evidence; of several studies, of their digests
    seeds: str = ""
    draws: str = ""


def collect_provenance(run: PartRun) -> Provenance | None:
    """Of a part that was run; None of one that was not."""
    if run.settings is None or run.why_not:
        return None
    found = [*run.studies, *run.last]
    once = get_seeds_and_draws(run)
    known = _read_beside(found, "environment.json") or describe_environment()
    versions = {name: str(number) for name, number in (known.get("packages") or {}).items() if name in SHOWN_PACKAGES and number}
    return replace(
        once,
        commit=str(known.get("commit") or ""),
        device=str((_read_beside(found, "execution.json") or {}).get("device", "cpu")),
        versions={"python": str(known.get("python", "")), **versions},
        digest=_compute_digest(found),
    )


def get_seeds_and_draws(run: PartRun) -> Provenance:
    """Seeds and draws alone: all that is known of scores from before more was kept."""
    assert run.settings is not None
    return Provenance(
        seeds=format_ranges(run.settings.seeds), draws=format_ranges(run.settings.seeds if run.part.redrawn else run.settings.draws)
    )


def _read_beside(found: Sequence[Evidence], name: str) -> dict[str, Any] | None:
    """A file beside the evidence, where there is one: measurements leave none, and studies may be in memory."""
    folder = found[0].folder if found else None
    return read_json_object(folder / name) if folder is not None and (folder / name).is_file() else None


def _compute_digest(found: Sequence[Evidence]) -> str:
    digests = [digest(one) for one in found]
    if len(digests) < 2:
        return "".join(digests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def format_ranges(numbers: Sequence[int]) -> str:
    """0-4,7 in place of 0, 1, 2, 3, 4, 7."""
    ordered = sorted(set(numbers))
    starts = [n for n in ordered if n - 1 not in ordered]
    ends = [n for n in ordered if n + 1 not in ordered]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def describe_provenance(made: Provenance) -> str:
    """In a sentence; what was not kept is said to be not kept."""
    known = f"Seeds {made.seeds}, draws {made.draws}"
    if not made.versions:
        return f"{known}; commit, versions, device and digest were not kept with these scores"
    versions = ", ".join(f"{name} {number}" for name, number in made.versions.items())
    told = [known, f"commit `{made.commit[:12] or 'unknown'}`", made.device, versions]
    return "; ".join([*told, *([f"digest `{made.digest[:16]}`"] if made.digest else [])])


@dataclass(frozen=True)
class PartRecord:
    """How far a part was run, or why it was not."""

    rounds: int
    why_not: str = ""
    made: Provenance | None = None  # how; not known of pages from before it was kept
    command: str = ""  # that ran it, where it is not the page's last
    date: str = ""
    early: list[str] = field(default_factory=list)  # runs that ended before the last round, and why; not known of older pages


@dataclass(frozen=True)
class StudyRecord:
    """What single seeds' scores do not tell; claims by what they say."""

    command: str  # that ran it, or the last of several
    date: str
    parts: dict[str, PartRecord]
    clients: dict[str, Interval | str] = field(default_factory=dict)  # over test clients and samples, in points
    rounds: dict[str, RoundsBetter] = field(default_factory=dict)


RECORD_ADAPTER = TypeAdapter(StudyRecord)


def make_record(runs: Sequence[PartRun], values: Mapping[str, PartValues], command: str, date: str) -> StudyRecord:
    """From what was carried out."""
    parts = {
        run.part.name: PartRecord(
            run.settings.plan.rounds, run.why_not if run.asked else "", collect_provenance(run), early=list(run.early)
        )
        for run in runs
        if run.settings is not None
    }
    clients = {says: found for own in values.values() for says, found in own.clients.items()}
    rounds = {says: found for own in values.values() for says, found in own.better.items() if isfinite(found.share)}
    return StudyRecord(command, date, parts, clients, rounds)


def format_record(kept: StudyRecord) -> str:
    """As it is written to the file."""
    return RECORD_ADAPTER.dump_json(kept, indent=1).decode() + "\n"


def read_record(scores: Path) -> StudyRecord:
    """The file beside the scores."""
    path = scores.with_suffix(".json")
    try:
        return RECORD_ADAPTER.validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise UserError(f"Cannot read {path}, which belongs to {scores.name}: {error.strerror or error}.") from error
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"{path} is not what 'coterie reproduce --page' writes: {key or 'the file'!r} ({fault['msg'].lower()}).") from None
