"""Seven exercises of ten people, recorded by a smartwatch, from PyPI's seglearn."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles
from coterie.data.federation import Samples
from coterie.data.readers.packages import load_pickle
from coterie.data.sources.packaged import keep_table, make_packaged_set

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 100  # readings, two seconds
AXES = ("ax", "ay", "az", "wx", "wy", "wz")
MEASURES = ("mean", "deviation", "least", "most", "change")


def tidy_windows(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Five numbers of each axis for every two seconds of a recording, without overlap; what is left at its end is dropped."""
    import pandas as pd

    told = load_recordings(raw[0], where)
    rows, clients, labels = [], [], []
    for readings, exercise, person in zip(told["X"], told["y"], told["subject"], strict=True):
        made = compute_window_features(np.asarray(readings, dtype=np.float64))
        rows.append(made)
        clients += [f"person-{int(person)}"] * len(made)
        labels += [str(told["y_labels"][int(exercise)])] * len(made)
    names = [f"{axis}_{measure}" for measure in MEASURES for axis in AXES]
    return pd.DataFrame(np.concatenate(rows), columns=names).assign(client=clients, label=labels)


def compute_window_features(readings: Doubles) -> Doubles:
    """(windows, 30) from the readings (n, 6) of one recording."""
    count = len(readings) // WINDOW
    cut = readings[: count * WINDOW].reshape(count, WINDOW, len(AXES))
    change = np.abs(np.diff(cut, axis=1)).mean(axis=1)
    return np.concatenate([cut.mean(axis=1), cut.std(axis=1), cut.min(axis=1), cut.max(axis=1), change], axis=1)


def load_recordings(raw: bytes, where: str) -> dict[str, Any]:
    """The dictionary that the .npy file holds as a pickle, after NumPy's own header."""
    file = io.BytesIO(raw)
    try:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise UserError(f"{where} holds no .npy file where one should be ({error}).") from error
    found = load_pickle(raw[file.tell() :], where)
    told = found.item() if isinstance(found, np.ndarray) and found.size == 1 else None
    if not isinstance(told, dict) or not {"X", "y", "subject", "y_labels"} <= set(told):
        raise UserError(f"{where} holds no recordings with X, y, subject and y_labels.")
    return told


WATCH = make_packaged_set("watch_exercises", tidy_windows)


def watch_exercises(*, _data_dir: Path | None = None) -> Samples:
    """2,369 windows of two seconds from the smartwatches of ten people: which of seven exercises? Package needed."""
    return WATCH.samples(keep_table, _data_dir)
