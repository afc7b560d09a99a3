"""kNN-Per: neighbours among a client's own training samples, and the choice of their share."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate
from coterie.core.serving import Neighbours, Serving
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.data.federation import Federation, Parts
from coterie.deploy.messages import restrict_serving
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.evaluation.neighbours import answer_from_neighbours
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.testing import worlds
from coterie.testing.play import PLAN, make_round_context, play, run_generator

EACH = replace(PLAN, evaluate_every=1)


def test_neighbours_by_hand() -> None:
    # One feature, scale 2: squared distances 0, 1 and 9 over 1 * 2. Weights 1, e^-.5, e^-4.5 of classes 0, 1, 1; the farthest has none.
    store, labels = np.array([[0.0], [1.0], [-3.0], [9.0]]), np.array([0, 1, 1, 2])
    kinds = Neighbours(3, 2.0, np.ones(1))
    nothing_same = np.zeros((1, 4), np.bool_)
    found = answer_from_neighbours(np.array([[0.0]]), store, nothing_same, labels, kinds, 3, CLASSIFICATION)
    near = np.array([1.0, np.exp(-0.5), np.exp(-4.5)])
    np.testing.assert_allclose(found, [[near[0] / near.sum(), near[1:].sum() / near.sum(), 0.0]])
    # No sample is its own neighbour: without the first, 1 and -3 and 9 answer.
    itself = np.array([[True, False, False, False]])
    found = answer_from_neighbours(np.array([[0.0]]), store, itself, labels, kinds, 3, CLASSIFICATION)
    near = np.exp(-np.array([1.0, 9.0, 81.0]) / 2)
    np.testing.assert_allclose(found, [[0.0, near[:2].sum() / near.sum(), near[2] / near.sum()]])
    # Numbers are averaged with the same weights; far ones underflow without dividing by zero.
    numbers = answer_from_neighbours(np.array([[1e6]]), store, nothing_same, np.array([5.0, 6, 7, 8]), kinds, 1, Task("regression"))
    np.testing.assert_allclose(numbers, [[8.0]])


def make_line_world(labels: Any, validation: Any = None) -> World:
    """One client whose training samples lie at 0, 1, 2, 3 and test samples at .1 and 2.9; a softmax regression on one number."""
    x = np.array([[0.0], [1.0], [2.0], [3.0], [0.1], [2.9]], np.float32)
    held = None if validation is None else Parts.from_lists([np.array(validation)])
    federation = Federation(
        name="line",
        x=x,
        y=np.array(labels),
        classes=("a", "b", "c"),
        ids=("only",),
        train=Parts.from_lists([np.arange(4)]),
        test=Parts.from_lists([np.array([4, 5])]),
        validation=held,
    )
    return World.from_spec(federation, "mclr")


def test_an_evaluation_by_hand() -> None:
    """A model that always says (.5, .3, .2): mixed with one neighbour's label by a half, it says that label."""
    world = make_line_world([0, 0, 1, 1, 0, 1])
    layout = world.model.layout
    model = np.zeros(layout.size, np.float32)
    bias = next(s for s in layout.slices if s.shape == (3,))
    model[bias.begin : bias.end] = np.log([0.5, 0.3, 0.2])
    serving = Serving(np.array([0]), model[None], np.array([0]), neighbours=Neighbours(1, 1.0, np.array([0.5])))
    for engine in (LoopEngine(world), BatchedEngine(world)):
        with engine:
            judged = engine.run([StampedAsk(Evaluate(serving), 0, 1)])[0]
            assert judged.hits.tolist() == [[1, 1, 0]]
            # of class a: (1 + .5) / 2 = .75; of class b: (1 + .3) / 2 = .65
            assert judged.loss[0] == pytest.approx(-(np.log(0.75) + np.log(0.65)) / 2, abs=1e-6)
            alone = engine.run([StampedAsk(Evaluate(replace(serving, neighbours=None)), 0, 1)])[0]
            assert alone.hits.tolist() == [[1, 0, 0]]
            train = engine.run([StampedAsk(Evaluate(serving, "train"), 0, 1)])[0]
            # leave one out: neighbours of 0, 1, 2, 3 are 1, 0, 1 (of equals the first), 2: labels a, a, a, b against a, a, b, b
            assert train.hits.tolist() == [[2, 1, 0]]


def chosen(world: World, spec: str = "fedavg+knn(neighbours=1)", **changes: Any) -> Any:
    method = build(spec)
    state = play(build("fedavg"), world=world, plan=replace(PLAN, cohort=None), rounds=1).states[-1]
    ctx = make_round_context(world, round_=1)
    serving = run_generator(method.serve(state, world.problem.roster.clients, replace(ctx, **changes)), world, round_=1)
    return serving.neighbours


