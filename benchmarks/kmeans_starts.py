"""A whole round of FedSim with k-means of all starts at once, and with scikit-learn's, one start after the other; by turns, in one run.

`python -m benchmarks.kmeans_starts` prints medians and their ratio for the sizes of the section `mclr`.
"""

from time import perf_counter
from unittest.mock import patch

import numpy as np

from benchmarks.timing import heading, row
from benchmarks.workloads import PAPER, Images, Workload, unwatched
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes

ROUNDS = 40


def main() -> None:
    """Alternate single rounds of one lane, and of ten."""
    images = Images(None)
    world = World.from_spec(images.paper(), "mclr")
    with BatchedEngine(world) as engine:
        for cohort, epochs, lanes in ((20, 20, 1), (20, 20, 10), (20, 1, 1), (100, 20, 1)):
            plan = Workload("", world, PAPER.replace(epochs=epochs), cohort, 1).plan
            runs = make_lanes([("fedsim", build("fedsim"))], list(range(lanes)), world.problem, plan)
            drive(runs, engine, 2, unwatched)
            seconds: dict[bool, list[float]] = {True: [], False: []}
            for round_ in range(3, 3 + 2 * ROUNDS):
                own = round_ % 2 == 0
                begin = perf_counter()
                if own:
                    drive(runs, engine, round_, unwatched)
                else:
                    with patch("coterie.grouping.kmeans.find_best_start", lambda *given: None):
                        drive(runs, engine, round_, unwatched)
                seconds[own].append(perf_counter() - begin)
            ours, theirs = (float(np.median(seconds[own])) for own in (True, False))
            heading(f"cohort {cohort}, E={epochs}, {lanes} lanes")
            row("ms a round", f"{ours * 1e3:.2f}", f"{theirs * 1e3:.2f}", f"saves {100 * (1 - ours / theirs):.0f} % of the round")


if __name__ == "__main__":
    main()
