"""Manifests: the hashes that show whether a study's folder is unchanged, and the repair of damaged files.

Three files hold hashes. A segment's `manifest.json` covers its files, rows and lanes, and names the segment before it. A study's
`head.json` covers the files that define the study and the last segment of the chain; it is replaced after each segment. A comparison's
`seals.json` covers what belongs to several studies: the request, the result of each tuning and the settings of each study. A manifest
must be the one that the next segment names, or the head if it is the last; where that is damaged, it must follow the one before. So one
damaged segment does not put its neighbours in doubt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError

from coterie._util.errors import UserError
from coterie._util.files import hash_file, hash_text, write_atomic
from coterie._util.json_io import format_json, read_json
from coterie._util.threads import count_cores, map_in_order
from coterie.evidence.checkpoint import CHUNKS, STATES_FILE, read_checkpoint
from coterie.evidence.folder import list_segments
from coterie.evidence.records import LaneKey
from coterie.evidence.settings import UNCHAINED

HEAD = "head.json"


IDENTITY_FILES = ("settings.json", "data.json", "execution.json")  # what a study is: never changed, and the chain begins with it


@dataclass(frozen=True)
class Link:
    """A segment and the hash of its manifest; before the first, no segment and the hash of what the study is."""

    segment: str
    sha256: str


@dataclass(frozen=True)
class StudyHead:
    """What a study's folder must hold."""

    files: Mapping[str, str]  # by path in the folder
    last: Link
    follows: Mapping[str, Link] = field(default_factory=dict)  # by segment, what it follows on since others were set aside

    @classmethod
    def of(cls, folder: Path) -> "StudyHead":
        """The head of a study without segments, as its files are."""
        files = {name: hash_file(folder / name) for name in list_head_files(folder)}
        return cls(files, compute_origin(files))

    def write(self, folder: Path) -> None:
        """Put it in place of the one before."""
        tree = asdict(self)
        write_atomic(folder / HEAD, format_json({**tree, "sha256": hash_text(format_json(tree))}))

    def with_file(self, name: str, sha256: str) -> "StudyHead":
        return replace(self, files={**self.files, name: sha256})


def read_study_head(folder: Path) -> StudyHead | None:
    """The head, if it is there and as it was written."""
    try:
        tree = read_json(folder / HEAD)
        told = tree.pop("sha256")
        head = StudyHead(dict(tree["files"]), Link(**tree["last"]), {name: Link(**link) for name, link in tree["follows"].items()})
    except (UserError, KeyError, TypeError, AttributeError):
        return None
    return head if hash_text(format_json(tree)) == told else None


def compute_origin(files: Mapping[str, str]) -> Link:
    """Where the chain begins: the hash of what the study is."""
    return Link("", hash_text(format_json({name: files[name] for name in IDENTITY_FILES if name in files})))


def list_head_files(folder: Path) -> list[str]:
    """The files that a head covers: those that are written when a study begins, and rosters, which may grow."""
    own = [name for name in (*IDENTITY_FILES, "environment.json") if (folder / name).is_file()]
    return own + sorted(f"rosters/{path.name}" for path in (folder / "rosters").glob("[!.]*.parquet"))


MANIFEST = "manifest.json"


COUNTED_TABLES = ("rounds", "clients")  # tables whose rows are counted lane by lane


@dataclass(frozen=True)
class Manifest:
    """Written last into a segment, before the segment has its name."""

    segment: str
    previous: Link
    files: Mapping[str, str]
    rows: Mapping[str, int]  # by table
    lanes: Sequence[Mapping[str, Any]]  # draw, method, seed, first and last round, rows of the counted tables
    routes: Mapping[str, str]  # how trainings were carried out up to here
    study: str = ""  # the hash of what the study was then: it may have grown since it began; none before studies could

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(format_json(asdict(self)), encoding="utf-8", newline="\n")

    @property
    def keys(self) -> list[LaneKey]:
        """The lanes it holds rounds of."""
        return [LaneKey(lane["draw"], lane["method"], lane["seed"]) for lane in self.lanes]


