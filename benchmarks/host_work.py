"""What the server's own Python takes a lane and round, on a federation so small that training and evaluation take next to nothing.

    python -m benchmarks.host_work [--lanes 70] [--evaluate-every 1]

Seconds are the processor's, of all threads, the best of three: one lane, many, and the difference for each further lane.
"""

import argparse
from time import process_time

from benchmarks.timing import heading, row
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.testing import worlds

ROUNDS = 40


def seconds(lanes: int, every: int) -> float:
    """Of a study of FedAvg with so many seeds, in memory: six clients, of which four take a step of softmax regression a round."""
    plan = Plan(rounds=ROUNDS, cohort=4, evaluate_every=every, local=Local(epochs=1, lr=0.1, max_steps=1))
    settings = Settings(methods=("fedavg",), data="tiny", seeds=tuple(range(lanes)), plan=plan)
    study = Study.prepare(settings, federation=worlds.tiny())
    began = process_time()
    study.run(execution=Execution(threads=1))
    return process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=70)
    parser.add_argument("--evaluate-every", type=int, default=1)
    options = parser.parse_args()
    every = options.evaluate_every
    seconds(2, every)  # what is compiled and read at first use does not count
    one, many = (min(seconds(lanes, every) for _ in range(3)) / ROUNDS for lanes in (1, options.lanes))
    heading(f"FedAvg, test, validation and central set evaluated every {every} rounds; us of the processor")
    row("", "a round of one", f"of {options.lanes}", "ratio", "a further lane")
    row("", f"{one * 1e6:.0f}", f"{many * 1e6:.0f}", f"{many / one:.1f}", f"{(many - one) / (options.lanes - 1) * 1e6:.0f}")


if __name__ == "__main__":
    main()
