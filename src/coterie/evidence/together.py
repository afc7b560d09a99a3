"""The digests of several studies in one folder: of a comparison, a grid or a reproduction."""

from collections.abc import Mapping
from pathlib import Path

from coterie.core.disk import text_hash
from coterie.core.errors import UserError
from coterie.core.plain import json_text
from coterie.evidence.digest import digest
from coterie.evidence.reader import Evidence
from coterie.evidence.seals import broken_seals
from coterie.evidence.verify import studies_in


def digests_in(folder: Path, *, counts: bool = False) -> dict[str, str]:
    """By path in the folder, the digest of each study; the study that a folder is itself has the path '.'."""
    if wrong := broken_seals(folder):
        name, told = next(iter(wrong.items()))
        raise UserError(f"{folder} is not whole: {folder / name} {told}; 'coterie verify {folder}' says what is still good.")
    return {path.relative_to(folder).as_posix(): digest(Evidence.open(path), counts=counts) for path in studies_in(folder)}


def digest_of_all(digests: Mapping[str, str]) -> str:
    """One hash for several studies, of their places and their digests."""
    return text_hash(json_text(dict(digests)))
