"""Studies that grow: more methods, seeds, draws or rounds, and nothing else changed.

Randomness is keyed, so what there is stays as it is, and the whole is what one run of all would have given.
"""

import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.disk import file_hash, flush
from coterie.core.local import Local
from coterie.core.plain import json_text
from coterie.core.plan import Plan
from coterie.evidence.head import HEAD, origin, read_study_head
from coterie.evidence.roster_files import roster_path, write_roster
from coterie.evidence.settings import Settings
from coterie.evidence.source import segments

GROWING = ".growing"  # what a study is about to be, complete: whoever goes on with it puts it in place first
NAMED = ("methods", "seeds", "draws")


def obstacles(stored: Settings, wanted: Settings) -> list[str]:
    """In what a study differs from another than by being a part of it, by name; nothing where it can grow into that."""
    told = [name for name in stored.differences(wanted) if name not in NAMED and not name.startswith("plan.")]
    told += [sentence for name in NAMED for sentence in left_out(name, getattr(stored, name), getattr(wanted, name))]
    return told + plan_obstacles(stored.plan, wanted.plan)


def left_out(name: str, stored: Iterable[object], wanted: Collection[object]) -> list[str]:
    """Which of what there is would not be there any more, in words; nothing if all would."""
    missing = [str(item) for item in stored if item not in wanted]
    return [f"{name}, without {', '.join(missing)}"] if missing else []


def plan_obstacles(stored: Plan, wanted: Plan) -> list[str]:
    """In what plans differ, by name, other than by more rounds."""
    told = [
        f"plan.{f.name}" for f in fields(Plan) if f.name not in ("rounds", "local") and getattr(stored, f.name) != getattr(wanted, f.name)
    ]
    told += [f"plan.local.{f.name}" for f in fields(Local) if getattr(stored.local, f.name) != getattr(wanted.local, f.name)]
    if wanted.rounds < stored.rounds:
        told.append(f"plan.rounds, fewer than {stored.rounds}")
    elif wanted.rounds > stored.rounds and stored.schedule == "cosine":
        told.append("plan.rounds: along a cosine every round's rate depends on their number")
    return told


def grow(folder: Path, settings: Settings, data: Mapping[str, Any], rosters: Mapping[int, pa.Table]) -> None:
    """Let the study in a folder be one of these settings. After a kill it is either the old or the new one, once somebody goes on."""
    head = read_study_head(folder)
    assert head is not None  # folders without one are refused
    draft = folder / f".draft{GROWING}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "rosters").mkdir(parents=True)
    (draft / "settings.json").write_text(json_text(settings.as_json()), encoding="utf-8")
    if "data.json" in head.files:
        (draft / "data.json").write_text(json_text(data), encoding="utf-8")
    for draw, roster in rosters.items():
        write_roster(roster_path(draft, draw), roster)
    made = {path.relative_to(draft).as_posix(): file_hash(path) for path in draft.rglob("*") if path.is_file()}
    files = {**head.files, **made}
    start, there = origin(files), segments(folder)
    follows = {**head.follows, there[0].name: start} if there else {}
    replace(head, files=files, last=head.last if there else start, follows=follows).write(draft)
    for path in (*draft.rglob("*"), draft):
        flush(path)
    draft.rename(folder / GROWING)
    flush(folder)
    finish_growing(folder)


def finish_growing(folder: Path) -> None:
    """Put in place what a study was about to be when it was interrupted; its head comes last."""
    ready = folder / GROWING
    if not ready.is_dir():
        return
    names = [path.relative_to(ready) for path in ready.rglob("*") if path.is_file()]
    for name in sorted(names, key=lambda name: (name.name == HEAD, name)):
        (folder / name).parent.mkdir(exist_ok=True)
        (ready / name).replace(folder / name)
        flush((folder / name).parent)
    shutil.rmtree(ready)
    flush(folder)