def make_manifest(
    draft: Path,
    segment: str,
    head: StudyHead,
    lanes: Sequence[Mapping[str, Any]],
    tables: Mapping[str, pa.Table],
    routes: Mapping[str, str],
) -> Manifest:
    """The manifest of what lies in a draft."""
    counts = {name: count_rows_by_lane(tables[name]) for name in COUNTED_TABLES}
    held = []
    for lane in lanes:
        key = LaneKey(lane["draw"], lane["method"], lane["seed"])
        held.append(
            {**key._asdict(), "first": lane["first"], "last": lane["last"], **{name: counts[name].get(key, 0) for name in COUNTED_TABLES}}
        )
    files = {path.name: hash_file(path) for path in sorted(draft.iterdir())}
    rows = {name: len(table) for name, table in tables.items()}
    return Manifest(segment, head.last, files, rows, held, dict(routes), compute_origin(head.files).sha256)


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
    """How many rows each lane has."""
    own = table.select(list(LaneKey._fields))
    own = own.set_column(1, "method", pc.cast(own["method"], pa.string()))
    found = own.group_by(list(LaneKey._fields)).aggregate([([], "count_all")]).to_pylist()
    return {LaneKey(row["draw"], row["method"], row["seed"]): row["count_all"] for row in found}


@dataclass(frozen=True)
class SegmentChain:
    """The manifests that could be read, and what is known of the chain's ends."""

    start: Link
    head: StudyHead | None  # None: damaged or lost
    manifests: Mapping[str, Manifest]
    hashes: Mapping[str, str]  # of the manifests

    def previous(self, name: str) -> Link:
        """What a segment follows on, now that others may have been set aside."""
        follows = self.head.follows if self.head is not None else {}
        return follows.get(name, self.manifests[name].previous)

    def broken(self, names: list[str]) -> dict[str, str]:
        """By segment that is missing or does not belong: what is wrong. Segments without a manifest are not told of."""
        wrong: dict[str, str] = {}
        end = self.head.last if self.head is not None else None
        named = end  # by what comes after; None: not known
        for place in reversed(range(len(names))):
            name, before = names[place], names[place - 1] if place else ""
            beyond = end is not None and name > end.segment  # written a moment before a kill: the head does not know it
            if named is not None and named.segment > name:
                wrong[named.segment] = "is missing"
                named = None
            if name not in self.manifests:
                named = named if beyond else None
                continue
            if named is not None and named.segment == name:
                fits = self.hashes[name] == named.sha256
            else:
                fits = (named is None or beyond) and self._follows(name, before)
            if not fits:
                wrong[name] = "is not what the chain of segments names"
            if not beyond:
                named = self.previous(name) if fits else None
        if named is not None and named.segment:
            wrong[named.segment] = "is missing"
        return wrong

    def has_other_start(self, names: list[str]) -> bool:
        """Whether the segments say that the study was another: the last of them, or, of before studies could grow, the first."""
        told = [self.manifests[name].study for name in names if name in self.manifests and self.manifests[name].study]
        if told:
            return told[-1] != self.start.sha256
        return bool(names) and names[0] in self.manifests and not (link := self.previous(names[0])).segment and link != self.start

    def _follows(self, name: str, before: str) -> bool:
        link = self.previous(name)
        if before:
            return before in self.hashes and link == Link(before, self.hashes[before])
        return link == self.start or (self.head is None and not link.segment)  # without a head, that is asked of the study as a whole


ALTERED, MISSING = "is not as it was written", "is missing"


