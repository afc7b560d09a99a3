"""What is laid out on a device once, and what is not laid there at all."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.engines.device import choose_storage_device
from coterie.engines.workspace import Workspace
from coterie.testing import worlds

WORLD = worlds.make_world()
FEDERATION = WORLD.federation


def test_the_servers_own_test_set_is_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it was sent there for every model and every round: 123 MB of CIFAR-10 each time."""
    federation = FEDERATION.replace(central=(FEDERATION.x[:5], FEDERATION.y[:5]))
    space = Workspace(replace(WORLD, federation=federation), torch.device("cpu"), torch.float64)
    model, laid_out = WORLD.model.initial(0)(), list[int]()
    features = Workspace.features

    def counted(self: Workspace, x: Any) -> torch.Tensor:
        laid_out.append(len(x))
        return features(self, x)

    monkeypatch.setattr(Workspace, "features", counted)
    first, again = (space.predict(model, None)[1] for _ in range(2))
    assert laid_out == [5]
    assert first.tobytes() == again.tobytes() == space.predict(model, np.arange(5))[1].tobytes()


def test_what_does_not_fit_a_gpu_is_kept_on_the_host() -> None:
    gpu, host = torch.device("cuda"), torch.device("cpu")
    assert choose_storage_device((10, 100), gpu, lambda device: 4000) == gpu
    assert choose_storage_device((10, 101), gpu, lambda device: 4000) == host
    assert choose_storage_device((10**6, 10**6), host, lambda device: 4000) == host


def test_many_models_are_judged_as_one_after_the_other() -> None:
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: torch.nn.Sequential(torch.nn.Linear(worlds.FEATURES, 4), torch.nn.Linear(4, 3))
    )
    space, chosen = Workspace(world, torch.device("cpu"), torch.float32), np.array([3, 1, 4, 1, 5])
    models = np.stack([world.model.initial(i)() for i in range(3)])
    judged, losses = space.classify_many(list(models), chosen), space.losses_many(models, chosen)
    for model, (guess, loss), alone in zip(models, judged, losses, strict=True):
        chances, expected = space.predict(model, chosen)
        assert guess.tolist() == chances.argmax(1).tolist()
        assert loss.tobytes() == alone.tobytes() == expected.tobytes()
        assert space.classify(model, chosen)[1].tobytes() == expected.tobytes()
