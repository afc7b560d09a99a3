"""Adapters and text encoders in bfloat16: near float32, stacked as one by one, what is sent in float32, the body untouched."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from coterie.core.asks import Evaluate, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.data.tokens import tokenise_texts
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import Precision, as_tensor
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.stacked.route import StackedTrainer, measure_activation_bytes
from coterie.engines.world import World
from tiny_encoder import LENGTH, save_encoder, sentences, texts_federation
from tiny_lm import blocks, save_lm, spoken_federation

SIZES = (9, 4, 1, 6)
CLIENTS = np.arange(len(SIZES))
LOCAL = Local(epochs=2, batch_size=4, lr=0.05)


@pytest.fixture(scope="module", params=["text", "text, all of it", "lm"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    if request.param == "lm":
        folder = save_lm(tmp_path_factory.mktemp("lm"))
        return World.from_spec(spoken_federation(blocks(folder), SIZES), f"lm({folder},rank=2,spread=0.05)")
    folder = save_encoder(tmp_path_factory.mktemp("encoder"))
    tokens = tokenise_texts(sentences(40), str(folder), LENGTH)
    how = "train=all" if request.param != "text" else "train=lora,rank=2"
    return World.from_spec(texts_federation(tokens, SIZES), f"text({folder},{how})")


def trained(world: World, kind: type[LoopEngine] | type[BatchedEngine], precision: Precision, start: Any) -> Any:
    with kind(world, precision=precision) as engine:
        return engine.run([StampedAsk(Train(CLIENTS, start, LOCAL), seed=3, round_=1)])[0].vectors


def test_near_float32_and_stacked_as_one_by_one(world: World) -> None:
    start = world.model.initial(0)()
    body = {name: tensor.clone() for name, tensor in world.model.module().state_dict().items()}
    whole = trained(world, BatchedEngine, "float32", start)
    short, one_by_one = trained(world, BatchedEngine, "bf16", start), trained(world, LoopEngine, "bf16", start)
    way = np.linalg.norm(whole - start)
    assert short.dtype == np.float32
    # eight bits of a product: a hundredth or so of the way, and the two routes differ by no more than either does from float32
    assert 1e-5 * way < np.linalg.norm(short - whole) < 0.05 * way
    assert np.linalg.norm(short - one_by_one) < 0.05 * way
    after = world.model.module().state_dict()
    assert all(torch.equal(after[name], held) for name, held in body.items())
    assert {tensor.dtype for tensor in after.values() if tensor.is_floating_point()} == {torch.float32}


def test_scores_are_near_float32s(world: World) -> None:
    start = world.model.initial(0)()
    ask = Evaluate(Serving(CLIENTS, start[None], np.zeros(len(CLIENTS), np.int64)))
    losses = []
    for precision in ("float32", "bf16"):
        with BatchedEngine(world, precision=precision) as engine:
            losses.append(engine.run([StampedAsk(ask, seed=0, round_=1)])[0].loss)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    assert (losses[0] != losses[1]).any()


def test_less_is_kept_for_the_way_back(world: World) -> None:
    """So that more clients fit into a stack."""

    def kept(precision: Precision) -> int:
        x, y = as_tensor(world.federation.x), as_tensor(world.federation.y)
        stepper = StackedTrainer(world.model.module(), world.loss, x, y, memory=1, precision=precision).stepper
        return measure_activation_bytes(stepper, torch.float32)

    assert 0 < kept("bf16") < kept("float32")
