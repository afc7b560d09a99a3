"""Clipping and noise: on whole updates and gradients, and step by step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie.core.asks import Gradient, Losses, Train
from coterie.core.local import Local
from coterie.core.vectors import clip_rows
from coterie.deploy.site import privacy
from coterie.deploy.site.policy import ClipNoise, DpSgd
from coterie.deploy.site.privacy import PrivateTrainer, count_releases, draw_secure_normals, privatise_reply
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.methods.ditto import OWN_MODEL, DittoRule
from coterie.testing.worlds import CLASSES, FEATURES, make_batch_norm_world, make_custom_world, make_federation, make_world

NOISE = ClipNoise(mechanism="clip+noise", clip=0.5, noise=2.0)
FAINT = ClipNoise(mechanism="clip+noise", clip=0.01, noise=1e-9)
DP = DpSgd(mechanism="dp-sgd", noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=8.0)
CLIENTS = np.arange(6)


def train(w: World) -> Train:
    return Train(CLIENTS, w.model.initial(0)(0), Local(epochs=2, batch_size=4))


def answered(w: World, ask: Any) -> Any:
    return LoopEngine(w).run([StampedAsk(ask, 0, 1)])[0]


def private(*given: Any) -> Any:
    return privatise_reply(*given)


def test_clipping_bounds_the_norm_and_keeps_the_direction() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [1e200, 1e200]])
    assert clip_rows(rows, 1.0).tolist() == [[0.6000000000000001, 0.8], [0.3, 0.4], [0, 0], [0, 0], [0, 0], [0, 0]]


def test_noise_is_normal_and_as_loud_as_said() -> None:
    noise = draw_secure_normals((200, 501), 3.0)
    n = noise.size
    assert abs(noise.mean()) < 5 * 3 / np.sqrt(n)
    assert abs(noise.std() - 3) < 5 * 3 / np.sqrt(2 * n)
    assert abs((noise**4).mean() / 3**4 - 3) < 0.2  # a Gaussian's fourth moment
    assert abs(np.corrcoef(noise[:, :250].ravel(), noise[:, 250:500].ravel())[0, 1]) < 5 / np.sqrt(n / 2)


def test_updates_leave_clipped_and_noised() -> None:
    w = make_world("mlp(200)")
    ask = train(w)
    reply = answered(w, ask)
    start = w.model.initial(0)(0)
    assert np.linalg.norm(reply.vectors - start, axis=1).min() > 0.01
    faint = private(ask, reply, FAINT, w.model.layout)
    assert np.linalg.norm(faint.vectors - start, axis=1) == pytest.approx(0.01, rel=1e-3)
    loud = private(ask, reply, NOISE, w.model.layout)
    kept = clip_rows((reply.vectors - start).astype(np.float64), 0.5)
    noise = loud.vectors - start - kept
    assert abs(noise.std() - 1.0) < 5 / np.sqrt(2 * noise.size)  # noise * clip
    assert (loud.sizes == reply.sizes).all()  # counts are not noised


def test_silent_clients_do_not_shift_the_rows() -> None:
    w = make_world()
    models = np.stack([w.model.initial(0)(i) for i in range(6)])
    ask = Train(CLIENTS[::-1].copy(), models, Local(), start=np.arange(6))
    reply = answered(w, replace(ask))
    some = reply.take(np.array([4, 1]))
    made = private(ask, some, FAINT, w.model.layout)
    assert np.linalg.norm(made.vectors - models[[4, 1]], axis=1).max() < 0.0101


def test_gradient_and_loss_are_clipped_together() -> None:
    w = make_world()
    ask = Gradient(CLIENTS, w.model.initial(0)(0))
    reply = answered(w, ask)
    made = private(ask, reply, FAINT, w.model.layout)
    assert np.hypot(np.linalg.norm(made.vectors, axis=1), made.losses) == pytest.approx(0.01, rel=1e-3)
    assert count_releases(ask) == 1
    assert count_releases(Losses(CLIENTS, w.model.initial(0)(0))) == 1


def test_every_loop_of_a_rule_is_noised() -> None:
    w = make_world()
    own = np.ones((6, w.model.layout.size), np.float32)
    ask = Train(CLIENTS, w.model.initial(0)(0), Local(rule=DittoRule(lam=0.1, own_epochs=None)), extra={OWN_MODEL: own})
    made = private(ask, answered(w, ask), FAINT, w.model.layout)
    assert count_releases(ask) == 2
    assert np.linalg.norm(made.more[:, 0] - own, axis=1).max() < 0.0101


def test_batch_norm_counts_do_not_leave_and_variances_stay_variances() -> None:
    w = make_batch_norm_world()
    ask = Train(np.arange(4), w.model.initial(0)(0), Local(batch_size=None))
    made = private(ask, answered(w, ask), NOISE, w.model.layout)
    for part in w.model.layout.slices:
        values = made.vectors[:, part.begin : part.end]
        assert part.kind != "counter" or (values == ask.models[0, part.begin : part.end]).all()
        assert not part.name.endswith("running_var") or (values >= 0).all()


def test_noise_is_not_keyed() -> None:
    """Two runs of one seed differ, and differ from what any seed gives."""
    w = make_world()
    reply = answered(w, train(w))
    one, other = (private(train(w), reply, NOISE, w.model.layout) for _ in range(2))
    assert (one.vectors != other.vectors).any(axis=1).all()
    trainer = PrivateTrainer(w, DP)
    first, second = trainer.train(train(w)), trainer.train(train(w))
    assert (first.vectors != second.vectors).all(axis=1).any()
    assert not np.array_equal(first.vectors, second.vectors)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-SGD without noise and with whole batches, to see the rest of it."""
    monkeypatch.setattr(privacy, "draw_secure_normals", lambda shape, deviation: np.zeros(shape))


