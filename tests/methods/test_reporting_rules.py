"""Local rules that send numbers back: losses of steps, and responsibilities worked by hand; on both engines and at a site."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Losses, Share, Train, Trained
from coterie.core.local import Local, LocalRule
from coterie.deploy.messages import Denial
from coterie.deploy.server.engine import FederatedEngine
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, Policy
from coterie.deploy.site.privacy import count_releases
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.local_engine import Work
from coterie.engines.sampling import iterate_batches
from coterie.methods.reporting_rules import CLASS_SHARES, WEIGHTS, LossRule, MixtureRule
from coterie.run.async_rounds import check_async_ask
from coterie.run.costs import compute_cost
from coterie.testing import worlds
from coterie.testing.play import get_loop_engine
from deploy.in_process import InProcess

WORLD = worlds.make_world()
CLIENTS = WORLD.problem.roster.clients
MODELS = np.stack([WORLD.model.initial(seed)() for seed in range(3)])
LOCAL = Local(epochs=2, batch_size=4, lr=0.1)
OMEGA = np.array([[0.2, 0.3, 0.5]] * 6) + np.arange(6)[:, None] * np.array([0.05, -0.05, 0])
SHARES = np.array([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [1 / 3, 1 / 3, 1 / 3]])


def mixture(k: int = 3, *, classes: int = 0, **options: Any) -> Train:
    rule = MixtureRule(components=k, classes=classes, **{"trains": True} | options)
    return Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=rule), extra=rule.bring(MODELS[:k], OMEGA[:, :k], SHARES[:k] if classes else None))


def answer(ask: Train, engine: Any = None) -> Trained:
    (reply,) = (engine or get_loop_engine()).run([StampedAsk(ask, 3, 1)])
    return cast(Trained, reply)


def gamma(client: int, *, classes: bool = False) -> Any:
    """(m, K) by the formula, in numpy."""
    rows = WORLD.federation.train[client]
    losses = np.stack([get_loop_engine().space(WORLD).predict(model, rows)[1] for model in MODELS], axis=1)
    odds = OMEGA[client] * np.exp(-losses)
    odds = odds / SHARES[:, WORLD.federation.y[rows]].T if classes else odds
    return odds / odds.sum(axis=1, keepdims=True)


def test_mean_responsibilities_are_those_of_the_models_received() -> None:
    found = answer(mixture()).summary
    expected = np.stack([gamma(client).mean(axis=0) for client in CLIENTS])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(answer(mixture(trains=False)).summary, expected, atol=1e-6)


def test_by_class_they_add_up_to_the_samples_of_each_class() -> None:
    reply = answer(mixture(classes=3))
    for client, row in enumerate(reply.summary):
        y = WORLD.federation.y[WORLD.federation.train[client]]
        by_hand = np.stack([gamma(client, classes=True)[y == c].sum(axis=0) for c in range(3)], axis=1)
        np.testing.assert_allclose(row.reshape(3, 3) * reply.sizes[client], by_hand, atol=1e-5)
        np.testing.assert_allclose(row.reshape(3, 3).sum(axis=0) * reply.sizes[client], np.bincount(y, minlength=3), atol=1e-5)


def test_each_model_trains_on_samples_weighted_by_its_responsibility() -> None:
    """One full step is the model less the rate times the weighted mean of the samples' gradients."""
    ask = mixture()
    ask = replace(ask, local=ask.local.replace(batch_size=None, epochs=1))
    reply, space = answer(ask), get_loop_engine().space(WORLD)
    for client in (0, 4):
        rows, own = WORLD.federation.train[client], gamma(client)
        for k, trained in enumerate([reply.vectors[client], *reply.more[client]]):
            chances = space.predict(MODELS[k], rows)[0]
            error = own[:, [k]] * (chances - np.eye(3)[WORLD.federation.y[rows]]) / len(rows)
            gradient = np.concatenate([(error.T @ WORLD.federation.x[rows]).ravel(), error.sum(axis=0)])
            np.testing.assert_allclose(trained, MODELS[k] - 0.1 * gradient, atol=1e-6)


