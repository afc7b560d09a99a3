"""A model of its own for each client, on a device: kept there from round to round, judged there, and fetched for checkpoints alone."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from coterie.core import states
from coterie.core.arrays import Floats, Ints
from coterie.core.asks import Evaluate, Losses, Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.core.states import ClientTable
from coterie.engines import device_vectors
from coterie.engines.batched import BatchedEngine
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.evaluation.dense import TorchEvaluator
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.run.driver import drive
from coterie.run.lanes import Lane, make_lanes
from coterie.testing import worlds

D = 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))]


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each fetch brought to the host; however small, models stay where they are."""
    found: list[int] = []
    before = DeviceVectors.fetch

    def fetch(self: DeviceVectors) -> Floats:
        found.append(len(self))
        return before(self)

    monkeypatch.setattr(DeviceVectors, "fetch", fetch)
    monkeypatch.setattr(device_vectors, "FEW", 0)
    return found


def held(values: Floats) -> Floats:
    return DeviceVectors(torch.from_numpy(values), np.ones(len(values))).as_array()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=8))
def test_rows_that_are_held_are_a_table_with_a_row_for_everybody(clients: int, steps: list[tuple[bool, int]]) -> None:
    common = np.array([1, 2, 3], np.float32)
    sparse, dense = ClientTable.empty(clients, common), np.repeat(common[None], clients, axis=0)
    for stays, seed in steps:
        draw = np.random.default_rng(seed)
        who = draw.permutation(clients)[: draw.integers(0, clients + 1)]
        values = draw.standard_normal((len(who), D)).astype(np.float32)
        before, sparse = sparse, sparse.put(who, held(values) if stays else values)
        assert before.get_all_rows().tolist() == dense.tolist()  # what was there before is as it was
        dense = dense.copy()
        dense[who] = values
        assert sparse.get_all_rows().tolist() == dense.tolist()
        some = draw.permutation(clients)[: draw.integers(0, clients + 1)]
        models, start = sparse.get_starts(some)
        assert np.asarray(models)[start].tolist() == dense[some].tolist()
        assert len(models) == 1 + np.count_nonzero(sparse.has_row[some])
    again = states.from_bytes(states.to_bytes(sparse))
    assert again.get_all_rows().tolist() == dense.tolist()


def test_nothing_is_fetched_to_put_rows_beside_others_or_to_begin_from_them(fetches: list[int]) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    own = ClientTable.empty(5, np.zeros(3, np.float32)).put(np.array([0, 1]), held(values[:2]))
    own = own.put(np.array([1, 3]), held(values[2:])).put(np.zeros(0, np.int64), values[:0])
    models, start = own.get_starts(np.arange(5))
    assert isinstance(models, DeviceVectors)
    assert isinstance(own.of(np.array([3, 0])), DeviceVectors)
    assert fetches == []
    assert np.asarray(models)[start].tolist() == [[0, 1, 2], [6, 7, 8], [0, 0, 0], [9, 10, 11], [0, 0, 0]]


def test_who_keeps_a_few_rows_does_not_keep_the_whole_stack_alive() -> None:
    stack = torch.arange(30, dtype=torch.float32).reshape(10, 3)
    for span, count in ((slice(0, 2), 2), (slice(0, 9), 9)):
        own = ClientTable.empty(9, np.zeros(3, np.float32)).put(np.arange(count), DeviceVectors(stack[span], np.ones(count)).as_array())
        assert isinstance(own.rows, DeviceVectors)
        assert own.rows.values.untyped_storage().nbytes() == (24 if count == 2 else 120)  # nearly all of it need not be copied
        assert_array_equal(own.rows, stack[span])


WORLD = World.from_spec(worlds.make_federation(), "mlp(5)")
PLAN = Plan(rounds=3, cohort=4, local=Local(epochs=1, batch_size=4, lr=0.1), evaluate_every=3)


def after_rounds(spec: str, engine: Engine, until: int) -> list[Lane]:
    lanes = make_lanes([(spec, build(spec))], [0, 1], WORLD.problem, PLAN)
    drive(lanes, engine, until, lambda lane, record: None)
    assert [lane.round_ for lane in lanes] == [until, until], [lane.reason for lane in lanes]
    return lanes


