"""Numbers and labels on every engine: sums against scikit-learn, and stacked trainings against the loop on ragged clients."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, hamming_loss, mean_absolute_error, mean_squared_error, r2_score

from coterie.analysis.metrics import f1
from coterie.core.asks import Ask, AskErrors, Evaluate, Gradient, Losses, Share, Train
from coterie.core.local import Local
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.tasks import TaskName, compute_credits
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loss import absolute_error
from coterie.engines.world import World
from coterie.methods.moon import MOONRule
from coterie.testing import worlds
from coterie.testing.play import get_loop_engine

TASKS: tuple[TaskName, ...] = ("regression", "multilabel", "survival")
CLIENTS = np.arange(6)


def models_of(world: World, count: int = 2) -> Any:
    return np.stack([world.model.initial(seed)() for seed in range(count)])


def linear_answers(world: World, model: Any, x: Any) -> Any:
    """What softmax regression without its softmax says: x W' + b."""
    outputs = len(world.federation.classes)
    return x.astype(np.float64) @ model[:-outputs].reshape(outputs, 5).T + model[-outputs:]


def ask(world: World, question: Any, engine: Any = None) -> Any:
    return (engine or get_loop_engine(world)).run([StampedAsk(question, 0, 1)])[0]


def test_errors_of_numbers_are_in_the_targets_own_units() -> None:
    world = worlds.make_task_world("regression")
    federation, models = world.federation, models_of(world)
    rows = CLIENTS % 2
    reply = ask(world, Evaluate(Serving(CLIENTS, models, rows), answers=True))
    every_true: list[float] = []
    every_said: list[float] = []
    for client in CLIENTS.tolist():
        samples = federation.test[client]
        true = 10 + 2 * federation.y[samples].astype(np.float64)
        said = 10 + 2 * linear_answers(world, models[rows[client]], federation.x[samples])[:, 0]
        n, squared, absolute, mean, squares, away = reply.sums[client]
        assert n == len(samples)
        assert squared == pytest.approx(n * mean_squared_error(true, said), rel=1e-5)
        assert absolute == pytest.approx(n * mean_absolute_error(true, said), rel=1e-5)
        assert (mean, squares, away) == pytest.approx((true.mean(), ((true - true.mean()) ** 2).sum(), np.abs(true - 10).sum()), rel=1e-6)
        np.testing.assert_allclose(reply.answers[client].view(np.float32), said - true, rtol=1e-4, atol=1e-5)
        every_true, every_said = [*every_true, *true], [*every_said, *said]
    assert compute_credits(reply, federation.task).sum() / len(every_true) == pytest.approx(r2_score(every_true, every_said), rel=1e-6)
    assert (reply.hits.shape, reply.actual.shape) == ((6, 0), (6, 0))
    assert reply.loss[0] == pytest.approx(reply.sums[0, 1] / 4 / reply.sizes[0])  # squared error in units of training


def test_counts_of_labels() -> None:
    world = worlds.make_task_world("multilabel")
    federation, model = world.federation, models_of(world)[0]
    reply = ask(world, Evaluate(Serving.one(CLIENTS, model), "train", answers=True))
    for client in CLIENTS.tolist():
        samples = federation.train[client]
        true, said = federation.y[samples], (linear_answers(world, model, federation.x[samples]) >= 0).astype(int)
        assert reply.hits[client].tolist() == (true & said).sum(0).tolist()
        assert reply.sums[client].tolist() == [len(samples), (true == said).all(1).sum()]
        right = compute_credits(reply, federation.task)[client] / len(samples)
        assert right == pytest.approx(1 - hamming_loss(true, said))
        assert reply.answers[client].view(np.float32)[: len(samples)].tolist() == (true == said).sum(1).tolist()
        mine = f1(*(getattr(reply, name)[client] for name in ("hits", "predicted", "actual")))
        seen = (true | said).any(0)
        assert mine == pytest.approx(f1_score(true[:, seen], said[:, seen], average="macro", zero_division=0.0))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", ["mclr", "mlp(4)"])
def test_the_stacked_route_agrees_with_the_loop_on_ragged_clients(task: TaskName, model: str) -> None:
    world = worlds.make_task_world(task, model)
    models = models_of(world)
    start = CLIENTS % 2
    combined = Serving(CLIENTS, models, np.full(6, COMBINED), Mixture(np.full((6, 2), 0.5)))
    rule = MOONRule(mu=0.5, temperature=0.5)
    questions: list[Ask[Any]] = [
        Train(CLIENTS, models, Local(epochs=2, batch_size=5, lr=0.1, momentum=0.5), start=start),
        Train(CLIENTS, models, Local(batch_size=4, optimizer="adam", lr=0.01, mu=0.3), start=start),
        Train(CLIENTS, models, Local(batch_size=5, rule=rule), extra={name: np.repeat(models[1:], 6, axis=0) for name in rule.needs}),
        Gradient(CLIENTS, models, start=start),
        Losses(CLIENTS, models, part="validation"),
        AskErrors(CLIENTS, models),
        Evaluate(Serving(CLIENTS, models, start), answers=True),
        Evaluate(combined, "train"),
        Evaluate(Serving(np.array([0, 1]), models, np.array([0, 1])), "central"),
    ]
    with BatchedEngine(world) as engine:
        for question in questions:
            expected, found = ask(world, question), ask(world, question, engine)
            for name in expected.columns():
                np.testing.assert_allclose(
                    getattr(found, name), getattr(expected, name), rtol=2e-5, atol=2e-6, err_msg=f"{question.kind} {name}"
                )
        assert set(engine.routes().values()) == {"stacked: vmap"}  # and not one that knows classes only


def test_a_step_of_the_absolute_error_by_hand() -> None:
    """One full batch: the gradient of the mean of |x w + b - y| is the mean of sign(error) (x, 1)."""
    world = World.from_spec(worlds.make_task_federation("regression"), "mclr", absolute_error)
    model, rows = models_of(world)[0], world.federation.train[0]
    x, y = world.federation.x[rows].astype(np.float64), world.federation.y[rows]
    sign = np.sign(linear_answers(world, model, x)[:, 0] - y)
    step = np.append((sign[:, None] * x).mean(0), sign.mean())
    trained = ask(world, Train(np.array([0]), model[None], Local(batch_size=None, lr=0.1)))
    np.testing.assert_allclose(trained.vectors[0], model - 0.1 * step, rtol=1e-5, atol=1e-6)


def test_a_share_by_class_is_of_tasks_with_classes() -> None:
    world = worlds.make_task_world("regression")
    with pytest.raises(ValueError, match="one class each"):
        ask(world, Gradient(CLIENTS, models_of(world), share=Share(0, 1)))
