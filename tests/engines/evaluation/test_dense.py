"""Many models at once give the bits of one model at a time."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.asks import Evaluate
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.data.federation import Federation, Parts
from coterie.engines.evaluation.dense import NumpyEachEvaluator, NumpyEvaluator
from coterie.engines.evaluation.evaluate import evaluate, group_by_model, iterate_blocks, iterate_stacks


def federation(sizes: list[int], inputs: int, classes: int) -> Federation:
    rng, total = np.random.default_rng(0), sum(sizes)
    parts = Parts(np.concatenate([[0], np.cumsum(sizes)]), rng.permutation(total))
    train = Parts(np.arange(len(sizes) + 1), np.arange(len(sizes)) % max(total, 1))
    ids = tuple(f"c{i}" for i in range(len(sizes)))
    x, y = rng.standard_normal((total, inputs)).astype(np.float32), rng.integers(classes, size=total)
    return Federation(name="own", x=x, y=y, classes=tuple(map(str, range(classes))), ids=ids, train=train, test=parts)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=20, max_size=40).filter(lambda sizes: sum(sizes) > 0),
    inputs=st.integers(1, 70),
    hidden=st.sampled_from([(), (7,), (16, 3)]),
    classes=st.sampled_from([2, 3, 10, 33]),
    shared=st.booleans(),
    seed=st.integers(0, 100),
)
def test_together_are_the_bits_of_each_alone(
    sizes: list[int], inputs: int, hidden: tuple[int, ...], classes: int, shared: bool, seed: int
) -> None:
    own = federation(sizes, inputs, classes)
    dense, rng = NumpyEvaluator(own, (inputs, *hidden, classes)), np.random.default_rng(seed)
    layers = (inputs, *hidden, classes)
    d = sum((a + 1) * b for a, b in pairwise(layers))
    models = rng.standard_normal((len(sizes) + 1, d)).astype(np.float32)
    rows = rng.integers(len(models), size=len(sizes)) if shared else rng.permutation(len(sizes))
    if classes == 3:
        rows[0] = COMBINED
    weights = np.full((len(sizes), len(models)), 1 / len(models))
    ask = Evaluate(Serving(np.arange(len(sizes)), models, rows, Mixture(weights)), answers=True)
    for judge in (None, lambda model, rows: dense.classify([model], rows)[0]):
        one, many = (evaluate(ask, own, dense.predict, own.test, judge, each) for each in (None, NumpyEachEvaluator(dense)))
        for name in ("hits", "predicted", "actual", "loss", "auroc", "answers"):
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))


def test_a_part_longer_than_a_piece_is_cut_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.engines.evaluation.dense.SMALL", 16 * 30)  # blocks of sixteen rows
    monkeypatch.setattr("coterie.engines.evaluation.dense.CHUNK", 64)
    own = federation([70, 0, 1, 4, 17], 3, 10)
    dense, models = NumpyEvaluator(own, (3, 10)), np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
    chances, losses = NumpyEachEvaluator(dense).predict(models, own.test.indices, own.test.sizes)
    guesses, judged = NumpyEachEvaluator(dense).judge(models, own.test.indices, own.test.sizes)
    assert dense.block == 16
    for client in (0, 2, 3, 4):
        span = slice(own.test.offsets[client], own.test.offsets[client + 1])
        alone = *dense.predict(models[client], own.test[client]), *dense.classify([models[client]], own.test[client])[0]
        for together, by_itself in zip((chances, losses, guesses, judged), alone, strict=True):
            np.testing.assert_array_equal(together[span], by_itself)


def test_losses_of_many_samples_take_memory_for_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.engines.evaluation.dense.CHUNK", 64)
    own = federation([40_000], 3, 4)
    dense, models = NumpyEvaluator(own, (3, 4)), np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)
    pieces = len(dense.pieces(40_000))
    assert pieces > 10
    tracemalloc.start()
    try:
        dense.losses(models, own.test.indices)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 40_000 * 8  # the losses of two models and the numbers of samples are three of these; one for each piece is more


@given(st.lists(st.integers(-1, 6), max_size=30))
def test_whom_each_model_serves(rows: list[int]) -> None:
    found = dict(group_by_model(np.array(rows, dtype=np.int64)))
    assert {row: members.tolist() for row, members in found.items()} == {
        row: [i for i, own in enumerate(rows) if own == row] for row in sorted(set(rows))
    }


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
def test_stacks_hold_everybody_with_samples_once(sizes: list[int]) -> None:
    held = np.array(sizes)
    stacks = list(iterate_stacks(held, 1 << 20, 3))
    assert sorted(np.concatenate([np.zeros(0, int), *stacks]).tolist()) == np.flatnonzero(held).tolist()
    assert all(len(set(held[stack])) == 1 and len(stack) <= 4 for stack in stacks)


@given(st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 5))
def test_blocks_hold_every_model_once_and_are_bounded(served: list[tuple[int, int]], together: int, most: int) -> None:
    rows, sizes = np.array(served).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.engines.evaluation.evaluate.TOGETHER", together)
        blocks = list(iterate_blocks(rows, sizes, 7, 7 * most))
    found: dict[int, int] = {}
    for numbers, members, counts in blocks:
        assert len(numbers) <= most
        assert len(numbers) == 1 or counts.sum() <= together
        assert rows[members].tolist() == np.repeat(numbers, [np.sum(rows == number) for number in numbers]).tolist()
        found |= dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    assert found == {int(row): int(sizes[rows == row].sum()) for row in np.unique(rows) if row >= 0}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.sampled_from([2, 10, 33]), st.sampled_from([(), (5,)]), st.integers(1, 9))
def test_losses_alone_are_the_bits_of_those_beside_probabilities(samples: int, classes: int, hidden: tuple[int, ...], chunk: int) -> None:
    own, layers = federation([samples], 6, classes), (6, *hidden, classes)
    d = sum((a + 1) * b for a, b in pairwise(layers))
    dense, models = NumpyEvaluator(own, layers), np.random.default_rng(2).standard_normal((3, d)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.engines.evaluation.dense.CHUNK", chunk)
        patch.setattr("coterie.engines.evaluation.dense.SMALL", 16 * 6 * classes)
        patch.setattr("coterie.engines.evaluation.dense.LARGE", 1 if chunk > 4 else 1 << 29)  # read piece by piece, or not
        beside = np.stack([dense.predict(model, own.test.indices)[1] for model in models])
        np.testing.assert_array_equal(dense.losses(models, own.test.indices), beside)
