"""What a server reads off losses, errors and evaluations with models that it makes up: attacks, and what they still give."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coterie.core.asks import AskErrors, Evaluate, Evaluated, Gradient, Losses, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.core.states import unpack
from coterie.data.catalogue import load
from coterie.deploy.messages import KINDS, Denial, SiteCard, to_message
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.data import SiteSettings, select_clients
from coterie.deploy.site.disclosure import Discloser, RoundingContext, apportion, compute_loss_limit, round_randomly, round_up_step
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, DpSgd, Policy
from coterie.deploy.site.process import Site
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from deploy.ordering import APPROVE_ANY, make_hello

HEART = select_clients(load("heart"), ("cleveland", "va"))
W = World.from_spec(HEART, "mclr")
D, FEATURES = W.model.layout.size, HEART.x.shape[1]
BOTH = np.arange(2)
KEPT = {"sample_counts": False, "class_counts": False, "label_shares": False}
EPSILON_HALF = ClipNoise(mechanism="clip+noise", clip=1.0, noise=20.0, epsilon_limit=0.5)
DP = DpSgd(mechanism="dp-sgd", noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=20.0)


def site(folder: Path, **response: Any) -> SiteWorker:
    audit = Audit(folder / "audit.jsonl")
    return SiteWorker(W, LoopEngine(W), Policy(**response), audit, Ledger(folder / "privacy.json", audit))


def answer(worker: SiteWorker, *asks: Any) -> Any:
    replies = worker.answer([StampedAsk(ask, 0, 1) for ask in asks])
    return replies[0] if len(asks) == 1 else replies


def made_up(weights: Any = 0.0, bias: float = 0.0) -> Any:
    """Logits (0, weights x + bias): a model that is sure of class 1 where that is positive."""
    vector = np.zeros(D, np.float32)
    (matrix, shift) = W.model.layout.slices
    vector[matrix.begin : matrix.end].reshape(matrix.shape)[1] = weights
    vector[shift.begin + 1] = bias
    return vector


def counts(part: str = "train") -> tuple[Any, Any]:
    own = HEART.train if part == "train" else HEART.test
    return np.array([(HEART.y[own[i]] == 1).sum() for i in range(2)]), own.sizes


def recovered_shares(reply: Any, model: Any) -> Any:
    """The share of class 1, from a loss that is a for class 0 and b for class 1."""
    bias = float(model[-1])
    a, b = (min(compute_loss_limit(2), float(np.logaddexp(0, sign * bias))) for sign in (1, -1))
    return (reply.losses[:, 0] - a) / (b - a)


@pytest.mark.parametrize("part", ["train", "test"])
def test_made_up_models_do_not_tell_counts_that_are_kept(part: Any, tmp_path: Path) -> None:
    """Exact losses of one model whose losses depend on the class alone are the exact counts; rounded ones are not."""
    ones, sizes = counts(part)
    model = made_up(bias=3.0)
    exact = answer(site(tmp_path / "exact", rounding=1, **KEPT), Losses(BOTH, model, part=part))
    shares = [(exact.losses[:, 0] - np.logaddexp(0, 3.0)) / (np.logaddexp(0, -3.0) - np.logaddexp(0, 3.0))]
    assert np.rint(shares[0] * sizes).tolist() == ones.tolist()  # what 'rounding = 1' allows
    reply = answer(site(tmp_path, **KEPT), Losses(BOTH, model, part=part))
    assert reply.sizes.tolist() == [1, 1]
    wrong = np.abs(recovered_shares(reply, model) * sizes - ones)
    assert (reply.losses != exact.losses).all()
    step = np.array([round_up_step(compute_loss_limit(2) * 3 / n) for n in sizes])
    assert np.allclose(reply.losses[:, 0] / step, np.rint(reply.losses[:, 0] / step))
    assert (wrong < 2 * step * sizes).all()  # the answer is still of use


def test_one_question_has_one_answer_and_many_are_needed_for_a_number(tmp_path: Path) -> None:
    """Asked again, under another name of the run or after a restart, the answer is the same; models that are nearly alike are rounded
    apart, and their mean comes near: what is left of the attack."""
    models = np.stack([made_up(bias=3.0 + i * 1e-6) for i in range(400)])
    first = answer(site(tmp_path, **KEPT), Losses(BOTH, models)).losses
    again = answer(site(tmp_path, **KEPT), Losses(BOTH[::-1].copy(), models[::-1])).losses
    assert np.array_equal(first, again[::-1, ::-1])
    ones, sizes = counts()
    a, b = (min(compute_loss_limit(2), float(np.logaddexp(0, sign * 3.0))) for sign in (1, -1))
    singles = (first - a) / (b - a) * sizes[:, None] - ones[:, None]
    assert (np.abs(singles) > 0.5).mean() > 0.7  # hardly one of them tells the count
    assert (np.abs(singles.mean(axis=1)) < 1.0).all()  # four hundred do


@pytest.mark.parametrize("weight", [1e3, 1e30, 3e38])
def test_no_weight_is_large_enough_for_one_sample_to_stand_out(weight: float, tmp_path: Path) -> None:
    """A model that is wrong about the oldest patient alone, however wrong: that sample's share stays within a step."""
    own = HEART.x[HEART.train[0]]
    axis = int(np.argmax([len(np.unique(column)) for column in own.T]))
    values = np.sort(own[:, axis])
    above = float((values[-1] + values[-2]) / 2)
    weights = np.zeros(FEATURES)
    weights[axis] = weight / max(1.0, abs(above))
    model = made_up(weights, float(np.float32(-weights[axis] * above)))
    limit, n = compute_loss_limit(2), len(own)
    with np.errstate(all="ignore"):
        reply = answer(site(tmp_path), Losses(BOTH, np.stack([model, np.nan_to_num(-model)])))
    assert np.isfinite(reply.losses).all()
    assert reply.losses.max() <= limit + limit * 3 / n


