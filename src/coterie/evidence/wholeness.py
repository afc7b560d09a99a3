"""Whether a study's folder is as it was written: file by file, segment by segment, along the chain."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError

from coterie.core.disk import file_hash
from coterie.core.errors import UserError
from coterie.core.plain import read_json
from coterie.core.threads import cores, in_order
from coterie.evidence.chain import Chain
from coterie.evidence.checkpoint import STATES, read_checkpoint
from coterie.evidence.head import FIXED, HEAD, Link, StudyHead, head_files, origin, read_study_head
from coterie.evidence.manifest import MANIFEST, Manifest, read_manifest
from coterie.evidence.pieces import PIECES
from coterie.evidence.settings import UNCHAINED
from coterie.evidence.source import segments

ALTERED, MISSING = "is not as it was written", "is missing"


@dataclass(frozen=True)
class Wholeness:
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


def check_whole(folder: Path, *, everything: bool = False) -> Wholeness:
    """Compare a folder with its head and its manifests; what no number rests on (checkpoints, versions) only where asked for."""
    head = read_study_head(folder)  # before the segments: a study that is still run may get more of them meanwhile
    names = [path.name for path in segments(folder)]
    read = {name: read_manifest(folder / "segments" / name) for name in names}
    if head is None and not _chained(folder, read.values()):
        return Wholeness(checkable=False, good=tuple(names))
    made = {name: found for name, found in read.items() if isinstance(found, Manifest)}
    hashes = {name: file_hash(folder / "segments" / name / MANIFEST) for name in made}
    start = origin(head.files if head is not None else {name: file_hash(folder / name) for name in head_files(folder)})
    chain = Chain(start, head, made, hashes)
    files = _wrong_files(folder, head)
    if not everything:
        files.pop("environment.json", None)
    if head is None and chain.begins_otherwise(names):
        files["settings.json"] = f"(or {' or '.join(FIXED[1:])}) is not as it was when the study began"
    wrong = {name: found for name, found in read.items() if isinstance(found, str)}
    wrong |= chain.broken(names) | _wrong_contents(folder, made)
    good = tuple(name for name in names if name not in wrong)
    kept = {name: made[name] for name in good}
    bad_states = wrong_states(folder, kept) if everything else {}
    return Wholeness(True, files, wrong, bad_states, good, kept, {name: Link(name, hashes[name]) for name in good})


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study, damaged or not."""
    return (folder / "settings.json").exists() or (folder / HEAD).exists()


def _chained(folder: Path, manifests: Iterable[Manifest | str]) -> bool:
    """Whether a folder whose head cannot be read ever had one."""
    if (folder / HEAD).exists() or any(isinstance(found, Manifest) for found in manifests):
        return True
    try:
        tree = read_json(folder / "settings.json")
    except UserError:
        return False
    return isinstance(tree, dict) and tree.get("format", UNCHAINED) > UNCHAINED


def _wrong_files(folder: Path, head: StudyHead | None) -> dict[str, str]:
    """What is wrong with the files that say what the study is."""
    if head is None:
        return {HEAD: ALTERED if (folder / HEAD).exists() else MISSING}
    found = dict(zip(head.files, map(_hash, (folder / name for name in head.files)), strict=True))
    return {name: MISSING if found[name] is None else ALTERED for name, wanted in head.files.items() if found[name] != wanted}


def _wrong_contents(folder: Path, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """By segment, which of its files are not as its manifest says."""
    wanted = [(name, file) for name, manifest in manifests.items() for file in manifest.files if file not in (STATES, PIECES)]
    found = in_order(_hash, (folder / "segments" / name / file for name, file in wanted), cores())
    wrong: dict[str, list[str]] = {}
    for (name, file), sha256 in zip(wanted, found, strict=True):
        if sha256 != manifests[name].files[file]:
            wrong.setdefault(name, []).append(f"{file} {MISSING if sha256 is None else ALTERED}")
    return {name: f"is damaged ({', '.join(told)})" for name, told in wrong.items()} | {
        name: f"is segment {manifest.segment} under another name" for name, manifest in manifests.items() if manifest.segment != name
    }


def wrong_states(folder: Path, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """By file of a checkpoint, what is wrong with it. One that is gone is missed only where a lane that has no later one rests on it."""
    latest = {key: name for name, manifest in manifests.items() for key in manifest.keys}
    needed = {f"{name}/{STATES}" for name in latest.values()}
    needed |= {f"{number:06d}/{PIECES}" for name in set(latest.values()) for number in _rests_on(folder / "segments" / name / STATES)}
    wrong = {}
    for file in (f"{name}/{own}" for name in manifests for own in (STATES, PIECES)):
        name, _, own = file.partition("/")
        sha256 = _hash(folder / "segments" / file)
        if sha256 is None and file in needed:
            wrong[file] = MISSING
        elif sha256 is not None and sha256 != manifests[name].files.get(own):
            wrong[file] = ALTERED
    return wrong


def _rests_on(states: Path) -> set[int]:
    """The segments whose pieces a checkpoint needs; none where that cannot be read, which is told of itself."""
    try:
        return read_checkpoint(states).rests_on
    except (OSError, SafetensorError, ValueError, KeyError):
        return set()


def _hash(path: Path) -> str | None:
    try:
        return file_hash(path)
    except OSError:
        return None
