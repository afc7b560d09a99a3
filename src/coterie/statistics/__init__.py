"""Statistics of paired studies; SciPy does the maths, this says which test, on what, and what the odd cases mean."""

from coterie.statistics.paired import LEVEL, Paired, holm, interval, paired, t_bands
from coterie.statistics.ranking import Ranking, critical_difference, ranking
from coterie.statistics.rounds import RoundTests, round_tests

__all__ = [
    "LEVEL",
    "Paired",
    "Ranking",
    "RoundTests",
    "critical_difference",
    "holm",
    "interval",
    "paired",
    "ranking",
    "round_tests",
    "t_bands",
]
