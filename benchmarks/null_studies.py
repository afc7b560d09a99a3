"""Do comparisons reject where there is nothing to find? 200 studies of one method against itself, on disjoint seeds.

    python benchmarks/null_studies.py --studies 200 --pairs 10

Runs FedAvg with 2 x studies x pairs seeds on a small federation, makes studies of the first and second half of the seeds, and tests each at
5 %. The number of rejections has to lie in the binomial interval; so has the number of intervals that leave out 0.
"""

import argparse
import json

import numpy as np
from scipy import stats

import coterie as ct
from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import compute_scores, find_scope
from coterie.statistics import LEVEL, compare_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--data", default="digits/iid(clients=10)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cohort", type=int, default=3)
    given = parser.parse_args()
    half = given.studies * given.pairs
    result = ct.study(given.method, data=given.data, rounds=given.rounds, cohort=given.cohort, lr=0.1, seeds=range(2 * half))
    records = read_records(result.evidence)
    scores = compute_scores(records, find_scope(records), 0)["mean"].reshape(2, given.studies, given.pairs)
    tests = [compare_pairs(a - b) for a, b in zip(*scores, strict=True)]
    least, most = stats.binom.interval(0.95, given.studies, LEVEL)
    found = {
        "studies": given.studies,
        "pairs": given.pairs,
        "spread_of_the_score": float(np.std(scores)),
        "rejections_allowed": [int(least), int(most)],
        "wilcoxon": sum(test.wilcoxon_p < LEVEL for test in tests),
        "t": sum(test.t_p < LEVEL for test in tests),
        "intervals_without_0": sum(test.low > 0 or test.high < 0 for test in tests),
        "seconds": result.seconds,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
