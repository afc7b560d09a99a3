"""Files beside a page: NAME.json (how each part was made), NAME-curves.csv and NAME-weights.csv, and the paper's own curves."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from coterie._util.errors import UserError
from coterie._util.formatting import format_csv, unescape_csv
from coterie._util.json_io import read_json_object
from coterie.analysis.groups import RoundWeights
from coterie.core.arrays import Ints
from coterie.data.readers.files import list_data_folders
from coterie.evidence.reader import Evidence
from coterie.evidence.verify import digest
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import PaperCurves, Reproduction
from coterie.reproduce.values import Line, PartValues, RoundsBetter
from coterie.run.environment import describe_environment
from coterie.statistics import Interval

SHOWN_PACKAGES = ("coterie", "torch", "numpy", "scipy", "scikit-learn")  # of the versions, those that compute


@dataclass(frozen=True)
class Provenance:
    """What is needed to check a number. What was not recorded is empty."""

    commit: str = ""
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    digest: str = ""  # SHA-256 of the evidence; of several studies, of their digests
    seeds: str = ""
    draws: str = ""


def collect_provenance(run: PartRun) -> Provenance | None:
    """Of a part that was run; None of one that was not."""
    if run.settings is None or run.why_not:
        return None
    found = [*run.studies, *run.last]
    once = get_seeds_and_draws(run)
    known = _read_beside(found, "environment.json") or describe_environment()
    versions = {name: str(number) for name, number in (known.get("packages") or {}).items() if name in SHOWN_PACKAGES and number}
    return replace(
        once,
        commit=str(known.get("commit") or ""),
        device=str((_read_beside(found, "execution.json") or {}).get("device", "cpu")),
        versions={"python": str(known.get("python", "")), **versions},
        digest=_compute_digest(found),
    )


def get_seeds_and_draws(run: PartRun) -> Provenance:
    """Seeds and draws alone: all that is known of scores from before more was kept."""
    assert run.settings is not None
    return Provenance(
        seeds=format_ranges(run.settings.seeds), draws=format_ranges(run.settings.seeds if run.part.redrawn else run.settings.draws)
    )


def _read_beside(found: Sequence[Evidence], name: str) -> dict[str, Any] | None:
    """A file beside the evidence, where there is one: measurements leave none, and studies may be in memory."""
    folder = found[0].folder if found else None
    return read_json_object(folder / name) if folder is not None and (folder / name).is_file() else None


def _compute_digest(found: Sequence[Evidence]) -> str:
    digests = [digest(one) for one in found]
    if len(digests) < 2:
        return "".join(digests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def format_ranges(numbers: Sequence[int]) -> str:
    """0-4,7 in place of 0, 1, 2, 3, 4, 7."""
    ordered = sorted(set(numbers))
    starts = [n for n in ordered if n - 1 not in ordered]
    ends = [n for n in ordered if n + 1 not in ordered]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


@dataclass(frozen=True)
class PartRecord:
    """How far a part was run, or why it was not."""

    rounds: int
    why_not: str = ""
    made: Provenance | None = None  # how; not known of pages from before it was kept
    command: str = ""  # that ran it, where it is not the page's last
    date: str = ""
    early: list[str] = field(default_factory=list)  # runs that ended before the last round, and why; not known of older pages


@dataclass(frozen=True)
class StudyRecord:
    """What the scores of single seeds do not hold; claims by their text."""

    command: str  # that ran it, or the last of several
    date: str
    parts: dict[str, PartRecord]
    clients: dict[str, Interval | str] = field(default_factory=dict)  # over test clients and samples, in points
    rounds: dict[str, RoundsBetter] = field(default_factory=dict)


RECORD_ADAPTER = TypeAdapter(StudyRecord)


def make_record(runs: Sequence[PartRun], values: Mapping[str, PartValues], command: str, date: str) -> StudyRecord:
    """The record of what was run."""
    parts = {
        run.part.name: PartRecord(
            run.settings.plan.rounds, run.why_not if run.asked else "", collect_provenance(run), early=list(run.early)
        )
        for run in runs
        if run.settings is not None
    }
    clients = {says: found for own in values.values() for says, found in own.clients.items()}
    rounds = {says: found for own in values.values() for says, found in own.better.items() if isfinite(found.share)}
    return StudyRecord(command, date, parts, clients, rounds)


def format_record(kept: StudyRecord) -> str:
    """As it is written to the file."""
    return RECORD_ADAPTER.dump_json(kept, indent=1).decode() + "\n"


def read_record(scores: Path) -> StudyRecord:
    """The file beside the scores."""
    path = scores.with_suffix(".json")
    try:
        return RECORD_ADAPTER.validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise UserError(f"Cannot read {path}, which belongs to {scores.name}: {error.strerror or error}.") from error
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"{path} is not what 'coterie reproduce --page' writes: {key or 'the file'!r} ({fault['msg'].lower()}).") from None


MAX_POINTS = 30  # of a curve: more do not show
CURVE_KEYS = ["part", "method", "seed"]
MEAN, PAPER = "mean", "paper"  # in place of a seed: the mean of all where single ones were not kept, and the paper's own


def select_rounds(count: int) -> Ints:
    """Which of so many evaluated rounds are kept: the first, the last, and others as evenly as can be."""
    return np.unique(np.linspace(0, count - 1, min(MAX_POINTS, count)).round().astype(np.int64))


def format_curves(values: Mapping[str, PartValues]) -> str:
    """The file; empty where there are no curves."""
    rows: list[dict[object, object]] = []
    for part, own in values.items():
        at = select_rounds(len(own.rounds)) if len(own.rounds) else np.zeros(0, np.int64)
        for method, seeds in own.curves.items():
            rows += [_curve_row(part, method, str(seed), (own.rounds[at], curve[at])) for seed, curve in sorted(seeds.items())]
        rows += [_curve_row(part, method, MEAN, line) for method, line in own.means.items()]
        rows += [_curve_row(part, method, PAPER, line) for method, line in own.theirs.items()]
    if not rows:
        return ""
    rounds = sorted({key for row in rows for key in row if isinstance(key, int)})
    return format_csv(pd.DataFrame(rows, columns=[*CURVE_KEYS, *rounds]))


def _curve_row(part: str, method: str, seed: str, line: Line) -> dict[object, object]:
    return {"part": part, "method": method, "seed": seed, **{int(t): round(float(v), 2) for t, v in zip(*line, strict=True)}}


def add_curves(path: Path, values: Mapping[str, PartValues]) -> None:
    """Put what a file holds into the values of its parts; nothing where there is no file."""
    if not path.is_file():
        return
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(CURVE_KEYS, str)).map(unescape_csv)
        rounds = np.array([int(name) for name in table.columns.drop(CURVE_KEYS)], dtype=np.int64)
        cells = table.drop(columns=CURVE_KEYS).to_numpy(np.float64)
        seeds = [seed if seed in (MEAN, PAPER) else int(seed) for seed in table["seed"]]
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"The curves {path} are not what 'coterie reproduce --page' writes: {error}.") from error
    for part, method, seed, row in zip(table["part"], table["method"], seeds, cells, strict=True):
        own, known = values.get(part), np.isfinite(row)
        if own is None or not known.any():
            continue
        if isinstance(seed, str):
            (own.means if seed == MEAN else own.theirs)[method] = (rounds[known], row[known])
        else:
            own.rounds = rounds[known]
            own.curves.setdefault(method, {})[seed] = row[known]


def add_paper_curves(study: Reproduction, values: Mapping[str, PartValues], data_dir: Path | None) -> None:
    """Put the paper's own curves into the values of its parts, those whose files are in a data folder."""
    for curves in study.curves:
        found = [folder / curves.file for folder in list_data_folders(data_dir) if (folder / curves.file).is_file()]
        if found:
            values[curves.part].theirs = _read_paper_lines(curves, found[0])