def test_bisecting_does_not_find_where_an_answer_jumps(tmp_path: Path) -> None:
    """With plain rounding the place of a jump is a patient's exact value, found in twenty steps. Here answers near it are not in order."""
    worker = site(tmp_path, **KEPT)
    biases = np.linspace(-0.2, 0.2, 200)
    losses = answer(worker, Losses(BOTH, np.stack([made_up(bias=b) for b in biases]))).losses[0]
    exact = [float(np.mean([np.logaddexp(0, b), np.logaddexp(0, -b)])) for b in biases]
    jumps = np.flatnonzero(np.diff(losses))
    assert np.ptp(exact) < round_up_step(compute_loss_limit(2) * 3 / 242)  # less than a step between all of them
    assert len(jumps) > 3  # and yet it goes up and down


def test_evaluations_are_rounded_and_fit_each_other(tmp_path: Path) -> None:
    models = [made_up(np.random.default_rng(i).normal(size=FEATURES)) for i in range(30)]
    worker, plain = site(tmp_path, minimum_samples=1), LoopEngine(W)
    asks = [Evaluate(Serving.one(BOTH, model)) for model in models]
    replies = answer(worker, *asks)
    exact = plain.run([StampedAsk(ask, 0, 1) for ask in asks])
    actual = replies[0].actual
    assert (np.abs(actual - exact[0].actual) <= 3).all()
    assert (actual % 3 == 0).all()
    for reply in replies:
        assert np.array_equal(reply.actual, actual)  # it does not depend on the model
        assert (reply.hits % 3 == 0).all()
        assert (reply.hits <= np.minimum(reply.actual, reply.predicted)).all()
        assert (reply.predicted.sum(1) == reply.actual.sum(1)).all()
    right = np.array([[r.hits.sum(1) / r.actual.sum(1), e.hits.sum(1) / e.actual.sum(1)] for r, e in zip(replies, exact, strict=True)])
    assert np.abs(right[:, 0] - right[:, 1]).max() < 3 / 24
    assert np.abs((right[:, 0] - right[:, 1]).mean(axis=0)).max() < 0.03  # the mean is right
    aurocs = np.array([[r.auroc, e.auroc] for r, e in zip(replies, exact, strict=True)])
    assert not np.isclose(aurocs[:, 0], aurocs[:, 1]).all()
    hundred = answer(site(tmp_path / "kept", **KEPT), asks[0])
    assert hundred.actual.tolist() == [[100, 0]] * 2
    assert hundred.hits[0, 0] % 5 == 0  # of 61 test samples three are five in a hundred
    assert hundred.hits[1, 0] % 20 == 0  # of 26