def test_one_component_is_plain_training_to_the_bit() -> None:
    plain, one = answer(Train(CLIENTS, MODELS[:1], LOCAL)), answer(mixture(1))
    assert plain.vectors.tobytes() == one.vectors.tobytes()
    assert one.summary.tolist() == [[1.0]] * 6
    assert plain.vectors.tobytes() == answer(Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=LossRule(first=7)))).vectors.tobytes()


def test_the_e_step_alone_moves_nothing() -> None:
    reply = answer(mixture(trains=False))
    assert reply.steps.tolist() == [0] * 6
    assert (reply.vectors == MODELS[0]).all()
    assert (reply.more == MODELS[1:]).all()


def test_losses_of_steps_and_of_the_last_epoch() -> None:
    reply = answer(Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=LossRule(first=5, last=True))))
    key = Work.bind(StampedAsk(Losses(CLIENTS, MODELS), 3, 1), WORLD).keys("train", CLIENTS)
    for client in (1, 2, 4):
        samples = WORLD.federation.train[client]
        batches = list(iterate_batches(int(key[client]), samples, 4, 2, None))
        walked = []  # the loss before step t is that of the model after t steps, on the batch of step t
        for t, batch in enumerate(batches):
            before = MODELS[0] if t == 0 else answer(Train(CLIENTS[[client]], MODELS[:1], LOCAL.replace(max_steps=t))).vectors[0]
            walked.append(get_loop_engine().space(WORLD).predict(before, batch)[1].mean())
        first = [walked[min(t, len(walked) - 1)] for t in range(5)]
        half = len(walked) // 2
        last = np.average(walked[half:], weights=[len(batch) for batch in batches[half:]])
        np.testing.assert_allclose(reply.losses[client], [*first, last], atol=1e-6)


def test_a_last_epoch_that_is_cut_short() -> None:
    losses, samples = np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.array([4, 4, 2, 4, 4])
    assert LossRule(last=True).reduce_losses(losses, samples, 3).tolist() == [1.5]  # two steps of the second epoch
    assert LossRule(last=True).reduce_losses(losses[:3], samples[:3], 3).tolist() == [4.2]  # (4 * 5 + 4 * 4 + 2 * 3) / 10
    assert LossRule(first=2).reduce_losses(losses, samples, 3).tolist() == [5, 4]
    assert LossRule(first=7).reduce_losses(losses[:2], samples[:2], 3).tolist() == [5, 4, 4, 4, 4, 4, 4]


RULES = [
    mixture(),
    mixture(classes=3),
    mixture(2, trains=False),
    Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=LossRule(first=3, last=True))),
]


@pytest.mark.parametrize("ask", RULES, ids=["mixture", "by class", "E-step", "losses"])
@pytest.mark.parametrize("share", [None, Share(1, folds=3, rest=True)])
def test_engines_agree(ask: Train, share: Share | None) -> None:
    asked = replace(ask, share=share)
    with BatchedEngine(WORLD, threads=1) as engine:
        quick, slow = answer(asked, engine), answer(asked)
        assert engine.routes() != {}
        assert all(route.startswith("fused") for route in engine.routes().values())
    for name in ("clients", *slow.columns()):
        np.testing.assert_allclose(getattr(quick, name), getattr(slow, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("ask", RULES, ids=["mixture", "by class", "E-step", "losses"])
def test_a_real_federation_answers_alike(ask: Train) -> None:
    federation = WORLD.federation
    sites = {"a": federation.ids[:4], "b": federation.ids[4:]}
    owner = {client: site for site, clients in sites.items() for client in clients}
    found = answer(ask, FederatedEngine(InProcess(federation, sites), owner, federation.ids, "a-run"))
    expected = answer(ask)
    for name in ("clients", *expected.columns()):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_all_that_is_sent_is_charged() -> None:
    d, plain = MODELS.shape[1], Train(CLIENTS, MODELS[:1], LOCAL)
    base = compute_cost(plain, answer(plain))
    kept = replace(mixture(classes=3), kept=(WEIGHTS,))
    cost = compute_cost(kept, answer(kept))
    assert cost.bytes_down - base.bytes_down == 4 * 6 * (2 * d + 9)  # two more models, and the class shares
    assert cost.bytes_up - base.bytes_up == 4 * 6 * (2 * d + 9)  # two more models, and the sums by class
    reported = replace(plain, local=LOCAL.replace(rule=LossRule(first=7)))
    assert compute_cost(reported, answer(reported)).bytes_up - base.bytes_up == 4 * 6 * 7


def test_asynchronous_rounds_have_no_place_for_them() -> None:
    with pytest.raises(UserError, match="asynchronous round"):
        check_async_ask(Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=LossRule(first=1))), first=True)


