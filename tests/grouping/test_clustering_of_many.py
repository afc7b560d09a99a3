"""What groups of many find, beside what the exact forms find in the same clients, where the truth is known."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.core.arrays import Floats, Ids
from coterie.core.vectors import Sketch, project
from coterie.grouping.clustering import (
    agglomerative_clustering,
    agglomerative_clustering_large,
    merge_singletons_large,
    spectral_clustering,
    spectral_clustering_large,
)
from coterie.grouping.kmeans import find_nearest_large, kmeans, kmeans_large
from coterie.grouping.landmarks import compute_mean_similarity, compute_short_points, compute_short_points_of
from coterie.grouping.similarity import (
    compute_coordinates,
    compute_cosines,
    compute_distances,
    compute_dot_products,
    compute_gaussian,
    compute_gram,
    compute_mean_distance,
    shift_gram,
)
from coterie.methods.fedex import merge_lone_clients

N, D, K = 600, 90, 4


@pytest.fixture(autouse=True)
def few_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a sample has to stand for everybody."""
    monkeypatch.setattr("coterie.grouping.landmarks.LANDMARKS", 150)
    monkeypatch.setattr("coterie.grouping.landmarks.sample_landmarks.__defaults__", (150,))
    monkeypatch.setattr("coterie.grouping.kmeans.START_SAMPLE", 200)


def clients(noise: float = 0.25) -> tuple[Floats, Floats, Ids]:
    """Models about one origin, in groups of unequal size, in random order."""
    rng = np.random.default_rng(3)
    truth = rng.choice(K, size=N, p=[0.4, 0.3, 0.2, 0.1])
    centres, origin = rng.standard_normal((K, D)), 10 * rng.standard_normal(D)
    rows = origin + 0.1 * (centres[truth] + noise * rng.standard_normal((N, D)))
    return rows.astype(np.float32), origin.astype(np.float32), truth


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_means() -> None:
    rows, origin, truth = clients()
    exact = kmeans(compute_coordinates(compute_gram(rows, origin)), K, rng())
    found = kmeans_large(compute_short_points(rows, origin, rng()), K, rng(), 10)
    assert adjusted_rand_score(exact, found) == 1.0 == adjusted_rand_score(truth, found)
    assert found.tolist() == kmeans_large(compute_short_points(rows, origin, rng()), K, rng(), 10).tolist()


def test_means_of_sketches() -> None:
    rows, origin, truth = clients()
    sketch = Sketch(32, 5)
    exact = kmeans(project(rows, sketch, origin), K, rng())
    found = kmeans_large(compute_short_points_of(lambda block: project(block, sketch, origin), rows, rng()), K, rng(), 10)
    assert adjusted_rand_score(exact, found) == 1.0 == adjusted_rand_score(truth, found)


def test_nearest_of_many() -> None:
    points, centres = rng().standard_normal((200, 5)), np.random.default_rng(1).standard_normal((7, 5))
    expected = np.linalg.norm(points[:, None] - centres, axis=2).argmin(axis=1)
    assert find_nearest_large(points, centres).tolist() == expected.tolist()


def test_spectra() -> None:
    rows, origin, truth = clients()
    exact = spectral_clustering((1 + compute_cosines(compute_gram(rows, origin))) / 2, K, rng())
    found = spectral_clustering_large(compute_short_points(rows, origin, rng(), centred=False, unit=True), K, rng())
    assert adjusted_rand_score(exact, found) == 1.0 == adjusted_rand_score(truth, found)


def test_lone_clients_join_the_same_group_either_way() -> None:
    rows, origin, truth = clients()
    labels = truth.copy()
    labels[np.flatnonzero(truth == 0)[3]], labels[np.flatnonzero(truth == 2)[5]] = K, K + 1
    directions = compute_short_points(rows, origin, rng(), centred=False, unit=True)
    exact = merge_lone_clients(labels, (1 + compute_cosines(compute_gram(rows, origin))) / 2)
    assert merge_singletons_large(labels, directions).tolist() == exact.tolist()
    assert adjusted_rand_score(exact, truth) == 1.0


@pytest.mark.parametrize("linkage", ["ward", "average", "complete", "single"])
def test_trees(linkage: str) -> None:
    rows, origin, truth = clients(noise=0.1)
    points = compute_short_points(rows, origin, rng())
    exact = agglomerative_clustering(compute_distances(compute_gram(rows, origin)), groups=K, linkage=linkage)  # type: ignore[arg-type]
    found = agglomerative_clustering_large(points, rng(), groups=K, linkage=linkage)  # type: ignore[arg-type]
    assert adjusted_rand_score(exact, found) == 1.0 == adjusted_rand_score(truth, found)


@pytest.mark.parametrize(("linkage", "threshold"), [("ward", 8.0), ("average", 0.8)])
def test_a_threshold_means_the_same_for_landmarks_as_for_everybody(linkage: str, threshold: float) -> None:
    rows, origin, _ = clients(noise=0.1)
    exact = agglomerative_clustering(compute_distances(compute_gram(rows, origin)), threshold=threshold, linkage=linkage)  # type: ignore[arg-type]
    found = agglomerative_clustering_large(compute_short_points(rows, origin, rng()), rng(), threshold=threshold, linkage=linkage)  # type: ignore[arg-type]
    assert exact.max() + 1 == K
    assert adjusted_rand_score(exact, found) == 1.0


@pytest.mark.parametrize("updates", [True, False])
def test_company_beside_that_of_all_pairs(updates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, origin, _ = clients(noise=1.0)
    inner = compute_gram(rows, origin)
    along = compute_dot_products(rows, origin, origin)
    compared = inner if updates else shift_gram(inner, along, float(np.dot(origin.astype(np.float64), origin)))
    alike, apart = compute_cosines(compared), compute_distances(inner)
    near = compute_gaussian(apart)
    everybody = compute_mean_similarity(rows, origin, rng(), updates=updates)  # no more clients than landmarks: all pairs
    np.testing.assert_allclose(everybody.cosine, (alike.sum(axis=1) - 1) / (N - 1), rtol=1e-9)
    np.testing.assert_allclose(everybody.gaussian, (near.sum(axis=1) - 1) / (N - 1), rtol=1e-6)
    np.testing.assert_allclose(everybody.norms, np.sqrt(np.diag(inner)), rtol=1e-9)
    assert everybody.sigma == pytest.approx(compute_mean_distance(apart), rel=1e-6)
    monkeypatch.setattr("coterie.grouping.landmarks.COMPARED", 200)
    sampled = compute_mean_similarity(rows, origin, rng(), updates=updates)
    assert sampled.sigma == pytest.approx(everybody.sigma, rel=0.02)
    assert np.abs(sampled.gaussian - everybody.gaussian).mean() < 1.5 * near.std() / np.sqrt(200)
    np.testing.assert_array_equal(sampled.cosine, everybody.cosine)