def test_the_card_tells_what_evaluations_tell(tmp_path: Path) -> None:
    for name, response in (("told", ""), ("kept", "sample_counts = false\nclass_counts = false\n")):
        kit = tmp_path / name
        kit.mkdir()
        (kit / "policy.toml").write_text(response + APPROVE_ANY)
        SiteSettings("heart", ("cleveland", "va"), engine="loop").write(kit)
        made = Site(kit)
        card = cast(SiteCard, unpack(made.answer(to_message(make_hello())), KINDS))
        evaluated = answer(cast(SiteWorker, made.worker), Evaluate(Serving.one(BOTH, made_up())))
        if name == "told":
            assert np.array_equal(card.actual, evaluated.actual)
            assert card.sizes.tolist() == HEART.train.sizes.tolist()
        else:
            assert not card.actual.any()
            assert card.sizes.tolist() == [1, 1]


def test_ages_do_not_leave_through_losses_at_epsilon_one_half(tmp_path: Path) -> None:
    """A model for each threshold of one feature: exact losses give its distribution, sample by sample. Noised and charged they give
    one answer, in which the thresholds cannot be told apart."""
    own = HEART.x[HEART.train[0]]
    axis = int(np.argmax([len(np.unique(column)) for column in own.T]))
    thresholds = np.quantile(own[:, axis], np.linspace(0.05, 0.95, 40))
    models = []
    for at in thresholds:
        weights = np.zeros(FEATURES)
        weights[axis] = 1e4
        models.append(made_up(weights, -1e4 * at))
    ask = Losses(BOTH, np.stack(models))
    exact = LoopEngine(W).run([StampedAsk(ask, 0, 1)])[0].losses
    worker = site(tmp_path, privacy=EPSILON_HALF)
    reply = answer(worker, ask)
    assert np.abs(np.corrcoef(exact[0], reply.losses[0])[0, 1]) < 0.6
    spread = reply.losses[0].std()
    assert spread > 0.2  # as loud as losses can be
    assert 0.3 < worker.ledger.spent(EPSILON_HALF)["cleveland"] <= 0.5
    (denied,) = worker.answer([StampedAsk(ask, 0, 1)])  # the second answer would pass the limit
    assert cast(Denial, denied).cause == "budget"
    entry = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-2])
    assert entry.get("privacy", {"epsilon": {"cleveland": 1}})["epsilon"]["cleveland"] > 0


@pytest.mark.parametrize(
    "ask",
    [
        Losses(BOTH, made_up(bias=3.0)),
        AskErrors(BOTH, made_up()),
        Evaluate(Serving.one(BOTH, made_up())),
        Gradient(BOTH, made_up()),
        Train(BOTH, made_up(), Local()),
    ],
    ids=lambda ask: type(ask).__name__,
)
def test_under_clip_and_noise_every_number_of_every_reply_is_noised_or_withheld(ask: Any, tmp_path: Path) -> None:
    """Of two answers to one question no number that depends on the data is the same, and each answer is charged."""
    worker = site(tmp_path, privacy=ClipNoise(mechanism="clip+noise", clip=1.0, noise=0.2))
    one, other = answer(worker, ask, ask)
    for name in one.columns():
        a, b = getattr(one, name), getattr(other, name)
        if name in ("sizes", "steps"):
            assert (a == 1).all()
        elif name in ("actual", "predicted"):
            assert a.tolist() == [[100, 0]] * 2
        elif name == "hits":
            assert (a >= 0).all()
            assert (a <= 100).all()
        elif a.size:
            assert not np.array_equal(a, b)
    assert {sum(c.steps for c in charges) for charges in worker.ledger.charges().values()} == {2}


def test_noise_on_losses_errors_and_evaluations_is_what_the_charge_says(tmp_path: Path) -> None:
    """Two answers of k numbers in [0, 1] are at most sqrt(k) apart; the multiplier of noise 0.02 is 0.01."""
    faint = ClipNoise(mechanism="clip+noise", clip=1.0, noise=0.02)
    models = np.stack([made_up(bias=0.1)] * 200)
    replies = answer(site(tmp_path, privacy=faint), Losses(BOTH, models), AskErrors(BOTH, models))
    exact = LoopEngine(W).run([StampedAsk(Losses(BOTH, models), 0, 1), StampedAsk(AskErrors(BOTH, models), 0, 1)])
    for reply, plain, name, unit, k in (
        (replies[0], exact[0], "losses", compute_loss_limit(2), 200),
        (replies[1], exact[1], "labels", 1.0, 400),
        (replies[1], exact[1], "probabilities", 1.0, 400),
    ):
        noise = (getattr(reply, name) - getattr(plain, name)) / unit
        assert noise.std() == pytest.approx(0.01 * np.sqrt(k), rel=0.25)