def test_a_client_chooses_its_share_on_held_out_samples_and_never_on_test_samples() -> None:
    """Alternating labels that no line separates: neighbours are right on validation samples, so a share is chosen."""
    shares = []
    for test in ([0, 1], [2, 2]):
        found = chosen(make_line_world([0, 1, 0, 1, *test, 0, 1][:6], validation=None), validation=False)
        shares.append(0.0 if found is None else float(found.weights[0]))
    assert shares[0] == shares[1]
    # Validation samples are the test positions here: at .1 the nearest training sample is at 0, at 2.9 the one at 3.
    assert chosen(make_line_world([0, 1, 0, 1, 0, 1], validation=[4, 5])).weights[0] > 0
    right = make_line_world([2, 2, 2, 2, 1, 1], validation=[4, 5])  # neighbours are wrong about all of them
    assert chosen(right) is None


def test_no_share_is_the_method_itself() -> None:
    plain = play(build("fedavg"), plan=EACH)
    zero = play(build("fedavg+knn(lam=0)"), plan=EACH)
    assert zero.data == plain.data
    for a, b in zip(plain.records, zero.records, strict=True):
        assert a.evaluated is not None
        assert b.evaluated is not None
        assert (a.evaluated.hits.tobytes(), a.evaluated.loss.tobytes()) == (b.evaluated.hits.tobytes(), b.evaluated.loss.tobytes())
    whole = play(build("fedavg+knn(lam=1)"), plan=EACH)
    assert whole.data == plain.data  # training is the method's
    assert whole.records[-1].evaluated.loss.tobytes() != plain.records[-1].evaluated.loss.tobytes()  # type: ignore[union-attr]


def test_shares_follow_their_clients() -> None:
    world = worlds.make_world()
    models = world.model.initial(0)()[None]
    some = Neighbours(2, 1.0, np.linspace(0, 1, 6))
    serving = Serving(np.arange(6), models, np.zeros(6, np.int64), neighbours=some)
    with LoopEngine(world) as engine:
        whole = engine.run([StampedAsk(Evaluate(serving), 0, 1)])[0]
        cut = serving.take(np.array([4, 1]))
        for part in (cut, restrict_serving(cut)):
            found = engine.run([StampedAsk(Evaluate(part), 0, 1)])[0]
            assert found.loss.tolist() == whole.loss[[4, 1]].tolist()
    assert restrict_serving(cut).neighbours.weights.tolist() == [0.8, 0.2]  # type: ignore[union-attr]


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_numbers_and_labels(task: Any) -> None:
    history = play(build("fedavg+knn"), world=worlds.make_task_world(task), plan=EACH)
    assert np.isfinite(history.records[-1].evaluated.loss).all()  # type: ignore[union-attr]
    assert chosen(worlds.make_task_world(task), "fedavg+knn") is not None


def test_a_client_with_one_training_sample_has_no_neighbour_of_it() -> None:
    world = worlds.make_world()  # client 2 has one
    serving = Serving(np.array([2]), world.model.initial(0)()[None], np.array([0]), neighbours=Neighbours(3, 1.0, np.ones(1)))
    with LoopEngine(world) as engine:
        on_train = engine.run([StampedAsk(Evaluate(serving, "train"), 0, 1)])[0]
        plain = engine.run([StampedAsk(Evaluate(replace(serving, neighbours=None), "train"), 0, 1)])[0]
        assert on_train.loss.tolist() == plain.loss.tolist()
        on_test = engine.run([StampedAsk(Evaluate(serving), 0, 1)])[0]
        assert np.count_nonzero(on_test.predicted[0]) == 1  # all test samples have its label


def test_what_cannot_run_says_so_before_anything_is_trained() -> None:
    made = worlds.make_federation()
    convolution = worlds.make_custom_world(made, lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten()))
    with pytest.raises(UserError, match=r"no dense layer whose inputs could be its features: omit knn"):
        play(build("fedavg+knn"), world=convolution)
    ctx = replace(make_round_context(worlds.make_world()), task=Task("next-token"))
    with pytest.raises(UserError, match=r"needs a label for each sample, and this is text"):
        build("fedavg+knn").start(lambda i=0: np.zeros(2, np.float32), ctx)
    with pytest.raises(UserError, match=r"mixture of models has no features of its own"):
        play(build("fedex(groups=2)+knn"), plan=EACH)