@pytest.mark.parametrize("options", [{}, {"mus": np.full(6, 0.5)}, {"linear": np.full((6, 18), 0.1, np.float32)}])
def test_without_noise_and_clipping_it_is_ordinary_training(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    w = make_world()
    local = Local(epochs=4, batch_size=None, lr=0.1, momentum=0.5, weight_decay=0.01)
    ask = Train(CLIENTS, w.model.initial(0)(0), local, anchors=np.ones((6, 18), np.float32), **options)
    made = PrivateTrainer(w, DP.model_copy(update={"max_grad_norm": 1e6})).train(ask)
    plain = answered(w, ask)
    assert made.vectors == pytest.approx(plain.vectors, abs=1e-5)
    assert (made.steps == plain.steps).all()
    assert (made.sizes == plain.sizes).all()


def test_a_sample_moves_a_step_by_its_clip_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of rate 1 on n samples: with one more the sum of gradients is at most one clip longer."""
    silent(monkeypatch)
    w = make_world()
    clip = 0.05
    trainer = PrivateTrainer(w, DP.model_copy(update={"max_grad_norm": clip}))
    ask = Train(CLIENTS, w.model.initial(0)(0), Local(batch_size=None, lr=1.0))
    sums = (trainer.train(ask).vectors - ask.models[0]) * w.federation.train.sizes[:, None]
    assert (np.linalg.norm(sums, axis=1) <= clip * w.federation.train.sizes * 1.0001).all()
    lonely = Train(np.array([2]), ask.models, Local(batch_size=None, lr=1.0))  # a client with one sample
    assert np.linalg.norm(trainer.train(lonely).vectors - ask.models[0]) == pytest.approx(clip, rel=1e-3)


def test_noise_of_a_step_is_as_loud_as_said() -> None:
    """One step with rate 1 of n samples: the update is lr/n times the sum of gradients and the noise."""
    w = World.from_spec(make_federation((4,)), "mlp(300)")
    trainer = PrivateTrainer(w, DpSgd(mechanism="dp-sgd", noise_multiplier=7.0, max_grad_norm=0.01, delta=1e-5, epsilon_limit=8.0))
    ask = Train(np.array([0]), w.model.initial(0)(0), Local(batch_size=None, lr=1.0))
    moved = (trainer.train(ask).vectors - ask.models[0]) * 4
    assert abs(moved.std() / 0.07 - 1) < 0.07


def test_an_empty_batch_still_takes_a_noisy_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "draw_poisson_batch", lambda samples, rate: np.zeros(0, np.int64))
    w = make_world()
    made = PrivateTrainer(w, DP).train(train(w))
    assert (made.vectors != w.model.initial(0)(0)).any(axis=1).all()


def test_a_gradient_that_is_not_finite_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    federation = make_federation((3,))
    x = federation.x.copy()
    x[federation.train[0][1]] = np.inf
    w = World.from_spec(federation.replace(x=x), "mclr")
    made = PrivateTrainer(w, DP).train(Train(np.array([0]), w.model.initial(0)(0), Local(batch_size=None)))
    assert np.isfinite(made.vectors).all()


class Mixing(nn.Module):
    """Subtracts the batch's mean: no layer of it is known to mix samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x - x.mean(dim=0, keepdim=True))
        return made


class Tied(nn.Module):
    """Uses a layer's weight past the layer, where Opacus does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.first(x) + x @ self.first.weight.T
        return made


class Remembering(nn.Module):
    """Keeps a statistic of the data in a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().mean(dim=0)
        made: Tensor = self.layer(x)
        return made


@pytest.mark.parametrize("build", [Mixing, Tied, Remembering])
def test_models_whose_samples_have_no_gradients_of_their_own_are_refused(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(UserError, match="cannot be trained under dp-sgd"):
        PrivateTrainer(make_custom_world(make_federation(), build), DP)


@pytest.mark.parametrize("where", ["_has_correct_gradients", "draw_poisson_batch"])
def test_a_full_gpu_is_told_as_such(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as a model that cannot be trained under dp-sgd, nor as an error without a name."""

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(privacy, where, full)
    w = make_world()
    with pytest.raises(UserError, match="The GPU has too little memory"):
        PrivateTrainer(w, DP).train(train(w))


def test_batch_norm_is_refused_and_dropout_is_not() -> None:
    with pytest.raises(UserError, match="mixes samples"):
        PrivateTrainer(make_batch_norm_world(), DP)
    drop = make_custom_world(
        make_federation(), lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    )
    assert len(PrivateTrainer(drop, DP).train(Train(CLIENTS, drop.model.initial(0)(0), Local()))) == 6


@pytest.mark.parametrize("model", ["cnn", "rnn(hidden=4)", "lstm(hidden=4,layers=1,dense=0)"])
def test_the_models_of_the_catalogue_can_be_trained(model: str) -> None:
    federation = make_federation((6, 5))
    rng = np.random.default_rng(0)
    shape = (8, 8) if model == "cnn" else (3, 4)
    w = World.from_spec(federation.replace(x=rng.normal(size=(len(federation.y), *shape)).astype(np.float32), central=None), model)
    made = PrivateTrainer(w, DP).train(Train(np.arange(2), w.model.initial(0)(0), Local(batch_size=3)))
    assert np.isfinite(made.vectors).all()


def test_the_generator_is_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def zeros(n: int) -> bytes:
        asked.append(n)
        return bytes(n)

    monkeypatch.setattr("coterie.deploy.site.privacy.os.urandom", zeros)
    assert (draw_secure_normals((3,), 1.0) == 0).all()
    assert sum(asked) == 32
