"""The real data that come with the package or its dependencies: digits and heart."""

import json

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.column_statistics import Scaling
from coterie.data.federation import Federation
from coterie.data.sources.digits import digits
from coterie.data.sources.heart import FEATURES, HOSPITALS, heart
from coterie.data.sources.heart import _read_hospital as raw_rows


def test_digits_are_scaled_to_one() -> None:
    made = digits()
    assert made.x.shape == (1797, 8, 8)
    assert made.x.dtype == np.float32
    assert (made.x.min(), made.x.max()) == (0, 1)
    assert made.y.dtype == np.int64
    # scikit-learn's documentation: 178, 182, 177, 183, 181, 182, 181, 179, 174, 180 of the classes
    assert np.bincount(made.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert made.central is None


def totals(made: Federation) -> list[int]:
    return [int(n) for n in made.train.sizes + made.test.sizes]


def test_heart_has_flambys_rows() -> None:
    made = heart()
    assert made.ids == ("cleveland", "hungary", "switzerland", "va")
    assert totals(made) == [303, 261, 46, 130]
    assert made.input_shape == (13,) == (len(FEATURES),)
    assert made.classes == ("absent", "present")
    # by hand from the files: 139 of 303, 98 of 261, 45 of 46, 101 of 130 with disease
    both = [np.concatenate([a, b]) for a, b in zip(made.train, made.test, strict=True)]
    assert [int(made.y[rows].sum()) for rows in both] == [139, 98, 45, 101]
    assert sorted(np.concatenate(both)) == list(range(740))


def test_heart_splits_within_each_class() -> None:
    made = heart()
    # absent 164, 163, 1, 29 and present 139, 98, 45, 101: a fifth of each, to the nearest; the lone Swiss patient trains
    absent = [int((made.y[own] == 0).sum()) for own in made.test]
    present = [int((made.y[own] == 1).sum()) for own in made.test]
    assert absent == [33, 33, 0, 6]
    assert present == [28, 20, 9, 20]


@pytest.mark.parametrize("data_seed", range(5))
def test_switzerlands_only_patient_without_disease_always_trains(data_seed: int) -> None:
    made = heart(test=0.9, validation=0.05, _data_seed=data_seed)
    assert (made.y[made.train[2]] == 0).sum() == 1


def test_heart_is_standardised_by_each_hospitals_own_training_part() -> None:
    made = heart(validation=0.1)
    for client, own in enumerate(made.train):
        seen = made.x[own].astype(np.float64)
        constant = np.ptp(seen, axis=0) == 0
        assert seen.mean(axis=0) == pytest.approx(np.zeros(13), abs=1e-6)
        assert seen.std(axis=0)[~constant] == pytest.approx(np.ones((~constant).sum()), abs=1e-5)
        everyone = np.concatenate([own, made.test[client]])
        assert (made.x[everyone][:, constant] == 0).all()
    swiss = made.x[np.concatenate([made.train[2], made.test[2]])]
    assert (swiss[:, FEATURES.index("chol")] == 0).all()


def test_heart_with_another_data_seed_is_another_split_of_the_same_patients() -> None:
    a, b, c = (heart(_data_seed=s) for s in (1, 1, 2))
    assert a.x.tobytes() == b.x.tobytes()
    assert a.test.indices.tolist() == b.test.indices.tolist() != c.test.indices.tolist()
    assert a.test.sizes.tolist() == c.test.sizes.tolist()


def test_heart_test_part_does_not_depend_on_validation() -> None:
    a, b = heart(), heart(validation=0.2)
    assert b.validation is not None
    assert a.test.indices.tolist() == b.test.indices.tolist()
    assert (b.train.sizes + b.validation.sizes).tolist() == a.train.sizes.tolist()


def test_heart_needs_something_to_train_on() -> None:
    with pytest.raises(UserError, match="Data set 'heart': test=1 should be a share"):
        heart(test=1.0)


def test_what_heart_says_of_its_scaling_leads_from_raw_rows_to_its_features() -> None:
    made = heart()
    for client, (name, file, rows) in enumerate(HOSPITALS):
        raw, _ = raw_rows(file, rows)
        own = np.sort(np.concatenate([made.train[client], made.test[client]]))
        scaling = Scaling.from_dict(json.loads(json.dumps(made.provenance["scaling"][name])))
        assert scaling.apply(raw).tobytes() == made.x[own].tobytes()


def test_a_scenario_that_changes_features_has_no_scaling_any_more() -> None:
    assert "scaling" not in load("heart/noise(groups=2)").provenance
    assert "scaling" in load("heart/labelswap(groups=2)").provenance
