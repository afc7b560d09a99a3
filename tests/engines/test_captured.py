"""The route of large models against the loop: the same batches, the same steps, the same numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines.captured import CapturedTrainer
from coterie.engines.engine import StampedAsk
from coterie.engines.jobs import merge_asks
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.route_checks import check_captured
from coterie.engines.routes import choose_route
from coterie.engines.world import World
from coterie.models.layers import make_norm
from coterie.testing import worlds
from models.test_image_networks import images


class Small(nn.Module):
    """A convolution, a norm, a skip and the logits: what large networks are made of."""

    def __init__(self, norm: Any = "batch") -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 32, 3, padding=1, bias=False), make_norm(norm, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x))
        logits: torch.Tensor = self.last((h + h.relu()).mean((2, 3)))
        return logits


def world_of(norm: str = "batch") -> World:
    federation = images(clients=3, each=7)
    return worlds.make_custom_world(federation, lambda: Small(norm), "small")


def both(world: World, ask: Train, **options: Any) -> tuple[Any, Any]:
    """What the loop trains, and what this route does, in float64."""
    work = Work.bind(StampedAsk(ask, seed=1, round_=2), world)
    with LoopEngine(world, dtype=torch.float64, microbatch=options.get("microbatch")) as loop:
        [expected] = loop.run([work])
    x, y = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y)
    route = CapturedTrainer(world.model.module(), world.loss, x, y, dtype=torch.float64, **options)
    return expected, route.train(merge_asks([work], [ask], ()), ask.local)


LOCALS = {
    "plain": Local(epochs=2, batch_size=3, lr=0.1),
    "a last sample joins the batch before": Local(epochs=1, batch_size=6, lr=0.1),
    "momentum and decay": Local(epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": Local(epochs=2, batch_size=4, lr=0.01, optimizer="adam"),
    "proximal": Local(epochs=2, batch_size=None, lr=0.1, mu=0.5),
    "few steps": Local(epochs=3, batch_size=2, lr=0.1, max_steps=4),
    "augmented": Local(epochs=2, batch_size=3, lr=0.1, augment="flip+crop(2)+jitter(0.3)+rotate(20)"),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
def test_agrees_with_the_loop(local: Local) -> None:
    world = world_of()
    start = np.stack([world.model.initial(seed)() for seed in range(2)])
    drawn = np.random.default_rng(0).standard_normal((3, start.shape[1])).astype(np.float32)
    drawn[:, ~world.model.layout.compared] = 0
    ask = Train(np.arange(3), start, local, start=np.array([0, 1, 0]), linear=0.01 * drawn, epochs=np.array([1, 2, 3]))
    if local.mu:
        ask = replace(ask, anchors=start[[1, 0, 1]] + 0.1 * drawn)
    expected, (vectors, steps) = both(world, ask)
    assert steps.tolist() == expected.steps.tolist()
    np.testing.assert_allclose(vectors, expected.vectors, rtol=1e-5, atol=1e-6)
    assert np.abs(vectors - start[[0, 1, 0]]).max() > 1e-3


def test_batches_in_pieces_give_the_same() -> None:
    world = world_of("group")
    ask = Train(np.arange(3), world.model.initial(0)(), Local(epochs=2, batch_size=5, lr=0.1))
    whole, (vectors, _) = both(world, ask, microbatch=2)
    np.testing.assert_allclose(vectors, whole.vectors, rtol=1e-5, atol=1e-6)
    expected, _ = both(world, ask)
    np.testing.assert_allclose(vectors, expected.vectors, rtol=1e-5, atol=1e-6)


def test_batch_norm_sees_whole_batches() -> None:
    with pytest.raises(UserError, match="has batch norm, whose batches cannot be cut"), LoopEngine(world_of(), microbatch=2) as engine:
        engine.space(engine.worlds[0])


def test_the_trial_lets_known_parts_pass_and_dropout_not() -> None:
    assert check_captured(world_of(), "cpu") is None
    drops = worlds.make_custom_world(
        images(), lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(), nn.Linear(8, 3)), "drops"
    )
    assert "differ" in str(check_captured(drops, "cpu"))


def test_large_models_and_augmented_images_are_not_stacked() -> None:
    large = worlds.make_custom_world(images(), lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 22_000), nn.Linear(22_000, 3)), "large")
    route = choose_route(large, Local(), torch.device("cpu"))
    assert (route.name, route.why) == ("loop", "a large model fills the device")
    flat = World.from_spec(images(), "mlp(8)")
    assert choose_route(flat, Local(augment="flip"), torch.device("cpu")).name == "loop"
