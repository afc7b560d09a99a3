"""How clients' own scores are spread over everybody, where rows are kept of a sample of them: quantiles that were taken of all."""

from collections.abc import Iterable

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.records import Records
from coterie.analysis.scores import Scope
from coterie.core.arrays import Doubles
from coterie.evidence.everybody import TENTHS

TITLES = ("lowest", *(f"{10 * i} %" for i in range(1, 5)), "median", *(f"{10 * i} %" for i in range(6, 10)), "highest")


def tenths_of(draws: Iterable[tuple[Records, Scope]], method: int) -> Doubles | None:
    """(11,) the quantiles of one method after the last round, the mean over runs that reached it; None where rows of all are kept."""
    runs = []
    for records, scope in draws:
        if not records.everybody:
            return None
        runs.append(np.stack([records.everybody[name][method, scope.seeds, scope.rows.stop - 1] for name in TENTHS], axis=1))
    return metrics.mean(np.concatenate(runs), axis=0)
