"""Sketches that leave a site: who may have them, how many, with which noise, and how they travel."""

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coterie.core.asks import Gradient, Reply, Train
from coterie.core.local import Local
from coterie.core.vectors import Sketch
from coterie.deploy.messages import PROTOCOL, AskBatch, Denial, from_message, to_message
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.explain import explain_policy
from coterie.deploy.site.ledger import ORDERS, Charge, Ledger, calibrate_noise, compute_epsilon
from coterie.deploy.site.policy import ClipNoise, DpSgd, Policy
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.testing.worlds import make_world

CLIENTS = np.arange(6)
W = make_world("mlp(200)")
INITIAL = W.model.initial(0)(0)
SKETCH = Sketch(64, 7)
GRADIENT = Gradient(CLIENTS, INITIAL, sketch=SKETCH)
TRAIN = Train(CLIENTS, INITIAL, Local(epochs=1, batch_size=4), sketch=SKETCH)
NOISE = ClipNoise(mechanism="clip+noise", clip=0.01, noise=2.0)
DP = DpSgd(mechanism="dp-sgd", noise_multiplier=2.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=50.0)


def worker(folder: Path, run: str = "", **response: Any) -> SiteWorker:
    policy, audit = Policy(**{"minimum_samples": 1, "rounding": 1, **response}), Audit(folder / "audit.jsonl")
    return SiteWorker(W, LoopEngine(W), policy, audit, Ledger(folder / "privacy.json", audit), run=run)


def answer(site: SiteWorker, *asks: Any, round_: int = 1) -> list[Any]:
    return cast(list[Any], site.answer([StampedAsk(ask, 0, round_) for ask in asks]))