def test_test_samples_have_a_budget_of_their_own_under_dp_sgd(tmp_path: Path) -> None:
    """One sample changes right answers by one and losses by the limit: noise of sqrt(2) multipliers on both."""
    worker = site(tmp_path, privacy=DP)
    ask = Evaluate(Serving.one(BOTH, made_up(bias=3.0)))
    one = cast(Evaluated, answer(worker, ask))
    assert one.actual[:, 0].tolist() == one.predicted[:, 0].tolist() == HEART.test.sizes.tolist()
    assert not one.actual[:, 1].any()
    assert np.isnan(one.auroc).all()
    assert set(worker.ledger.charges()) == {"cleveland (test samples)", "va (test samples)"}
    spent = worker.ledger.spent(DP)
    assert spent["va (test samples)"] > 1
    noises = []
    for i in range(60):
        fresh = site(tmp_path / str(i), privacy=DP)
        noises.append(cast(Evaluated, answer(fresh, ask)).hits[:, 0])
    exact = LoopEngine(W).run([StampedAsk(ask, 0, 1)])[0].hits.sum(1)
    assert (np.array(noises) - exact).std() == pytest.approx(np.sqrt(2), rel=0.35)
    assert isinstance(answer(worker, replace(ask, part="train")), Denial)
    plain = answer(site(tmp_path / "plain", privacy=DP.model_copy(update={"protect_tests": False})), ask)
    assert plain.actual[:, 1].any()


@pytest.mark.parametrize("engine", [LoopEngine, BatchedEngine])
def test_every_engine_cuts_the_loss_of_each_sample(engine: Any) -> None:
    model = made_up(np.full(FEATURES, 50.0))
    asks: list[Any] = [Losses(BOTH, np.stack([model, made_up()]), loss_limit=2.0), Evaluate(Serving.one(BOTH, model), loss_limit=2.0)]
    plain = [replace(ask, loss_limit=None) for ask in asks]
    cut, whole = (engine(W).run([StampedAsk(ask, 0, 1) for ask in each]) for each in (asks, plain))
    for i in range(2):
        with np.errstate(over="ignore"):
            margins = 50.0 * HEART.x[HEART.train[i]].sum(1) * np.where(HEART.y[HEART.train[i]] == 1, 1, -1)
            losses = np.logaddexp(0, -margins)
        assert cut[0].losses[i, 0] == pytest.approx(np.minimum(losses, 2.0).mean(), rel=1e-4)
        assert whole[0].losses[i, 0] > 2.0
    assert np.array_equal(cut[0].losses[:, 1], whole[0].losses[:, 1])  # losses below the limit stay as they are
    assert (cut[1].loss < whole[1].loss).all()


def test_rounding_is_unbiased_and_counts_are_shared_out_whole() -> None:
    chances = (np.arange(1000) + 0.5) / 1000
    for value in (0.0, 0.3, 1.7, 2.0):
        made = [round_randomly(value, 0.5, chance) for chance in chances]
        assert np.mean(made) == pytest.approx(value, abs=1e-3)
        assert set(np.abs(np.array(made) - value) < 0.5) == {True}
    assert [round_up_step(each) for each in (0.011, 0.02, 0.9, 1.0, 3.1)] == pytest.approx([0.02, 0.02, 1.0, 1.0, 5.0])
    assert apportion(np.array([5, 3, 2]), 5).tolist() == [3, 1, 1]
    assert apportion(np.array([9, 1, 0]), 4, np.array([2, 1, 1])).tolist() == [2, 1, 1]
    assert apportion(np.array([0, 0]), 3).sum() == 3
    table = Discloser(Policy(), "00" * 32, 2)
    question = RoundingContext("Losses train", ["a"], np.array([50]), [[b"m"]])
    assert table._chance(question, 0, b"m") == Discloser(Policy(), "00" * 32, 2)._chance(question, 0, b"m")
    assert table._chance(question, 0, b"m") != Discloser(Policy(), "01" * 32, 2)._chance(question, 0, b"m")
