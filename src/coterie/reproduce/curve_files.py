"""NAME-curves.csv: every seed's accuracies at some of the rounds, beside the scores, and the paper's own curves where they can be had."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.core.arrays import Ints
from coterie.core.errors import UserError
from coterie.core.table_text import csv_text, unescape_csv
from coterie.data.folder import data_folders
from coterie.reproduce.file import PaperCurves, Reproduction
from coterie.reproduce.values import Line, PartValues

POINTS = 30  # of a curve: more do not show
KEYS = ["part", "method", "seed"]
MEAN, PAPER = "mean", "paper"  # in place of a seed: the mean of all where single ones were not kept, and the paper's own


def kept_rounds(count: int) -> Ints:
    """Which of so many evaluated rounds are kept: the first, the last, and others as evenly as can be."""
    return np.unique(np.linspace(0, count - 1, min(POINTS, count)).round().astype(np.int64))


def curves_text(values: Mapping[str, PartValues]) -> str:
    """The file; empty where there are no curves."""
    rows: list[dict[object, object]] = []
    for part, own in values.items():
        at = kept_rounds(len(own.rounds)) if len(own.rounds) else np.zeros(0, np.int64)
        for method, seeds in own.curves.items():
            rows += [_row(part, method, str(seed), (own.rounds[at], curve[at])) for seed, curve in sorted(seeds.items())]
        rows += [_row(part, method, MEAN, line) for method, line in own.means.items()]
        rows += [_row(part, method, PAPER, line) for method, line in own.theirs.items()]
    if not rows:
        return ""
    rounds = sorted({key for row in rows for key in row if isinstance(key, int)})
    return csv_text(pd.DataFrame(rows, columns=[*KEYS, *rounds]))


def _row(part: str, method: str, seed: str, line: Line) -> dict[object, object]:
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
        found = [folder / curves.file for folder in data_folders(data_dir) if (folder / curves.file).is_file()]
        if found:
            values[curves.part].theirs = _paper_lines(curves, found[0])


def _paper_lines(curves: PaperCurves, path: Path) -> dict[str, Line]:
    """By row, at some of the rounds."""
    try:
        table = pd.read_csv(path)
        table = table[table["round"] >= 1]
        rounds = table["round"].to_numpy(np.int64)
        at = kept_rounds(len(rounds))
        return {row: (rounds[at], 100 * table[column].to_numpy(np.float64)[at]) for row, column in curves.columns.items()}
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"The curves {path} lack a column that the study names, or are not CSV: {error}.") from error