def ask_site(folder: Path, ask: Train, **policy: Any) -> Any:
    audit = Audit(folder / "audit.jsonl")
    made = Policy(**{"minimum_samples": 1, "rounding": 1} | policy)
    (reply,) = SiteWorker(WORLD, get_loop_engine(), made, audit, Ledger(folder / "privacy.json", audit)).answer([StampedAsk(ask, 3, 1)])
    return reply


def test_sums_by_class_need_the_sites_permission(tmp_path: Path) -> None:
    denied = ask_site(tmp_path / "a", mixture(classes=3))
    assert isinstance(denied, Denial)
    assert "sums by class" in denied.reason
    assert isinstance(ask_site(tmp_path / "b", mixture(classes=3), label_shares=True), Trained)
    assert isinstance(ask_site(tmp_path / "c", mixture()), Trained)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (replace(mixture(), extra={**mixture().extra, WEIGHTS: np.ones((6, 2), np.float32)}), "needs 3"),
        (replace(mixture(), extra={**mixture().extra, WEIGHTS: -np.ones((6, 3), np.float32)}), "below 0"),
        (replace(mixture(), extra={**mixture().extra, "component 1": np.ones((6, 3), np.float32)}), "needs 18"),
        (replace(mixture(), extra={**mixture().extra, "further": np.ones((6, 18), np.float32)}), "does not need"),
        (mixture(classes=3), "'label_shares'"),
        (Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=LossRule(first=101))), "first"),
        (Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=LossRule(first=cast(Any, True)))), "first"),
    ],
)
def test_what_a_site_does_not_answer(ask: Train, words: str, tmp_path: Path) -> None:
    denied = ask_site(tmp_path, ask)
    assert isinstance(denied, Denial)
    assert words in denied.reason


def test_by_another_number_of_classes(tmp_path: Path) -> None:
    rule = MixtureRule(components=2, classes=2)
    extra = rule.bring(MODELS[:2], OMEGA[:, :2], SHARES[:2, :2])
    denied = ask_site(tmp_path, Train(CLIENTS, MODELS[:1], LOCAL.replace(rule=rule), extra=extra), label_shares=True)
    assert "by 2 classes: there are 3" in denied.reason
    assert CLASS_SHARES in extra


def test_they_leave_rounded_or_noised(tmp_path: Path) -> None:
    reports = replace(mixture(), local=LOCAL.replace(rule=LossRule(first=3)), extra={})
    for place, (ask, name, most) in enumerate([(mixture(), "summary", 1.0), (reports, "losses", 2 * np.log(3) + 1)]):
        exact = getattr(answer(ask), name)
        rounded = getattr(ask_site(tmp_path / f"{place}r", ask, rounding=3), name)
        step = most * 3 / answer(ask).sizes[:, None]
        assert np.allclose(rounded / step, np.rint(rounded / step))
        assert (np.abs(rounded - exact) <= step).all()
        assert not np.array_equal(rounded, exact)
        noised = getattr(ask_site(tmp_path / f"{place}n", ask, privacy=ClipNoise(mechanism="clip+noise", clip=1.0, noise=0.5)), name)
        assert (np.abs(noised - exact) > 0).all()
        assert noised.min() >= 0
        assert noised.max() <= most
    assert count_releases(mixture()) == 4  # three models, and the mean responsibilities
    assert count_releases(reports) == 2


def test_a_rule_declares_nothing_more_unless_it_says_so() -> None:
    class Plain(LocalRule):
        def objective(self, step: Any) -> Any:
            raise NotImplementedError

    rule = Plain()
    assert (rule.loss_count, rule.summary_size, dict(rule.numbers), rule.reveals_labels) == (0, 0, {}, False)
