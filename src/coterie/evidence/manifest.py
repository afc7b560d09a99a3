"""Manifests: the hashes that show whether a study's folder is unchanged, and the repair of damaged files.

Three files hold hashes. A segment's `manifest.json` covers its files, rows and lanes, and names the segment before it. A study's
`head.json` covers the files that define the study and the last segment of the chain; it is replaced after each segment. A comparison's
`seals.json` covers the request, the result of each tuning and the settings of each study. A manifest must be the one that the next
segment names, or the head if it is the last; where that is damaged, it must follow the one before. So one damaged segment does not put
its neighbours in doubt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coterie._util.errors import UserError
from coterie._util.files import hash_file, hash_text, write_atomic
from coterie._util.json_io import format_json, read_json
from coterie._util.progress import track
from coterie._util.threads import count_cores, map_in_order
from coterie.evidence.checkpoint import CHUNKS, STATES_FILE, read_checkpoint_or_empty
from coterie.evidence.folder import list_segments
from coterie.evidence.records import LaneKey

HEAD, MANIFEST, SEALS, REQUEST = "head.json", "manifest.json", "seals.json", "compare.json"
IDENTITY_FILES = ("settings.json", "data.json", "execution.json")  # they define the study; the chain of segments starts with their hash
COUNTED_TABLES = ("rounds", "clients")  # tables whose rows are counted lane by lane
ALTERED, MISSING = "is not as it was written", "is missing"


@dataclass(frozen=True)
class Link:
    """A segment and the hash of its manifest; before the first, no segment and the hash of the files that define the study."""

    segment: str
    sha256: str


@dataclass(frozen=True)
class StudyHead:
    """What a study's folder must hold."""

    files: Mapping[str, str]  # by path in the folder
    last: Link
    follows: Mapping[str, Link] = field(default_factory=dict)  # by segment, the one before it, since others were quarantined

    @classmethod
    def from_folder(cls, folder: Path) -> "StudyHead":
        """The head of a study without segments, from the files in its folder."""
        files = _hash_head_files(folder)
        return cls(files, compute_origin(files))

    def write(self, folder: Path) -> None:
        """Replace the head of a folder."""
        tree = asdict(self)
        write_atomic(folder / HEAD, format_json({**tree, "sha256": hash_text(format_json(tree))}))

    def with_file(self, name: str, sha256: str) -> "StudyHead":
        return replace(self, files={**self.files, name: sha256})


def read_study_head(folder: Path) -> StudyHead | None:
    """The head; None where it is missing or damaged."""
    try:
        tree = read_json(folder / HEAD)
        sha256 = tree.pop("sha256")
        head = StudyHead(dict(tree["files"]), Link(**tree["last"]), {name: Link(**link) for name, link in tree["follows"].items()})
    except (UserError, KeyError, TypeError, AttributeError):
        return None
    return head if hash_text(format_json(tree)) == sha256 else None


def compute_origin(files: Mapping[str, str]) -> Link:
    """The start of the chain: the hash of the files that define the study."""
    return Link("", hash_text(format_json({name: files[name] for name in IDENTITY_FILES if name in files})))


def _hash_head_files(folder: Path) -> dict[str, str]:
    """By path in the folder, the hashes of the files that a head covers: those written at the start, and rosters, which may grow."""
    names = [name for name in (*IDENTITY_FILES, "environment.json") if (folder / name).is_file()]
    names += sorted(f"rosters/{path.name}" for path in (folder / "rosters").glob("[!.]*.parquet"))
    return {name: hash_file(folder / name) for name in names}


