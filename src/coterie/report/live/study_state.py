"""The state of a study that may still run, read from its folder alone: progress, curves, groups, refused replies and bytes.

`coterie show --web`, `coterie run --web` and both forms of `coterie federation status` show it.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie._util.files import LOCK_NAME
from coterie._util.json_io import read_json, to_json_value
from coterie.analysis import metrics
from coterie.analysis.record_reader import read_records
from coterie.analysis.records import Records
from coterie.analysis.roles import assign_roles, name_methods
from coterie.analysis.scores import compute_partial_curves
from coterie.core.arrays import Array
from coterie.core.asks import Refusal
from coterie.evidence.folder import list_segments
from coterie.evidence.manifest import find_studies, is_study
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneKey
from coterie.run.callbacks import TimeLeft

MOST_POINTS = 200  # of a curve
ATTEMPTS = 3  # at files that another process writes
MOST_REFUSED = 50  # lines of refused replies
Fingerprint = tuple[tuple[str, int, int], ...]  # of a study's files: path, size and time of change


def summarize_folder(folder: Path) -> dict[str, Any]:
    """The state of every study in a folder, as JSON; a folder in which nothing was written yet has none."""
    try:
        studies = find_studies(folder) if folder.exists() else []
    except UserError:  # made a moment ago
        studies = []
    return {"kind": "study", "title": str(folder), "time": time(), "studies": [summarize_study(path) for path in studies]}


def summarize_study(folder: Path) -> dict[str, Any]:
    """The state of one study, as JSON. What cannot be read is a sentence in `faults`; the rest is there all the same.

    Files that have not changed are not read again.
    """
    state: dict[str, Any] = {"folder": str(folder), "faults": [], "status": "unreadable"}
    try:
        state |= _read_unchanged(folder)
    except UserError as error:
        state["faults"] = [str(error)]
        return state
    running = _is_being_written(folder)
    is_over = state["done"] >= state["total"]
    state["status"] = "complete" if is_over else "running" if running else "stopped"
    left = state.pop("left")
    state["seconds_left"] = None if left is None or state["status"] != "running" else max(left - (time() - state["updated"]), 0.0)
    return state


def _read_unchanged(folder: Path) -> Mapping[str, Any]:
    """What the files hold; where one was written while they were read, all are read again."""
    for attempt in range(ATTEMPTS):
        files = _list_files(folder)
        try:
            return _read_study(folder, files)
        except UserError:
            if attempt == ATTEMPTS - 1 or _list_files(folder) == files:
                raise
    raise AssertionError


def _list_files(folder: Path) -> Fingerprint:
    """The files of the segments and the head of a study, with their sizes and times."""
    paths = [path for segment in list_segments(folder) for path in sorted(segment.iterdir())]
    found = []
    for path in [*paths, folder / "settings.json", folder / "head.json"]:
        with suppress(OSError):  # replaced at this moment
            info = path.stat()
            found.append((str(path), info.st_size, info.st_mtime_ns))
    return tuple(found)


@lru_cache(maxsize=16)
def _read_study(folder: Path, files: Fingerprint) -> Mapping[str, Any]:
    """What the files of a study hold; `files` decides whether they are read again."""
    if not is_study(folder):
        raise UserError(f"{folder} holds no study: name the folder that --out made.")
    evidence = Evidence.open(folder)
    settings = evidence.settings
    total = settings.plan.rounds * len(settings.draws) * len(settings.seeds) * len(settings.methods)
    marks, ends = _read_marks(folder, settings.plan.rounds)
    done = marks[-1][1] if marks else 0
    state = {
        "data": settings.data,
        "model": settings.model,
        "methods": list(settings.methods),
        "names": name_methods(assign_roles(settings.methods, facts=settings.facts)),
        "clients": len(evidence.ids),
        "draws": list(settings.draws),
        "seeds": list(settings.seeds),
        "rounds": settings.plan.rounds,
        "round": max((last for last, _, _ in ends.values()), default=None),
        "done": done,
        "total": total,
        "updated": marks[-1][0] if marks else (folder / "settings.json").stat().st_mtime,
        "left": _estimate_seconds(marks, total),
        "stopped_runs": [f"{key.method}, seed {key.seed}: {status} {why}".strip() for key, (_, status, why) in ends.items() if why],
        "metric": None,
        "curves": {},
        "groups": {},
        "refused": [],
        "absent": 0,
        "bytes": {},
        "faults": [],
    }
    if marks:
        draws = [read_records(evidence.select_draw(draw)) for draw in settings.draws]
        metric = draws[0].metric
        state |= {
            "metric": {"name": metric.noun, "share": metric.is_share},
            "curves": _summarize_curves(draws),
            "groups": read_last_groups(evidence),
            "bytes": _sum_bytes(draws),
            "faults": list(dict.fromkeys(fault for records in draws for fault in records.faults)),
            **_count_refused(evidence),
        }
    return dict(to_json_value(state))


def _read_marks(folder: Path, rounds: int) -> tuple[list[tuple[float, int]], dict[LaneKey, tuple[int, str, str]]]:
    """When each segment was written and how many rounds of all lanes were done then; and by lane its last round, status and reason."""
    marks, ends = [], dict[LaneKey, tuple[int, str, str]]()
    for segment in list_segments(folder):
        path = segment / "lanes.json"
        for entry in read_json(path):
            ends[LaneKey(entry["draw"], entry["method"], entry["seed"])] = entry["last"], entry["status"], entry["reason"]
        finished = (rounds if status != "running" else last for last, status, _ in ends.values())
        marks.append((path.stat().st_mtime, sum(finished)))
    return marks, ends


def _estimate_seconds(marks: Sequence[tuple[float, int]], total: int) -> float | None:
    """Seconds left at the time of the last segment, by the pace of the last ones."""
    left = TimeLeft(total)
    for when, done in marks:
        left.note(done, when)
    return left.seconds


def _is_being_written(folder: Path) -> bool:
    """Whether the process that last locked the folder runs on this machine."""
    try:
        os.kill(int((folder / LOCK_NAME).read_text(encoding="utf-8")), 0)
    except (OSError, ValueError):
        return False
    return True


def _summarize_curves(draws: Sequence[Records]) -> dict[str, dict[str, Any]]:
    """By method, the mean over draws and seeds of each evaluated round, and the least number of clients that it is of."""
    tables = [compute_partial_curves(records) for records in draws]
    rounds, found = draws[0].rounds, {}
    for place, label in enumerate(draws[0].settings.methods):
        scores = metrics.mean(np.concatenate([score[place] for score, _ in tables]), axis=0)
        clients: Array = np.concatenate([count[place] for _, count in tables])
        known = np.flatnonzero(np.isfinite(scores))
        kept = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), MOST_POINTS)).round().astype(np.int64))]
        fewest = np.where(clients > 0, clients, np.iinfo(np.int64).max).min(axis=0)
        found[label] = {"rounds": rounds[kept].tolist(), "scores": scores[kept].tolist(), "clients": fewest[kept].tolist()}
    return found


def read_last_groups(evidence: Evidence) -> dict[str, dict[str, int]]:
    """By method that groups, the group of each client after its last round on disk, with the first draw and seed."""
    settings, frame = evidence.settings, evidence.frame("groups")
    ids = evidence.rosters[settings.draws[0]].column("id").to_pylist()
    frame = frame[(frame["seed"] == settings.seeds[0]) & (frame["draw"] == settings.draws[0])]
    found = {}
    for method in settings.methods:
        own = frame[frame["method"] == method]
        if len(own) and own["group"].max() > 0:
            last = own[own["round"] == own["round"].max()]
            found[method] = {str(ids[client]): int(group) for client, group in zip(last["client"], last["group"], strict=True)}
    return found


def _sum_bytes(draws: Sequence[Records]) -> dict[str, dict[str, float]]:
    """By method, the bytes to clients (down) and from them (up), of all lanes."""
    names = {"up": "bytes_up", "down": "bytes_down"}
    return {
        label: {way: float(sum(np.nansum(records.costs[column][place]) for records in draws)) for way, column in names.items()}
        for place, label in enumerate(draws[0].settings.methods)
    }


def _count_refused(evidence: Evidence) -> dict[str, Any]:
    """Refused replies by client and reason, the most frequent first, and how often clients did not reply at all."""
    counts, last, absent = Counter[tuple[str, str, str, str]](), dict[tuple[str, str, str, str], int](), 0
    ids = {draw: roster.column("id").to_pylist() for draw, roster in evidence.rosters.items()}
    for batch in evidence.batches("absences", ["client", "ask", "why", "detail"]):
        for row in batch.to_pylist():
            if row["why"] == "ABSENT":
                absent += 1
                continue
            key = str(ids[row["draw"]][row["client"]]), row["ask"], row["why"], row["detail"] or ""
            counts[key] += 1
            last[key] = max(last.get(key, 0), row["round"])
    rows = [
        {
            "client": client,
            "ask": ask,
            "reason": f"{Refusal[why].value if why in Refusal.__members__ else why}{f' ({detail})' if detail else ''}",
            "times": times,
            "last_round": last[client, ask, why, detail],
        }
        for (client, ask, why, detail), times in counts.most_common(MOST_REFUSED)
    ]
    return {"refused": rows, "refused_kinds": len(counts), "absent": absent}
