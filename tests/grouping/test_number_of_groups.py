"""The number of groups read from points."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.grouping.kmeans import kmeans
from coterie.grouping.number_of_groups import Criterion, choose_from_points
from grouping.blobs import blobs


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("how", ["silhouette", "gap", "stability", "ward"])
@pytest.mark.parametrize("groups", [2, 3, 4])
def test_the_number_of_plain_groups_is_found(how: Criterion, groups: int) -> None:
    points, true = blobs(groups, each=8)
    choice = choose_from_points(points, rng(), 6, how)
    assert choice.k == groups
    assert choice.how == how
    assert list(choice.curves) == [how]
    assert 2 <= len(choice.curves[how]) <= 6
    assert choice.p is None
    assert adjusted_rand_score(kmeans(points, choice.k, rng()), true) == 1


@pytest.mark.parametrize("how", ["gap", "stability"])
def test_one_cloud_is_one_group(how: Criterion) -> None:
    cloud = np.random.default_rng(3).normal(size=(40, 5))
    assert choose_from_points(cloud, rng(), 6, how).k == 1


@pytest.mark.parametrize("how", ["silhouette", "gap", "stability", "ward"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_choosing_among_few_or_equal_points(how: Criterion, n: int) -> None:
    assert choose_from_points(np.ones((n, 3)), rng(), 5, how).k == 1
    assert 1 <= choose_from_points(np.random.default_rng(n).normal(size=(n, 3)), rng(), 5, how).k <= max(n - 1, 1)
    two = np.array([[0.0, 0], [1, 1]])[np.arange(n) % 2]
    assert choose_from_points(two, rng(), 5, how).k in ({2} if n == 6 else {1, 2})


def test_ward_keeps_fewer_groups_unless_more_are_a_tenth_better() -> None:
    """Pairs at 0 and e, 9 and 9 + e, e = 2: in two groups a point is (0 + 2 + 2) / 3 from its own and about 9 from the others, a silhouette
    of .85; in four groups it is 1, more than 1.1 * .85. With e = .9 it is .93 in two groups: four groups are less than a tenth better."""
    for gap, expected in ((2.0, 4), (0.9, 2)):
        line = np.array([0, gap, 9, 9 + gap])
        points = np.concatenate([line, line + 1e-3])[:, None]
        choice = choose_from_points(points, rng(), 6, "ward")
        assert choice.k == expected
        assert int(np.nanargmax(choice.curves["ward"])) + 1 == 4  # the plain silhouette says four either way