@dataclass(frozen=True)
class IntegrityReport:
    """What is wrong with a folder, each as the end of a sentence about the file or segment."""

    checkable: bool  # False: written before there were manifests
    files: Mapping[str, str] = field(default_factory=dict)  # by path in the folder
    segments: Mapping[str, str] = field(default_factory=dict)  # by name: damaged or missing; its tables cannot be trusted
    states: Mapping[str, str] = field(default_factory=dict)  # by file of a checkpoint, of segments whose tables are good
    good: tuple[str, ...] = ()  # segments whose tables are as they were written
    manifests: Mapping[str, Manifest] = field(default_factory=dict)  # of the good ones
    links: Mapping[str, Link] = field(default_factory=dict)  # of the good ones

    def sentences(self, folder: Path) -> list[str]:
        """All that is wrong, in words."""
        named = [(folder / name, wrong) for name, wrong in self.files.items()]
        named += [(folder / "segments" / name, wrong) for name, wrong in sorted(self.segments.items())]
        named += [(folder / "segments" / name, wrong) for name, wrong in sorted(self.states.items())]
        return [f"{path} {wrong}" for path, wrong in named]


def check_integrity(folder: Path, *, everything: bool = False) -> IntegrityReport:
    """Compare a folder with its head and its manifests; what no number rests on (checkpoints, versions) only where asked for."""
    head = read_study_head(folder)  # before the segments: a study that is still run may get more of them meanwhile
    names = [path.name for path in list_segments(folder)]
    read = {name: read_manifest(folder / "segments" / name) for name in names}
    if head is None and not _has_chain(folder, read.values()):
        return IntegrityReport(checkable=False, good=tuple(names))
    made = {name: found for name, found in read.items() if isinstance(found, Manifest)}
    hashes = {name: hash_file(folder / "segments" / name / MANIFEST) for name in made}
    start = compute_origin(head.files if head is not None else {name: hash_file(folder / name) for name in list_head_files(folder)})
    chain = SegmentChain(start, head, made, hashes)
    files = _check_files(folder, head)
    if not everything:
        files.pop("environment.json", None)
    if head is None and chain.has_other_start(names):
        files["settings.json"] = f"(or {' or '.join(IDENTITY_FILES[1:])}) is not as it was when the study began"
    wrong = {name: found for name, found in read.items() if isinstance(found, str)}
    wrong |= chain.broken(names) | _check_segments(folder, made)
    good = tuple(name for name in names if name not in wrong)
    kept = {name: made[name] for name in good}
    bad_states = check_states(folder, kept) if everything else {}
    return IntegrityReport(True, files, wrong, bad_states, good, kept, {name: Link(name, hashes[name]) for name in good})


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study, damaged or not."""
    return (folder / "settings.json").exists() or (folder / HEAD).exists()


def _has_chain(folder: Path, manifests: Iterable[Manifest | str]) -> bool:
    """Whether a folder whose head cannot be read ever had one."""
    if (folder / HEAD).exists() or any(isinstance(found, Manifest) for found in manifests):
        return True
    try:
        tree = read_json(folder / "settings.json")
    except UserError:
        return False
    return isinstance(tree, dict) and tree.get("format", UNCHAINED) > UNCHAINED


def _check_files(folder: Path, head: StudyHead | None) -> dict[str, str]:
    """What is wrong with the files that say what the study is."""
    if head is None:
        return {HEAD: ALTERED if (folder / HEAD).exists() else MISSING}
    found = dict(zip(head.files, map(_hash_or_none, (folder / name for name in head.files)), strict=True))
    return {name: MISSING if found[name] is None else ALTERED for name, wanted in head.files.items() if found[name] != wanted}


def _check_segments(folder: Path, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """By segment, which of its files are not as its manifest says."""
    wanted = [(name, file) for name, manifest in manifests.items() for file in manifest.files if file not in (STATES_FILE, CHUNKS)]
    found = map_in_order(_hash_or_none, (folder / "segments" / name / file for name, file in wanted), count_cores())
    wrong: dict[str, list[str]] = {}
    for (name, file), sha256 in zip(wanted, found, strict=True):
        if sha256 != manifests[name].files[file]:
            wrong.setdefault(name, []).append(f"{file} {MISSING if sha256 is None else ALTERED}")
    return {name: f"is damaged ({', '.join(told)})" for name, told in wrong.items()} | {
        name: f"is segment {manifest.segment} under another name" for name, manifest in manifests.items() if manifest.segment != name
    }


def check_states(folder: Path, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """By file of a checkpoint, what is wrong with it. One that is gone is missed only where a lane that has no later one rests on it."""
    latest = {key: name for name, manifest in manifests.items() for key in manifest.keys}
    needed = {f"{name}/{STATES_FILE}" for name in latest.values()}
    needed |= {
        f"{number:06d}/{CHUNKS}"
        for name in set(latest.values())
        for number in _read_needed_segments(folder / "segments" / name / STATES_FILE)
    }
    wrong = {}
    for file in (f"{name}/{own}" for name in manifests for own in (STATES_FILE, CHUNKS)):
        name, _, own = file.partition("/")
        sha256 = _hash_or_none(folder / "segments" / file)
        if sha256 is None and file in needed:
            wrong[file] = MISSING
        elif sha256 is not None and sha256 != manifests[name].files.get(own):
            wrong[file] = ALTERED
    return wrong


def _read_needed_segments(states: Path) -> set[int]:
    """The segments whose pieces a checkpoint needs; none where that cannot be read, which is told of itself."""
    try:
        return read_checkpoint(states).needed_segments
    except (OSError, SafetensorError, ValueError, KeyError):
        return set()


def _hash_or_none(path: Path) -> str | None:
    try:
        return hash_file(path)
    except OSError:
        return None


def repair_study(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Write files anew whose recorded hash is that of these texts, by name; what was done, in sentences.

    What a study is cannot be made up: where the recorded hash is another one, the study is refused. What is only told of it (on which
    machine it began) is replaced by what is so now.
    """
    head = read_study_head(folder)
    if head is None:
        return _repair_without_head(folder, texts) if check_integrity(folder).checkable else []
    told = []
    for name, text in texts.items():
        path = folder / name
        if name not in head.files or (path.is_file() and hash_file(path) == head.files[name]):
            continue
        if name in IDENTITY_FILES and hash_text(text) != head.files[name]:
            raise UserError(_describe_refusal(folder, path))
        write_atomic(path, text)
        told.append(f"{path} was not as it was written: it is made again.")
        if name not in IDENTITY_FILES:
            head = head.with_file(name, hash_text(text))
            head.write(folder)
    return told


