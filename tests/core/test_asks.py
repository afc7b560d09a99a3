from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Ask, Evaluate, Evaluated, Gradient, Gradients, Losses, LossTable, Train, Trained
from coterie.core.local import Local, LocalRule, Step
from coterie.core.serving import COMBINED, Mixture, Serving

CLIENTS = np.array([2, 5, 7])
MODELS = np.arange(8, dtype=np.float32).reshape(2, 4)


@dataclass(frozen=True, kw_only=True)
class Pulled(LocalRule):
    needs = ("centre",)

    def objective(self, step: Step) -> Any:
        raise NotImplementedError


def test_an_ask_must_bring_what_its_rule_needs() -> None:
    with pytest.raises(ValueError, match="the rule Pulled needs centre"):
        Train(CLIENTS, MODELS, Local(rule=Pulled()))
    brought = Train(CLIENTS, MODELS, Local(rule=Pulled()), extra={"centre": np.zeros((3, 4), np.float32)})
    assert brought.take(np.array([0])).extra["centre"].shape == (1, 4)


def script() -> Generator[Ask[Any], Any, int]:
    """The type checker reads this: each ask gives its own kind of reply."""
    trained = yield from Train(CLIENTS, MODELS, Local())
    assert_type(trained, Trained)
    probes = yield from Gradient(CLIENTS, MODELS)
    assert_type(probes, Gradients)
    table = yield from Losses(CLIENTS, MODELS)
    assert_type(table, LossTable)
    judged = yield from Evaluate(Serving.one(CLIENTS, MODELS[0]))
    assert_type(judged, Evaluated)
    return len(trained)


def test_yield_from_asks_and_waits() -> None:
    running = script()
    assert isinstance(next(running), Train)
    assert isinstance(running.send("whatever comes back is handed on"), Gradient)


def test_shapes_are_filled_in() -> None:
    ask = Gradient(CLIENTS, MODELS[0])
    assert ask.models.shape == (1, 4)
    assert ask.start.tolist() == [0, 0, 0]
    assert Train([1], [[0.5]], Local()).models.dtype == np.float32  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [[0, 1], [0, 1, 2], [0, 0, -1]])
def test_a_start_row_for_each_client(start: list[int]) -> None:
    with pytest.raises(ValueError, match="one start row"):
        Gradient(CLIENTS, MODELS, start=np.array(start))


def test_take_cuts_every_array_of_clients_alike() -> None:
    square = np.arange(12, dtype=np.float32).reshape(3, 4)
    ask = Train(
        CLIENTS, MODELS, Local(), start=np.array([0, 1, 0]), anchors=square, linear=-square, mus=np.ones(3), epochs=np.array([1, 2, 3])
    )
    some = ask.take(np.array([True, False, True]))
    assert some.clients.tolist() == [2, 7]
    assert some.start.tolist() == [0, 0]
    assert some.models is ask.models or some.models.tolist() == MODELS.tolist()
    assert some.anchors is not None
    assert some.anchors.tolist() == square[[0, 2]].tolist()
    assert some.linear is not None
    assert some.linear[1, 0] == -8
    assert some.epochs is not None
    assert some.epochs.tolist() == [1, 3]


def test_take_never_cuts_the_models() -> None:
    three = np.zeros((3, 4), np.float32)  # as many models as clients
    assert len(Losses(CLIENTS, three).take(np.array([0])).models) == 3


def test_reply_of_some_clients() -> None:
    reply = Trained(CLIENTS, np.zeros((3, 4), np.float32), np.array([1, 2, 3]), np.ones(3, np.int64))
    assert reply.of(np.array([7, 2, 99])).sizes.tolist() == [1, 3]
    assert len(reply) == 3


def test_evaluate_of_some_clients() -> None:
    ask = Evaluate(Serving(CLIENTS, MODELS, np.array([1, 0, 1]))).take(np.array([2]))
    assert ask.clients.tolist() == [7]
    assert ask.serving.rows.tolist() == [1]


def test_a_combined_serving_of_some_clients_keeps_the_rows_that_its_combiner_knows() -> None:
    weights = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    whole = Serving(CLIENTS, MODELS, np.full(3, COMBINED), Mixture(weights))
    some = Evaluate(whole).take(np.array([False, True, True])).serving
    last = some.take(np.array([1]))  # cut again
    assert whole.places.tolist() == [0, 1, 2]
    assert (some.clients.tolist(), some.places.tolist()) == ([5, 7], [1, 2])
    assert (last.clients.tolist(), last.places.tolist()) == ([7], [2])
    assert whole.take(np.zeros(0, np.int64)).places.tolist() == []
    assert last.combiner is not None
    chances = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])  # two models, one sample, two classes
    assert last.combiner.combine(chances, int(last.places[0])).tolist() == [[0.0, 1.0]]  # the second model alone


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1.0),
        ("optimizer", "lion"),
        ("mu", -1.0),
        ("max_steps", 0),
    ],
)
def test_local_refuses_what_cannot_be_used(setting: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"cannot use {setting}={value!r}: (give|choose)"):
        Local(**{setting: value})


def test_local_but() -> None:
    assert Local(epochs=3).replace(mu=1.0) == Local(epochs=3, mu=1.0)
    with pytest.raises(UserError):
        Local().replace(mu=-1.0)
