"""The loop engine against arithmetic written out in NumPy and against torch's own optimisers."""

import gc
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.asks import Ask, AskErrors, Evaluate, Gradient, Losses, Train
from coterie.core.local import Local
from coterie.core.model import read_vector, write_vector
from coterie.core.rng import make_key
from coterie.core.serving import Serving
from coterie.data.federation import Parts
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.sampling import iterate_batches
from coterie.engines.world import World
from coterie.testing import worlds

WORLD = worlds.make_world()
FEDERATION = WORLD.federation
D = WORLD.model.layout.size
EXACT, SINGLE = torch.float64, torch.float32


@cache
def engine(world: World, dtype: torch.dtype) -> LoopEngine:
    return LoopEngine(world, dtype=dtype)


def run(ask: Ask[Any], world: World = WORLD, dtype: torch.dtype = EXACT, seed: int = 3, round_: int = 2) -> Any:
    return engine(world, dtype).run([StampedAsk(ask, seed, round_)])[0]


def models(k: int, d: int = D) -> Floats:
    return (0.3 * np.random.default_rng(k).normal(size=(k, d))).astype(np.float32)


def probabilities(w: Doubles, x: Doubles) -> Doubles:
    """Softmax regression by hand: the weight (3, 5) row by row, then the bias (3,)."""
    logits = x @ w[:15].reshape(3, 5).T + w[15:]
    e = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def loss(w: Doubles, rows: Ints) -> float:
    p = probabilities(w, FEDERATION.x[rows].astype(np.float64))
    return float(-np.log(p[np.arange(len(rows)), FEDERATION.y[rows]]).mean())


def gradient(w: Doubles, rows: Ints) -> Doubles:
    x = FEDERATION.x[rows].astype(np.float64)
    delta = (probabilities(w, x) - np.eye(3)[FEDERATION.y[rows]]) / len(rows)  # (m, 3)
    return np.concatenate([(delta.T @ x).ravel(), delta.sum(0)])


def by_hand(
    client: int, w: Floats, local: Local, epochs: int, mu: float = 0.0, anchor: Floats | None = None, linear: Floats | None = None
) -> tuple[Doubles, int]:
    """Plain SGD with the proximal and the linear term, written out."""
    here, steps = w.astype(np.float64), 0
    centre = here.copy() if anchor is None else anchor
    slope = np.zeros(D) if linear is None else linear
    shuffles = make_key(3, "train", 2, FEDERATION.ids[client])
    for batch in iterate_batches(shuffles, FEDERATION.train[client], local.batch_size, epochs, local.max_steps):
        here = here - local.lr * (gradient(here, batch) + mu * (here - centre) + slope)
        steps += 1
    return here, steps


@pytest.mark.parametrize("batch_size", [None, 5])
def test_sgd_with_proximal_and_linear_terms(batch_size: int | None) -> None:
    local = Local(epochs=2, batch_size=batch_size, lr=0.1)
    clients, sent = np.array([0, 1, 2, 4]), models(2)
    extra = models(4)
    ask = Train(clients, sent, local, start=np.array([0, 1, 1, 0]), mus=np.array([0.0, 0.5, 2.0, 1.0]), linear=extra, anchors=-extra)
    reply = run(ask)
    for i, client in enumerate(clients):
        expected, steps = by_hand(client, sent[ask.start[i]], local, 2, [0.0, 0.5, 2.0, 1.0][i], -extra[i], extra[i])
        np.testing.assert_allclose(reply.vectors[i], expected, rtol=1e-6, atol=1e-7)
        assert reply.steps[i] == steps
    assert reply.sizes.tolist() == [12, 7, 1, 16]
    assert reply.clients.tolist() == clients.tolist()


