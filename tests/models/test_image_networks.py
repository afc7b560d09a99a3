"""The larger networks for images: published numbers of parameters, and a federation that trains each."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.arrays import Floats
from coterie.core.local import Local
from coterie.core.mixing import Mixing
from coterie.core.plan import Plan
from coterie.core.rng import make_generator, make_key
from coterie.core.states import Models
from coterie.data.federation import Federation, Parts
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.methods.simprox import SimProx
from coterie.models import build_model
from coterie.testing import worlds
from coterie.testing.play import PLAN, AlteredEngine, make_round_context, pass_unchanged, run_generator

PUBLISHED = [
    ("resnet18", 10, 11_173_962),
    ("resnet18(stem=imagenet)", 1000, 11_689_512),
    ("resnet18(norm=group)", 10, 11_173_962),
    ("resnet50", 1000, 25_557_032),
    ("densenet121(stem=imagenet)", 1000, 7_978_856),
    ("efficientnet_lite0(stem=imagenet)", 1000, 4_652_008),
]


@pytest.mark.parametrize(("spec", "outputs", "parameters"), PUBLISHED)
def test_published_numbers_of_parameters(spec: str, outputs: int, parameters: int) -> None:
    with torch.device("meta"):
        module = build_model(spec, (3, 224, 224), outputs)
    assert sum(w.numel() for w in module.parameters()) == parameters


@pytest.mark.parametrize(("stem", "side"), [("cifar", 4), ("imagenet", 1)])
@pytest.mark.parametrize("spec", ["resnet18", "resnet50", "densenet121", "efficientnet_lite0"])
def test_how_far_the_image_shrinks(spec: str, stem: str, side: int) -> None:
    """Of 32 pixels the stem for large images leaves a quarter (a half: EfficientNet), and the stages an eighth (a sixteenth) of that."""
    with torch.device("meta"):
        module = build_model(f"{spec}(stem={stem})", (3, 32, 32), 5).eval()
        seen: list[torch.Size] = []
        last = [part for part in module.modules() if isinstance(part, nn.Conv2d)][-1]
        last.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape))
        assert module(torch.empty(2, 3, 32, 32)).shape == (2, 5)
    if spec == "efficientnet_lite0":  # four strides in its stages, not three
        side = max(side // 2, 1)
    assert seen[0][2:] == (side, side)


def test_group_norm_does_not_mix_samples_and_has_no_statistics() -> None:
    module, x = build_model("resnet18(norm=group)", (3, 8, 8), 3), torch.randn(3, 3, 8, 8)
    assert torch.allclose(module(x)[:1], module(x[:1]), atol=1e-4)
    assert next(module.buffers(), None) is None


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("resnet18", (784,), "'resnet18' needs images of shape"),
        ("resnet18", (32, 32, 3), "put the channels first"),
        ("densenet121(stem=imagenet)", (3, 16, 16), "at least 32x32"),
        ("resnet18(norm=layer)", (3, 32, 32), "cannot use norm='layer': choose from batch, group"),
        ("resnet50(stem=mnist)", (3, 32, 32), "cannot use stem='mnist': choose from cifar, imagenet"),
    ],
)
def test_errors(spec: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_model(spec, shape, 3)


def images(clients: int = 2, each: int = 2, side: int = 8) -> Federation:
    """Made-up colour images; every client has two more to be tested on."""
    rng, n = make_generator(make_key(0, "images")), each + 2
    parts = [np.split(np.arange(k * n, (k + 1) * n), [each]) for k in range(clients)]
    return Federation(
        name="images",
        x=rng.normal(size=(clients * n, 3, side, side)).astype(np.float32),
        y=rng.integers(3, size=clients * n),
        classes=("a", "b", "c"),
        ids=tuple(f"site-{k}" for k in range(clients)),
        train=Parts.from_lists([train for train, _ in parts]),
        test=Parts.from_lists([test for _, test in parts]),
    )


def made_once(spec: str) -> World:
    """The model as an object, whose numbers are drawn once: drawing them takes longer than this training."""
    federation = images()
    torch.manual_seed(0)
    kept = build_model(spec, federation.input_shape, 3)
    return worlds.make_custom_world(federation, lambda: kept, spec)


STEPS = Plan(local=Local(epochs=1, batch_size=4, lr=0.01))


@pytest.mark.parametrize("spec", ["resnet18", "resnet18(norm=group)", "resnet50", "densenet121", "efficientnet_lite0"])
def test_a_federation_trains_it(spec: str) -> None:
    world = made_once(spec)
    start: Floats = world.model.initial(0)()
    with LoopEngine(world, threads=1) as engine:
        state = run_generator(SimProx().round(Models(start[None]), make_round_context(world, STEPS)), world, engine=engine)
    after = state.models[0]
    assert np.isfinite(after).all()
    moved = {s.kind: bool((after[s.begin : s.end] != start[s.begin : s.end]).any()) for s in world.model.layout.slices}
    assert moved == dict.fromkeys(moved, True)
    assert set(moved) == ({"weight"} if "group" in spec else {"weight", "statistic", "counter"})


def test_statistics_are_averaged_but_not_compared() -> None:
    """Whatever clients' statistics are, SimProx weighs the clients alike; and the new statistics are those weights' mean of them."""
    world = worlds.make_batch_norm_world()
    weights = world.model.layout.compared

    def odd(stamped: StampedAsk, number: int, reply: Any) -> Any:
        vectors = reply.vectors.copy()
        vectors[:, ~weights] = 100.0 * (1 + np.arange(len(vectors)))[:, None]
        return replace(reply, vectors=vectors)

    def mixed(engine: Engine) -> tuple[Mixing, Floats]:
        ctx = make_round_context(world, replace(PLAN, cohort=None))
        state = run_generator(SimProx().round(Models(world.model.initial(0)()[None]), ctx), world, engine=engine)
        assert ctx.notes.mixing is not None
        return ctx.notes.mixing, state.models[0]

    usual, (mixing, found) = mixed(AlteredEngine(pass_unchanged, world))[0], mixed(AlteredEngine(odd, world))
    assert mixing.replies.tobytes() == usual.replies.tobytes()
    np.testing.assert_allclose(found[~weights], mixing.replies[0] @ (100.0 * (1 + np.arange(4))), rtol=1e-6)
