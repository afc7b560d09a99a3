"""Test clients and samples: the jackknife and its degrees against brute force, bounds against every sample counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.statistics import Hits, Interval, compute_test_interval
from coterie.statistics.clients import (
    MANY_CLIENTS,
    _compute_run_interval,
    _compute_run_intervals,
    compute_client_interval,
    compute_sample_interval,
    count_most_differing,
)


def hits_of(gains: np.ndarray, sizes: np.ndarray, *, alike: bool = False) -> Hits:
    """Two methods whose right answers differ by the gains: theirs are half of the samples."""
    return Hits((sizes / 2 + gains)[None, :, None], (sizes / 2)[None, :, None], sizes[:, None].astype(float), alike=alike)


def test_clients_of_equal_sizes_are_students_interval_of_their_differences() -> None:
    gains = np.array([1.0, 2, 0, -1, 3, 1, 0, 2, 1, 4])
    found = compute_client_interval(hits_of(gains, np.full(10, 20)))
    low, high = stats.ttest_1samp(gains / 20, 0).confidence_interval(0.95)
    assert (found.low, found.high, found.degrees) == pytest.approx((low, high, 9))
    assert found.over == "10 test clients, 200 samples"


def test_a_macro_score_counts_clients_alike_whatever_their_sizes() -> None:
    sizes, gains = np.array([10, 100, 1000, 20]), np.array([1.0, 20, -100, 0])
    found = compute_client_interval(hits_of(gains, sizes, alike=True))
    low, high = stats.ttest_1samp(gains / sizes, 0).confidence_interval(0.95)
    assert (found.low, found.high, found.degrees) == pytest.approx((low, high, 3))


@given(st.lists(st.integers(1, 500), min_size=3, max_size=12), st.integers(0, 99))
def test_jackknife_and_degrees_by_brute_force(given_sizes: list[int], seed: int) -> None:
    sizes = np.array(given_sizes)
    gains = np.random.default_rng(seed).normal(size=len(sizes)) * sizes**0.5
    found, n = compute_client_interval(hits_of(gains, sizes)), len(sizes)
    without = np.array([np.delete(gains, i).sum() / np.delete(sizes, i).sum() for i in range(n)])
    mean = gains.sum() / sizes.sum()
    assert found.mean == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert found.error**2 == pytest.approx((n - 1) / n * ((without - mean) ** 2).sum(), rel=1e-6)
    residual = np.eye(n) - np.outer(sizes, np.ones(n)) / sizes.sum()  # of the values, after the ratio's fit
    form = residual.T @ residual @ np.diag(sizes)
    assert found.degrees == pytest.approx(np.trace(form) ** 2 / np.trace(form @ form), rel=1e-9)


def test_samples_whose_pairs_are_known() -> None:
    """One client, eight samples: we alone are right on 3, they alone on 1. The differences 1, 1, 1, -1, 0, 0, 0, 0 are Student's."""
    known = Hits(np.array([[[5.0]]]), np.array([[[3.0]]]), np.array([[8.0]]), differing=np.array([[4.0]]))
    found = compute_sample_interval(known)
    low, high = stats.ttest_1samp([1, 1, 1, -1, 0, 0, 0, 0], 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.over == "8 test samples of 1 clients"
    assert "counts" not in found.caveat


def test_clients_add_up_in_samples() -> None:
    """Two clients of four samples each, by hand."""
    hits = Hits(np.array([[[2.0], [1.0]]]), np.array([[[0.0], [1.0]]]), np.array([[4.0], [4.0]]), differing=np.array([[2.0, 2.0]]))
    # Client 1: 1, 1, 0, 0, variance 1/3; client 2: 1, -1, 0, 0, variance 2/3. Of the mean: (1/3 + 2/3) / 4 / 4.
    assert compute_sample_interval(hits).error ** 2 == pytest.approx(1 / 16)
    assert compute_sample_interval(hits).mean == pytest.approx(0.25)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3))