def _repair_without_head(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The last segment, too, knows what the study is; of before studies could grow, the first."""
    found = [made for path in list_segments(folder) if isinstance(made := read_manifest(path), Manifest)]
    known = [Link("", made.study) for made in found if made.study][-1:] or [
        made.previous for made in found[:1] if not made.previous.segment
    ]
    told = [f"{folder / 'head.json'} was not as it was written: it is made again."]
    files = {name: hash_file(folder / name) for name in list_head_files(folder)}
    if known and known[0] != compute_origin(files):
        if known[0] != compute_origin({name: hash_text(text) for name, text in texts.items()}):
            raise UserError(_describe_refusal(folder, folder / "settings.json"))
        for name in IDENTITY_FILES:
            write_atomic(folder / name, texts[name])
            told.append(f"{folder / name} was not as it was written: it is made again.")
    StudyHead.of(folder).write(folder)  # the chain is closed when the lanes are restored
    return told


def repair_routes(folder: Path) -> list[str]:
    """Let `routes.json` say what the last segment says: a run goes on by the routes by which it came."""
    whole = check_integrity(folder)
    if not whole.checkable:
        return []
    path = folder / "routes.json"
    routes = whole.manifests[whole.good[-1]].routes if whole.good else {}
    text = format_json(dict(routes))
    if not routes:  # chosen anew, by the same rule
        path.unlink(missing_ok=True)
        return []
    if path.is_file() and hash_file(path) == hash_text(text):
        return []
    write_atomic(path, text)
    return [f"{path} was not as it was written: it is made again."]


def _describe_refusal(folder: Path, path: Path) -> str:
    return (
        f"{path} {ALTERED}, and this command says something else than what was written: give the command that began the study, or restore "
        f"the file from a copy; 'coterie verify {folder}' says what is still good."
    )


SEALS = "seals.json"


REQUEST = "compare.json"


UNSEALED = 2  # the last format of a comparison that was written without seals


def write_sealed(folder: Path, name: str, text: str) -> list[str]:
    """Write a file of a folder and seal it; what was not as it was written before, in sentences."""
    path, before = folder / name, read_seals(folder) or {}
    there = _hash_sealed(path)
    told = [f"{path} was not as it was written: it is made again."] if name in before and there != before[name] else []
    if there != hash_text(text):
        write_atomic(path, text)
    seal(folder, name)
    return told


def replace_sealed(folder: Path, name: str, text: str) -> None:
    """Put another text in place of a sealed one. The seal comes first: after a kill, the command that says this text writes it."""
    _write_seals(folder, {**(read_seals(folder) or {}), name: hash_text(text)})
    write_atomic(folder / name, text)


def seal(folder: Path, name: str) -> None:
    """Record a file as it is now. The file comes first: one that a kill left without a seal is sealed when the command goes on."""
    before, now = read_seals(folder) or {}, hash_file(folder / name)
    if before.get(name) != now:
        _write_seals(folder, {**before, name: now})


def read_seals(folder: Path) -> dict[str, str] | None:
    """By path in the folder, the hash of each file; None where there are no seals, or they are not as they were written."""
    try:
        tree = read_json(folder / SEALS)
        files = dict(tree["files"])
        return files if hash_text(format_json(files)) == tree["sha256"] else None
    except (UserError, KeyError, TypeError, ValueError):
        return None


def find_broken_seals(folder: Path) -> dict[str, str]:
    """By path in the folder, what is wrong with a comparison's own files; of a folder that never had seals, nothing."""
    seals = read_seals(folder)
    if seals is None:
        return {SEALS: ALTERED if (folder / SEALS).exists() else MISSING} if _has_lost_seals(folder) else {}
    found = {name: _hash_sealed(folder / name) for name in seals}
    wrong = {name: MISSING if found[name] is None else ALTERED for name, wanted in seals.items() if found[name] != wanted}
    loose = sorted(f"tuning/{path.name}" for path in (folder / "tuning").glob("*.json"))
    return wrong | {name: "is not what this comparison wrote" for name in loose if name not in seals}


def repair_request(folder: Path, text: str) -> list[str]:
    """Write what a comparison is again where it is damaged and the command that goes on says the very text that was sealed."""
    path, seals = folder / REQUEST, read_seals(folder)
    sealed = None if seals is None else seals.get(REQUEST)
    if sealed is None and _has_lost_seals(folder) and _hash_sealed(path) == hash_text(text):
        seal(folder, REQUEST)
        return [f"{folder / SEALS} was not as it was written: it is made again."]
    if sealed is None or _hash_sealed(path) == sealed:
        return []
    if hash_text(text) != sealed:
        raise UserError(
            f"{path} {ALTERED}, and this command says something else than what was written: give the command that began the comparison, "
            "or restore the file from a copy."
        )
    return write_sealed(folder, REQUEST, text)


def _has_lost_seals(folder: Path) -> bool:
    """Whether a folder without good seals ever had them: only what says of itself that it is older had none."""
    if (folder / SEALS).exists():
        return True
    if not (folder / REQUEST).exists():
        return any((folder / "tuning").glob("*.json")) and not is_study(folder / "tuning")
    try:
        tree = read_json(folder / REQUEST)
    except UserError:
        return True
    return not (isinstance(tree, dict) and isinstance(told := tree.get("format"), int) and told <= UNSEALED)


def _hash_sealed(path: Path) -> str | None:
    """The hash of a file; None where there is none to be read."""
    try:
        return hash_file(path)
    except (OSError, ValueError):  # no name of a file at all
        return None


def _write_seals(folder: Path, files: Mapping[str, str]) -> None:
    write_atomic(folder / SEALS, format_json({"files": files, "sha256": hash_text(format_json(files))}))
