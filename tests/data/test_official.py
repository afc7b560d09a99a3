"""All that clients hold trains; they are judged on the set's own test samples of their classes."""

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.client_scenarios import official_test
from coterie.data.federation import Samples
from coterie.data.partitions import iid, shards


def samples(central: bool = True) -> Samples:
    """60 samples of three classes, and 12 more as the server's test set, whose features are negative."""
    y = np.repeat(np.arange(3), 20)
    own = (-np.arange(1, 13, dtype=np.float32)[:, None], np.tile(np.arange(3), 4))
    return Samples("some", np.arange(60, dtype=np.float32)[:, None], y, ("0", "1", "2"), own if central else None)


def test_everything_trains_and_test_parts_are_the_sets_own_of_a_clients_classes() -> None:
    before = shards(samples(), clients=6, per_client=1, test=0.0)
    made = official_test(before)
    assert made.train.indices.tolist() == before.train.indices.tolist()
    assert made.train.sizes.tolist() == [10] * 6
    for client in range(6):  # one class a client, two clients a class, four test samples of a class
        assert set(made.y[made.test[client]]) == set(made.y[made.train[client]])
        assert len(made.test[client]) == 2
        assert (made.x[made.test[client]] < 0).all()
    assert len(np.unique(made.test.indices)) == 12
    assert made.central is before.central


def test_other_draws_deal_other_test_samples() -> None:
    parts = [official_test(shards(samples(), clients=6, per_client=1, test=0.0), _data_seed=seed).test.indices.tolist() for seed in (0, 1)]
    assert parts[0] != parts[1]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="give the partition test=0"):
        official_test(iid(samples(), clients=3, test=0.1))
    with pytest.raises(UserError, match="no test set of its own at the server"):
        official_test(iid(samples(central=False), clients=3, test=0.0))
