"""Every field of an ask from the wire is checked at the site before anything runs, and what is charged is what is executed."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coterie.core.asks import AskErrors, Evaluate, Gradient, Losses, Reply, Share, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import Local
from coterie.core.serving import COMBINED, Mixture, Neighbours, Serving
from coterie.core.vectors import Sketch
from coterie.deploy.messages import KINDS, PROTOCOL, AskBatch, Denial, from_message, to_message
from coterie.deploy.site.ask_fields import FIELDS, NAME_LENGTH, find_fault
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import DpSgd, Policy
from coterie.deploy.site.privacy import PrivateTrainer
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.methods.apfl import APFLRule
from coterie.methods.combiners import AccuracyGate, Online, OwnExpert
from coterie.methods.ditto import OWN_MODEL, DittoRule
from coterie.methods.fedala import ALARule
from coterie.methods.moon import PREVIOUS_MODEL, MOONRule
from coterie.methods.pfedgraph import NEIGHBOURS, GraphRule
from coterie.methods.private import PartRule
from coterie.testing.worlds import make_world

W = make_world()
N, D, C = 3, W.model.layout.size, 3
CLIENTS = np.arange(N)
MODEL = W.model.initial(0)(0)
TRAIN = Train(CLIENTS, MODEL, Local(batch_size=4))
OWN_MODELS = {OWN_MODEL: np.zeros((N, D), np.float32)}
DP = DpSgd(mechanism="dp-sgd", noise_multiplier=2.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=50.0)
NAN = np.float32("nan")


def serving(**given: Any) -> Serving:
    return replace(Serving.one(CLIENTS, MODEL), **given)


def pair(*names: str) -> dict[str, Any]:
    return {name: np.zeros((N, D), np.float32) for name in names}


def rule(kind: Any, extra: str, **settings: Any) -> Train:
    return replace(TRAIN, local=Local(rule=kind(**settings)), extra={extra: OWN_MODELS[OWN_MODEL]})


def wrong_asks() -> Iterator[tuple[str, Any]]:
    for epochs in ([-1000, 1, 1], [0, 1, 1], [1, 1], [1, 1, 1, 1], [1, 1, 2000]):
        yield "epochs", replace(TRAIN, epochs=np.array(epochs))
    yield "epochs", replace(TRAIN, epochs=np.array([0.9, 1.0, 1.0]))
    yield "epochs", replace(TRAIN, epochs=np.array([True, True, True]))
    yield "epochs", replace(TRAIN, epochs=np.array([1, 1, 1], np.int32))
    yield "epochs", replace(TRAIN, epochs=np.ones((3, 1), np.int64))
    yield "epochs", replace(TRAIN, epochs=cast(Any, {0: 300, 1: 1, 2: 1}))
    yield "epochs", replace(TRAIN, epochs=cast(Any, (1, 1, 1)))
    yield "epochs", replace(TRAIN, local=Local(epochs=1001))
    yield "steps", replace(TRAIN, local=Local(epochs=1000, batch_size=1), epochs=np.array([1, 1, 1000]))
    yield "anchors", replace(TRAIN, anchors=np.zeros((2, D), np.float32))
    yield "anchors", replace(TRAIN, anchors=np.full((N, D), NAN))
    yield "linear", replace(TRAIN, linear=np.zeros((N, D - 1), np.float32))
    yield "linear", replace(TRAIN, linear=cast(Any, np.zeros((N, D))))
    yield "mus", replace(TRAIN, mus=np.array([-1.0, 0.0, 0.0]))
    yield "mus", replace(TRAIN, mus=np.array([np.inf, 0.0, 0.0]))
    yield "mus", replace(TRAIN, mus=np.array([0.0]))
    yield "purpose", replace(TRAIN, purpose="x" * (NAME_LENGTH + 1))
    yield "purpose", replace(TRAIN, purpose="x" * 1_000_000)
    yield "purpose", replace(TRAIN, purpose=cast(Any, 3))
    yield "purpose", replace(TRAIN, purpose="a\nb")
    yield "partial", replace(TRAIN, partial=cast(Any, 1))
    yield "kept", replace(TRAIN, kept=cast(Any, ("x" * 100,)))
    yield "extra", replace(TRAIN, extra=cast(Any, np.zeros(3)))
    yield "does not need", replace(TRAIN, extra={"more": np.zeros((N, D), np.float32)})
    yield "own_epochs", rule(DittoRule, OWN_MODEL, lam=1.0, own_epochs=-3)
    yield "lam", rule(DittoRule, OWN_MODEL, lam=float("nan"), own_epochs=None)
    yield "temperature", rule(MOONRule, PREVIOUS_MODEL, mu=1.0, temperature=0.0)
    yield "rate", replace(TRAIN, local=Local(rule=ALARule(rate=0.0, adapts=(True,))), extra=pair(*ALARule.needs))
    yield "weight", rule(GraphRule, NEIGHBOURS, weight=float("inf"))
    yield "trains", replace(TRAIN, local=Local(rule=PartRule(trains=cast(Any, (1, 0)), is_shared=True)))
    yield "count", Evaluate(serving(neighbours=Neighbours(0, 1.0, np.ones(N))))
    yield "weights", Evaluate(serving(neighbours=Neighbours(3, 1.0, np.full(N, 2.0))))
    yield "its neighbours have 1", Evaluate(serving(neighbours=Neighbours(3, 1.0, np.ones(1))))
    yield "models", replace(TRAIN, models=np.full((1, D), NAN))
    yield "models", Losses(CLIENTS, np.full((2, D), np.inf, np.float32))
    yield "models", AskErrors(CLIENTS, MODEL[:-1])
    yield "alone", replace(TRAIN, alone=cast(Any, "yes"))
    yield "held", replace(TRAIN, held=-1)
    yield "part", Losses(CLIENTS, MODEL, part=cast(Any, "everything"))
    yield "loss_limit", Losses(CLIENTS, MODEL, loss_limit=float("nan"))
    yield "fold", Gradient(CLIENTS, MODEL, share=Share(fold=cast(Any, True)))
    yield "fold", Gradient(CLIENTS, MODEL, share=Share(fold=-1))
    yield "about fold 2: there are 2", Gradient(CLIENTS, MODEL, share=Share(fold=2))
    yield "about fold 3: there are 3", Evaluate(serving(), "train", Share(fold=3, folds=3))
    yield "folds", Gradient(CLIENTS, MODEL, share=Share(fold=0, folds=11))
    yield "folds", Gradient(CLIENTS, MODEL, share=Share(fold=0, folds=1))
    yield "rest", Gradient(CLIENTS, MODEL, share=Share(fold=0, rest=cast(Any, 1)))
    yield "leaves out fold 2: there are 2", Gradient(CLIENTS, MODEL, share=Share(left_out=2))
    yield "leaves out fold 3: there are 3", Evaluate(serving(), "train", Share(left_out=3, left_out_folds=3))
    yield "left_out", Gradient(CLIENTS, MODEL, share=Share(left_out=-1))
    yield "left_out", Gradient(CLIENTS, MODEL, share=Share(left_out=cast(Any, True)))
    yield "left_out_folds", Gradient(CLIENTS, MODEL, share=Share(left_out=0, left_out_folds=11))
    yield "left_out_folds", Gradient(CLIENTS, MODEL, share=Share(left_out=0, left_out_folds=1))
    yield "label", Gradient(CLIENTS, MODEL, share=Share(label=cast(Any, 1.5)))
    yield "share", Gradient(CLIENTS, MODEL, share=cast(Any, "half"))
    yield "size", Gradient(CLIENTS, MODEL, sketch=Sketch(cast(Any, 2.5), 7))
    yield "size", Describe(CLIENTS, MODEL, size=0)
    yield "size", Describe(CLIENTS, MODEL, size=1 << 17)
    yield "key", Describe(CLIENTS, MODEL, size=2, key=-1)
    yield "part", Describe(CLIENTS, MODEL, size=2, part=cast(Any, "central"))
    yield "by 2 classes", Describe(CLIENTS, MODEL, size=2, classes=2)
    yield "size", AskSubspaces(CLIENTS, size=4)
    yield "directions", AskSubspaces(CLIENTS, size=5, directions=11)
    yield "directions", AskSubspaces(CLIENTS, size=5, directions=0)
    yield "models", AskSubspaces(CLIENTS, MODEL, size=5)
    yield "by 2 classes", AskSubspaces(CLIENTS, size=5, classes=2)
    yield "key", Gradient(CLIENTS, MODEL, sketch=Sketch(2, cast(Any, True)))
    yield "noise", Gradient(CLIENTS, MODEL, sketch=Sketch(2, 7, clip=1.0, noise=float("inf")))
    yield "rows", Evaluate(serving(rows=np.zeros(2, np.int64)))
    yield "rows", Evaluate(serving(rows=np.full(N, -2)))
    yield "names model", Evaluate(serving(rows=np.full(N, 1)))
    yield "no combiner", Evaluate(serving(rows=np.full(N, COMBINED)))
    yield "combiner", Evaluate(serving(combiner=cast(Any, Local())))
    yield "weights", Evaluate(serving(combiner=Mixture(np.full((N, 2), 0.5))))
    yield "weights", Evaluate(serving(combiner=Online(weights=np.full((1, C), np.nan))))
    yield "weights", Evaluate(serving(combiner=AccuracyGate(np.zeros((1, C + 1)))))
    yield "experts", Evaluate(serving(combiner=OwnExpert(np.array([0, 0, 1]))))
    yield "place", Evaluate(serving(combiner=OwnExpert(np.array([0])), places=np.array([0, 0, 7])))
    yield "serving", Evaluate(cast(Any, replace(TRAIN)))
    yield "answers", Evaluate(serving(), answers=True)


WRONG = list(wrong_asks())


@pytest.mark.parametrize(("name", "ask"), WRONG, ids=[f"{i}-{name}" for i, (name, _) in enumerate(WRONG)])
def test_a_field_that_cannot_be_right_is_named_and_costs_nothing(name: str, ask: Any, tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    site = SiteWorker(W, LoopEngine(W), Policy(minimum_samples=1, maximum_steps=10_000), audit, Ledger(tmp_path / "privacy.json", audit))
    (denied,) = site.answer([StampedAsk(ask, 0, 1)])
    assert isinstance(denied, Denial)
    assert name in denied.reason
    assert len(denied.reason) < 300
    assert denied.cause == "policy"  # not a failure on the way
    assert site.ledger.charges() == {}
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["denied"] == denied.reason  # what is refused is in the log, in few characters
    assert len(lines[-1]) < 1500


@pytest.mark.parametrize(
    "stamp", [{"seed": True}, {"seed": -1}, {"seed": 2**64}, {"seed": 1.0}, {"round_": -1}, {"round_": "1"}, {"lane": None}]
)
def test_stamps_are_checked_too(stamp: dict[str, Any]) -> None:
    stamped = replace(StampedAsk(TRAIN, 0, 1), **stamp)
    assert next(iter(stamp)) in (find_fault(stamped, W, Policy()) or "")
    assert find_fault(StampedAsk(cast(Any, Local()), 0, 1), W, Policy()) == "A Local is no ask."


def test_honest_asks_have_no_fault() -> None:
    mixed = serving(rows=np.array([0, COMBINED, COMBINED]), combiner=Mixture(np.ones((N, 1))))
    honest: list[Any] = [
        replace(TRAIN, epochs=np.array([1, 2, 3]), mus=np.zeros(N), anchors=np.zeros((N, D), np.float32)),
        replace(TRAIN, linear=np.ones((N, D), np.float32), purpose="probe", partial=True),
        rule(DittoRule, OWN_MODEL, lam=1.0, own_epochs=2),
        rule(MOONRule, PREVIOUS_MODEL, mu=1.0, temperature=0.5),
        rule(GraphRule, NEIGHBOURS, weight=-0.5),
        replace(TRAIN, local=Local(rule=ALARule(rate=1.0, adapts=(False, True))), extra=pair(*ALARule.needs)),
        replace(TRAIN, local=Local(rule=APFLRule()), extra=pair(*APFLRule.needs)),
        replace(TRAIN, local=Local(rule=PartRule(trains=(True, False), is_shared=False))),
        Evaluate(serving(neighbours=Neighbours(3, 1.0, np.linspace(0, 1, N)))),
        Gradient(CLIENTS, MODEL, share=Share(fold=4, label=2, folds=10, rest=True), sketch=Sketch(5, 2**64 - 1, clip=0.5, noise=0.25)),
        Losses(CLIENTS, np.stack([MODEL] * 4), part="validation"),
        AskErrors(np.zeros(0, np.int64), MODEL),
        Describe(CLIENTS, MODEL, size=5, classes=C, part="validation"),
        Describe(CLIENTS, MODEL, size=2, key=2**64 - 1),
        AskSubspaces(CLIENTS, size=5, classes=C, directions=10),
        Evaluate(mixed),
        Evaluate(serving(combiner=Online(weights=np.ones((1, C))))),
    ]
    for ask in honest:
        batch = AskBatch(PROTOCOL, "run", "1", tuple(W.federation.ids[:N]), (StampedAsk(ask, 3, 4),))
        (back,) = from_message(to_message(batch), AskBatch).asks
        assert find_fault(back, W, Policy()) is None


def test_the_table_has_every_field_of_every_kind_that_an_ask_may_hold() -> None:
    for kind, table in FIELDS.items():
        assert set(table) == {f.name for f in fields(kind)}
    asked = {kind.__name__ for kind in FIELDS}
    answered = {
        "AskBatch",
        "ReplyBatch",
        "Hello",
        "SiteCard",
        "Delivery",
        "Receipt",
        "TableAsk",
        "TableReply",
        "Denial",
        "Trained",
        "Gradients",
        "LossTable",
        "Errors",
        "Described",
        "Subspaces",
    }
    assert set(KINDS) - asked - answered == {"Evaluated", "dict"}


def test_what_is_charged_is_what_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client cannot afford its training and drops out; the others' plans stay theirs."""
    taken: list[int] = []
    plain = PrivateTrainer._train

    def counted(self: PrivateTrainer, ask: Train, row: int, plan: Any) -> Any:
        taken.append(plan.steps)
        return plain(self, ask, row, plan)

    monkeypatch.setattr(PrivateTrainer, "_train", counted)
    audit = Audit(tmp_path / "audit.jsonl")
    policy = Policy(minimum_samples=1, privacy=DP.model_copy(update={"epsilon_limit": 8.0}))
    site = SiteWorker(W, LoopEngine(W), policy, audit, Ledger(tmp_path / "privacy.json", audit))
    (reply,) = site.answer([StampedAsk(replace(TRAIN, epochs=np.array([500, 1, 2])), 0, 1)])
    assert cast(Any, reply).clients.tolist() == [1, 2]
    charged = [sum(c.steps for c in site.ledger.charges()[f"client-{i}"]) for i in (1, 2)]
    assert cast(Any, reply).steps.tolist() == charged == taken
    assert "client-0" not in site.ledger.charges()


def test_a_refused_ask_costs_the_others_of_a_parcel_nothing(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    site = SiteWorker(W, LoopEngine(W), Policy(minimum_samples=1), audit, Ledger(tmp_path / "privacy.json", audit))
    replies = site.answer([StampedAsk(ask, 0, 1) for ask in (TRAIN, replace(TRAIN, epochs=np.array([-1, -1, -1])), TRAIN)])
    assert [isinstance(reply, Reply) for reply in replies] == [True, False, True]
