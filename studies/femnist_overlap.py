"""How many test images of the papers' FEMNIST are in some client's training part, by the generator they take it from.

    python studies/femnist_overlap.py [--draws 1000]

FedSim and FedGroup have 200 clients and 18,345 images, the federation that Li et al. (FedProx) released with its generator. There, for each
of a client's letters, the place from which images are taken goes back to the first one while enough images are left, where it was meant to
once they run out. A letter has up to 4,000 images and no client needs so many, so that all clients take the same first images. That needs
no image to count: only how many of each letter a client takes, and which of its own the client tests on. Needs no data, about a second.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Array, Ints

CLIENTS, LETTERS, IMAGES = 200, 10, 4000  # of the generator: images of a letter at most
TRAIN, MOST = 0.9, 90.0  # the share that is trained on; percent of the tests


@dataclass(frozen=True)
class Overlap:
    """Of one federation."""

    samples: int
    images: int  # that are different ones
    tests: int
    in_train: int  # of the tests: in the training part of some client

    @property
    def share(self) -> float:
        """Percent of the tests."""
        return 100 * self.in_train / self.tests


def taken(sizes: Array, classes: int, images: int = IMAGES) -> list[Ints]:
    """The images of each client, letter c's being c * images, c * images + 1, ..., by the generator's rule for where to begin."""
    begins = np.zeros(LETTERS, np.int64)
    clients = []
    for client, size in enumerate(sizes):
        count, own = max(2, int(size / classes)), []
        for letter in ((client + j) % LETTERS for j in range(classes)):
            if begins[letter] + count < images:  # as it is written: "not <" was meant
                begins[letter] = 0
            own.append(letter * images + np.arange(begins[letter], min(begins[letter] + count, images)))
            begins[letter] += count
        clients.append(np.concatenate(own))
    return clients


def overlap(clients: list[Ints], rng: np.random.Generator) -> Overlap:
    """What comes of it when each client tests on a tenth of its images, drawn at random."""
    shuffled = [rng.permutation(own) for own in clients]
    cuts = [int(TRAIN * len(own)) for own in shuffled]
    train = np.concatenate([own[:cut] for own, cut in zip(shuffled, cuts, strict=True)])
    test = np.concatenate([own[cut:] for own, cut in zip(shuffled, cuts, strict=True)])
    everything = np.concatenate(clients)
    return Overlap(len(everything), len(np.unique(everything)), len(test), int(np.isin(test, train).sum()))


def drawn(classes: int, seed: int) -> Overlap:
    """One federation of the recipe: client sizes are lognormal(4, 1) + 5."""
    rng = np.random.default_rng(seed)
    return overlap(taken(rng.lognormal(4, 1, CLIENTS) + 5, classes), rng)


def main() -> None:
    """A row for the three letters a client of the generator, and one for the five of FedSim's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    draws = range(parser.parse_args().draws)
    print("| letters a client | samples | different images | percent of tests that somebody trains on: mean | lowest | draws over 90 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for classes in (3, 5):
        found = [drawn(classes, seed) for seed in draws]
        shares = [each.share for each in found]
        samples, images = (np.mean([getattr(each, name) for each in found]) for name in ("samples", "images"))
        above = 100 * np.mean(np.array(shares) > MOST)
        print(f"| {classes} | {samples:,.0f} | {images:,.0f} | {np.mean(shares):.1f} | {min(shares):.1f} | {above:.1f} % |")


if __name__ == "__main__":
    main()
