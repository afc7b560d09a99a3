"""Gradients of many clients in one stack are those that the loop finds client after client."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import nn

from coterie.core.asks import Gradient, Share
from coterie.data.federation import Parts
from coterie.engines import device_vectors
from coterie.engines.batched import BatchedEngine
from coterie.engines.client_training import compute_gradients
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import choose_stacked_options
from coterie.engines.stacked.inference import compute_stacked_gradients
from coterie.engines.stacked.route import StackedOptions, StackedTrainer
from coterie.engines.workspace import Workspace
from coterie.models.cnn import Architecture, Cnn
from coterie.testing import play, worlds

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))]


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(worlds.FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, worlds.FEATURES)), nn.Conv2d(1, 4, (1, 3), padding=(0, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [dense, convolutional])
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3), st.sampled_from([1, 1 << 30]), st.integers(0, 99))
def test_they_are_the_gradients_of_the_loop(device: str, make: Any, sizes: list[int], k: int, memory: int, seed: int) -> None:
    """Ragged clients, several models, a stack of one or of all; statistics of a batch norm stand still, and nothing is dropped."""
    world, draw = worlds.make_custom_world(worlds.make_federation(), make), np.random.default_rng(seed)
    models = np.stack([world.model.initial(i)() for i in range(k)])
    models = (models + 0.1 * np.abs(draw.normal(size=models.shape))).astype(np.float32)
    start, parts = draw.integers(0, k, len(sizes)), Parts.from_lists([draw.integers(0, len(world.federation.x), size) for size in sizes])
    x, y = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y)
    there = torch.device(device)
    route = StackedTrainer(
        world.model.module(), world.loss, x, y, device=there, memory=memory, options=choose_stacked_options(world, there)
    )
    found, losses = compute_stacked_gradients(route, torch.as_tensor(models, device=there), start, parts)
    space = Workspace(world, there, torch.float32)
    expected, mean_losses = compute_gradients(Gradient(np.arange(len(sizes)), models, start=start), space, parts)
    assert_allclose(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-6)
    assert_allclose(losses, mean_losses, rtol=1e-5)


def test_lanes_ask_together_and_each_has_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_vectors, "FEW", 0)
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: nn.Sequential(nn.Linear(worlds.FEATURES, 4), nn.Tanh(), nn.Linear(4, 3))
    )
    models = np.stack([world.model.initial(i)() for i in range(3)])
    asks: list[Gradient] = [
        Gradient(np.array([0, 3, 5]), models[:1]),
        Gradient(np.array([1, 3]), models, start=np.array([2, 0])),
        Gradient(np.array([2, 4]), models[1:2], share=Share(fold=0)),
    ]
    calls = list[int]()
    whole = compute_stacked_gradients

    def counted(route: Any, models: Any, start: Any, samples: Parts) -> Any:
        calls.append(len(samples))
        return whole(route, models, start, samples)

    monkeypatch.setattr("coterie.engines.batched.compute_stacked_gradients", counted)
    with BatchedEngine(world, holds=True) as holding, LoopEngine(world) as loop:
        holding.prepare(play.PLAN.local)
        found, expected = (engine.run([StampedAsk(ask, 7, 1) for ask in asks]) for engine in (holding, loop))
    assert calls == [7]
    for one, other in zip(found, expected, strict=True):
        assert one.clients.tolist() == other.clients.tolist()
        assert one.sizes.tolist() == other.sizes.tolist()
        assert one.vectors._fetched is None
        assert_allclose(one.vectors, other.vectors, rtol=1e-4, atol=1e-6)
        assert_allclose(one.losses, other.losses, rtol=1e-5)


def test_a_cnn_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.make_custom_world(
        worlds.make_federation(),
        lambda: nn.Sequential(nn.Linear(worlds.FEATURES, 64), nn.Unflatten(1, (8, 8)), Cnn((1, 8, 8), 3, Architecture(3, (2, 3), 5))),
    )
    x, y = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y)
    model, parts = world.model.initial(0)()[None], world.federation.train
    for options in (StackedOptions(), StackedOptions(convolutions="products")):
        route = StackedTrainer(world.model.module(), world.loss, x, y, memory=1 << 30, options=options)
        found, _ = compute_stacked_gradients(route, torch.as_tensor(model), np.zeros(len(parts), np.int64), parts)
        space = Workspace(world, torch.device("cpu"), torch.float32)
        expected, _ = compute_gradients(Gradient(np.arange(len(parts)), model), space, parts)
        assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
