"""Files that say what a study is, written again where they are damaged and the command that goes on says the same."""

from collections.abc import Mapping
from pathlib import Path

from coterie.core.disk import file_hash, text_hash, write_whole
from coterie.core.errors import UserError
from coterie.core.plain import json_text
from coterie.evidence.head import FIXED, Link, StudyHead, head_files, origin, read_study_head
from coterie.evidence.manifest import Manifest, read_manifest
from coterie.evidence.source import segments
from coterie.evidence.wholeness import ALTERED, check_whole


def mend(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Write files anew whose recorded hash is that of these texts, by name; what was done, in sentences.

    What a study is cannot be made up: where the recorded hash is another one, the study is refused. What is only told of it (on which
    machine it began) is replaced by what is so now.
    """
    head = read_study_head(folder)
    if head is None:
        return _mend_without_head(folder, texts) if check_whole(folder).checkable else []
    told = []
    for name, text in texts.items():
        path = folder / name
        if name not in head.files or (path.is_file() and file_hash(path) == head.files[name]):
            continue
        if name in FIXED and text_hash(text) != head.files[name]:
            raise UserError(_refusal(folder, path))
        write_whole(path, text)
        told.append(f"{path} was not as it was written: it is made again.")
        if name not in FIXED:
            head = head.with_file(name, text_hash(text))
            head.write(folder)
    return told


def _mend_without_head(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The last segment, too, knows what the study is; of before studies could grow, the first."""
    found = [made for path in segments(folder) if isinstance(made := read_manifest(path), Manifest)]
    known = [Link("", made.study) for made in found if made.study][-1:] or [
        made.previous for made in found[:1] if not made.previous.segment
    ]
    told = [f"{folder / 'head.json'} was not as it was written: it is made again."]
    files = {name: file_hash(folder / name) for name in head_files(folder)}
    if known and known[0] != origin(files):
        if known[0] != origin({name: text_hash(text) for name, text in texts.items()}):
            raise UserError(_refusal(folder, folder / "settings.json"))
        for name in FIXED:
            write_whole(folder / name, texts[name])
            told.append(f"{folder / name} was not as it was written: it is made again.")
    StudyHead.of(folder).write(folder)  # the chain is closed when the lanes are restored
    return told


def mend_routes(folder: Path) -> list[str]:
    """Let `routes.json` say what the last segment says: a run goes on by the routes by which it came."""
    whole = check_whole(folder)
    if not whole.checkable:
        return []
    path = folder / "routes.json"
    routes = whole.manifests[whole.good[-1]].routes if whole.good else {}
    text = json_text(dict(routes))
    if not routes:  # chosen anew, by the same rule
        path.unlink(missing_ok=True)
        return []
    if path.is_file() and file_hash(path) == text_hash(text):
        return []
    write_whole(path, text)
    return [f"{path} was not as it was written: it is made again."]


def _refusal(folder: Path, path: Path) -> str:
    return (
        f"{path} {ALTERED}, and this command says something else than what was written: give the command that began the study, or restore "
        f"the file from a copy; 'coterie verify {folder}' says what is still good."
    )
