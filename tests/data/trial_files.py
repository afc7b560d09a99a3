"""One CSV file a site, as sites keep them: accelerometers of people, made here, with the faults that such files have."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

LABEL = "activity"
CLASSES = ("sit", "stand", "walk")
COLUMNS = ("mean_x", "mean_y", "energy", "age", "phone")
PHONES = ("HTC", "Samsung", "Sony")
OUTLIER = 1e12
OUTLIER_LINE = 9  # of the file, as an editor counts lines
# what can be wrong with a file; several may be given
FAULTS = (
    "order",  # the columns from the last to the first
    "misspelt",  # enregy for energy
    "missing_class",  # nobody walks
    "one_class",  # everybody sits
    "question_marks",  # ? for some ages
    "tiny",  # five rows
    "outlier",  # 1e12 in mean_x, in line 9
    "semicolons",
    "decimal_commas",  # with semicolons, as spreadsheets write them
    "latin1",  # an umlaut among the phones, in Latin-1
    "utf16",
    "unknown_word",  # Pixel for HTC
    "empty_column",  # no ages
    "blank_lines",  # after each tenth row
)


def trial_frame(seed: int, rows: int = 60) -> pd.DataFrame:
    """The rows of a site: what somebody does shows in energy and mean_x, and less in the rest."""
    rng = np.random.default_rng(seed)
    doing = rng.integers(0, len(CLASSES), rows)
    doing[: min(rows, len(CLASSES))] = np.arange(min(rows, len(CLASSES)))  # each comes once
    return pd.DataFrame(
        {
            "mean_x": (doing - 1 + rng.normal(0, 0.8, rows)).round(4),
            "mean_y": (0.3 * seed + rng.normal(0, 1, rows)).round(4),
            "energy": (np.where(doing == 2, 5, 1) * rng.gamma(4, 0.5, rows)).round(4),
            "age": rng.integers(20, 70, rows),
            "phone": rng.choice(PHONES, rows),
            LABEL: np.array(CLASSES)[doing],
        }
    )


def write_site(path: Path, *faults: str, seed: int = 0, rows: int = 60) -> Path:
    """Write one site's file with these faults."""
    assert set(faults) <= set(FAULTS), faults
    frame = trial_frame(seed, 5 if "tiny" in faults else rows)
    if "missing_class" in faults:
        frame = frame[frame[LABEL] != "walk"]
    if "one_class" in faults:
        frame[LABEL] = "sit"
    if "outlier" in faults:
        frame.loc[frame.index[OUTLIER_LINE - 2], "mean_x"] = OUTLIER
    if "unknown_word" in faults:
        frame["phone"] = frame["phone"].replace("HTC", "Pixel")
    if "latin1" in faults:
        frame["phone"] = frame["phone"].replace("Sony", "Söny")
    if "empty_column" in faults:
        frame["age"] = np.nan
    if "question_marks" in faults:
        frame["age"] = frame["age"].astype(object).mask(np.arange(len(frame)) % 7 == 3, "?")
    if "misspelt" in faults:
        frame = frame.rename(columns={"energy": "enregy"})
    if "order" in faults:
        frame = frame[list(frame)[::-1]]
    commas = "decimal_commas" in faults
    text = frame.to_csv(index=False, sep=";" if commas or "semicolons" in faults else ",", decimal="," if commas else ".")
    if "blank_lines" in faults:
        lines = text.splitlines()
        text = "\n".join(line + ("\n" if number and number % 10 == 0 else "") for number, line in enumerate(lines)) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-16" if "utf16" in faults else "latin-1" if "latin1" in faults else "utf-8"))
    return path


def write_sites(folder: Path, faults: Mapping[str, tuple[str, ...]] | None = None, sites: int = 4, rows: int = 60) -> Path:
    """Write site_01.csv and so on into a folder; `faults` by the site's name."""
    given = dict(faults or {})
    for number in range(1, sites + 1):
        write_site(folder / f"site_{number:02}.csv", *given.pop(f"site_{number:02}", ()), seed=number, rows=rows)
    assert not given, f"no such sites: {given}"
    return folder
