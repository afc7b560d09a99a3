"""synthetic(alpha, beta): the recipe's laws, its void alpha, and draws that do not move when clients are added."""

from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.federation import Federation
from coterie.data.sources.synthetic import synthetic


def sizes(made: Federation) -> list[int]:
    return [int(n) for n in made.train.sizes + made.test.sizes]


def test_shape_of_the_benchmark() -> None:
    made = synthetic(0.5, 0.5)
    assert len(made) == 30
    assert made.input_shape == (60,)
    assert made.x.dtype == np.float32
    assert made.classes == tuple("0123456789")
    assert made.y.min() >= 0
    assert made.y.max() <= 9
    assert made.train.sizes.tolist() == [int(0.9 * n) for n in sizes(made)]
    assert sorted(np.concatenate([made.train.indices, made.test.indices])) == list(range(len(made.y)))


def test_sizes_are_lognormal_4_2_plus_50() -> None:
    n = np.array(sizes(synthetic(0, 0, clients=400, _data_seed=1)))
    assert n.min() >= 50
    # the logarithm of n - 50 is N(4, 2): of 400, the mean is within 4 +- .3 and the deviation within 2 +- .3
    logs = np.log(n - 50 + 0.5)
    assert logs.mean() == pytest.approx(4, abs=0.3)
    assert logs.std() == pytest.approx(2, abs=0.3)


def test_covariance_falls_as_j_to_the_minus_1_2() -> None:
    made = synthetic("iid", clients=60)
    variances = made.x.var(axis=0)
    assert variances == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.1)
    assert np.abs(made.x.mean(axis=0)).max() < 0.05


def test_alpha_never_changes_a_label() -> None:
    low, high = synthetic(0, 0.5), synthetic(3, 0.5)
    assert np.array_equal(low.y, high.y)
    assert np.array_equal(low.x, high.x)


def test_alpha_per_class_does() -> None:
    assert not np.array_equal(synthetic(0, 0.5).y, synthetic(3, 0.5, alpha_per_class=True).y)
    # with alpha = 0 there is nothing to draw
    assert np.array_equal(synthetic(0, 0.5).y, synthetic(0, 0.5, alpha_per_class=True).y)


def test_beta_moves_the_centres_of_clients_apart() -> None:
    def spread(beta: float) -> float:
        made = synthetic(0, beta, clients=60)
        return float(np.std([made.x[own].mean() for own in made.train]))

    # the mean of 60 entries of v_k has standard deviation sqrt(beta^2 + 1/60)
    assert spread(0) == pytest.approx(60**-0.5, abs=0.05)
    assert spread(2) == pytest.approx(2, abs=0.6)


def test_iid_has_one_model_for_all() -> None:
    made = synthetic("iid")
    x = np.hstack([made.x, np.ones((len(made.x), 1))])
    # one linear map fitted on the first half of the clients labels the others well, and it cannot in the plain set
    half = int(made.train.offsets[15])
    first, rest = made.train.indices[:half], made.train.indices[half:]
    targets = np.eye(10)[made.y[first]]
    weights = np.linalg.lstsq(x[first], targets, rcond=None)[0]
    assert np.mean(np.argmax(x[rest] @ weights, axis=1) == made.y[rest]) > 0.5
    assert sizes(made) == sizes(synthetic(0, 0))


@pytest.mark.parametrize("alpha", [0.5, "iid"])
def test_more_clients_leave_the_earlier_ones_as_they_were(alpha: float | str) -> None:
    few, many = synthetic(alpha, clients=3), synthetic(alpha, clients=7)
    n = len(few.y)
    assert many.ids[:3] == few.ids
    assert np.array_equal(many.x[:n], few.x)
    assert np.array_equal(many.y[:n], few.y)
    assert [own.tolist() for own in many.train][:3] == [own.tolist() for own in few.train]


def test_same_data_seed_same_bytes_and_another_gives_another() -> None:
    a, b, c = (synthetic(1, 1, clients=4, _data_seed=s) for s in (5, 5, 6))
    assert a.x.tobytes() == b.x.tobytes()
    assert a.y.tobytes() == b.y.tobytes()
    assert a.x.tobytes() != c.x.tobytes()


def test_validation_comes_out_of_the_training_part() -> None:
    with_, without = synthetic(0, 0, clients=4, validation=0.1), synthetic(0, 0, clients=4)
    assert with_.validation is not None
    assert without.validation is None
    assert np.array_equal(with_.test.indices, without.test.indices)
    assert (with_.train.sizes + with_.validation.sizes).tolist() == without.train.sizes.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": "idd"}, "alpha='idd' should be a number, or the word iid"),
        ({"alpha": "iid", "beta": 0.5}, "has no beta"),
        ({"alpha": -1.0}, "alpha=-1 is a standard deviation and should be 0 or more"),
        ({"beta": float("inf")}, "beta=inf is a standard deviation"),
        ({"clients": 0}, "clients=0 should be at least 1"),
        ({"validation": 0.95}, "leave nothing to train on"),
    ],
)
def test_says_what_is_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        synthetic(**options)
    assert words in str(error.value)
