"""Evaluations of many lanes in one pass: the same answers, to the bit, as each by itself."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from coterie.core.arrays import Floats
from coterie.core.asks import Evaluate, Share
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.evaluation import batch
from coterie.engines.evaluation import dense as dense_module
from coterie.engines.evaluation.batch import EvalSets
from coterie.engines.evaluation.dense import NumpyEvaluator, TorchEvaluator
from coterie.engines.evaluation.evaluate import evaluate, find_only_model
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import get_layer_sizes
from coterie.engines.workspace import CHUNK
from coterie.engines.world import World
from coterie.testing import worlds


def models_of(world: World, count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(count, world.model.layout.size)).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.sampled_from(["mclr", "mlp(4)"]), st.integers(1, 4), st.integers(0, 99))
def test_many_models_are_judged_as_each_of_them_and_as_probabilities_have_it(sizes: list[int], model: str, count: int, seed: int) -> None:
    world = World.from_spec(worlds.make_federation(tuple(sizes)), model)
    dense = NumpyEvaluator(world.federation, get_layer_sizes(world))
    rows = np.random.default_rng(seed).permutation(len(world.federation.x))
    models = models_of(world, count, seed)
    for one, (guess, losses) in zip(models, dense.classify(list(models), rows), strict=True):
        [(alone, losses_alone)] = dense.classify([one], rows)
        assert_array_equal(guess, alone)
        assert losses.tobytes() == losses_alone.tobytes()
        chances, expected = dense.predict(one, rows)
        assert losses.tobytes() == expected.tobytes()
        assert_array_equal(guess, chances.argmax(1))


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["mclr", "mlp(5)"])
@pytest.mark.parametrize("large", [1 << 29, 0])
def test_models_on_a_device_are_judged_together_as_each_of_them(
    device: str, model: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_module, "LARGE", large)  # nought: piece by piece
    world = World.from_spec(worlds.make_federation((40, 7, 300)), model)
    dense, models = TorchEvaluator(world.federation, get_layer_sizes(world), torch.device(device)), models_of(world, 5)
    models[3, 0] = np.nan
    for rows in (np.random.default_rng(0).permutation(len(world.federation.x)), np.array([4]), None):
        for (guess, losses), one in zip(dense.classify(list(models), rows), models, strict=True):
            [(alone, losses_alone)] = dense.classify([one], rows)
            assert_array_equal(guess, alone)
            assert losses.tobytes() == losses_alone.tobytes()
            chances, expected = dense.predict(one, rows)
            np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
            assert np.isnan(losses).all() or (guess == chances.argmax(1)).mean() > 0.99


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
def test_a_model_that_ran_away_says_the_first_class(spoilt: float) -> None:
    world = worlds.make_world()
    dense = NumpyEvaluator(world.federation, get_layer_sizes(world))
    model = models_of(world, 1)[0]
    model[-1] = spoilt  # the last class's bias
    rows = np.arange(9)
    with np.errstate(invalid="ignore"):
        [(guess, losses)], (chances, _) = dense.classify([model], rows), dense.predict(model, rows)
    assert_array_equal(guess, chances.argmax(1))
    assert np.isnan(losses).all()


def test_blocks_follow_from_the_layers_alone() -> None:
    def block(*sizes: int) -> int:
        return NumpyEvaluator(worlds.make_federation(), sizes).block

    assert block(784, 10) == 112  # 112 x 784 x 10 multiplications are below a million, 128 are not
    assert block(784, 128, 10) == CHUNK  # nine rows would be too few
    assert block(2, 3) == CHUNK


def stamped(world: World, *servings: Serving, **options: Any) -> list[StampedAsk]:
    return [StampedAsk(Evaluate(serving, **options), seed, 1, lane=seed) for seed, serving in enumerate(servings)]


@pytest.mark.parametrize("most", [1 << 25, 50])
def test_lanes_of_all_kinds_get_the_same_answers_together_and_alone(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST", most)  # 50 answers: two lanes at a time
    world = worlds.make_world()
    everybody, models = world.problem.roster.clients, models_of(world, 6)
    rows = np.arange(len(everybody)) % 2
    kinds = [
        *(Serving.one(everybody, model) for model in models),
        Serving(everybody, models[:2], rows),
        Serving(everybody, models[:2], np.full(len(everybody), 1)),
        Serving.one(everybody[:3], models[0]),
        Serving(everybody, models[:2], np.full(len(everybody), COMBINED), Mixture(np.full((len(everybody), 2), 0.5))),
    ]
    asks = [
        *stamped(world, *kinds),
        *stamped(world, *kinds[:2], part="validation"),
        *stamped(world, *kinds[:2], part="central"),
        *stamped(world, *(Serving.one(everybody[:1], model) for model in models[:3]), part="central"),
        *stamped(world, *kinds[:2], share=Share(fold=0), part="train"),
        *stamped(world, *kinds[:2], answers=True),
    ]
    with BatchedEngine(world, threads=2) as engine:
        together, alone = engine.run(asks), [engine.run([ask])[0] for ask in asks]
    for one, other in zip(together, alone, strict=True):
        for name in ("hits", "predicted", "actual", "loss", "auroc"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
        assert_array_equal(one.answers, other.answers)


@pytest.mark.parametrize(("part", "answers"), [("test", False), ("test", True), ("validation", False), ("central", False)])
def test_one_lane_gets_what_probabilities_say(part: Any, answers: bool) -> None:
    world = worlds.make_world()
    federation, roster = world.federation, world.problem.roster
    serving = Serving.one(roster.clients[: 1 if part == "central" else None], models_of(world, 1)[0])
    ask, dense = Evaluate(serving, part, answers=answers), NumpyEvaluator(federation, get_layer_sizes(world))
    expected = evaluate(ask, federation, dense.predict, None if part == "central" else federation.part(part))
    with BatchedEngine(world, threads=2) as engine:
        first, again = engine.run([StampedAsk(ask, 0, 1)])[0], engine.run([StampedAsk(ask, 0, 2)])[0]
    for found in (first, again):  # the second of samples that are known already
        for name in ("clients", "hits", "predicted", "actual", "loss", "auroc", "answers"):
            assert_array_equal(getattr(found, name), getattr(expected, name))


def test_panels_are_kept_by_their_parts_and_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = worlds.make_federation()
    kept, everybody = EvalSets(federation), np.arange(len(federation))
    test = kept.of(federation.test, everybody)
    assert kept.of(federation.test, everybody.copy()) is test
    assert_array_equal(test.y, federation.y[federation.test.indices])
    assert_array_equal(kept.of(federation.train, everybody).y, federation.y[federation.train.indices])
    assert_array_equal(kept.of(federation.test, everybody[1:3]).rows, np.concatenate([federation.test[1], federation.test[2]]))
    assert kept.of(None, everybody[:1]).rows is None
    kept.of(federation.train, everybody[:1])  # the fifth: the one that was longest not asked for makes room
    assert kept.of(federation.test, everybody) is not test
    monkeypatch.setattr(batch, "LARGEST", 3)
    assert kept.of(federation.test, everybody[2:]) is not kept.of(federation.test, everybody[2:])
    with pytest.raises(ValueError, match="read-only"):
        test.actual[0] += 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30_000), st.integers(1, 5), st.integers(1, 3), st.sampled_from([(784, 10), (2, 3), (784, 128, 10)]))
@example(1009, 1, 2, (784, 10))
def test_pieces_are_whole_blocks_and_leave_no_sample_by_itself(samples: int, threads: int, models: int, sizes: tuple[int, ...]) -> None:
    dense = NumpyEvaluator(worlds.make_federation(), sizes, threads)
    pieces = dense.pieces(samples, models=models)
    assert_array_equal(np.concatenate([np.arange(samples)[piece] for piece in pieces]), np.arange(samples))
    assert all(piece.start % dense.block == 0 for piece in pieces)
    assert samples < 2 or min(piece.stop - piece.start for piece in pieces) > 1


def test_models_of_any_kind_are_counted_together_as_each_by_itself() -> None:
    """As on a GPU, where each model is judged by itself, by a module's predictions."""
    world = World.from_spec(worlds.make_federation(), "mlp(4,4,4)")  # too deep for the kernels
    everybody, models = world.problem.roster.clients, models_of(world, 4)
    asks = [
        *stamped(world, *(Serving.one(everybody, model) for model in models)),
        *stamped(world, *(Serving.one(everybody[:1], model) for model in models), part="central"),
        *stamped(world, *(Serving.one(everybody, model) for model in models[:2]), answers=True),
    ]
    with LoopEngine(world) as loop:
        judge = loop.space(world).classify
        jury = batch.BatchEvaluator(lambda models, rows: [judge(model, rows) for model in models], EvalSets(world.federation))
        found = batch.evaluate_together([Work.bind(ask, world) for ask in asks], {world: jury}, map)
        expected = loop.run(asks)
    assert sorted(found) == list(range(len(asks)))
    for number, answer in enumerate(expected):
        for name in ("clients", "hits", "predicted", "actual", "loss", "auroc", "answers"):
            assert_array_equal(getattr(found[number], name), getattr(answer, name))


def test_only_one_model_of_more_than_two_classes_is_judged() -> None:
    federation, serving = worlds.make_federation(), Serving.one(np.arange(6), np.ones(18, np.float32))
    parts = federation.test
    found = find_only_model(Evaluate(serving), federation, parts)
    assert found is not None
    assert_array_equal(found, serving.models[0])
    assert find_only_model(Evaluate(serving), federation, None) is None
    one = Serving.one(np.arange(1), np.ones(18, np.float32))
    assert find_only_model(Evaluate(one), federation, None) is not None  # on the central set
    assert find_only_model(Evaluate(one), federation.replace(central=None), None) is None
    assert find_only_model(Evaluate(serving), worlds.make_federation(classes=2), parts) is None
    assert find_only_model(Evaluate(serving.take(np.zeros(0, np.int64))), federation, parts) is None
    assert find_only_model(Evaluate(Serving(serving.clients, np.ones((2, 18), np.float32), np.arange(6) % 2)), federation, parts) is None
