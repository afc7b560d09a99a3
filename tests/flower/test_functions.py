"""Asks as calls of a user's own functions, and which asks they cannot express. Needs no Flower."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.core.asks import Evaluate, Gradient, Losses, Share, Train
from coterie.core.local import Local
from coterie.core.model import make_layout, read_vector
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.vectors import Sketch
from coterie.flower.functions import (
    Abilities,
    Config,
    describe_difference,
    evaluate_by_function,
    join_arrays,
    layout_from_json,
    layout_to_json,
    split_vector,
    train_by_function,
)
from coterie.methods.moon import MOONRule

NET = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
LAYOUT, ONE = make_layout(NET), np.zeros(1, dtype=np.int64)
MODEL = read_vector(NET)
LOCAL = Local(lr=0.1, epochs=2, batch_size=8)
SKETCH = Sketch(size=4, key=7)
BOTH = Abilities(("Train", "Evaluate"))


def test_a_vector_is_the_state_dict_and_back() -> None:
    arrays = split_vector(MODEL, LAYOUT)
    state = {name: value.numpy() for name, value in NET.state_dict().items()}
    assert {name: (value.dtype, value.shape) for name, value in arrays.items()} == {n: (v.dtype, v.shape) for n, v in state.items()}
    assert all(np.array_equal(arrays[name], state[name]) for name in state)
    assert np.array_equal(join_arrays({**arrays, "frozen": np.ones(2)}, LAYOUT), MODEL)


def test_a_layout_survives_as_text() -> None:
    assert layout_from_json(layout_to_json(LAYOUT)) == LAYOUT
    assert describe_difference(LAYOUT, LAYOUT) == ""
    other = make_layout(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    assert describe_difference(LAYOUT, other) == "the parameter '0.weight' is of shape (4, 3) at the node and of shape (5, 3) at the server"
    assert "'1.weight' is of shape (4,) at the node and not there at the server" in describe_difference(
        LAYOUT, make_layout(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    )


def test_train_gets_model_and_settings_and_returns_a_row() -> None:
    seen: list[Config] = []

    def call(arrays: Mapping[str, Array], config: Config) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        seen.append(config)
        return {name: value + 1 for name, value in arrays.items()}, {"num-examples": 17, "train_loss": 0.3}

    ask = Train(ONE, np.stack([0 * MODEL, MODEL]), replace(LOCAL, mu=0.5), start=np.ones(1, dtype=np.int64))
    reply = train_by_function(ask, {"server-round": 3, "seed": 1}, LAYOUT, call)
    assert np.array_equal(reply.vectors[0], MODEL + 1)  # row 1 of the models was sent
    assert (reply.sizes[0], reply.steps[0]) == (17, 2 * 3)
    assert seen[0] == {
        "server-round": 3,
        "seed": 1,
        "epochs": 2,
        "lr": 0.1,
        "momentum": 0.0,
        "weight-decay": 0.0,
        "optimizer": "sgd",
        "proximal-mu": 0.5,
        "purpose": "train",
        "batch-size": 8,
    }


def test_evaluate_returns_right_answers_among_samples_as_one_class() -> None:
    def call(arrays: Mapping[str, Array], config: Config) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        assert config["part"] == "test"
        return {}, {"num-examples": 8, "eval_acc": 0.75, "eval_loss": 1.5}

    found = evaluate_by_function(Evaluate(Serving.one(ONE, MODEL)), {}, LAYOUT, 3, call)
    assert found.hits.tolist() == [[6, 0, 0]]
    assert found.actual.tolist() == found.predicted.tolist() == [[8, 0, 0]]
    assert found.loss.tolist() == [1.5]


WRONG_ARRAYS: list[tuple[dict[str, Any], str]] = [
    ({}, r"no array '0.weight' \(but nothing\): return the state dict"),
    ({"weight": np.zeros(3)}, r"no array '0.weight' \(but weight\)"),
    ({"0.weight": np.zeros((3, 4))}, r"'0.weight' as float64 of shape \(3, 4\), where the model has shape \(4, 3\)"),
    ({"0.weight": np.array([["a"] * 3] * 4)}, r"'0.weight' as <U1 of shape"),
]


@pytest.mark.parametrize(("arrays", "sentence"), WRONG_ARRAYS)
def test_arrays_that_are_no_model_are_refused_in_a_sentence(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        join_arrays(arrays, LAYOUT)


WRONG_METRICS: list[tuple[dict[str, Any], str]] = [
    ({"eval_acc": 0.5, "loss": 1.0}, "evaluate returned num-examples=None: return its number of samples"),
    ({"num-examples": 0, "accuracy": 0.5, "loss": 1.0}, "num-examples=0"),
    ({"num-examples": 4, "loss": 1.0}, r"no accuracy \(but num-examples, loss\): return it as one of accuracy,"),
    ({"num-examples": 4, "accuracy": 75.0, "loss": 1.0}, "an accuracy of 75: return a share from 0 to 1"),
    ({"num-examples": 4, "accuracy": float("nan"), "loss": 1.0}, "an accuracy of nan"),
    ({"num-examples": 4, "accuracy": 0.5}, "no loss"),
]


@pytest.mark.parametrize(("metrics", "sentence"), WRONG_METRICS)
def test_metrics_that_are_no_evaluation_are_refused_in_a_sentence(metrics: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        evaluate_by_function(Evaluate(Serving.one(ONE, MODEL)), {}, LAYOUT, 1, lambda arrays, config: ({}, metrics))


TRAIN, EVALUATE = Train(ONE, MODEL, LOCAL), Evaluate(Serving.one(ONE, MODEL))
COMBINED_SERVING = Serving(ONE, np.stack([MODEL, MODEL]), np.array([COMBINED]), Mixture(np.full((1, 2), 0.5)))
LIMITS = [
    (replace(TRAIN, linear=MODEL[None]), "linear term"),
    (replace(TRAIN, anchors=MODEL[None]), "around another model"),
    (replace(TRAIN, share=Share(0)), "share of the samples"),
    (replace(TRAIN, local=replace(LOCAL, mu=0.1)), "proximal=True"),
    (replace(TRAIN, mus=np.array([0.1])), "proximal=True"),
    (Train(ONE, MODEL, replace(LOCAL, rule=MOONRule(mu=1.0, temperature=0.5)), extra={"previous": MODEL[None]}), "local rule"),
    (replace(EVALUATE, part="validation"), "validation parts"),
    (replace(EVALUATE, share=Share(0)), "share of the samples"),
    (Evaluate(COMBINED_SERVING), "several models together"),
    (Gradient(ONE, MODEL), "Gradient"),
    (Losses(ONE, MODEL), "Losses"),
]


@pytest.mark.parametrize(("ask", "words"), LIMITS, ids=[words for _, words in LIMITS])
def test_asks_that_functions_cannot_express_are_named(ask: Any, words: str) -> None:
    assert words in (BOTH.find_obstacle(ask) or "")
    assert Abilities(engine=True).find_obstacle(ask) is None
    functions_first = Abilities(("Train", "Evaluate"), engine=True)  # the engine answers other kinds, and takes no ask from a function
    assert (functions_first.find_obstacle(ask) is None) is isinstance(ask, (Gradient, Losses))


def test_noise_that_the_server_could_subtract_is_refused() -> None:
    noised = replace(TRAIN, sketch=replace(SKETCH, clip=1.0, noise=1.0))
    for abilities in (BOTH, Abilities(engine=True)):
        assert abilities.find_obstacle(noised) == "Train with simulated noise on sketches"


def test_plain_asks_are_answered_by_functions() -> None:
    assert BOTH.find_obstacle(TRAIN) is None
    assert BOTH.find_obstacle(replace(TRAIN, sketch=SKETCH)) is None
    assert BOTH.find_obstacle(EVALUATE) is None
    assert Abilities(("Train", "Evaluate"), proximal=True).find_obstacle(replace(TRAIN, local=replace(LOCAL, mu=0.1))) is None
