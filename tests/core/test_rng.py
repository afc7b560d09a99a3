import numpy as np
import pytest

from coterie.core.rng import (
    GOLDEN,
    MASK,
    extend_key,
    fold_keys,
    hash_word,
    make_generator,
    make_key,
    make_words,
    scramble,
    shuffle,
    to_uniforms,
)


def test_known_vectors_of_splitmix64() -> None:
    # The reference C code (Vigna, splitmix64.c), seed 0 and seed 1234567: state += GOLDEN, then the finaliser.
    assert [hex(w) for w in make_words(0, 3)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
    assert make_words(1234567, 2).tolist() == [6457827717110365317, 3203168211198807973]


def test_numpy_words_are_the_python_ones() -> None:
    some = make_key(3, "test")
    assert make_words(some, 50).tolist() == [scramble(some + i * GOLDEN) for i in range(1, 51)]


@pytest.mark.parametrize("n", [0, 1, 2, 97])
def test_shuffle_is_a_permutation(n: int) -> None:
    assert sorted(shuffle(make_key(0, "a"), n).tolist()) == list(range(n))


def test_shuffle_depends_on_the_key_alone() -> None:
    assert shuffle(5, 30).tolist() == shuffle(5, 30).tolist()
    assert shuffle(5, 30).tolist() != shuffle(6, 30).tolist()


def test_every_part_of_a_key_counts_and_so_does_their_order() -> None:
    base: tuple[int | str, ...] = (0, "train", 1, "client-0", 0)
    others = [(1, *base[1:]), (0, "tune", *base[2:]), (0, "train", 2, *base[3:]), (*base[:3], "client-1", 0), (*base[:4], 1)]
    assert len({make_key(*parts) for parts in [base, *others, base[::-1], base[:-1]]}) == 8


def test_fold_and_extend_continue_a_key() -> None:
    clients = np.array([hash_word("a"), hash_word("b")], dtype=np.uint64)
    folded = fold_keys(np.full(2, make_key(7, "cohort", 3), np.uint64), clients)
    assert folded.tolist() == [make_key(7, "cohort", 3, "a"), make_key(7, "cohort", 3, "b")]
    assert extend_key(make_key(1, "x"), 9) == make_key(1, "x", 9)


def test_numbers_of_any_integer_type_make_the_same_key() -> None:
    assert make_key(int(np.int64(2)), "x", 5) == make_key(np.int64(2), "x", np.int32(5))  # type: ignore[arg-type]


def test_negative_numbers_are_keys_too() -> None:
    assert 0 <= make_key(-1, "x") <= MASK
    assert make_key(-1) != make_key(1)


def test_uniforms_are_uniform() -> None:
    draws = to_uniforms(make_words(make_key(0, "uniform"), 100_000))
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.histogram(draws, 20, (0, 1))[0]
    chi_square = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_square < 43.8  # the 0.999 quantile with 19 degrees of freedom
    neighbours = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(neighbours) < 0.01


def test_extremes_of_uniforms() -> None:
    ends = to_uniforms(np.array([0, MASK], dtype=np.uint64))
    assert ends[0] == 0
    assert ends[1] == 1 - 2.0**-53


def test_generators_are_keyed() -> None:
    assert make_generator(4).normal() == make_generator(4).normal()
    assert make_generator(4).normal() != make_generator(5).normal()
    make_generator(MASK).normal()  # the largest key is a key
