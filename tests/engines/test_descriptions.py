"""Moments of penultimate features: worked by hand, alike on every engine, and under a site's policy."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Share
from coterie.core.descriptions import Describe, Described, count_features, make_projection
from coterie.deploy.messages import Denial
from coterie.deploy.orders import find_asks
from coterie.deploy.server.engine import FederatedEngine
from coterie.deploy.server.validation import InvalidMessageError, check_reply
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, Policy
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World
from coterie.methods.fedavg import FedAvg
from coterie.methods.own_norm import OwnNorm
from coterie.methods.private import _Exchange
from coterie.run.costs import compute_cost
from coterie.testing import worlds
from coterie.testing.play import PLAN, get_loop_engine, make_round_context, play, run_generator
from deploy.in_process import InProcess

WORLD, HIDDEN = worlds.make_world(), worlds.make_world("mlp(4)")
CLIENTS = WORLD.problem.roster.clients
X, Y = WORLD.federation.x.astype(np.float64), WORLD.federation.y


def describe(world: World = WORLD, **options: Any) -> Describe:
    usual: dict[str, Any] = {"size": count_features(world.model.layout), "classes": 3}
    return Describe(CLIENTS, world.model.initial(0)(), **usual | options)


def answer(ask: Describe, world: World = WORLD, engine: Any = None) -> Described:
    (reply,) = (engine or get_loop_engine(world)).run([StampedAsk(ask, 3, 1)])
    return cast(Described, reply)


def test_of_a_softmax_regression_they_are_the_samples_own() -> None:
    reply = answer(describe())
    assert reply.means.shape == (6, 4, 5)
    for client in CLIENTS:
        own = WORLD.federation.train[client]
        groups = [own, *(own[Y[own] == c] for c in range(3))]
        assert reply.counts[client].tolist() == [len(group) for group in groups]
        for row, group in enumerate(groups):
            expected = (X[group].mean(axis=0), X[group].std(axis=0)) if len(group) else (np.zeros(5), np.zeros(5))
            np.testing.assert_allclose((reply.means[client, row], reply.deviations[client, row]), expected, atol=1e-6)
    assert reply.counts[2].sum() == 2  # one sample, overall and in its class: the other classes are empty


def test_of_a_network_they_are_of_what_enters_its_last_layer() -> None:
    ask = describe(HIDDEN, classes=0, part="test")
    reply, model = answer(ask, HIDDEN), np.asarray(ask.models[0], np.float64)
    hidden = np.maximum(X @ model[:20].reshape(4, 5).T + model[20:24], 0)
    for client in CLIENTS:
        own = hidden[HIDDEN.federation.test[client]]
        np.testing.assert_allclose(reply.means[client, 0], own.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(reply.deviations[client, 0], own.std(axis=0), atol=1e-6)


def test_projections_are_shared_and_keyed() -> None:
    whole, reply = answer(describe()), answer(describe(size=2, key=7))
    matrix = make_projection(7, 5, 2)
    np.testing.assert_allclose(reply.means, whole.means @ matrix, atol=1e-6)  # the mean of projections is the projection of the mean
    own = WORLD.federation.train[4]
    np.testing.assert_allclose(reply.deviations[4, 0], (X[own] @ matrix).std(axis=0), atol=1e-6)
    assert not np.allclose(answer(describe(size=2, key=8)).means, reply.means)
    lengths = [np.linalg.norm(np.ones(50) @ make_projection(key, 50, 20)) ** 2 / 50 for key in range(200)]
    assert abs(np.mean(lengths) - 1) < 0.1  # on average lengths survive


@pytest.mark.parametrize("world", [WORLD, HIDDEN, worlds.make_batch_norm_world()], ids=["regression", "network", "batch norm"])
@pytest.mark.parametrize("share", [None, Share(1, folds=3), Share(label=1)])
def test_engines_agree(world: World, share: Share | None) -> None:
    models = np.stack([world.model.initial(seed)() for seed in range(2)])
    clients = world.problem.roster.clients
    size, start = count_features(world.model.layout), np.arange(len(clients)) % 2
    asks = [Describe(clients, models, size=size, start=start, share=share), Describe(clients, models[::-1], size=3, key=1, classes=3)]
    stamped = [StampedAsk(ask, 3, 1) for ask in asks] * 3  # several at once, as of several lanes
    with BatchedEngine(world, threads=2) as engine:
        for slow, quick in zip(get_loop_engine(world).run(stamped), engine.run(stamped), strict=True):
            for name in ("clients", *slow.columns()):
                np.testing.assert_allclose(getattr(slow, name), getattr(quick, name), atol=1e-6)


def test_a_real_federation_answers_alike() -> None:
    federation = WORLD.federation
    sites = {"a": federation.ids[::2], "b": federation.ids[1::2]}
    owner = {client: site for site, clients in sites.items() for client in clients}
    found = answer(describe(), engine=FederatedEngine(InProcess(federation, sites), owner, federation.ids, "a-run"))
    for name in ("clients", *found.columns()):
        assert np.array_equal(getattr(found, name), getattr(answer(describe()), name)), name


def test_it_is_charged() -> None:
    cost = compute_cost(describe(), answer(describe()))
    assert (cost.messages, cost.bytes_down, cost.bytes_up) == (12, 4 * 6 * 18, 4 * 6 * (2 * 20 + 4 + 1))
    assert (cost.passes, cost.samples) == (6, 50)


@pytest.mark.parametrize(
    ("world", "options", "words"),
    [
        (WORLD, {"size": 4}, "has 5 features, and 4 are asked for"),
        (worlds.make_task_world("regression"), {}, "no classes to describe"),
        (worlds.make_task_world("multilabel"), {}, "no classes to describe"),
    ],
)
def test_what_is_not_defined(world: World, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        answer(describe(world, **options), world)


class Convolved(nn.Module):
    """Without a dense layer, or with one that sees no sample as a whole."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1) if dense else nn.Conv1d(1, 3, 5)

    def forward(self, x: Any) -> Any:
        if isinstance(self.layer, nn.Conv1d):
            return self.layer(x[:, None]).flatten(1)
        return self.layer(x[:, :3, None])[..., 0]