@dataclass(frozen=True)
class Manifest:
    """Written last into a segment, before the segment gets its name."""

    segment: str
    previous: Link
    files: Mapping[str, str]
    rows: Mapping[str, int]  # by table
    lanes: Sequence[Mapping[str, Any]]  # draw, method, seed, first and last round, rows of the counted tables
    routes: Mapping[str, str]  # the routes that training has taken so far
    study: str  # the hash of the files that define the study, as they were then: the study may have grown since

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(format_json(asdict(self)), encoding="utf-8", newline="\n")

    @property
    def keys(self) -> list[LaneKey]:
        """The lanes that the segment holds rounds of."""
        return [LaneKey(lane["draw"], lane["method"], lane["seed"]) for lane in self.lanes]


def make_manifest(
    draft: Path,
    segment: str,
    head: StudyHead,
    lanes: Sequence[Mapping[str, Any]],
    tables: Mapping[str, pa.Table],
    routes: Mapping[str, str],
) -> Manifest:
    """The manifest of the files in a draft."""
    counts = {name: count_rows_by_lane(tables[name]) for name in COUNTED_TABLES}
    entries = []
    for lane in lanes:
        key = LaneKey(lane["draw"], lane["method"], lane["seed"])
        rows = {name: counts[name].get(key, 0) for name in COUNTED_TABLES}
        entries.append({**key._asdict(), "first": lane["first"], "last": lane["last"], **rows})
    files = {path.name: hash_file(path) for path in sorted(draft.iterdir())}
    table_rows = {name: len(table) for name, table in tables.items()}
    return Manifest(segment, head.last, files, table_rows, entries, dict(routes), compute_origin(head.files).sha256)


def read_manifest(segment: Path) -> Manifest | str:
    """A segment's manifest, or what is wrong with it, as the end of a sentence about the segment."""
    if not (segment / MANIFEST).is_file():
        return "has no manifest"
    try:
        tree = read_json(segment / MANIFEST)
        return Manifest(**{**tree, "previous": Link(**tree["previous"])})
    except (UserError, TypeError, KeyError):
        return "has a manifest that cannot be read"


def count_rows_by_lane(table: pa.Table) -> dict[LaneKey, int]:
    """The number of rows of each lane."""
    keys = table.select(list(LaneKey._fields))
    keys = keys.set_column(1, "method", pc.cast(keys["method"], pa.string()))
    rows = keys.group_by(list(LaneKey._fields)).aggregate([([], "count_all")]).to_pylist()
    return {LaneKey(row["draw"], row["method"], row["seed"]): row["count_all"] for row in rows}


@dataclass(frozen=True)
class SegmentChain:
    """The manifests that can be read, and the ends of the chain."""

    start: Link
    head: StudyHead | None  # None: damaged or lost
    manifests: Mapping[str, Manifest]
    hashes: Mapping[str, str]  # of the manifests

    def previous(self, name: str) -> Link:
        """What a segment follows, now that others may have been quarantined."""
        follows = self.head.follows if self.head is not None else {}
        return follows.get(name, self.manifests[name].previous)

    def find_broken(self, names: list[str]) -> dict[str, str]:
        """By segment that is missing or does not belong: what is wrong. Segments without a manifest are not included."""
        wrong: dict[str, str] = {}
        end = self.head.last if self.head is not None else None
        named = end  # by the segment after this one; None: not known
        for place in reversed(range(len(names))):
            name, before = names[place], names[place - 1] if place else ""
            is_beyond = end is not None and name > end.segment  # written just before a kill: the head does not know it
            if named is not None and named.segment > name:
                wrong[named.segment] = MISSING
                named = None
            if name not in self.manifests:
                named = named if is_beyond else None
                continue
            if named is not None and named.segment == name:
                fits = self.hashes[name] == named.sha256
            else:
                fits = (named is None or is_beyond) and self._follows(name, before)
            if not fits:
                wrong[name] = "is not what the chain of segments names"
            if not is_beyond:
                named = self.previous(name) if fits else None
        if named is not None and named.segment:
            wrong[named.segment] = MISSING
        return wrong

    def has_other_start(self, names: list[str]) -> bool:
        """Whether the last segment names another study."""
        studies = [self.manifests[name].study for name in names if name in self.manifests]
        return bool(studies) and studies[-1] != self.start.sha256

    def _follows(self, name: str, before: str) -> bool:
        link = self.previous(name)
        if before:
            return before in self.hashes and link == Link(before, self.hashes[before])
        return link == self.start or (self.head is None and not link.segment)  # without a head, `has_other_start` decides