def test_the_bound_holds_for_whoever_was_right(seed: int, clients: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    size, labels = 12, rng.integers(classes, size=(clients, 12))
    ours, theirs = rng.random((2, clients, size)) < rng.random((2, clients, 1))
    by_class = labels[:, :, None] == np.arange(classes)
    one, two = ((right[:, :, None] & by_class).sum(axis=1).astype(float) for right in (ours, theirs))
    samples, truth = by_class.sum(axis=1).astype(float), (ours != theirs).sum(axis=1)
    assert (count_most_differing(one, two, samples) >= truth).all()
    assert (count_most_differing(one, two, samples) <= samples.sum(axis=1)).all()
    bounded = compute_sample_interval(Hits(one[None], two[None], samples))
    exact = compute_sample_interval(Hits(one[None], two[None], samples, differing=truth[None].astype(float)))
    assert bounded.error >= exact.error - 1e-12
    assert bounded.mean == pytest.approx(exact.mean)
    assert "counts allow" in bounded.caveat


def test_classes_known_apart_bound_closer() -> None:
    """Both got half right: of one class all, of the other none. By class no sample differs; without classes all could."""
    counts, samples = np.array([[4.0, 0.0]]), np.array([[4.0, 4.0]])
    assert count_most_differing(counts, counts, samples) == 0
    assert count_most_differing(counts.sum(1, keepdims=True), counts.sum(1, keepdims=True), samples.sum(1, keepdims=True)) == 8


def test_few_clients_are_asked_about_their_samples_and_many_about_others() -> None:
    rng = np.random.default_rng(0)
    few, many = (hits_of(rng.integers(-2, 3, n).astype(float), np.full(n, 20)) for n in (MANY_CLIENTS - 1, MANY_CLIENTS))
    found, other = compute_test_interval([few]), compute_test_interval([many])
    assert isinstance(found, Interval)
    assert isinstance(other, Interval)
    assert found.over == "180 test samples of 9 clients"
    assert found.caveat.startswith("these 9 clients: no estimate for other clients")
    assert (other.over, other.caveat) == ("10 test clients, 200 samples", "")
    assert "no test samples" in str(compute_test_interval([]))
    assert "no test samples" in str(compute_test_interval([hits_of(np.zeros(3), np.zeros(3))]))


def test_draws_that_share_samples_do_not_make_them_more() -> None:
    hits = [hits_of(np.random.default_rng(i).normal(size=12), np.full(12, 30)) for i in range(4)]
    alone = [compute_client_interval(own) for own in hits]
    errors = np.array([one.error for one in alone])
    found = [compute_test_interval(hits, overlap=share) for share in (0.0, 0.25, 1.0)]
    assert [isinstance(one, Interval) for one in found] == [True] * 3
    new, some, same = (one for one in found if isinstance(one, Interval))
    assert new.mean == some.mean == same.mean == pytest.approx(np.mean([one.mean for one in alone]))
    assert new.error**2 == pytest.approx((errors**2).sum() / 16)
    assert same.error == pytest.approx(errors.mean())
    # Every pair of draws with a correlation of 1/4: the sum of a matrix of covariances.
    table = np.outer(errors, errors) * np.where(np.eye(4) > 0, 1, 0.25)
    assert some.error**2 == pytest.approx(table.sum() / 16)
    assert same.degrees == pytest.approx(11)
    assert new.degrees == pytest.approx((errors**2).sum() ** 2 / (errors**4 / 11).sum())
    assert some.degrees == pytest.approx(11 + 0.75 * (new.degrees - 11))
    assert compute_test_interval(hits[:1]) == compute_test_interval(hits[:1], overlap=0.5) == alone[0]


def test_a_client_without_samples_does_not_count() -> None:
    gains, sizes = np.array([1.0, 2, -1]), np.array([10, 10, 10])
    one, two = compute_client_interval(hits_of(gains, sizes)), compute_client_interval(hits_of(np.append(gains, 0), np.append(sizes, 0)))
    assert (one.mean, one.error, one.degrees, one.over) == (two.mean, two.error, two.degrees, two.over)
    assert compute_sample_interval(hits_of(gains, sizes)) == compute_sample_interval(hits_of(np.append(gains, 0), np.append(sizes, 0)))


@pytest.mark.parametrize("shape", [(1, 2), (1, 7), (4, 1), (5, 3)])
def test_clients_at_once_are_clients_one_by_one(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    tables = rng.normal(size=(6, *shape)) / 10
    tables[1] = -0.25  # equal values
    tables[2] = 0.0
    tables[3, 0, 0] = np.nan  # a run is missing
    for shared in (False, True):
        together = _compute_run_intervals(tables, shared)
        alone = np.array([_compute_run_interval(table, shared) for table in tables])
        np.testing.assert_allclose(together, alone, rtol=1e-12, atol=1e-15)
    assert np.isfinite(_compute_run_intervals(tables, False)[1]).all()