def _read_paper_lines(curves: PaperCurves, path: Path) -> dict[str, Line]:
    """By row, at some of the rounds."""
    try:
        table = pd.read_csv(path)
        table = table[table["round"] >= 1]
        rounds = table["round"].to_numpy(np.int64)
        at = select_rounds(len(rounds))
        return {row: (rounds[at], 100 * table[column].to_numpy(np.float64)[at]) for row, column in curves.columns.items()}
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"The curves {path} lack a column that the study names, or are not CSV: {error}.") from error


MIN_CURVE_ROUNDS = 5  # evaluated rounds: fewer are no curve


def select_rows(study: Reproduction, run: PartRun, values: PartValues) -> list[str]:
    """Whose curves are drawn: the methods', or the models' on the server's own test set where the part's claims are about those."""
    named = dict.fromkeys([*values.curves, *values.means])
    if len(values.rounds) < MIN_CURVE_ROUNDS and not values.means:
        return []
    return [row for row in named if (" | " in row) == has_central_claims(study, run)] or list(named)


def has_central_claims(study: Reproduction, run: PartRun) -> bool:
    """Are a part's claims about models on the server's own test set?"""
    return any(" | " in claim.one for claim in study.claims if run.part.name in (claim.parts or [claim.part]))


WEIGHT_COLUMNS = ["part", "method", "seed", "round", "samples", "weights"]


def format_weights(values: Mapping[str, PartValues]) -> str:
    """The file; empty where no weights were kept."""
    rows = [
        (part, method, seed, one.round_, " ".join(map(str, one.samples)), " ".join(f"{weight:.5f}" for weight in one.weights))
        for part, own in values.items()
        for method, seeds in own.weights.items()
        for seed, rounds in sorted(seeds.items())
        for one in rounds
    ]
    return format_csv(pd.DataFrame(rows, columns=WEIGHT_COLUMNS)) if rows else ""


def add_weights(path: Path, values: Mapping[str, PartValues]) -> None:
    """Put what a file holds into the values of its parts; nothing where there is no file."""
    if not path.is_file():
        return
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(WEIGHT_COLUMNS, str)).map(unescape_csv)
        columns = (table[name] for name in WEIGHT_COLUMNS)
        rows = [(part, method, int(seed), _parse_round(*cells)) for part, method, seed, *cells in zip(*columns, strict=True)]
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"The weights {path} are not what 'coterie reproduce --page' writes: {error}.") from error
    for part, method, seed, one in rows:
        if part in values:
            values[part].weights.setdefault(method, {}).setdefault(seed, []).append(one)


def _parse_round(round_: str, samples: str, weights: str) -> RoundWeights:
    counts, shares = (np.array(str(cell).split(), dtype=np.float64) for cell in (samples, weights))
    if len(counts) != len(shares) or not len(counts):
        raise ValueError(f"{len(counts)} samples beside {len(shares)} weights")
    return RoundWeights(int(round_), counts.astype(np.int64), shares)