@dataclass(frozen=True)
class IntegrityReport:
    """What is wrong with a folder, each as the end of a sentence about the file or segment."""

    files: Mapping[str, str] = field(default_factory=dict)  # by path in the folder
    segments: Mapping[str, str] = field(default_factory=dict)  # by name: damaged or missing; its tables cannot be trusted
    states: Mapping[str, str] = field(default_factory=dict)  # by file of a checkpoint, of segments whose tables are intact
    intact: tuple[str, ...] = ()  # segments whose tables are as they were written
    manifests: Mapping[str, Manifest] = field(default_factory=dict)  # of the intact ones
    links: Mapping[str, Link] = field(default_factory=dict)  # of the intact ones

    @property
    def routes(self) -> Mapping[str, str]:
        """The routes that training has taken up to the last intact segment."""
        return self.manifests[self.intact[-1]].routes if self.intact else {}

    def describe(self, folder: Path) -> list[str]:
        """Everything that is wrong, in sentences without an end."""
        damaged = [(folder / name, wrong) for name, wrong in self.files.items()]
        for part in (self.segments, self.states):
            damaged += [(folder / "segments" / name, wrong) for name, wrong in sorted(part.items())]
        return [f"{path} {wrong}" for path, wrong in damaged]


def check_integrity(folder: Path, *, everything: bool = False) -> IntegrityReport:
    """Compare a folder with its head and its manifests; with `everything`, also checkpoints and the record of the environment."""
    head = read_study_head(folder)  # before the segments: a study that is still running may add some meanwhile
    names = [path.name for path in list_segments(folder)]
    found = {name: read_manifest(folder / "segments" / name) for name in names}
    manifests = {name: manifest for name, manifest in found.items() if isinstance(manifest, Manifest)}
    hashes = {name: hash_file(folder / "segments" / name / MANIFEST) for name in manifests}
    start = compute_origin(_hash_head_files(folder) if head is None else head.files)
    chain = SegmentChain(start, head, manifests, hashes)
    files = {HEAD: ALTERED if (folder / HEAD).exists() else MISSING} if head is None else _find_changed(folder, head.files)
    if not everything:
        files.pop("environment.json", None)
    if head is None and chain.has_other_start(names):
        files["settings.json"] = f"(or {' or '.join(IDENTITY_FILES[1:])}) is not as it was when the study began"
    wrong = {name: manifest for name, manifest in found.items() if isinstance(manifest, str)}
    wrong |= chain.find_broken(names) | _check_segments(folder, manifests)
    intact = tuple(name for name in names if name not in wrong)
    kept = {name: manifests[name] for name in intact}
    states = check_states(folder, kept) if everything else {}
    return IntegrityReport(files, wrong, states, intact, kept, {name: Link(name, hashes[name]) for name in intact})


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study, damaged or not."""
    return (folder / "settings.json").exists() or (folder / HEAD).exists()


def find_studies(folder: Path) -> list[Path]:
    """The folder itself if it is a study, else the studies below it: of a comparison, a grid or a reproduction."""
    if is_study(folder):
        return [folder]
    paths = (path.relative_to(folder) for name in ("settings.json", HEAD) for path in folder.rglob(name))
    found = {folder / path.parent for path in paths if not any(part.startswith(".") for part in path.parts)}  # drafts begin with a dot
    if not found:
        raise UserError(f"{folder} holds no study: name the folder that --out made.")
    return sorted(found)


def _find_changed(folder: Path, hashes: Mapping[str, str]) -> dict[str, str]:
    """By path in the folder, what is wrong with files that have these hashes."""
    found = {name: _hash_or_none(folder / name) for name in hashes}
    return {name: MISSING if found[name] is None else ALTERED for name, sha256 in hashes.items() if found[name] != sha256}


def _check_segments(folder: Path, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """By segment, which of its files are not as in its manifest."""
    expected = [(name, file) for name, manifest in manifests.items() for file in manifest.files if file not in (STATES_FILE, CHUNKS)]
    found = map_in_order(_hash_or_none, (folder / "segments" / name / file for name, file in expected), count_cores())
    wrong: dict[str, list[str]] = {}
    for (name, file), sha256 in zip(track(expected, "checking files"), found, strict=True):
        if sha256 != manifests[name].files[file]:
            wrong.setdefault(name, []).append(f"{file} {MISSING if sha256 is None else ALTERED}")
    return {name: f"is damaged ({', '.join(files)})" for name, files in wrong.items()} | {
        name: f"is segment {manifest.segment} under another name" for name, manifest in manifests.items() if manifest.segment != name
    }


def check_states(folder: Path, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """By file of a checkpoint, what is wrong with it. A missing file is wrong only where a lane without a later one needs it."""
    segments = folder / "segments"
    latest = set({key: name for name, manifest in manifests.items() for key in manifest.keys}.values())
    chunks = {number for name in latest for number in read_checkpoint_or_empty(segments / name / STATES_FILE).needed_segments}
    needed = {f"{name}/{STATES_FILE}" for name in latest} | {f"{number:06d}/{CHUNKS}" for number in chunks}
    wrong = {}
    for name, manifest in track(list(manifests.items()), "checking checkpoints"):
        for file in (STATES_FILE, CHUNKS):
            sha256 = _hash_or_none(segments / name / file)
            if sha256 is None and f"{name}/{file}" in needed:
                wrong[f"{name}/{file}"] = MISSING
            elif sha256 is not None and sha256 != manifest.files.get(file):
                wrong[f"{name}/{file}"] = ALTERED
    return wrong


def _hash_or_none(path: Path) -> str | None:
    try:
        return hash_file(path)
    except (OSError, ValueError):  # a ValueError where it is no name of a file
        return None


def describe_rewrite(path: Path) -> str:
    """The notice of a damaged file that is written again."""
    return f"{path} was damaged: it is written again."


def _make_refusal(path: Path, kind: str, hint: str = "") -> UserError:
    return UserError(
        f"{path} {ALTERED}, and this command has other settings than those written: give the command that started the {kind}, or restore "
        f"the file from a copy{hint}."
    )


def repair_study(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Rewrite damaged files whose recorded hash is that of the given text, and return notices.

    A file that defines the study must have the recorded hash, else the study is refused. The record of the environment is replaced by
    the current one.
    """
    head = read_study_head(folder)
    if head is None:
        return _repair_without_head(folder, texts)
    notices = []
    for name, text in texts.items():
        path = folder / name
        if name not in head.files or (path.is_file() and hash_file(path) == head.files[name]):
            continue
        if name in IDENTITY_FILES and hash_text(text) != head.files[name]:
            raise _make_refusal(path, "study", f"; 'coterie verify {folder}' shows what is intact")
        write_atomic(path, text)
        notices.append(describe_rewrite(path))
        if name not in IDENTITY_FILES:
            head = head.with_file(name, hash_text(text))
            head.write(folder)
    return notices


