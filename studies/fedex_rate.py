"""The learning rate of FedEx's tables, which the paper does not give: FedAvg's best on clients' validation parts, chosen once.

    python studies/fedex_rate.py OUT [--data-dir ~/data]

Softmax regression on shards of MNIST, 200 rounds, as in `fedex_tables`: a tenth of a client's 600 images is its validation part, and no
test image is looked at. Of draw 99 of the split, which the study does not use, with one seed. Prints a row a rate; the study's file has it.
"""

import argparse
from pathlib import Path

from coterie.methods.catalogue import build
from coterie.run.study import study
from coterie.run.tuning import TunedRate, choose_rates, make_grid

RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
DRAW = 99
DATA = "mnist/shards(test=0,validation=0.1)/official_test"


def choose(out: Path, data_dir: Path | None, data: str = DATA, rounds: int = 200) -> TunedRate:
    """What is not yet in `out` is run."""
    fedavg = [("fedavg", build("fedavg"))]
    made = study(
        [label for label, _ in make_grid(fedavg, RATES)],
        data=data,
        data_dir=data_dir,
        data_seed=DRAW,
        seeds=[0],
        rounds=rounds,
        cohort=10,
        evaluate_every=5,
        epochs=5,
        batch_size=10,
        out=out,
        resume=True,
    )
    return choose_rates(made.evidence, fedavg, RATES)["fedavg"]


def main() -> None:
    """Choose, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    found = choose(options.out, options.data_dir)
    print("| rate | accuracy on validation parts, last ten evaluated rounds |")
    print("| --- | --- |")
    for rate, accuracy in zip(found.rates, found.validation, strict=True):
        print(f"| {rate:g} | {'diverged' if accuracy is None else f'{100 * accuracy:.2f} %'}{', chosen' if rate == found.chosen else ''} |")
    if found.at_edge:
        print("\nThe best rate is the lowest or the highest tried.")


if __name__ == "__main__":
    main()
