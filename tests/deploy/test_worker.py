"""A site's worker, whole: what is answered is what the engine says, less what the policy keeps, and the log has it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from coterie._util.errors import UserError
from coterie.core.asks import AskErrors, Evaluate, Gradient, Losses, Reply, Share, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.deploy.messages import Denial
from coterie.deploy.site.audit import Audit, verify_audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, DpSgd, Policy
from coterie.deploy.site.worker import SiteWorker, open_worker, pack_reply
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.testing.worlds import SIZES, make_world

CLIENTS = np.arange(6)
INITIAL = make_world().model.initial(0)(0)
TRAIN = Train(CLIENTS, INITIAL, Local(epochs=2, batch_size=4))
DP = DpSgd(mechanism="dp-sgd", noise_multiplier=2.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=6.0)
NOISE = ClipNoise(mechanism="clip+noise", clip=0.5, noise=2.0)


def asks(*given: Any) -> list[StampedAsk]:
    return [StampedAsk(ask, 0, 1) for ask in given]


def everything() -> list[StampedAsk]:
    evaluate = Evaluate(Serving.one(CLIENTS, INITIAL))
    return asks(TRAIN, Gradient(CLIENTS, INITIAL), Losses(CLIENTS, INITIAL), AskErrors(CLIENTS, INITIAL), evaluate)


def worker(folder: Path, engine: Engine | None = None, **response: Any) -> SiteWorker:
    """By a policy that answers from few samples, and exactly."""
    policy = Policy(**{"minimum_samples": 1, "rounding": 1, **response})
    audit = Audit(folder / "audit.jsonl")
    return SiteWorker(make_world(), engine or LoopEngine(make_world()), policy, audit, Ledger(folder / "privacy.json", audit), run="r1")


def log(folder: Path) -> list[dict[str, Any]]:
    assert verify_audit(folder / "audit.jsonl").faults == ()
    entries = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    return [entry for entry in entries if "ask" in entry]  # the others seal the ledger


def same(one: Any, other: Any) -> bool:
    names = ["clients", *one.columns()]
    return type(one) is type(other) and all(np.array_equal(getattr(one, n), getattr(other, n), equal_nan=True) for n in names)


def test_with_an_exact_policy_answers_are_the_engines(tmp_path: Path) -> None:
    replies = worker(tmp_path).answer(everything())
    for mine, engines in zip(replies, LoopEngine(make_world()).run(everything()), strict=True):
        assert same(mine, engines)
    entries = log(tmp_path)
    assert [e["ask"] for e in entries] == ["Train", "Gradient", "Losses", "AskErrors", "Evaluate"]
    first, trained = entries[0], cast(Any, replies[0])
    assert (first["run"], first["round"], first["seed"], first["purpose"], first["denied"]) == ("r1", 1, 0, "train", None)
    assert first["clients"] == list(make_world().federation.ids)
    assert first["bytes_out"] == len(pack_reply(trained))
    assert first["bytes_in"] > INITIAL.nbytes
    norms = np.linalg.norm(trained.vectors - INITIAL, axis=1)
    assert list(first["norms"].values()) == pytest.approx(norms.tolist(), rel=1e-5)
    exact = {name: sum(c.steps for c in charges) for name, charges in Ledger(tmp_path / "privacy.json").charges().items()}
    assert set(exact.values()) == {4}  # all but the evaluation of test parts


def test_what_is_denied_costs_the_others_nothing(tmp_path: Path) -> None:
    replies = worker(tmp_path, asks=("Train", "Evaluate")).answer(everything())
    assert [isinstance(reply, Denial) for reply in replies] == [False, True, True, True, False]
    assert "Gradient is not answered here" in log(tmp_path)[1]["denied"]
    assert log(tmp_path)[1]["sha256"] is None


def test_clients_with_few_samples_are_silent(tmp_path: Path) -> None:
    made = worker(tmp_path, minimum_samples=7, label_shares=True)
    (reply,) = made.answer(asks(TRAIN))
    kept = [i for i, n in enumerate(SIZES) if n >= 7]
    assert cast(Any, reply).clients.tolist() == kept
    assert same(reply, LoopEngine(make_world()).run(asks(TRAIN))[0].of(np.array(kept)))
    assert log(tmp_path)[0]["silent"] == ["client-2", "client-5"]
    half, label = made.answer(asks(replace(TRAIN, share=Share(fold=0)), replace(TRAIN, share=Share(label=0))))
    assert cast(Any, half).clients.tolist() == [4]  # 16 samples have halves of 8; 12 have 6
    assert len(cast(Any, label)) == 0  # nobody has seven of a class
    (evaluated,) = made.answer(asks(Evaluate(Serving.one(CLIENTS, INITIAL))))
    assert len(cast(Any, evaluated)) == 0  # test parts have four samples


def test_nor_does_a_client_answer_from_all_but_a_few_samples(tmp_path: Path) -> None:
    """Of 16 samples a third has 5 or 6: below 7 neither a third nor the other two thirds leave, and with 5 both do."""
    shares = [Share(fold=1, folds=3, rest=rest) for rest in (False, True)]
    for least, answering in ((6, []), (5, [4])):
        made = worker(tmp_path / str(least), minimum_samples=least)
        for reply in made.answer(asks(*(replace(TRAIN, share=share) for share in shares))):
            assert cast(Any, reply).clients.tolist() == answering
    entry = log(tmp_path / "5")[1]["share"]
    assert entry == {"fold": 1, "label": None, "folds": 3, "rest": True, "left_out": None, "left_out_folds": 2}


def test_nor_where_a_fold_is_left_out_from_too_few_samples(tmp_path: Path) -> None:
    """Client 4 has 16 samples: 8 without a half, and 4 in a half of these. Client 0 has 12: 6, and 3."""
    outside, inside = Share(left_out=1), Share(0, left_out=1)
    for least, answering in ((9, [[], []]), (8, [[4], []]), (6, [[0, 4], []]), (4, [[0, 3, 4], [4]]), (3, [[0, 1, 3, 4], [0, 4]])):
        made = worker(tmp_path / str(least), minimum_samples=least)
        replies = made.answer(asks(*(replace(TRAIN, share=share) for share in (outside, inside))))
        assert [cast(Any, reply).clients.tolist() for reply in replies] == answering, least


def test_counts_that_are_not_told(tmp_path: Path) -> None:
    trained, _, losses, _, evaluated = worker(tmp_path, sample_counts=False, class_counts=False).answer(everything())
    plain = LoopEngine(make_world()).run(everything())
    assert cast(Any, trained).sizes.tolist() == cast(Any, trained).steps.tolist() == cast(Any, losses).sizes.tolist() == [1] * 6
    assert cast(Any, evaluated).actual.tolist() == [[100, 0, 0]] * 6
    share = plain[4].hits.sum(1) / plain[4].actual.sum(1)
    assert cast(Any, evaluated).hits[:, 0].tolist() == np.rint(100 * share).tolist()
    assert Policy(sample_counts=False, class_counts=False).disclose_sizes(np.array(SIZES)).tolist() == [1] * 6


def test_classes_of_training_parts_are_told_only_with_label_shares(tmp_path: Path) -> None:
    ask = Evaluate(Serving.one(CLIENTS, INITIAL), part="train")
    (kept,) = worker(tmp_path).answer(asks(ask))
    assert cast(Any, kept).actual.tolist() == [[n, 0, 0] for n in SIZES]
    (reported,) = worker(tmp_path, label_shares=True).answer(asks(ask))
    assert (cast(Any, reported).actual[:, 1:] > 0).any()
    (sums,) = worker(tmp_path, class_counts=False).answer(asks(Evaluate(Serving.one(CLIENTS, INITIAL))))
    plain = LoopEngine(make_world()).run(asks(Evaluate(Serving.one(CLIENTS, INITIAL))))[0]
    assert cast(Any, sums).hits.sum(1).tolist() == plain.hits.sum(1).tolist()


def test_messages_that_are_too_large(tmp_path: Path) -> None:
    small = worker(tmp_path, message_megabytes=0.0005)
    (out,) = small.answer(asks(TRAIN), bytes_in=[10])
    assert isinstance(out, Denial)
    assert "The reply has" in out.reason
    (inn,) = small.answer(asks(TRAIN), bytes_in=[600])
    assert isinstance(inn, Denial)
    assert "The ask has" in inn.reason


class Broken(LoopEngine):
    """Fails at gradients, and says what it saw."""

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        if any(isinstance(s.ask, Gradient) for s in asks):
            raise MemoryError("no room for 42.5")
        return super().run(asks)


def test_a_failure_costs_the_others_nothing(tmp_path: Path) -> None:
    replies = worker(tmp_path, Broken(make_world())).answer(everything())
    assert [isinstance(reply, Reply) for reply in replies] == [True, False, True, True, True]
    assert replies[1] == Denial("The site could not answer: MemoryError: no room for 42.5", "failure")
    assert same(replies[0], LoopEngine(make_world()).run(asks(TRAIN))[0])
    assert log(tmp_path)[1]["error"] == "MemoryError: no room for 42.5"
    for response in ({"error_messages": False}, {"privacy": NOISE}):
        kept = worker(tmp_path, Broken(make_world()), **response).answer(asks(Gradient(CLIENTS, INITIAL)))[0]
        assert "42.5" not in cast(Denial, kept).reason
        assert "MemoryError" in cast(Denial, kept).reason
        assert log(tmp_path)[-1]["error"] == "MemoryError: no room for 42.5"


def test_a_full_gpu_is_told_without_commands_that_a_site_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LoopEngine, works: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(LoopEngine, "execute", full)
    (reply,) = worker(tmp_path).answer(asks(TRAIN))
    assert reply == Denial("The site could not answer: The GPU has too little memory for this model and batch.", "failure")
    assert log(tmp_path)[-1]["error"] == "The GPU has too little memory for this model and batch."


def test_nothing_leaves_that_cannot_be_logged(tmp_path: Path) -> None:
    made = worker(tmp_path)
    (tmp_path / "audit.jsonl").unlink(missing_ok=True)
    (tmp_path / "audit.jsonl").mkdir()
    (reply,) = made.answer(asks(TRAIN))
    assert isinstance(reply, Denial)
    assert "could not write its log" in reply.reason


def test_clip_and_noise(tmp_path: Path) -> None:
    made = worker(tmp_path, privacy=NOISE)
    trained, gradients, losses, errors, evaluated = cast(Any, made.answer(everything()))
    plain = LoopEngine(make_world()).run(everything())
    assert not np.isclose(cast(Any, trained).vectors, plain[0].vectors).all(axis=1).any()
    assert not np.isclose(cast(Any, gradients).losses, plain[1].losses).any()
    assert not np.isclose(losses.losses, plain[2].losses).any()
    assert not np.isclose(errors.probabilities, plain[3].probabilities).any()
    assert not np.isclose(evaluated.loss, plain[4].loss).any()
    assert evaluated.actual.tolist() == [[100, 0, 0]] * 6
    for reply in (trained, gradients, losses, errors):
        assert reply.sizes.tolist() == [1] * 6  # how many samples there are is protected, too
    charges = Ledger(tmp_path / "privacy.json").charges()["client-0"]
    assert {(c.mechanism, c.noise, c.steps) for c in charges} == {("clip+noise", 1.0, 5)}  # each answer, and nothing is exact
    privacy = log(tmp_path)[0]["privacy"]
    assert (privacy["mechanism"], privacy["unit"]) == ("clip+noise", "all data of a client, in each answer it sends")
    assert privacy["epsilon"]["client-0"] > 0
    limited = worker(tmp_path, privacy=NOISE.model_copy(update={"epsilon_limit": 1.0}))
    (over,) = limited.answer(asks(TRAIN))
    assert cast(Denial, over).cause == "budget"


def test_dp_sgd_until_the_budget_is_spent(tmp_path: Path) -> None:
    counts = []
    for _ in range(40):  # a new worker each time: a restart
        (reply,) = worker(tmp_path, privacy=DP).answer(asks(TRAIN))
        if isinstance(reply, Denial):
            break
        counts.append(len(reply))
    assert isinstance(reply, Denial)
    assert reply.cause == "budget"
    assert "limit is 6" in reply.reason
    assert counts[0] == 6
    assert counts == sorted(counts, reverse=True)  # one client after the other has spent its budget
    assert max(Ledger(tmp_path / "privacy.json").spent(DP).values()) <= 6.0
    evaluate = Evaluate(Serving.one(CLIENTS, INITIAL))
    evaluated, gradient = worker(tmp_path, privacy=DP).answer(asks(evaluate, Gradient(CLIENTS, INITIAL)))
    assert isinstance(evaluated, Reply)  # what touches no training sample goes on, until the test samples' own budget is spent
    assert isinstance(gradient, Denial)
    for _ in range(40):
        (reply,) = worker(tmp_path, privacy=DP).answer(asks(evaluate))
    assert cast(Denial, reply).cause == "budget"
    assert isinstance(worker(tmp_path, privacy=DP.model_copy(update={"protect_tests": False})).answer(asks(evaluate))[0], Reply)


def test_one_seed_twice_differs_under_privacy(tmp_path: Path) -> None:
    privacies: tuple[ClipNoise | DpSgd, ...] = (NOISE, DP)
    for privacy in privacies:
        made = worker(tmp_path / privacy.mechanism, privacy=privacy)
        one, other = made.answer([*asks(TRAIN), *asks(TRAIN)])
        assert not np.array_equal(cast(Any, one).vectors, cast(Any, other).vectors)


def test_a_delta_that_protects_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too large for 16 samples"):
        worker(tmp_path, privacy=DP.model_copy(update={"delta": 0.1}))
    with pytest.raises(UserError, match="may not run here"):
        worker(tmp_path, models=("mlp",))


def test_a_kit_folder_is_a_worker(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no policy"):
        open_worker(tmp_path, make_world(), LoopEngine(make_world()))
    (tmp_path / "policy.toml").write_text('asks = ["Train"]\n')
    made = open_worker(tmp_path, make_world(), LoopEngine(make_world()), run="r2")
    assert isinstance(made.answer(asks(TRAIN))[0], Reply)
    assert log(tmp_path)[0]["run"] == "r2"
