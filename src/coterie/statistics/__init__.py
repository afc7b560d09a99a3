"""Statistics of paired studies: which SciPy test, on what, and what special cases mean."""

from coterie.statistics.clients import Hits, WorseOff, compute_test_interval, find_worse_off
from coterie.statistics.intervals import Interval, compute_draw_interval, compute_seed_interval
from coterie.statistics.judgement import (
    ClaimTests,
    Equivalence,
    Judgement,
    Sources,
    check_equivalence,
    compute_claim_tests,
    compute_sources,
    correct_claims,
    judge,
)
from coterie.statistics.paired import (
    LEVEL,
    PairedTest,
    RoundTests,
    compare_pairs,
    compare_rounds,
    compute_interval,
    compute_partial_conjunction,
    compute_t_bands,
    compute_trends,
    correct_holm,
)
from coterie.statistics.ranking import Ranking, compute_critical_difference, rank_methods
from coterie.statistics.variance_components import VarianceComponents, estimate_variance_components

__all__ = [
    "LEVEL",
    "ClaimTests",
    "Equivalence",
    "Hits",
    "Interval",
    "Judgement",
    "PairedTest",
    "Ranking",
    "RoundTests",
    "Sources",
    "VarianceComponents",
    "WorseOff",
    "check_equivalence",
    "compare_pairs",
    "compare_rounds",
    "compute_claim_tests",
    "compute_critical_difference",
    "compute_draw_interval",
    "compute_interval",
    "compute_partial_conjunction",
    "compute_seed_interval",
    "compute_sources",
    "compute_t_bands",
    "compute_test_interval",
    "compute_trends",
    "correct_claims",
    "correct_holm",
    "estimate_variance_components",
    "find_worse_off",
    "judge",
    "rank_methods",
]
