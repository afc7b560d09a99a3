"""Groups of points, the reference population, on numbers made by hand."""

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.stats import dirichlet_multinomial

from coterie.core.arrays import Array
from coterie.grouping.structure import find_groups, find_outliers, merge_singletons
from coterie.grouping.structure_points import (
    WardTree,
    compute_half_correlation,
    compute_shared_directions,
    count_directions,
    estimate_noise_level,
    group_view,
)
from coterie.grouping.structure_reference import ReferencePopulation, compute_class_cooccurrence, fit_dirichlet, rake_proportions
from coterie.grouping.structure_views import Probes, Views, make_views
from grouping.made_probes import made, proportions_alone


@pytest.mark.parametrize("n", [4, 9, 40])
def test_ward_cuts_its_tree_as_scipy_does(n: int) -> None:
    points = np.random.default_rng(n).normal(size=(n, 3))
    other = np.random.default_rng(n + 1).normal(size=(n, 3))
    own, tree = WardTree.from_points(points, n // 2), hierarchy.linkage(points, "ward")
    for k, (labels, explained) in enumerate(zip(own.labels(), own.explained(points, other), strict=True), start=2):
        expected = hierarchy.fcluster(tree, k, "maxclust")
        means = np.stack([points[labels == g].mean(axis=0) for g in range(k)])
        assert explained == pytest.approx(np.sum(means[labels] * other))
        assert (np.equal.outer(labels, labels) == np.equal.outer(expected, expected)).all()
        assert len(set(labels)) == k


def test_directions_are_those_that_the_halves_share() -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(200, 1)) * [3.0, 0, 0, 0]
    points = own + rng.normal(size=(2, 200, 4)) * [1.0, 5.0, 1.0, 1.0]  # the second direction is loud, but only noise
    spread, directions = compute_shared_directions(points, np.ones(200), 1)
    assert abs(directions[0, -1]) > 0.95
    assert spread[-1] == pytest.approx(9, rel=0.3)