def test_who_may_not_have_the_whole_may_have_a_sketch_where_the_policy_says_so(tmp_path: Path) -> None:
    site = worker(tmp_path, asks=("SketchedGradient",))
    sketched, whole, update = answer(site, GRADIENT, replace(GRADIENT, sketch=None), TRAIN)
    assert sketched.vectors.shape == (6, 64)
    assert whole.reason.startswith("Gradient is not answered here")
    assert update.reason.startswith("SketchedTrain is not answered here")
    logged = [json.loads(line).get("ask") for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [each for each in logged if each] == ["SketchedGradient", "Gradient", "SketchedTrain"]
    may_have_all = worker(tmp_path, asks=("Gradient",))
    assert all(isinstance(reply, Reply) for reply in answer(may_have_all, GRADIENT, replace(GRADIENT, sketch=None)))


def test_new_projections_are_counted_until_they_would_show_too_much(tmp_path: Path) -> None:
    """All runs may see 150 directions: one projection of 64 any number of times, a second one, and no third."""
    site = worker(tmp_path, asks=("SketchedGradient",), sketch_numbers=150)
    second, third = (replace(GRADIENT, sketch=Sketch(64, key)) for key in (8, 9))
    first = [answer(site, GRADIENT, round_=t)[0] for t in (1, 2, 3)]
    assert all(isinstance(reply, Reply) for reply in [*first, *answer(site, second)])
    (denied,) = answer(site, third)
    assert "192 directions" in denied.reason
    assert "'sketch_numbers'" in denied.reason
    assert isinstance(answer(site, second)[0], Reply)
    again = worker(tmp_path, "another run", asks=("SketchedGradient",), sketch_numbers=150)
    assert "192 directions" in answer(again, third)[0].reason
    assert isinstance(answer(again, second)[0], Reply)
    assert isinstance(answer(worker(tmp_path, asks=("Gradient",), sketch_numbers=1), third)[0], Reply)  # who may have all need not count


def test_twelve_runs_show_no_more_than_one(tmp_path: Path) -> None:
    """Twelve projections of 128 numbers, each in a run of its own, would be enough to solve for the 1,403 numbers of the gradient."""
    numbers = int(W.model.layout.compared.sum())
    shown = 0
    for run in range(12):
        site = worker(tmp_path, f"run-{run}", asks=("SketchedGradient",), sketch_numbers=10_000)
        (reply,) = answer(site, replace(GRADIENT, sketch=Sketch(numbers // 11, 100 + run)))
        shown += numbers // 11 * isinstance(reply, Reply)
    assert numbers // 3 < shown <= numbers // 2  # never more than half, whatever the policy says
    assert "half of what the model has" in cast(Denial, reply).reason


@pytest.mark.parametrize("key", [True, 7.0, "7", -1, 2**64, 2**70, None])
def test_the_key_of_a_projection_is_a_number_of_64_bits(key: Any, tmp_path: Path) -> None:
    """One projection under many keys, or many under one, could not be counted."""
    (denied,) = answer(worker(tmp_path, asks=("SketchedGradient",)), replace(GRADIENT, sketch=Sketch(64, key)))
    assert "key should be a whole number" in cast(Denial, denied).reason


def test_a_sketch_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    (denied,) = answer(worker(tmp_path), replace(GRADIENT, sketch=Sketch(100_000, 7)))
    assert isinstance(denied, Denial)
    assert "has only" in denied.reason


@pytest.mark.parametrize("ask", [GRADIENT, TRAIN], ids=["gradient", "update"])
def test_the_sites_own_noise_is_secret_as_loud_as_its_policy_says_and_charged_once(ask: Any, tmp_path: Path) -> None:
    """r = 1024, clip .01, noise 2: a deviation of .02 on every number, and a multiplier of 1 (two sketches are two clips apart)."""
    long = replace(ask, sketch=Sketch(1024, 7))
    (plain,) = answer(worker(tmp_path / "plain"), long)
    site = worker(tmp_path / "noised", privacy=NOISE)
    noised, again = answer(site, long, long)
    assert np.linalg.norm(plain.vectors, axis=1).min() > 0.01
    cut = plain.vectors * (0.01 / np.linalg.norm(plain.vectors, axis=1, keepdims=True))
    noise = noised.vectors - cut
    assert abs(noise.std() - 0.02) < 5 * 0.02 / np.sqrt(2 * noise.size)
    assert not np.array_equal(noised.vectors, again.vectors)  # the same question, the same key, other noise
    spent = site.ledger.spent(NOISE)
    by_hand = min(2 * a / 2 + log((a - 1) / a) - (log(1e-5) + log(a)) / (a - 1) for a in ORDERS)  # two answers of RDP a / (2 * 1^2)
    assert list(spent.values()) == [pytest.approx(by_hand)] * 6


def test_noise_that_the_server_asks_for_is_secret_too_where_the_policy_has_none(tmp_path: Path) -> None:
    asked = replace(GRADIENT, sketch=Sketch(1024, 7, clip=0.01, noise=3.0))
    site = worker(tmp_path)
    one, other = answer(site, asked, asked)
    assert not np.array_equal(one.vectors, other.vectors)
    assert (one.vectors - other.vectors).std() == pytest.approx(0.03 * np.sqrt(2), rel=0.05)
    assert {charge.noise for charges in site.ledger.charges().values() for charge in charges} == {1.5}
    own = worker(tmp_path / "own", privacy=NOISE)  # where it has one, that counts
    assert answer(own, asked)[0].vectors.std() == pytest.approx(0.02, rel=0.05)
    faint = worker(tmp_path / "faint", privacy=ClipNoise(mechanism="clip+noise", clip=100.0, noise=1e-12))
    (plain,) = answer(worker(tmp_path / "plain"), replace(GRADIENT, sketch=Sketch(1024, 7)))
    np.testing.assert_allclose(answer(faint, asked)[0].vectors, plain.vectors, atol=1e-6)  # and none of the keyed noise is left in it


def test_a_private_model_may_be_sketched_for_nothing(tmp_path: Path) -> None:
    site = worker(tmp_path, privacy=DP)
    (sketched, gradient) = answer(site, TRAIN, GRADIENT)
    assert sketched.vectors.shape == (6, 64)
    assert "under dp-sgd" in gradient.reason
    spent = site.ledger.spent(DP)
    whole = worker(tmp_path / "whole", privacy=DP)
    answer(whole, replace(TRAIN, sketch=None))
    assert spent == whole.ledger.spent(DP)


def test_noise_for_an_epsilon_is_the_least_that_keeps_it() -> None:
    for epsilon, releases in ((8.0, 1), (2.0, 30)):
        noise = calibrate_noise(epsilon, 1e-5, releases)
        spent = [compute_epsilon([Charge("clip+noise", f * noise / 2, 1.0, releases)], 1e-5, "clip+noise") for f in (1.0, 0.99)]
        assert spent[0] <= epsilon < spent[1]


def test_sketched_asks_travel(tmp_path: Path) -> None:
    for ask in (GRADIENT, TRAIN, replace(GRADIENT, sketch=Sketch(5, 2**64 - 1, clip=0.5, noise=0.25))):
        batch = AskBatch(PROTOCOL, "run", "1", tuple(W.federation.ids), (StampedAsk(ask, 0, 1),))
        (back,) = from_message(to_message(batch), AskBatch).asks
        assert type(back.ask) is type(ask)
        assert cast(Any, back.ask).sketch == ask.sketch
        assert answer(worker(tmp_path), replace(ask, sketch=SKETCH))[0].clients.tolist() == CLIENTS.tolist()


def test_a_policy_tells_what_its_sketches_are() -> None:
    reported = {one.heading: " ".join(one.lines) for one in explain_policy(Policy(asks=("SketchedTrain", "Evaluate"), sketch_numbers=64))}
    assert (
        "In all runs together they show 64 directions at most, of as many numbers as the model has" in reported["SketchedTrain is answered"]
    )
    assert "Gradient" in reported["Refused"]
    private = {one.heading for one in explain_policy(Policy(asks=("SketchedTrain", "SketchedGradient"), privacy=DP))}
    assert "SketchedTrain is answered" in private
    assert "SketchedGradient is answered" not in private
