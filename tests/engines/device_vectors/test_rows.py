"""Trained models that stay on a device: what is done there equals what is done with arrays, and methods cannot tell the difference.

The device is the CPU unless there is a GPU; kernels also run in Triton's interpreter (TRITON_INTERPRET=1).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from coterie.core.arrays import Floats
from coterie.core.asks import Gradient, Refusal, Train, Trained
from coterie.core.local import Local
from coterie.core.mixing import MixedTensor, Mixing, mix
from coterie.core.replies import Limits, accept, compute_update_norms
from coterie.core.states import flatten
from coterie.core.vectors import as_vectors
from coterie.engines import device_vectors
from coterie.engines.batched import BatchedEngine
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import StampedAsk
from coterie.grouping.similarity import compute_dot_products, compute_gram, compute_norms
from coterie.methods.catalogue import build, methods, wrappers
from coterie.testing import play, worlds

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))]


def held(vectors: Floats, models: Floats | None = None, start: Any = None, device: str = "cpu") -> DeviceVectors:
    """Rows that stay where they are, however few numbers they have."""
    models = np.zeros((1, vectors.shape[1]), np.float32) if models is None else models
    start = np.zeros(len(vectors), np.int64) if start is None else start
    tensor = torch.as_tensor(vectors, device=device)
    return DeviceVectors(tensor, DeviceVectors.from_training(tensor, models, start).update_norms)


def some(n: int, d: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 1200), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_a_mixture_has_the_bits_that_arrays_have(device: str, n: int, d: int, k: int, old: int, kept: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors, before = some(n, d, seed), some(old, d, seed + 1)
    weights = [draw.normal(size=(k, n)) * (draw.random((k, n)) < 0.7) for _ in range(2)]
    of_old = draw.normal(size=(k, old)) * (draw.random((k, old)) < 0.5) * kept
    cut = int(draw.integers(0, d + 1))
    plain = Mixing(draw.permutation(50)[:n], weights[0], of_old)
    parts = (MixedTensor(0, cut, weights[0], of_old), MixedTensor(cut, d, weights[1], of_old))
    for mixing in (plain, replace(plain, parts=parts)):
        assert mix(mixing, held(vectors, device=device).as_array(), before).tobytes() == mix(mixing, vectors, before).tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_clients_are_added_in_the_order_of_their_numbers_not_of_their_arrival(device: str) -> None:
    vectors = np.array([[1e20], [1.0], [-1e20]], np.float32)  # 1e20 + 1 - 1e20 is 0 in float64, 1e20 - 1e20 + 1 is 1
    for clients, expected in (([0, 1, 2], 0.0), ([0, 2, 1], 1.0), ([2, 1, 0], 0.0), ([1, 2, 0], 1.0)):
        mixing = Mixing(np.array(clients), np.ones((1, 3)), np.zeros((1, 1)))
        for rows_ in (vectors, held(vectors, device=device).as_array()):
            assert mix(mixing, rows_, np.zeros((1, 1), np.float32))[0, 0] == expected


@pytest.mark.parametrize("device", DEVICES)
def test_how_far_rows_moved_is_the_same_whoever_is_measured_beside_them(device: str) -> None:
    vectors, models, start = some(7, 9001), some(2, 9001, 1), np.array([0, 1, 1, 0, 0, 1, 0])
    found = held(vectors, models, start, device)
    assert_allclose(found.update_norms, np.linalg.norm(vectors.astype(np.float64) - models[start], axis=1), rtol=1e-14)
    for i in range(7):
        assert held(vectors[i : i + 1], models, start[i : i + 1], device).update_norms[0] == found.update_norms[i]


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_rows_are_those_of_arrays(device: str) -> None:
    vectors, origin, along = some(6, 70_001), some(1, 70_001, 2), some(3, 70_001, 4).astype(np.float64)
    there = held(vectors, device=device)
    for columns in (slice(None), slice(None, 66_000), slice(2, 9)):
        near, far = vectors[:, columns], there.as_array()[:, columns]
        for given_origin in (None, origin[:, columns]):
            for found, expected in (
                (compute_gram(far, given_origin), compute_gram(near, given_origin)),
                (compute_dot_products(far, along[0, columns], given_origin), compute_dot_products(near, along[0, columns], given_origin)),
                (compute_dot_products(far, along[:, columns], given_origin), compute_dot_products(near, along[:, columns], given_origin)),
                (compute_norms(far, given_origin), compute_norms(near, given_origin)),
            ):
                assert_allclose(found, expected, rtol=1e-12, atol=1e-8)
        assert_allclose(as_vectors(far).mean_row(), as_vectors(near).mean_row(), rtol=1e-14, atol=1e-16)
        assert far._fetched is None  # type: ignore[attr-defined]
    assert there._fetched is None


def test_columns_are_fetched_once() -> None:
    there: Any = held(some(4, 90))
    assert there[:, :60] is there[:, 0:60]
    assert there[:, :60]._fetched is None
    assert there[:, :60].sum() == there[:, :60].sum() == some(4, 90)[:, :60].sum()
    assert there[:, :60]._fetched is not None
    assert there._fetched is None


@pytest.mark.parametrize("device", DEVICES)
def test_acceptance_and_records_fetch_nothing(device: str) -> None:
    vectors, model = some(5, 40), some(1, 40, 3)
    vectors[1, 7], vectors[3, 39] = np.nan, np.inf
    sent = held(vectors, model, device=device)
    ask = Train(np.arange(5), model, Local())
    reply = Trained(np.array([4, 3, 2, 1, 0]), sent.as_array(), np.full(5, 9), np.full(5, 2))
    plain = Trained(reply.clients, vectors, reply.sizes, reply.steps)
    limits = Limits(np.full(5, 9), norm=50.0)
    found, expected = accept(ask, reply, limits), accept(ask, plain, limits)
    assert found.refused == expected.refused
    assert {client: refused.why for client, refused in found.refused.items()} == {3: Refusal.NOT_FINITE, 1: Refusal.NOT_FINITE}
    assert_array_equal(found.clients, [0, 2, 4])
    assert_allclose(
        np.concatenate(list(compute_update_norms(ask, found))), np.concatenate(list(compute_update_norms(ask, expected))), rtol=1e-6
    )
    assert mix(Mixing.average(found.clients, found.sizes), found.vectors, model).shape == (1, 40)
    assert isinstance(found.vectors, DeviceVectors)
    assert found.vectors._fetched is None
    assert sent._fetched is None
    assert_array_equal(found.vectors, expected.vectors)


def test_one_that_went_too_far_is_refused_where_it_is() -> None:
    vectors = some(5, 40)
    vectors[4] = 1e6
    reply = Trained(np.arange(5), held(vectors).as_array(), np.full(5, 9), np.full(5, 2))
    found = accept(Train(np.arange(5), np.zeros((1, 40), np.float32), Local()), reply, Limits(norm=50.0))
    assert found.refused[4].why is Refusal.TOO_FAR
    assert isinstance(found.vectors, DeviceVectors)


def test_to_numpy_it_is_an_array() -> None:
    vectors = some(5, 4)
    here: Any = held(vectors)
    mask = np.array([True, False, True, False, False])
    model = np.arange(4, dtype=np.float32)
    for found, expected in (
        (here[1:3], vectors[1:3]),
        (here[mask], vectors[mask]),
        (here[np.array([4, 0])], vectors[[4, 0]]),
        (here[2], vectors[2]),
        (here[:, 1:3], vectors[:, 1:3]),
        (here[np.array([0, 3]), 1:], vectors[[0, 3], 1:]),
        (here - model, vectors - model),
        (model.astype(np.float64) - here, model.astype(np.float64) - vectors),
        (2 * here + here, 3 * vectors),
        (np.concatenate([here, vectors]), np.concatenate([vectors, vectors])),
        (np.stack(list(here)), vectors),
        (here.astype(np.float64), vectors.astype(np.float64)),
        (here.T @ here, vectors.T @ vectors),
        (np.isfinite(here), np.isfinite(vectors)),
        (np.zeros_like(here), np.zeros_like(vectors)),
        (np.asarray(here, dtype=np.float64), vectors),
        (here.max(axis=0), vectors.max(axis=0)),
    ):
        assert_allclose(found, expected, rtol=1e-6)
    table = np.zeros((9, 4), np.float32)
    table[np.array([1, 3, 5, 7, 8])] = here
    assert_array_equal(table[[1, 3, 5, 7, 8]], vectors)
    assert (here.shape, here.size, here.ndim, here.dtype, len(here)) == ((5, 4), 20, 2, np.float32, 5)
    with pytest.raises(AttributeError):
        here.such_a_thing_no_array_has()


def test_few_numbers_come_at_once_and_are_cut_with_the_rows() -> None:
    vectors = some(5, 4)
    whole = DeviceVectors.from_training(torch.as_tensor(vectors), np.zeros((1, 4), np.float32), np.zeros(5, np.int64))
    for chosen in (slice(1, 4), np.array([4, 2])):
        part = whole[chosen]
        assert_array_equal(part.host_copy, vectors[chosen])
        assert_array_equal(part.update_norms, whole.update_norms[chosen])
    mixing = Mixing.average(np.arange(5), np.arange(1, 6))
    assert mix(mixing, whole.as_array(), vectors[:1]).tobytes() == mix(mixing, vectors, vectors[:1]).tobytes()
    assert_array_equal(compute_gram(whole.as_array()), compute_gram(vectors))


def test_weights_of_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="more rows than the 3 there are"):
        mix(Mixing(np.arange(5), np.ones((1, 5)), np.zeros((1, 1))), held(some(3, 4)).as_array(), some(1, 4))


def kept_where_they_are(stamped: StampedAsk, number: int, reply: Any) -> Any:
    """Trained models and gradients as an engine with a device leaves them."""
    ask = stamped.ask
    if isinstance(ask, Gradient) and ask.sketch is None:
        return replace(reply, vectors=held(reply.vectors).as_array())
    if not isinstance(ask, Train) or ask.sketch is not None or not len(reply):
        return reply
    start = ask.start[np.searchsorted(ask.clients, reply.clients)]
    return replace(reply, vectors=held(reply.vectors, ask.models, start).as_array())


OTHERWISE = {"private": "private(layers=bias)"}  # a softmax regression has no body


@pytest.mark.parametrize("spec", [*methods, *(f"fedavg+{OTHERWISE.get(name, name)}" for name in wrappers)])
def test_no_method_can_tell(spec: str) -> None:
    """Where similar clients are found, sums are in another order: what is made of them may differ in the last bits."""
    plain, found = (play.play(build(spec), engine=play.AlteredEngine(alter)) for alter in (play.pass_unchanged, kept_where_they_are))
    for before, after in zip(plain.states, found.states, strict=True):
        (arrays, tree), (others, other_tree) = flatten(before), flatten(after)
        assert tree == other_tree
        for name in arrays:
            assert_allclose(others[name], arrays[name], rtol=1e-6, atol=1e-7)
    for record, other in zip(plain.records, found.records, strict=True):
        assert_allclose(other.discrepancy, record.discrepancy, rtol=1e-5)


@pytest.mark.parametrize("spec", ["simprox", "simprox(similarity_of=updates)", "simagg", "fedatt", "fedsim(clusters=2)", "fedavg"])
def test_methods_that_weigh_by_likeness_fetch_no_replies(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six clients' likeness in 23 million numbers took 5.8 seconds a round on the host."""
    monkeypatch.setattr(DeviceVectors, "fetch", lambda self: pytest.fail("replies were fetched"))
    assert play.play(build(spec), engine=play.AlteredEngine(kept_where_they_are)).states


