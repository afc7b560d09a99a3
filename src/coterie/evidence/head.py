"""The head of a study: hashes of the files that say what it is, and the last link of the chain of its segments.

It is replaced, whole, after each segment. So a segment that was taken away at the end is missed, and one that was named a moment before a
kill still follows on the last that the head knows.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from coterie.core.disk import file_hash, text_hash, write_whole
from coterie.core.errors import UserError
from coterie.core.plain import json_text, read_json

HEAD = "head.json"
FIXED = ("settings.json", "data.json", "execution.json")  # what a study is: never changed, and the chain begins with it


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
        files = {name: file_hash(folder / name) for name in head_files(folder)}
        return cls(files, origin(files))

    def write(self, folder: Path) -> None:
        """Put it in place of the one before."""
        tree = asdict(self)
        write_whole(folder / HEAD, json_text({**tree, "sha256": text_hash(json_text(tree))}))

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
    return head if text_hash(json_text(tree)) == told else None


def origin(files: Mapping[str, str]) -> Link:
    """Where the chain begins: the hash of what the study is."""
    return Link("", text_hash(json_text({name: files[name] for name in FIXED if name in files})))


def head_files(folder: Path) -> list[str]:
    """The files that a head covers: those that are written when a study begins, and rosters, which may grow."""
    own = [name for name in (*FIXED, "environment.json") if (folder / name).is_file()]
    return own + sorted(f"rosters/{path.name}" for path in (folder / "rosters").glob("[!.]*.parquet"))