@pytest.mark.parametrize("real", [0, 1, 3])
def test_directions_are_counted_above_the_reach_of_noise(real: int) -> None:
    """Noise reaches beyond its own mean half of the time, so one direction too many is chance."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        own = rng.normal(size=(60, 10)) * ([2.0] * real + [0.0] * (10 - real))
        points = own + rng.normal(size=(2, 60, 10))
        reach = estimate_noise_level(points, np.full((2, 60), 20.0), rng)
        assert max(real, 1) <= count_directions(points, np.full((2, 60), 20.0), reach) <= real + 2


def test_agreement_of_halves() -> None:
    rng = np.random.default_rng(0)
    own, sizes = rng.normal(size=(100, 3)), np.full((2, 100), 5.0)
    assert compute_half_correlation(np.stack([own, own]), sizes) == pytest.approx(1)
    assert abs(compute_half_correlation(rng.normal(size=(2, 100, 3)), sizes)) < 0.2


def test_perfect_groups_account_for_everything() -> None:
    places = np.repeat(np.eye(3) * 10, 8, axis=0)
    points = np.stack([places, places]) + 1e-3 * np.random.default_rng(0).normal(size=(2, 24, 3))
    found = group_view(points, np.full((2, 24), 20.0), 6, 2)
    assert found.share[0] < 0.9
    assert found.share[1] == pytest.approx(1, abs=1e-3)


def test_the_dirichlet_distribution_is_found_again() -> None:
    true = np.array([0.5, 1.0, 2.0])
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(50, row) for row in rng.dirichlet(true, size=2000)])
    found = fit_dirichlet(counts.astype(np.float64))
    assert found == pytest.approx(true, rel=0.1)
    likelihood = [dirichlet_multinomial(scale * found, 50).logpmf(counts).sum() for scale in (0.95, 1, 1.05)]
    assert max(likelihood) == likelihood[1]


def test_raking_meets_the_class_totals() -> None:
    rng = np.random.default_rng(0)
    sizes, totals = np.array([10.0, 30.0, 60.0, 20.0]), np.array([90.0, 20.0, 10.0])
    found = rake_proportions(rng.gamma(0.5, size=(4, 3)) + 1e-300, sizes, totals)
    assert found.sum(axis=1) == pytest.approx(np.ones(4))
    assert sizes @ found == pytest.approx(totals, rel=0.02)


def reference_of(rng: np.random.Generator, own: float) -> tuple[Views, ReferencePopulation]:
    counts = np.full((2, 60, 2), 10)
    vectors = rng.normal(size=(2, 60, 2, 5)) + own * rng.normal(size=(60, 1, 1)) * [1.0, 0, 0, 0, 0]
    views = make_views(made(vectors, counts))
    return views, ReferencePopulation(views, estimate_noise_level(views.points[-1], views.sizes, rng))


def test_the_reference_is_as_loud_and_as_spread_out_as_the_federation() -> None:
    rng = np.random.default_rng(0)
    views, population = reference_of(rng, own=3.0)
    drawn = np.stack([population.draw(rng)[0][-1] for _ in range(50)])
    between = [np.sum((x[0] - x[1]) ** 2) for x in (views.points[-1], *drawn)]
    common = [np.sum(x[0] * x[1]) for x in (views.points[-1], *drawn)]
    assert np.mean(between[1:]) == pytest.approx(between[0], rel=0.15)
    assert np.mean(common[1:]) == pytest.approx(common[0], rel=0.3)


def test_what_is_noise_alone_is_hardly_given_to_the_reference_as_the_clients_own() -> None:
    """Else every draw has a true direction where the federation has none, and the test says nothing."""
    spread = {own: np.mean([np.sum(reference_of(np.random.default_rng(s), own)[1].factor ** 2) for s in range(10)]) for own in (0.0, 3.0)}
    assert spread[0.0] < 0.05 * spread[3.0]


def test_the_reach_of_noise_is_taken_from_what_clients_differ_by() -> None:
    views, _ = reference_of(np.random.default_rng(0), own=3.0)
    highest = [float(np.sum(ReferencePopulation(views, reach).factor ** 2, axis=1).max()) for reach in (0.0, 0.25)]
    assert highest[0] - highest[1] == pytest.approx(0.25)


def test_directions_are_made_nearly_as_noisy_as_each_other() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, 200, 2, 4)) * [1.0, 2.0, 5.0, 10.0]
    points = make_views(made(vectors, np.full((2, 200, 2), 5))).points[-1]
    variances = np.linalg.eigvalsh(np.cov((points[0] - points[1]).T))
    assert variances[-1] < 12 * variances[0]  # 100 times before; the ridge keeps some of it


def test_company() -> None:
    pairs = np.array([[5, 5, 0, 0], [0, 0, 5, 5]] * 3, dtype=np.float64)
    assert compute_class_cooccurrence(pairs) == pytest.approx(6)  # every two of the four classes correlate fully
    assert compute_class_cooccurrence(np.array([[1.0, 9.0], [9.0, 1.0]])) == 0.0


def test_outliers_stand_out_in_both_halves() -> None:
    rng = np.random.default_rng(0)
    halves = np.stack([np.repeat([[0.0, 0], [5, 5]], 10, axis=0)] * 2) + 0.1 * rng.normal(size=(2, 20, 2))
    halves[:, 7] += 4  # in both
    halves[0, 15] += 4  # in one half up, in the other down: noise
    halves[1, 15] -= 4
    assert find_outliers(halves, np.arange(20) // 10).tolist() == [7]


def test_a_view_beyond_labels_has_nothing_of_the_proportions() -> None:
    plain, beyond = make_views(proportions_alone()).points
    assert np.var(beyond) < np.var(plain) / 5


def test_a_client_by_itself_joins_the_nearest_group() -> None:
    points = np.array([[0.0], [0.1], [5.0], [5.1], [7.0]])
    assert merge_singletons(points, np.array([0, 0, 1, 1, 2])).tolist() == [0, 0, 1, 1, 1]
    assert merge_singletons(points, np.array([0, 0, 1, 1, 1])).tolist() == [0, 0, 1, 1, 1]


def clients_at(places: Array, rng: np.random.Generator) -> Probes:
    """Clients of one class whose own gradients lie there, with little noise."""
    vectors = places[None, :, None, :] + 0.3 * rng.normal(size=(2, len(places), 1, places.shape[1]))
    return made(vectors, np.full((2, len(places), 1), 20))


@pytest.mark.parametrize("heavy", [True, False])
def test_a_heavy_tail_is_not_groups_and_far_clients_are_named(heavy: bool) -> None:
    rng = np.random.default_rng(3)
    places = rng.standard_t(2, size=(40, 3)) if heavy else 9 * np.eye(3)[np.arange(40) % 3] + 0.5 * rng.normal(size=(40, 3))
    places[7] *= 20
    found = find_groups(clients_at(places, rng), rng, draws=39)
    assert found.number == (1 if heavy else 3)
    assert 7 in found.outliers
    assert np.bincount(found.labels).min() > 1


def test_groups_at_unequal_distances_are_all_counted() -> None:
    rng = np.random.default_rng(0)
    places = np.array([[0.0, 0, 0], [4, 0, 0], [0, 30, 0]])[np.arange(36) % 3] + 0.3 * rng.normal(size=(36, 3))
    assert find_groups(clients_at(places, rng), rng, draws=39).number == 3


def test_more_groups_than_may_be_told_are_no_verdict_at_the_edge() -> None:
    rng = np.random.default_rng(0)
    places = 9 * np.eye(6)[np.arange(48) % 6] + 0.3 * rng.normal(size=(48, 6))
    assert find_groups(clients_at(places, rng), rng, draws=39).number == 6
    found = find_groups(clients_at(places, rng), rng, draws=39, most=5)
    assert found.number <= 5
    assert len(found.share) == 5  # 2 to 6


def test_seven_clients_are_too_few_to_tell() -> None:
    rng = np.random.default_rng(0)
    found = [find_groups(clients_at(9.0 * np.eye(2)[np.arange(n) % 2], rng), rng, draws=39) for n in (7, 8)]
    assert [np.isnan(f.p) for f in found] == [True, False]
    assert not found[0].distinct


def test_a_class_that_no_client_holds_has_no_share() -> None:
    """Of few clients with few samples a class may be missing: its total is zero, and stays so."""
    amounts = np.array([[0.5, 1.0, 2.0], [1.0, 0.25, 0.1]])
    found = rake_proportions(amounts, np.array([4.0, 6.0]), np.array([7.0, 0.0, 3.0]))
    assert np.isfinite(found).all()
    assert found[:, 1].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(found.sum(axis=1), 1)