@pytest.mark.parametrize("few", [0, device_vectors.FEW])
def test_the_batched_engine_leaves_models_where_they_are_and_a_study_has_the_same_bits(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_vectors, "FEW", few)
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: torch.nn.Sequential(torch.nn.Linear(worlds.FEATURES, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    )
    with BatchedEngine(world) as plain, BatchedEngine(world, holds=True) as holding:
        asked = StampedAsk(Gradient(np.arange(4), world.model.initial(0)()), 0, 1)
        [gradients], [expected] = holding.run([asked]), plain.run([asked])
        assert isinstance(gradients.vectors, DeviceVectors)
        assert np.asarray(gradients.vectors).tobytes() == expected.vectors.tobytes()
        assert gradients.losses.tobytes() == expected.losses.tobytes()
        assert_allclose(gradients.vectors.update_norms, np.linalg.norm(expected.vectors, axis=1), rtol=1e-6)
        [reply] = holding.run([StampedAsk(Train(np.arange(4), world.model.initial(0)(), play.PLAN.local), 0, 1)])
        assert isinstance(reply.vectors, DeviceVectors)
        assert (reply.vectors.host_copy is None) == (few == 0)
        for spec in ("fedavg", "fedprox", "local", "fedgroup(groups=2)"):
            histories = [play.play(build(spec), engine=engine, world=world) for engine in (plain, holding)]
            assert histories[0].data == histories[1].data
