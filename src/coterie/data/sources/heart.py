"""Heart disease at four hospitals: a small, truly cross-silo federation that comes with the package.

UCI Machine Learning Repository 45, CC BY 4.0; rows and features chosen as in FLamby (du Terrail et al., 2022), Fed-Heart-Disease.
"""

import math
from importlib.resources import files

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Ints
from coterie.core.rng import make_key, shuffle
from coterie.data.column_statistics import Scaling
from coterie.data.federation import SITES, Federation, Parts
from coterie.data.partitions import check_fractions

# id, file, complete rows once slope, ca and thal (mostly missing outside Cleveland) are dropped
HOSPITALS = (("cleveland", "cleveland", 303), ("hungary", "hungarian", 261), ("switzerland", "switzerland", 46), ("va", "va", 130))
KEPT = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13)  # columns 10-12 are slope, ca and thal; 13 is the diagnosis
# Chest pain and resting ECG are categories: each becomes indicators, the first category being the one with none set.
CATEGORIES = {2: (2.0, 3.0, 4.0), 6: (1.0, 2.0)}
FEATURES = (
    *("age", "sex", "cp=2", "cp=3", "cp=4", "trestbps", "chol"),
    *("fbs", "restecg=1", "restecg=2", "thalach", "exang", "oldpeak"),
)


def heart(test: float = 0.2, validation: float = 0.0, *, _data_seed: int = 0) -> Federation:
    """Four hospitals, 740 patients, 13 features: is there heart disease? Comes with the package.

    Each hospital's patients are split at random within each class; another data seed gives another such split. Features are standardised
    by the hospital's own training part, as a real site would, and a feature that is constant there becomes 0 (cholesterol is
    recorded as 0 throughout Switzerland).

    Switzerland has one patient without disease. The last training sample of a class is never given away, so this patient always
    trains, and Switzerland's test part holds patients with disease only: a model that always predicts "present" is perfect there.
    """
    check_fractions("Data set 'heart'", test, validation)
    xs, ys, parts = [], [], []
    scalings: dict[str, Scaling] = {}
    start = 0
    for name, file, rows in HOSPITALS:
        x, y = _read_hospital(file, rows)
        train, held, tests = _split_stratified(y, test, validation, make_key(_data_seed, "heart", name))
        scalings[name] = Scaling.from_rows(x[train])
        xs.append(scalings[name].apply(x))
        ys.append(y)
        parts.append((start + train, start + held, start + tests))
        start += len(y)
    return Federation(
        name="heart",
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        classes=("absent", "present"),
        ids=tuple(name for name, _, _ in HOSPITALS),
        train=Parts.from_lists([p[0] for p in parts]),
        validation=Parts.from_lists([p[1] for p in parts]) if validation > 0 else None,
        test=Parts.from_lists([p[2] for p in parts]),
        data_seed=_data_seed,
        provenance={
            "source": "UCI 45, Heart Disease: slope, ca and thal dropped, then incomplete rows (180 of 920)",
            "licence": "CC BY 4.0",
            "citation": "Janosi, A., Steinbrunn, W., Pfisterer, M., Detrano, R. (1989). Heart Disease. UCI. doi:10.24432/C52P4X",
            "features": FEATURES,
            "scaling": {name: scaling.to_dict() for name, scaling in scalings.items()},
            "partition": "by hospital; split at random within each class; Switzerland's one patient without disease always trains",
            "left_over": 0,
            SITES: {name: name for name, _, _ in HOSPITALS},
        },
    )


def _read_hospital(file: str, rows: int) -> tuple[Doubles, Ints]:
    text = (files("coterie.data") / "heart_disease" / f"processed.{file}.data").read_text("ascii")
    cells = [[line.split(",")[c] for c in KEPT] for line in text.splitlines() if line]
    table = np.array([row for row in cells if "?" not in row], dtype=np.float64)
    if table.shape != (rows, len(KEPT)):
        raise UserError(f"The heart disease file of {file!r} has been changed: {len(table)} complete rows, not {rows}; reinstall coterie.")
    columns = []
    for c in range(len(KEPT) - 1):
        column = table[:, c]
        columns += [(column == value).astype(np.float64) for value in CATEGORIES[c]] if c in CATEGORIES else [column]
    return np.stack(columns, axis=1), (table[:, -1] > 0).astype(np.int64)


def _split_stratified(y: Ints, test: float, validation: float, seed: int) -> tuple[Ints, Ints, Ints]:
    """Train, validation and test rows with the shares held within each class; each class keeps a training sample."""
    train, held, tests = [], [], []
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        rows = rows[shuffle(make_key(seed, int(c)), len(rows))]
        a = min(_round_half_up(test * len(rows)), len(rows) - 1)
        b = a + min(_round_half_up(validation * len(rows)), len(rows) - 1 - a)
        tests.append(rows[:a])
        held.append(rows[a:b])
        train.append(rows[b:])
    return np.concatenate(train), np.concatenate(held), np.concatenate(tests)


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)
