"""How long grouping takes, and whether it agrees with the exact form: clients of known groups, as each method groups what they send.

    python -m benchmarks.grouping                       # agreement at 5,000 clients, seconds at 10^5
    python -m benchmarks.grouping --clients 1000000     # seconds at 10^6; needs 8 GiB

Clients' updates are their group's direction and noise: `--noise` is the length of the noise in lengths of the direction.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.timing import heading, row, verdict
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.vectors import Sketch, project
from coterie.grouping import landmarks
from coterie.grouping.clustering import (
    agglomerative_clustering,
    agglomerative_clustering_large,
    bipartition_by_cosines,
    bipartition_large,
    spectral_clustering,
    spectral_clustering_large,
)
from coterie.grouping.kmeans import kmeans_large
from coterie.grouping.landmarks import compute_short_points, compute_short_points_of
from coterie.grouping.neighbours import find_nearest_in_blocks, find_nearest_in_cells
from coterie.grouping.similarity import compute_cosines, compute_distances, compute_gram, compute_principal_points
from coterie.methods.fesem import DEFAULT_SKETCH_SIZE

PARAMETERS, GROUPS = 610, 5
SKETCH = Sketch(DEFAULT_SKETCH_SIZE, 0)
Grouping = Callable[[Floats], Ids]


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


EXACT: dict[str, Grouping] = {
    "k-means (FeSEM, FedSim)": lambda rows: kmeans_exactly(rows),
    "k-means of sketches (FeSEM)": lambda rows: kmeans_exactly(project(rows, SKETCH), turned=False),
    "spectral (FedEx)": lambda rows: spectral_clustering((1 + compute_cosines(compute_gram(rows))) / 2, GROUPS, rng()),
    "Ward's tree (FL+HC)": lambda rows: agglomerative_clustering(compute_distances(compute_gram(rows)), groups=GROUPS, linkage="ward"),
    "cut in two (CFL)": lambda rows: bipartition_by_cosines(compute_cosines(compute_gram(rows)), "single").leaves.astype(np.int64),
}
OF_MANY: dict[str, Grouping] = {
    "k-means (FeSEM, FedSim)": lambda rows: kmeans_large(compute_short_points(rows, None, rng()), GROUPS, rng(), 10),
    "k-means of sketches (FeSEM)": lambda rows: kmeans_large(
        compute_short_points_of(lambda block: project(block, SKETCH), rows, rng()), GROUPS, rng(), 10
    ),
    "spectral (FedEx)": lambda rows: spectral_clustering_large(
        compute_short_points(rows, None, rng(), centred=False, unit=True), GROUPS, rng()
    ),
    "Ward's tree (FL+HC)": lambda rows: agglomerative_clustering_large(
        compute_short_points(rows, None, rng()), rng(), groups=GROUPS, linkage="ward"
    ),
    "cut in two (CFL)": lambda rows: bipartition_large(rows, np.zeros(PARAMETERS, np.float32), rng(), "single").leaves.astype(np.int64),
}
NEIGHBOURS = 3


def kmeans_exactly(rows: Floats | Doubles, turned: bool = True) -> Ids:
    """k-means on all clients' coordinates, whatever their number; sketches are coordinates as they are."""
    from sklearn.cluster import KMeans

    points = compute_principal_points(np.asarray(rows, dtype=np.float32)) if turned else rows
    return np.asarray(KMeans(GROUPS, n_init=10, random_state=1).fit(points).labels_, dtype=np.int64)


def made(clients: int, noise: float) -> tuple[Floats, Ids]:
    """Updates and true groups, of sizes 3 : 2.5 : 2 : 1.5 : 1."""
    draw = np.random.default_rng(0)
    truth = draw.choice(GROUPS, size=clients, p=np.array([3, 2.5, 2, 1.5, 1]) / 10)
    ways = draw.standard_normal((GROUPS, PARAMETERS)).astype(np.float32)
    rows = draw.standard_normal((clients, PARAMETERS), dtype=np.float32)
    rows *= noise
    for begin in range(0, clients, 10_000):
        rows[begin : begin + 10_000] += ways[truth[begin : begin + 10_000]]
    return rows, truth


def neighbours(rows: Floats, truth: Ids, compare: bool) -> None:
    """NeighbourProx's neighbours of all clients in cells and, if asked for, beside those of all pairs."""
    everybody, began = np.arange(len(rows)), time.perf_counter()
    found, _ = find_nearest_in_cells(rows, everybody, NEIGHBOURS, rng())
    took, own = time.perf_counter() - began, f"of the own group {np.mean(truth[found] == truth[:, None]):.3f}"
    if compare:
        began = time.perf_counter()
        exact = find_nearest_in_blocks(rows, everybody, NEIGHBOURS)
        took_all, share = time.perf_counter() - began, np.mean((found[:, :, None] == exact[:, None]).any(axis=1))
        own = f"{own}, of the nearest {share:.3f}; all pairs {took_all:.1f} s"
    row("neighbours (NeighbourProx)", f"{took:.1f} s", " " + own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agreement", type=int, default=5000, help="clients that both forms group; 0: none")
    parser.add_argument("--clients", type=int, nargs="*", default=[100_000])
    parser.add_argument("--noise", type=float, default=1.5)
    given = parser.parse_args()
    if given.agreement:
        rows, truth = made(given.agreement, given.noise)
        heading(f"agreement at {given.agreement} clients, noise {given.noise:g} (adjusted Rand index)")
        row("grouping", "exact s", "of many s", "exact, truth", "many, truth", "exact, many")
        for name, exactly in EXACT.items():
            labels, seconds = [], []
            for form in (exactly, OF_MANY[name]):
                began = time.perf_counter()
                labels.append(form(rows))
                seconds.append(time.perf_counter() - began)
            scores = [adjusted_rand_score(*pair) for pair in ((labels[0], truth), (labels[1], truth), (labels[0], labels[1]))]
            row(name, *(f"{s:.2f}" for s in seconds), *(f"{s:.3f}" for s in scores))
            verdict(f"agreement of {name}", scores[2], 0.98, least=True, unit="")
        neighbours(rows, truth, compare=True)
    for clients in given.clients:
        heading(f"{clients} clients of {PARAMETERS} parameters, {landmarks.LANDMARKS} landmarks")
        rows, truth = made(clients, given.noise)
        for name, form in OF_MANY.items():
            began = time.perf_counter()
            found = form(rows)
            took = time.perf_counter() - began
            row(name, f"{took:.1f} s", f"ARI {adjusted_rand_score(found, truth):.3f}")
            verdict(f"{name}, {clients} clients", took, 10.0 if clients <= 100_000 else 120.0, least=False, unit=" s")
        if clients <= 100_000:
            neighbours(rows, truth, compare=False)


if __name__ == "__main__":
    main()