def test_the_anchor_is_the_model_received_unless_given() -> None:
    local = Local(epochs=3, batch_size=5, lr=0.1, mu=0.7)
    sent = models(1)
    expected, _ = by_hand(0, sent[0], local, 3, 0.7)
    np.testing.assert_allclose(run(Train(np.array([0]), sent, local)).vectors[0], expected, rtol=1e-6, atol=1e-7)
    given = run(Train(np.array([0]), sent, local, anchors=sent))
    assert given.vectors.tobytes() == run(Train(np.array([0]), sent, local)).vectors.tobytes()


def test_epochs_for_each_client_and_max_steps() -> None:
    local = Local(epochs=9, batch_size=5, lr=0.1)
    clients = np.array([0, 4])
    reply = run(Train(clients, models(1), local, epochs=np.array([1, 3])))
    assert reply.steps.tolist() == [3, 12]
    for i, epochs in enumerate((1, 3)):
        np.testing.assert_allclose(reply.vectors[i], by_hand(clients[i], models(1)[0], local, epochs)[0], rtol=1e-6, atol=1e-7)
    short = run(Train(clients, models(1), replace(local, max_steps=4)))
    assert short.steps.tolist() == [4, 4]
    np.testing.assert_allclose(short.vectors[0], by_hand(0, models(1)[0], replace(local, max_steps=4), 9)[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=2, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.01),
        Local(epochs=2, batch_size=5, lr=0.01, optimizer="adam", weight_decay=0.01),
        Local(epochs=2, batch_size=5, lr=0.01, optimizer="adam", mu=0.5),
    ],
    ids=["momentum", "adam", "adam-prox"],
)
def test_against_torch_optimisers(local: Local) -> None:
    """The proximal term as a term of the loss, differentiated by torch, instead of our own line for it."""
    sent, client = models(1), 4
    weights = torch.tensor(sent[0], dtype=torch.float64, requires_grad=True)
    anchor = weights.detach().clone()
    optimizer: torch.optim.Optimizer = torch.optim.SGD([weights], lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay)
    if local.optimizer == "adam":
        optimizer = torch.optim.Adam([weights], lr=local.lr, weight_decay=local.weight_decay)
    for batch in iterate_batches(make_key(3, "train", 2, FEDERATION.ids[client]), FEDERATION.train[client], 5, 2, None):
        x, y = torch.tensor(FEDERATION.x[batch], dtype=torch.float64), torch.tensor(FEDERATION.y[batch])
        value = (
            nn.functional.cross_entropy(x @ weights[:15].view(3, 5).T + weights[15:], y) + local.mu / 2 * (weights - anchor).square().sum()
        )
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
    reply = run(Train(np.array([client]), sent, local))
    np.testing.assert_allclose(reply.vectors[0], weights.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_a_clients_training_does_not_depend_on_the_others() -> None:
    local = Local(epochs=2, batch_size=5, lr=0.1, momentum=0.9)
    together = run(Train(np.array([0, 1, 4]), models(1), local))
    alone = run(Train(np.array([4]), models(1), local))
    assert alone.vectors[0].tobytes() == together.vectors[2].tobytes()


def test_training_is_keyed_by_seed_round_purpose_and_id() -> None:
    ask = Train(np.array([4]), models(1), Local(batch_size=5, lr=0.1))
    base = run(ask).vectors.tobytes()
    others = [run(ask, seed=4), run(ask, round_=3), run(replace(ask, purpose="warm-up"))]
    assert all(other.vectors.tobytes() != base for other in others)
    order = (4, 3, 2, 1, 0, 5)
    parts: dict[str, Any] = {name: Parts.from_lists([part[i] for i in order]) for name, part in FEDERATION.parts.items()}
    moved = World.from_spec(replace(FEDERATION, ids=tuple(FEDERATION.ids[i] for i in order), **parts), "mclr")
    assert run(replace(ask, clients=np.array([0])), moved).vectors.tobytes() == base


def test_gradient_is_the_full_batch_one() -> None:
    sent = models(2)
    reply = run(Gradient(np.array([0, 2, 4]), sent, start=np.array([0, 1, 1])))
    for i, (client, row) in enumerate([(0, 0), (2, 1), (4, 1)]):
        rows = FEDERATION.train[client]
        w = sent[row].astype(np.float64)
        np.testing.assert_allclose(reply.vectors[i], gradient(w, rows), rtol=1e-5, atol=1e-7)
        assert reply.losses[i] == pytest.approx(loss(w, rows), rel=1e-9)
        step = 1e-6 * np.eye(D)
        differences = [(loss(w + s, rows) - loss(w - s, rows)) / 2e-6 for s in step]
        np.testing.assert_allclose(reply.vectors[i], differences, atol=1e-6)


def test_one_full_batch_step_is_a_step_down_the_gradient() -> None:
    sent, clients = models(1), np.array([0, 1])
    probe, trained = run(Gradient(clients, sent)), run(Train(clients, sent, Local(batch_size=None, lr=0.5)))
    np.testing.assert_allclose(sent - trained.vectors, 0.5 * probe.vectors, atol=1e-6)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_losses(part: Any) -> None:
    sent = models(3)
    reply = run(Losses(np.array([1, 4]), sent, part=part))
    expected = [[loss(w.astype(np.float64), FEDERATION.part(part)[c]) for w in sent] for c in (1, 4)]
    np.testing.assert_allclose(reply.losses, expected, rtol=1e-9)
    assert reply.sizes.tolist() == FEDERATION.part(part).sizes[[1, 4]].tolist()


def test_errors() -> None:
    sent = models(2)
    reply = run(AskErrors(np.array([0, 2]), sent))
    for i, client in enumerate((0, 2)):
        rows = FEDERATION.train[client]
        y = FEDERATION.y[rows]
        for k, w in enumerate(sent):
            p = probabilities(w.astype(np.float64), FEDERATION.x[rows].astype(np.float64))
            assert reply.labels[i, k] == pytest.approx(np.sqrt(np.mean((p.argmax(1) - y) ** 2.0)))
            assert reply.probabilities[i, k] == pytest.approx(np.sqrt(np.mean((p - np.eye(3)[y]) ** 2)))


def test_float32_is_close_to_float64() -> None:
    ask = Train(np.arange(6), models(1), Local(epochs=3, batch_size=5, lr=0.1))
    np.testing.assert_allclose(run(ask, dtype=SINGLE).vectors, run(ask).vectors, atol=1e-5)


def test_batch_norm() -> None:
    world = worlds.make_batch_norm_world()
    start = world.model.initial(0)()
    reply = run(Train(np.array([0, 3]), start, Local(epochs=2, batch_size=None, lr=0.1)), world, SINGLE)
    slices = {s.name: s for s in world.model.layout.slices}
    counter, mean = slices["1.num_batches_tracked"], slices["1.running_mean"]
    assert reply.vectors[:, counter.begin].tolist() == [2, 2]
    module = world.model.build()
    write_vector(module, torch.as_tensor(start))
    x = torch.as_tensor(world.federation.x[world.federation.train[0]])
    first = module[0](x).mean(0).detach().numpy()  # type: ignore[index]
    one = run(Train(np.array([0]), start, Local(epochs=1, batch_size=None, lr=0.1)), world, SINGLE)
    np.testing.assert_allclose(one.vectors[0, mean.begin : mean.end], 0.1 * first, atol=1e-6)  # momentum 0.1 from zero
    probe = run(Gradient(np.array([0]), start), world, SINGLE)
    assert not probe.vectors[:, mean.begin :].any()  # statistics have no gradient
    module.eval()  # the probe sees the model as it would be served, by its running statistics
    expected = nn.functional.cross_entropy(module(x), torch.as_tensor(world.federation.y[world.federation.train[0]]))
    assert probe.losses[0] == pytest.approx(expected.item(), rel=1e-5)
    assert run(Gradient(np.array([0]), start), world, SINGLE).vectors.tobytes() == probe.vectors.tobytes()


def test_dropout_is_keyed() -> None:
    world = worlds.make_custom_world(FEDERATION, lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), "dropout")
    ask = Train(np.arange(3), world.model.initial(0)(), Local(epochs=2, batch_size=5, lr=0.1))
    base = run(ask, world).vectors
    torch.manual_seed(99)
    assert run(ask, world).vectors.tobytes() == base.tobytes()
    assert run(ask.take(np.array([2])), world).vectors[0].tobytes() == base[2].tobytes()
    single = ask.take(np.array([2]))  # a client with one sample: between seeds only the masks can differ
    assert run(single, world, seed=4).vectors.tobytes() != run(single, world).vectors.tobytes()
    still = worlds.make_custom_world(FEDERATION, lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.0), nn.Linear(8, 3)), "no dropout")
    assert run(ask, still).vectors.tobytes() != base.tobytes()