def test_models_without_penultimate_features() -> None:
    for dense, words in ((False, "no dense layer"), (True, "not one row a sample")):
        world = worlds.make_custom_world(worlds.make_federation(), partial(Convolved, dense=dense))
        with pytest.raises(UserError, match=words):
            answer(describe(world, size=2, key=1), world)
    with pytest.raises(UserError, match="no dense layer"):
        count_features(worlds.make_custom_world(worlds.make_federation(), lambda: Convolved(dense=False)).model.layout)


def ask_site(folder: Path, ask: Describe, **policy: Any) -> Any:
    audit = Audit(folder / "audit.jsonl")
    usual: dict[str, Any] = {"minimum_samples": 1, "asks": ("Describe",)}
    made = Policy(**usual | policy)
    (reply,) = SiteWorker(WORLD, get_loop_engine(), made, audit, Ledger(folder / "privacy.json", audit)).answer([StampedAsk(ask, 3, 1)])
    return reply


def test_a_site_answers_only_where_its_policy_names_it(tmp_path: Path) -> None:
    overall = describe(classes=0)
    denied = ask_site(tmp_path / "a", overall, asks=Policy().asks)
    assert isinstance(denied, Denial)
    assert "Describe is not answered here" in denied.reason
    assert isinstance(ask_site(tmp_path / "b", overall), Described)
    denied = ask_site(tmp_path / "c", describe())
    assert "Describe by class" in denied.reason
    assert "'label_shares'" in denied.reason
    assert isinstance(ask_site(tmp_path / "d", describe(), label_shares=True), Described)


def test_small_classes_look_like_empty_ones(tmp_path: Path) -> None:
    exact, reply = answer(describe()), ask_site(tmp_path, describe(), label_shares=True, minimum_samples=4)
    assert reply.clients.tolist() == [0, 1, 3, 4, 5]
    own = exact.of(reply.clients)
    kept = own.counts >= 4
    assert kept[:, 1:].any()
    assert not kept[:, 1:].all()
    assert reply.counts.tolist() == np.where(kept, own.counts, 0).tolist()
    for name in ("means", "deviations"):
        assert np.array_equal(getattr(reply, name), getattr(own, name) * kept[..., None])
    withheld = ask_site(tmp_path / "w", describe(), label_shares=True, minimum_samples=4, sample_counts=False, class_counts=False)
    assert set(withheld.counts.ravel().tolist()) == {0, 1}
    assert set(withheld.sizes.tolist()) == {1}


def test_noise_covers_both_moments(tmp_path: Path) -> None:
    privacy = ClipNoise(mechanism="clip+noise", clip=0.5, noise=0.01)
    reply, exact = ask_site(tmp_path, describe(classes=0), privacy=privacy), answer(describe(classes=0))
    assert isinstance(reply, Described)
    joined = np.concatenate([reply.means, reply.deviations], axis=2)[:, 0]
    assert (np.linalg.norm(joined, axis=1) < 0.6).all()
    assert reply.deviations.min() >= 0
    shorter = 0.5 / np.linalg.norm(np.concatenate([exact.means, exact.deviations], axis=2)[:, 0], axis=1)
    np.testing.assert_allclose(reply.means[:, 0], exact.means[:, 0] * np.minimum(shorter, 1)[:, None], atol=0.05)
    assert not np.array_equal(reply.means[:, 0], exact.means[:, 0] * np.minimum(shorter, 1)[:, None])
    denied = ask_site(tmp_path / "c", describe(), privacy=privacy, label_shares=True)
    assert "under clip+noise" in denied.reason


def test_the_server_refuses_counts_that_cannot_be_right() -> None:
    reply = answer(describe())
    check_reply(reply, describe())
    for wrong in (replace(reply, counts=reply.counts + 100), replace(reply, deviations=-reply.deviations - 1)):
        with pytest.raises(InvalidMessageError):
            check_reply(wrong, describe())


def test_norms_that_stay_with_clients_are_used() -> None:
    world = worlds.make_batch_norm_world()
    plan = replace(PLAN, cohort=None, local=PLAN.local.replace(batch_size=None))
    method = OwnNorm(method=FedAvg())
    state = play(method, world=world, plan=plan).states[-1]
    ctx = make_round_context(world, plan, round_=3)

    def script(key: int) -> Any:
        return (yield from Describe(ctx.roster.clients, state.inner.models, size=2, key=key))  # type: ignore[attr-defined]

    exchange = _Exchange(method, cast(Any, state).own, ctx.layout)
    with_norms = run_generator(exchange.run(script(1)), world)
    assert not np.allclose(with_norms.means, run_generator(script(1), world).means)


def test_the_order_of_a_run_names_it() -> None:
    def asks_for_descriptions() -> Any:
        return (yield from Describe(CLIENTS, WORLD.model.initial(0)(), size=5))

    assert find_asks([asks_for_descriptions]) == ("Describe",)
