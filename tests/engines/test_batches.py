import numpy as np
import pytest

from coterie.core.rng import make_key, shuffle
from coterie.engines.sampling import count_steps, iterate_batches

SAMPLES = np.arange(100, 112)  # 12 samples


def test_last_partial_batch_is_kept_and_every_epoch_sees_every_sample() -> None:
    made = list(iterate_batches(5, SAMPLES, 5, 2, None))
    assert [len(b) for b in made] == [5, 5, 2, 5, 5, 2]
    assert sorted(np.concatenate(made[:3]).tolist()) == sorted(np.concatenate(made[3:]).tolist()) == SAMPLES.tolist()
    assert np.concatenate(made[:3]).tolist() != np.concatenate(made[3:]).tolist()  # each epoch has its own shuffle


def test_shuffles_are_those_of_the_key() -> None:
    parts = (3, "train", 2, "client-7")
    first = next(iter(iterate_batches(make_key(*parts), SAMPLES, None, 1, None)))
    assert first.tolist() == SAMPLES[shuffle(make_key(*parts, 0), 12)].tolist()


@pytest.mark.parametrize("size", [None, 12, 100])
def test_full_batch(size: int | None) -> None:
    assert [len(b) for b in iterate_batches(5, SAMPLES, size, 2, None)] == [12, 12]


def test_max_steps_cuts_and_does_not_change_the_batches() -> None:
    whole = [b.tolist() for b in iterate_batches(5, SAMPLES, 5, 2, None)]
    for most in (1, 3, 4, 6, 99):
        assert [b.tolist() for b in iterate_batches(5, SAMPLES, 5, 2, most)] == whole[:most]


@pytest.mark.parametrize(
    ("n", "size", "epochs", "most", "steps"),
    [
        (12, 5, 2, None, 6),
        (10, 5, 3, None, 6),
        (1, 5, 4, None, 4),
        (12, None, 3, None, 3),
        (12, 5, 2, 4, 4),
        (12, 5, 2, 40, 6),
        (12, 1, 1, None, 12),
    ],
)
def test_count_steps(n: int, size: int | None, epochs: int, most: int | None, steps: int) -> None:
    assert count_steps(n, size, epochs, most) == steps
    assert len(list(iterate_batches(1, np.arange(n), size, epochs, most))) == steps
