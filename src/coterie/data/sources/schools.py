"""Ratings of lecturers and marks of schools, from Debian's r-cran-lme4 and r-cran-mlmrev: more than a thousand small clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.federation import Samples
from coterie.data.readers.packages import read_r_frame
from coterie.data.sources.packaged import keep_table, make_packaged_set

if TYPE_CHECKING:
    import pandas as pd

GOOD = 4  # of 5
TOP = 8  # points: A is worth 10, B 8, C 6


def tidy_ratings(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every rating. Who gave it is left out."""
    table = read_r_frame(raw[0], raw[1], "InstEval", where)
    label = np.where(table["y"].to_numpy(np.int64) >= GOOD, "good", "lower")
    lecturer = "lecturer-" + table["d"].astype(str)
    return table[["studage", "lectage", "service", "dept"]].astype(str).assign(client=lecturer, label=label)


def tidy_marks(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every candidate, with the mean mark of two years before; the authority, of which schools are parts, is left out."""
    table = read_r_frame(raw[0], raw[1], "Chem97", where)
    label = np.where(table["score"] >= TOP, "A or B", "lower")
    return table[["age", "gcsescore"]].assign(
        gender=table["gender"].astype(str), client="school-" + table["school"].astype(str), label=label
    )


INSTEVAL = make_packaged_set("insteval", tidy_ratings)
CHEM97 = make_packaged_set("chem97", tidy_marks)


def insteval(*, _data_dir: Path | None = None) -> Samples:
    """73,421 ratings of 1,128 lecturers by their students: 4 or 5 of 5? Package needed."""
    return INSTEVAL.samples(keep_table, _data_dir)


def chem97(*, _data_dir: Path | None = None) -> Samples:
    """31,022 A-level chemistry candidates of 2,410 schools: an A or B? Package needed."""
    return CHEM97.samples(keep_table, _data_dir)
