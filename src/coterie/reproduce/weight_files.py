"""NAME-weights.csv: a row for each part, method, seed and round, with its clients' samples and the weights they got."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.core.errors import UserError
from coterie.core.table_text import csv_text, unescape_csv
from coterie.reproduce.client_weights import WeighedRound
from coterie.reproduce.values import PartValues

COLUMNS = ["part", "method", "seed", "round", "samples", "weights"]


def weights_text(values: Mapping[str, PartValues]) -> str:
    """The file; empty where no weights were kept."""
    rows = [
        (part, method, seed, one.round_, " ".join(map(str, one.samples)), " ".join(f"{weight:.5f}" for weight in one.weights))
        for part, own in values.items()
        for method, seeds in own.weights.items()
        for seed, rounds in sorted(seeds.items())
        for one in rounds
    ]
    return csv_text(pd.DataFrame(rows, columns=COLUMNS)) if rows else ""


def add_weights(path: Path, values: Mapping[str, PartValues]) -> None:
    """Put what a file holds into the values of its parts; nothing where there is no file."""
    if not path.is_file():
        return
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(COLUMNS, str)).map(unescape_csv)
        columns = (table[name] for name in COLUMNS)
        rows = [(part, method, int(seed), _round(*cells)) for part, method, seed, *cells in zip(*columns, strict=True)]
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"The weights {path} are not what 'coterie reproduce --page' writes: {error}.") from error
    for part, method, seed, one in rows:
        if part in values:
            values[part].weights.setdefault(method, {}).setdefault(seed, []).append(one)


def _round(round_: str, samples: str, weights: str) -> WeighedRound:
    counts, shares = (np.array(str(cell).split(), dtype=np.float64) for cell in (samples, weights))
    if len(counts) != len(shares) or not len(counts):
        raise ValueError(f"{len(counts)} samples beside {len(shares)} weights")
    return WeighedRound(int(round_), counts.astype(np.int64), shares)
