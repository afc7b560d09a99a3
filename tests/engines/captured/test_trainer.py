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
from coterie.engines.captured import trainer, training
from coterie.engines.captured.trainer import CapturedTrainer, share_out
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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_large_tensors_are_updated_alone(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LARGE", 96)  # the convolution and the logits' weights
    world = world_of()
    ask = Train(
        np.arange(3), world.model.initial(0)(), Local(epochs=2, batch_size=3, lr=0.01, optimizer=optimizer, weight_decay=0.1, mu=0.2)
    )
    expected, (vectors, _) = both(world, ask)
    np.testing.assert_allclose(vectors, expected.vectors, rtol=1e-5, atol=1e-6)


class Idle(Small):
    """One of its tensors is not used, and lies between two that are."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.end = nn.Parameter(torch.ones(70)), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.end(super().forward(x))
        return logits


def test_a_tensor_that_the_loss_does_not_reach_only_decays() -> None:
    world = worlds.make_custom_world(images(clients=3, each=7), Idle, "idle")
    ask = Train(np.arange(3), world.model.initial(0)(), Local(epochs=1, batch_size=4, lr=0.1, weight_decay=0.5))
    expected, (vectors, _) = both(world, ask)
    np.testing.assert_allclose(vectors, expected.vectors, rtol=1e-5, atol=1e-6)
    idle = next(s for s in world.model.layout.slices if s.name == "idle")
    np.testing.assert_allclose(vectors[:, idle.begin : idle.end], (1 - 0.1 * 0.5) ** 2, rtol=1e-6)


def test_shortened_weights_follow_the_steps() -> None:
    world = world_of()
    start, local = world.model.initial(0)(), Local(epochs=4, batch_size=3, lr=0.3)
    ask = Train(np.arange(3), start, local)
    work = Work.bind(StampedAsk(ask, seed=1, round_=2), world)
    x, y = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y)
    short, _ = CapturedTrainer(world.model.module(), world.loss, x, y, precision="bf16").train(merge_asks([work], [ask], ()), local)
    with LoopEngine(world) as loop:
        [expected] = loop.run([work])
    apart = np.linalg.norm(short - expected.vectors, axis=1)
    assert (apart > 1e-3).all()
    assert (apart < 0.04).all()  # rounding of the products; a copy that lags behind is 0.1 off


def test_trainings_are_shared_out_by_their_steps() -> None:
    assert share_out(np.array([3, 9, 0, 4, 5, 9]), 3) == [[1, 0], [5], [4, 3]]
    assert share_out(np.array([0, 2]), 2) == [[1], []]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_bits_do_not_depend_on_what_is_in_flight(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.from_spec(images(clients=3, each=20, side=16), "resnet18")
    local = Local(epochs=4, batch_size=4, lr=0.01)
    ask = Train(np.arange(3), world.model.initial(0)(), local)
    job = merge_asks([Work.bind(StampedAsk(ask, seed=1, round_=2), world)], [ask], ())
    x, y = torch.as_tensor(world.federation.x), torch.as_tensor(world.federation.y)
    found = []
    for most in (1, 2, 3):
        monkeypatch.setattr(trainer, "IN_FLIGHT", most)
        route = CapturedTrainer(world.model.module(), world.loss, x, y, device="cuda", precision=precision)
        found += [route.train(job, local)[0].tobytes() for _ in range(2)]  # without graphs at first, then from graphs alone
    assert len(set(found)) == 1


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
