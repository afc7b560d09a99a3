"""Files that belong to several studies (what a comparison is, which rates its tuning chose), and the file that holds their hashes.

Each study below has a head of its own. `seals.json` binds what stands beside them: the request, the result of every tuning, and the
settings of each study that was carried out, so that one which is taken away or exchanged for another is missed.
"""

from collections.abc import Mapping
from pathlib import Path

from coterie.core.disk import file_hash, text_hash, write_whole
from coterie.core.errors import UserError
from coterie.core.plain import json_text, read_json
from coterie.evidence.wholeness import ALTERED, MISSING, is_study

SEALS = "seals.json"
REQUEST = "compare.json"
UNSEALED = 2  # the last format of a comparison that was written without seals


def write_sealed(folder: Path, name: str, text: str) -> list[str]:
    """Write a file of a folder and seal it; what was not as it was written before, in sentences."""
    path, before = folder / name, read_seals(folder) or {}
    there = _hash(path)
    told = [f"{path} was not as it was written: it is made again."] if name in before and there != before[name] else []
    if there != text_hash(text):
        write_whole(path, text)
    seal(folder, name)
    return told


def seal(folder: Path, name: str) -> None:
    """Record a file as it is now. The file comes first: one that a kill left without a seal is sealed when the command goes on."""
    before, now = read_seals(folder) or {}, file_hash(folder / name)
    if before.get(name) != now:
        _write(folder, {**before, name: now})


def read_seals(folder: Path) -> dict[str, str] | None:
    """By path in the folder, the hash of each file; None where there are no seals, or they are not as they were written."""
    try:
        tree = read_json(folder / SEALS)
        files = dict(tree["files"])
        return files if text_hash(json_text(files)) == tree["sha256"] else None
    except (UserError, KeyError, TypeError, ValueError):
        return None


def broken_seals(folder: Path) -> dict[str, str]:
    """By path in the folder, what is wrong with a comparison's own files; of a folder that never had seals, nothing."""
    seals = read_seals(folder)
    if seals is None:
        return {SEALS: ALTERED if (folder / SEALS).exists() else MISSING} if _was_sealed(folder) else {}
    found = {name: _hash(folder / name) for name in seals}
    wrong = {name: MISSING if found[name] is None else ALTERED for name, wanted in seals.items() if found[name] != wanted}
    loose = sorted(f"tuning/{path.name}" for path in (folder / "tuning").glob("*.json"))
    return wrong | {name: "is not what this comparison wrote" for name in loose if name not in seals}


def mend_request(folder: Path, text: str) -> list[str]:
    """Write what a comparison is again where it is damaged and the command that goes on says the very text that was sealed."""
    path, seals = folder / REQUEST, read_seals(folder)
    sealed = None if seals is None else seals.get(REQUEST)
    if sealed is None and _was_sealed(folder) and _hash(path) == text_hash(text):
        seal(folder, REQUEST)
        return [f"{folder / SEALS} was not as it was written: it is made again."]
    if sealed is None or _hash(path) == sealed:
        return []
    if text_hash(text) != sealed:
        raise UserError(
            f"{path} {ALTERED}, and this command says something else than what was written: give the command that began the comparison, "
            "or restore the file from a copy."
        )
    return write_sealed(folder, REQUEST, text)


def _was_sealed(folder: Path) -> bool:
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


def _hash(path: Path) -> str | None:
    """The hash of a file; None where there is none to be read."""
    try:
        return file_hash(path)
    except (OSError, ValueError):  # no name of a file at all
        return None


def _write(folder: Path, files: Mapping[str, str]) -> None:
    write_whole(folder / SEALS, json_text({"files": files, "sha256": text_hash(json_text(files))}))
