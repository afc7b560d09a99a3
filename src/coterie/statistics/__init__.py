"""Statistics of paired studies; SciPy does the maths, this says which test, on what, and what the odd cases mean."""

from coterie.statistics.equivalence import Equivalence, equivalence
from coterie.statistics.intervals import Interval
from coterie.statistics.judgement import Judgement, Weighed, corrected, judge, weighed
from coterie.statistics.over_clients import Hits, over_test
from coterie.statistics.over_draws import over_draws
from coterie.statistics.over_seeds import over_seeds
from coterie.statistics.paired import LEVEL, Paired, holm, interval, paired, t_bands
from coterie.statistics.ranking import Ranking, critical_difference, ranking
from coterie.statistics.rounds import RoundTests, in_at_least, round_tests
from coterie.statistics.sources import Sources, sources_of
from coterie.statistics.spread import Spread, spread_of
from coterie.statistics.trend import rises
from coterie.statistics.worse_off import WorseOff, worse_off

__all__ = [
    "LEVEL",
    "Equivalence",
    "Hits",
    "Interval",
    "Judgement",
    "Paired",
    "Ranking",
    "RoundTests",
    "Sources",
    "Spread",
    "Weighed",
    "WorseOff",
    "corrected",
    "critical_difference",
    "equivalence",
    "holm",
    "in_at_least",
    "interval",
    "judge",
    "over_draws",
    "over_seeds",
    "over_test",
    "paired",
    "ranking",
    "rises",
    "round_tests",
    "sources_of",
    "spread_of",
    "t_bands",
    "weighed",
    "worse_off",
]
