"""Models in a stack, each judged on samples of its own, say what they say one after the other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import nn

from coterie.core.asks import Evaluate
from coterie.core.serving import Serving
from coterie.data.federation import Parts
from coterie.engines import device_vectors
from coterie.engines.batched import BatchedEngine
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import choose_stacked_options
from coterie.engines.stacked.inference import StackedEachEvaluator
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.workspace import Workspace
from coterie.methods.catalogue import build
from coterie.testing import play, worlds
from engines.device_vectors.test_rows import held
from engines.stacked.test_inference_gradients import DEVICES, convolutional, dense


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [dense, convolutional])
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.sampled_from([1, 1 << 30]), st.booleans(), st.integers(0, 99))
def test_they_say_what_a_workspace_says(device: str, make: Any, sizes: list[int], memory: int, away: bool, seed: int) -> None:
    sizes[0] = max(sizes[0], 1)
    world, draw = worlds.make_custom_world(worlds.make_federation(), make), np.random.default_rng(seed)
    models = np.stack([world.model.initial(i)() for i in range(len(sizes))])
    models = (models + 0.1 * np.abs(draw.normal(size=models.shape))).astype(np.float32)
    samples = [draw.integers(0, len(world.federation.x), size) for size in sizes]
    x, y, there = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y), torch.device(device)
    route = StackedTrainer(
        world.model.module(), world.loss, x, y, device=there, memory=memory, options=choose_stacked_options(world, there)
    )
    each, given_models = StackedEachEvaluator(route, world.federation.task), held(models, device=device).as_array() if away else models
    chances, losses = each.predict(given_models, np.concatenate(samples), np.array(sizes))
    guesses, again = each.judge(given_models, np.concatenate(samples), np.array(sizes))
    space = Workspace(world, there, torch.float32)
    expected = [space.predict(model, own) for model, own in zip(models, samples, strict=True) if len(own)]
    assert_allclose(chances, np.concatenate([found for found, _ in expected]), rtol=1e-4, atol=1e-6)
    assert_allclose(losses, np.concatenate([found for _, found in expected]), rtol=1e-4, atol=1e-6)
    assert_allclose(again, losses, rtol=1e-6)
    assert guesses.tolist() == chances.argmax(1).tolist()


def test_everybodys_own_model_is_judged_in_one_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fine-tuned models none is fetched, and none is judged by itself."""
    monkeypatch.setattr(device_vectors, "FEW", 0)
    monkeypatch.setattr(StackedEachEvaluator, "many", 2)
    monkeypatch.setattr(DeviceVectors, "fetch", lambda self: pytest.fail("models were fetched"))
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: nn.Sequential(nn.Linear(worlds.FEATURES, 4), nn.Tanh(), nn.Linear(4, 3))
    )
    plan = replace(play.PLAN, evaluate_every=1)
    with BatchedEngine(world, holds=True) as engine, LoopEngine(world) as loop:
        engine.prepare(plan.local)
        alone = Workspace.predict

        def on_the_central_set(self: Workspace, model: Any, samples: Any) -> Any:
            return pytest.fail("a client's model was judged by itself") if samples is not None else alone(self, model, samples)

        monkeypatch.setattr(Workspace, "predict", on_the_central_set)
        found = play.play(build("fedavg+finetune"), engine=engine, world=world, plan=plan)
        monkeypatch.undo()
        expected = play.play(build("fedavg+finetune"), engine=loop, world=world, plan=plan)
    for one, other in zip(found.records, expected.records, strict=True):
        assert one.evaluated is not None
        assert other.evaluated is not None
        assert_allclose(one.evaluated.loss, other.evaluated.loss, rtol=1e-4)
        assert one.evaluated.hits.tolist() == other.evaluated.hits.tolist()


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_models_that_serve_several_clients_or_nobody_and_clients_without_test_samples(memory: int) -> None:
    whole = worlds.make_federation()
    few = whole.replace(test=Parts.from_lists([own if client != 3 else own[:0] for client, own in enumerate(whole.test)]))
    world = worlds.make_custom_world(few, lambda: nn.Sequential(nn.Linear(worlds.FEATURES, 4), nn.Tanh(), nn.Linear(4, 3)))
    models, clients = np.stack([world.model.initial(i)() for i in range(20)]), np.arange(6)
    ask = Evaluate(Serving(clients, models, np.array([19, 3, 3, 7, 0, 11])))
    with BatchedEngine(world, holds=True) as engine, LoopEngine(world) as loop, pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.engines.batched.get_stacked_memory", lambda device, **kind: memory)
        patch.setattr(StackedEachEvaluator, "many", 2)
        engine.prepare(play.PLAN.local)
        [found], [expected] = (each.run([StampedAsk(ask, 0, 1)]) for each in (engine, loop))
    assert found.hits.tolist() == expected.hits.tolist()
    assert_allclose(found.loss, expected.loss, rtol=1e-5)
    assert np.isnan(found.loss[3])
