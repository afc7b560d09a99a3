"""Counts against scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, log_loss, roc_auc_score

from coterie.core.asks import Evaluate, Evaluated
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.engines.engine import StampedAsk
from coterie.engines.evaluation.dense import TorchEvaluator
from coterie.engines.evaluation.evaluate import argmax_classes, compute_auroc
from coterie.engines.evaluation.evaluate import evaluate as evaluated
from coterie.engines.routes import get_layer_sizes
from coterie.engines.workspace import Workspace
from coterie.engines.world import World
from coterie.testing import worlds
from coterie.testing.play import get_loop_engine

MODELS = np.random.default_rng(0).normal(size=(3, 18)).astype(np.float32)


def evaluate(serving: Serving, part: Any = "test", world: World | None = None) -> Evaluated:
    reply: Evaluated = get_loop_engine(world).run([StampedAsk(Evaluate(serving, part), 0, 0)])[0]
    return reply


def probabilities(w: Any, x: Any, classes: int = 3) -> Any:
    logits = x.astype(np.float64) @ w[:-classes].reshape(classes, 5).T + w[-classes:]
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def expect(reply: Evaluated, i: int, p: Any, y: Any) -> None:
    classes = p.shape[1]
    matrix = confusion_matrix(y, p.argmax(1), labels=range(classes))
    assert reply.hits[i].tolist() == np.diag(matrix).tolist()
    assert reply.predicted[i].tolist() == matrix.sum(0).tolist()
    assert reply.actual[i].tolist() == matrix.sum(1).tolist()
    assert reply.loss[i] == pytest.approx(log_loss(y, p, labels=range(classes)), rel=1e-5)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_each_client_with_its_own_model(part: str) -> None:
    federation = worlds.make_world().federation
    clients, rows = np.array([0, 1, 3, 4]), np.array([2, 0, 2, 1])
    reply = evaluate(Serving(clients, MODELS, rows), part)
    assert reply.clients.tolist() == clients.tolist()
    for i, client in enumerate(clients):
        samples = federation.part(part)[client]
        expect(reply, i, probabilities(MODELS[rows[i]], federation.x[samples]), federation.y[samples])
    assert reply.sizes.tolist() == federation.part(part).sizes[clients].tolist()


def test_mixture() -> None:
    federation = worlds.make_world().federation
    weights = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    clients = np.array([4, 0, 5])  # the middle one is served one model, beside the mixtures
    reply = evaluate(Serving(clients, MODELS, np.array([COMBINED, 1, COMBINED]), Mixture(weights)))
    for i, client in enumerate(clients):
        samples = federation.test[client]
        each = np.stack([probabilities(w, federation.x[samples]) for w in MODELS])
        expect(reply, i, each[1] if i == 1 else np.tensordot(weights[i], each, 1), federation.y[samples])


def test_a_mixture_for_some_of_its_clients_answers_as_it_did_for_all() -> None:
    weights = np.random.default_rng(3).dirichlet(np.ones(3), 6)
    whole = Serving(np.arange(6), MODELS, np.full(6, COMBINED), Mixture(weights))
    everybody = evaluate(whole)
    for rows in (np.array([5, 2]), np.array([False, True, False, True, True, False])):
        some = evaluate(whole.take(rows))
        assert some.clients.tolist() == everybody.clients[rows].tolist()
        assert some.hits.tolist() == everybody.hits[rows].tolist()
        np.testing.assert_allclose(some.loss, everybody.loss[rows], rtol=1e-12)
    assert len(set(np.round(everybody.loss, 6))) == 6  # each client has weights, and so a loss, of its own


def test_central_set_judges_every_row() -> None:
    federation = worlds.make_world().federation
    assert federation.central is not None
    x, y = federation.central
    serving = Serving(np.arange(3), MODELS, np.array([0, 2, COMBINED]), Mixture(np.full((3, 3), 1 / 3)))
    reply = evaluate(serving, "central")
    each = [probabilities(w, x) for w in MODELS]
    for i, p in enumerate([each[0], each[2], np.mean(each, axis=0)]):
        expect(reply, i, p, y)


def test_no_central_set() -> None:
    federation = worlds.make_federation().replace(central=None)
    with pytest.raises(ValueError, match="no central test set"):
        evaluated(Evaluate(Serving.one(np.arange(1), MODELS[0]), "central"), federation, lambda *_: (np.zeros((0, 3)), np.zeros(0)), None)


def test_nobody_and_a_client_without_samples() -> None:
    assert len(evaluate(Serving.one(np.zeros(0, np.int64), MODELS[0]))) == 0
    federation = worlds.make_federation()
    test = [part if i != 1 else part[:0] for i, part in enumerate(federation.test)]
    bare = World.from_spec(federation.replace(test=type(federation.test).from_lists(test)), "mclr")
    reply = evaluate(Serving.one(np.arange(3), MODELS[0]), world=bare)
    assert np.isnan(reply.loss).tolist() == [False, True, False]
    assert reply.sizes.tolist() == [4, 0, 4]
    assert evaluate(Serving.one(np.array([1]), MODELS[0]), world=bare).sizes.tolist() == [0]


def test_auroc_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    owners = np.repeat(np.arange(6), [30, 5, 1, 40, 0, 20])
    scores = np.round(rng.normal(size=len(owners)), 1)  # rounded: many ties
    y = rng.integers(2, size=len(owners))
    y[owners == 1] = 1  # one class only
    found = compute_auroc(owners, scores, y, 6)
    assert np.isnan(found).tolist() == [False, True, True, False, True, False]
    for i in (0, 3, 5):
        assert found[i] == pytest.approx(roc_auc_score(y[owners == i], scores[owners == i]))


def test_auroc_does_not_need_sorted_owners() -> None:
    rng = np.random.default_rng(2)
    owners, scores, y = rng.integers(4, size=200), rng.normal(size=200), rng.integers(2, size=200)
    for i, area in enumerate(compute_auroc(owners, scores, y, 4)):
        assert area == pytest.approx(roc_auc_score(y[owners == i], scores[owners == i]))


def test_two_classes_get_an_auroc_and_three_do_not() -> None:
    federation = worlds.make_federation(classes=2)
    world = World.from_spec(federation, "mclr")
    model = np.random.default_rng(0).normal(size=(1, 12)).astype(np.float32)
    reply = evaluate(Serving.one(np.arange(6), model), "train", world)
    for i, samples in enumerate(federation.train):
        y = federation.y[samples]
        if len(set(y)) == 2:
            assert reply.auroc[i] == pytest.approx(roc_auc_score(y, probabilities(model[0], federation.x[samples], 2)[:, 1]))
        else:
            assert np.isnan(reply.auroc[i])
    assert not np.isnan(reply.auroc).all()
    assert np.isnan(evaluate(Serving.one(np.arange(6), MODELS[0])).auroc).all()


def test_the_largest_class_by_class_is_numpys() -> None:
    """Ties, minus infinity and what is no number included, in both layouts."""
    draw = np.random.default_rng(0)
    for classes in (1, 2, 3, 10):
        table = draw.integers(0, 3, (classes, 2000)).astype(np.float64)
        table[draw.random(table.shape) < 0.02] = np.nan
        table[draw.random(table.shape) < 0.02] = -np.inf
        assert argmax_classes(table.T).tolist() == table.T.argmax(1).tolist()
        assert argmax_classes(np.ascontiguousarray(table.T)).tolist() == table.T.argmax(1).tolist()


@pytest.mark.parametrize("model", ["mclr", "mlp(4)"])
def test_likeliest_classes_give_the_counts_that_probabilities_give(model: str) -> None:
    """What a GPU hands out instead of probabilities, here on the host: of a module, and of a dense network without one."""
    world = worlds.make_world(model)
    serving = Serving(
        np.arange(len(world.federation)), np.stack([world.model.initial(seed)() for seed in (0, 1)]), np.arange(len(world.federation)) % 2
    )
    ask, parts = Evaluate(serving, "test"), world.federation.test
    space, dense = (
        Workspace(world, torch.device("cpu"), torch.float32),
        TorchEvaluator(world.federation, get_layer_sizes(world), torch.device("cpu")),
    )
    expected = evaluated(ask, world.federation, space.predict, parts)
    for judge in (space.classify, lambda model, rows: dense.classify([model], rows)[0]):
        found = evaluated(ask, world.federation, _never, parts, judge)
        for name in ("hits", "predicted", "actual"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)


def _never(model: Any, rows: Any) -> Any:
    raise AssertionError("probabilities are not needed")
