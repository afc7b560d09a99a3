"""The files that checkpoints rest on, each looked at once: whether it is as it was written, and its bytes."""

from collections.abc import Mapping
from pathlib import Path

from coterie.core.disk import file_hash
from coterie.evidence.checkpoint import pieces_of
from coterie.evidence.manifest import Manifest
from coterie.evidence.pieces import PIECES, Bytes
from coterie.evidence.wholeness import ALTERED, MISSING


class UnsoundError(ValueError):
    """A file of a checkpoint is not as it was written; which, as the rest of a sentence."""


class PieceFiles:
    """Those of one folder; where it has manifests, only what they name is given out."""

    def __init__(self, folder: Path, manifests: Mapping[str, Manifest] | None) -> None:
        self._folder, self._manifests = folder, manifests
        self._opened: dict[int, Bytes] = {}

    def check(self, path: Path) -> None:
        """Refuse a file of a segment that is not as its manifest says."""
        if self._manifests is None:
            return
        manifest = self._manifests.get(path.parent.name)
        if manifest is None or file_hash(path) != manifest.files.get(path.name):
            raise UnsoundError(f"{path} {ALTERED}")

    def __getitem__(self, number: int) -> Bytes:
        """The pieces of a segment."""
        if number not in self._opened:
            path = self._folder / "segments" / f"{number:06d}" / PIECES
            if not path.is_file():
                raise UnsoundError(f"{path} {MISSING}")
            self.check(path)
            self._opened[number] = pieces_of(path.parent)
        return self._opened[number]
