"""Curves and weights beside the scores: NAME-curves.csv and NAME-weights.csv, and the paper's own curves."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from coterie._util.errors import UserError
from coterie._util.formatting import format_csv, unescape_csv
from coterie.analysis.groups import RoundWeights
from coterie.core.arrays import Ints
from coterie.data.readers.files import list_data_folders
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import PaperCurves, Reproduction
from coterie.reproduce.values import Line, PartValues

MAX_POINTS = 30  # of a curve: more do not show


KEYS = ["part", "method", "seed"]


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
    return format_csv(pd.DataFrame(rows, columns=[*KEYS, *rounds]))


def _curve_row(part: str, method: str, seed: str, line: Line) -> dict[object, object]:
    return {"part": part, "method": method, "seed": seed, **{int(t): round(float(v), 2) for t, v in zip(*line, strict=True)}}


def add_curves(path: Path, values: Mapping[str, PartValues]) -> None:
    """Put what a file holds into the values of its parts; nothing where there is no file."""
    if not path.is_file():
        return
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(KEYS, str)).map(unescape_csv)
        rounds = np.array([int(name) for name in table.columns.drop(KEYS)], dtype=np.int64)
        cells = table.drop(columns=KEYS).to_numpy(np.float64)
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