def _repair_without_head(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Likewise by the hash that the last segment has of the files that define the study."""
    manifests = [manifest for path in list_segments(folder) if isinstance(manifest := read_manifest(path), Manifest)]
    origin = Link("", manifests[-1].study) if manifests else None
    notices = [describe_rewrite(folder / HEAD)]
    if origin is not None and origin != compute_origin(_hash_head_files(folder)):
        if origin != compute_origin({name: hash_text(text) for name, text in texts.items()}):
            raise _make_refusal(folder / "settings.json", "study", f"; 'coterie verify {folder}' shows what is intact")
        for name in IDENTITY_FILES:
            write_atomic(folder / name, texts[name])
            notices.append(describe_rewrite(folder / name))
    StudyHead.from_folder(folder).write(folder)  # the chain is closed when the lanes are restored
    return notices


def repair_routes(folder: Path) -> list[str]:
    """Restore `routes.json` from the last segment, since a resumed run keeps its routes; notices."""
    path, routes = folder / "routes.json", check_integrity(folder).routes
    text = format_json(dict(routes))
    if not routes:  # chosen again, by the same rule
        path.unlink(missing_ok=True)
        return []
    if path.is_file() and hash_file(path) == hash_text(text):
        return []
    write_atomic(path, text)
    return [describe_rewrite(path)]


def write_sealed(folder: Path, name: str, text: str) -> list[str]:
    """Write a file of a comparison's folder and seal it; a notice if it was damaged."""
    path, seals = folder / name, read_seals(folder) or {}
    sha256 = _hash_or_none(path)
    notices = [describe_rewrite(path)] if name in seals and sha256 != seals[name] else []
    if sha256 != hash_text(text):
        write_atomic(path, text)
    seal(folder, name)
    return notices


def replace_sealed(folder: Path, name: str, text: str) -> None:
    """Replace a sealed text. The seal comes first: after a kill, the command with this text writes it."""
    _write_seals(folder, {**(read_seals(folder) or {}), name: hash_text(text)})
    write_atomic(folder / name, text)


def seal(folder: Path, name: str) -> None:
    """Record the hash of a file. The file comes first: one left without a seal by a kill is sealed on resume."""
    seals, sha256 = read_seals(folder) or {}, hash_file(folder / name)
    if seals.get(name) != sha256:
        _write_seals(folder, {**seals, name: sha256})


def read_seals(folder: Path) -> dict[str, str] | None:
    """By path in the folder, the hash of each file; None where the seals are missing or damaged."""
    try:
        tree = read_json(folder / SEALS)
        files = dict(tree["files"])
        return files if hash_text(format_json(files)) == tree["sha256"] else None
    except (UserError, KeyError, TypeError, ValueError):
        return None


def find_broken_seals(folder: Path) -> dict[str, str]:
    """By path in the folder, what is wrong with a comparison's own files; nothing for a folder that is no comparison."""
    seals = read_seals(folder)
    if seals is None:
        return {SEALS: ALTERED if (folder / SEALS).exists() else MISSING} if _has_lost_seals(folder) else {}
    loose = sorted(f"tuning/{path.name}" for path in (folder / "tuning").glob("*.json"))
    return _find_changed(folder, seals) | {name: "is not what this comparison wrote" for name in loose if name not in seals}


def repair_request(folder: Path, text: str) -> list[str]:
    """Rewrite a damaged request where the sealed hash is that of the given text; notices."""
    path, sealed = folder / REQUEST, (read_seals(folder) or {}).get(REQUEST)
    if sealed is None and _has_lost_seals(folder) and _hash_or_none(path) == hash_text(text):
        seal(folder, REQUEST)
        return [describe_rewrite(folder / SEALS)]
    if sealed is None or _hash_or_none(path) == sealed:
        return []
    if hash_text(text) != sealed:
        raise _make_refusal(path, "comparison")
    return write_sealed(folder, REQUEST, text)


def _has_lost_seals(folder: Path) -> bool:
    """Whether a folder without intact seals must have had them."""
    is_tuned = any((folder / "tuning").glob("*.json")) and not is_study(folder / "tuning")
    return (folder / SEALS).exists() or (folder / REQUEST).exists() or is_tuned


def _write_seals(folder: Path, files: Mapping[str, str]) -> None:
    write_atomic(folder / SEALS, format_json({"files": files, "sha256": hash_text(format_json(files))}))