OWN = ["local", "local(until=epochs,epochs=2)", "fedavg+finetune(epochs=1)"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", OWN)
def test_no_round_and_no_evaluation_fetches_clients_own_models(spec: str, device: str, fetches: list[int]) -> None:
    """On a GPU 1,200 models of 159,010 numbers went to the host, and back, in every round of every lane."""
    with BatchedEngine(WORLD, device, holds=True, threads=1) as holding, BatchedEngine(WORLD, threads=1) as plain:
        found = after_rounds(spec, holding, 3)
        assert fetches == []
        expected = after_rounds(spec, plain, 3)
    for lane, other in zip(found, expected, strict=True):
        assert lane.state is not None
        assert other.state is not None
        (arrays, tree), (others, other_tree) = states.flatten(lane.state), states.flatten(other.state)
        assert tree == other_tree
        for name in arrays:
            assert_allclose(arrays[name], others[name], rtol=0 if device == "cpu" else 1e-4, atol=0 if device == "cpu" else 1e-5)
    assert len(fetches) == (2 if spec.startswith("local") else 0)  # a lane's checkpoint


def test_a_lane_that_goes_on_from_a_checkpoint_goes_on_as_it_was(fetches: list[int]) -> None:
    spec = "local(until=epochs,epochs=3)"
    with BatchedEngine(WORLD, holds=True, threads=1) as engine:
        whole = after_rounds(spec, engine, 3)
        lanes = after_rounds(spec, engine, 1)
        for lane in lanes:
            lane.state = states.from_bytes(states.to_bytes(lane.state))  # type: ignore[arg-type]
        drive(lanes, engine, 3, lambda lane, record: None)
    assert [states.to_bytes(lane.state) for lane in lanes] == [states.to_bytes(lane.state) for lane in whole]  # type: ignore[arg-type]


def asked(engine: Engine, ask: Any) -> Any:
    return engine.run([StampedAsk(ask, 0, 1)])[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["mclr", "mlp(5)", "mlp(7,4)"])
@pytest.mark.parametrize("two", [False, True])
def test_own_models_and_losses_are_judged_in_tensors_as_one_by_one(model: str, two: bool, device: str) -> None:
    federation = worlds.make_federation(classes=2) if two else worlds.make_federation()
    world = World.from_spec(federation, model)
    draw, n = np.random.default_rng(0), len(federation.ids)
    models = draw.normal(size=(n + 1, world.model.layout.size)).astype(np.float32)
    with BatchedEngine(world, device, holds=True, threads=1) as engine, LoopEngine(world) as loop:
        for clients in (np.arange(n), np.arange(n)[::-2]):
            serving = Serving(clients, held(models), 1 + draw.integers(0, n, len(clients)))
            for part in ("train", "test"):
                found, expected = (asked(e, Evaluate(serving, part)) for e in (engine, loop))
                assert_array_equal(found.hits, expected.hits)
                assert_array_equal(found.predicted, expected.predicted)
                assert_allclose(found.loss, expected.loss, rtol=1e-4)
                assert_allclose(found.auroc, expected.auroc)
            one = Serving(clients, held(models[2:3]), np.zeros(len(clients), np.int64))
            assert_array_equal(asked(engine, Evaluate(one)).hits, asked(loop, Evaluate(one)).hits)
            ask = Losses(np.sort(clients), models[:3])
            assert_allclose(asked(engine, ask).losses, asked(loop, ask).losses, rtol=1e-4)


def test_the_losses_of_all_models_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """IFCA asked a GPU for one model at a time, and fetched what left the network."""
    calls: list[int] = []
    before = TorchEvaluator.classify

    def classify(self: TorchEvaluator, models: Any, samples: Ints | None, spread: Any = map) -> Any:
        calls.append(len(models))
        return before(self, models, samples)

    monkeypatch.setattr(TorchEvaluator, "classify", classify)
    monkeypatch.setattr(TorchEvaluator, "outputs", lambda *given: pytest.fail("outputs were fetched"))
    models = np.random.default_rng(0).normal(size=(4, WORLD.model.layout.size)).astype(np.float32)
    with BatchedEngine(WORLD, holds=True, threads=1) as engine:
        asked(engine, Losses(np.arange(4), models))
    assert calls == [4]


def test_models_that_are_held_are_trained_from_where_they_are(fetches: list[int]) -> None:
    """By every route that goes by tensors; the CPU's own kernels take arrays."""
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: torch.nn.Sequential(torch.nn.Linear(worlds.FEATURES, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    )
    models = np.random.default_rng(0).normal(size=(4, world.model.layout.size)).astype(np.float32)
    with BatchedEngine(world, holds=True, threads=1) as engine:
        found, expected = (
            asked(engine, Train(np.arange(4), table, PLAN.local, start=np.arange(4)[::-1])) for table in (held(models), models)
        )
        assert fetches == []
    assert np.asarray(found.vectors).tobytes() == np.asarray(expected.vectors).tobytes()
    assert_array_equal(found.vectors.update_norms, expected.vectors.update_norms)