def test_frozen_parts_and_weights_out_of_reach_stay() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.frozen, self.unused = nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.frozen(self.used(x))
            return out

    world = worlds.make_custom_world(FEDERATION, Odd, "odd")
    start = world.model.initial(0)()
    moved = run(Train(np.array([0]), start, Local(lr=0.1)), world).vectors[0] != start
    expected = np.concatenate([np.full(s.size, s.name.startswith("used")) for s in world.model.layout.slices])
    assert moved.tolist() == expected.tolist()
    pulled = run(Train(np.array([0]), start, Local(lr=0.1, mu=1.0), anchors=0 * start[None]), world).vectors[0]
    assert (pulled != start).tolist() == [s != "frozen" for s in _owners(world)]


def _owners(world: World) -> list[str]:
    return [s.name.split(".")[0] for s in world.model.layout.slices for _ in range(s.size)]


def test_any_loss() -> None:
    def margin(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.multi_margin_loss(outputs, targets, reduction="none")

    world = World.from_spec(FEDERATION, "mclr", margin)
    assert run(Gradient(np.array([0]), models(1)), world).losses[0] != run(Gradient(np.array([0]), models(1))).losses[0]


def test_single_output_is_logistic_regression() -> None:
    two = worlds.make_federation(classes=2)
    world = worlds.make_custom_world(two, lambda: nn.Linear(5, 1), "logistic")
    w = models(1, 6)
    rows = two.train[0]
    z = two.x[rows].astype(np.float64) @ w[0, :5] + w[0, 5]
    expected = np.mean(np.log1p(np.exp(-np.where(two.y[rows] == 1, z, -z))))
    assert run(Gradient(np.array([0]), w), world).losses[0] == pytest.approx(expected, rel=1e-6)
    judged = run(Evaluate(Serving.one(np.array([0]), w[0]), "train"), world)
    assert judged.hits.sum() == np.sum((z > 0) == two.y[rows])


@pytest.mark.parametrize("make", [LoopEngine, BatchedEngine])
def test_a_world_is_let_go_with_the_engine_that_held_it(make: Any) -> None:
    world = World.from_spec(worlds.make_federation(), "mclr")
    held = make(world)
    held.run([StampedAsk(Gradient(np.array([0]), models(1)), 0, 0), StampedAsk(Train(np.array([0]), models(1), Local()), 0, 0)])
    gone = weakref.ref(world)
    del world
    gc.collect()
    assert gone() is not None
    held.close()
    del held
    gc.collect()
    assert gone() is None


def test_unknown_questions_are_an_error() -> None:
    with pytest.raises(TypeError, match="cannot execute Ask"):
        run(Ask())


def test_read_gives_back_what_was_received_when_nothing_is_learned() -> None:
    module = WORLD.model.build()
    write_vector(module, torch.as_tensor(models(1)[0]))
    assert read_vector(module).tobytes() == models(1)[0].tobytes()
