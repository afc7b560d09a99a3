from dataclasses import replace

import numpy as np

from coterie.core.asks import AskErrors, Errors, Evaluate, Evaluated, Gradient, Gradients, Losses, LossTable, Train, Trained
from coterie.core.local import Local
from coterie.core.replies import make_empty_reply
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.vectors import Sketch
from coterie.evidence.records import Cost
from coterie.run.costs import compute_cost

ASKED = np.array([0, 1, 2])
MODELS = np.zeros((2, 5), np.float32)  # k = 2, d = 5
SIZES = np.array([12, 7])
HERE = ASKED[:2]  # the third did not answer


def trained(steps: list[int]) -> Trained:
    return Trained(HERE, np.zeros((2, 5), np.float32), SIZES, np.array(steps))


def test_train_by_hand() -> None:
    # Batches of 5: 12 samples make 3 steps an epoch, 7 make 2. Two epochs: 6 and 4 steps.
    cost = compute_cost(Train(ASKED, MODELS, Local(epochs=2, batch_size=5)), trained([6, 4]))
    assert cost.messages == 5  # three questions, two answers
    assert cost.bytes_down == 4 * 3 * 5  # a model each: the start row, not both models
    assert cost.bytes_up == 4 * 2 * (5 + 1 + 1)  # a model, a size, a number of steps
    assert cost.passes == 4.0
    assert cost.steps == 10
    assert cost.samples == 2 * 12 + 2 * 7


def test_full_batches_and_stragglers() -> None:
    full = compute_cost(Train(ASKED, MODELS, Local(epochs=3, batch_size=None)), trained([3, 1]))
    assert (full.passes, full.steps, full.samples) == (4.0, 4, 3 * 12 + 7)
    large = compute_cost(Train(ASKED, MODELS, Local(epochs=3, batch_size=100)), trained([3, 1]))
    assert large == full


def test_what_is_sent_along_is_charged() -> None:
    plain = compute_cost(Train(ASKED, MODELS, Local()), trained([1, 1]))
    extra = compute_cost(
        Train(ASKED, MODELS, Local(), anchors=np.zeros((3, 5), np.float32), linear=np.zeros((3, 5), np.float32), mus=np.ones(3)),
        trained([1, 1]),
    )
    assert extra.bytes_down - plain.bytes_down == 4 * 3 * (5 + 5 + 1)
    assert extra.bytes_up == plain.bytes_up


def test_gradient_by_hand() -> None:
    cost = compute_cost(Gradient(ASKED, MODELS), Gradients(HERE, np.zeros((2, 5), np.float32), SIZES, np.zeros(2)))
    assert cost == Cost(messages=5, bytes_down=4 * 3 * 5, bytes_up=4 * 2 * 7, passes=2.0, steps=0, samples=19)


def test_of_a_sketch_its_numbers_are_charged_and_not_the_vectors() -> None:
    """r = 2: two numbers, a size and a loss (which is zero) come back of a gradient; two, a size and the steps of an update."""
    short = np.zeros((2, 2), np.float32)
    cost = compute_cost(Gradient(ASKED, MODELS, sketch=Sketch(2, 0)), Gradients(HERE, short, SIZES, np.zeros(2)))
    assert cost == Cost(messages=5, bytes_down=4 * 3 * 5, bytes_up=4 * 2 * 4, passes=2.0, steps=0, samples=19)
    ask = Train(ASKED, MODELS, Local(epochs=2, batch_size=5), sketch=Sketch(2, 0))
    cost = compute_cost(ask, replace(trained([6, 4]), vectors=short, more=np.zeros((2, 0, 2), np.float32)))
    assert (cost.bytes_up, cost.bytes_down, cost.steps) == (4 * 2 * 4, 4 * 3 * 5, 10)


def test_losses_and_errors_send_and_judge_all_models() -> None:
    table = compute_cost(Losses(ASKED, MODELS), LossTable(HERE, np.zeros((2, 2)), SIZES))
    assert table == Cost(messages=5, bytes_down=4 * 3 * 10, bytes_up=4 * 2 * 3, passes=4.0, steps=0, samples=38)
    errors = compute_cost(AskErrors(ASKED, MODELS), Errors(HERE, np.zeros((2, 2)), np.zeros((2, 2)), SIZES))
    assert errors == Cost(messages=5, bytes_down=4 * 3 * 10, bytes_up=4 * 2 * 5, passes=4.0, steps=0, samples=38)


def test_nobody_answered_still_costs_the_questions() -> None:
    cost = compute_cost(Train(ASKED, MODELS, Local()), trained([1, 1]).take(np.array([], dtype=np.int64)))
    assert cost == Cost(messages=3, bytes_down=60)


def test_who_works_alone_is_sent_nothing_and_sends_nothing() -> None:
    ask = Train(ASKED, MODELS, Local(epochs=2, batch_size=5), anchors=np.zeros((3, 5), np.float32), epochs=np.full(3, 2))
    together, alone = (compute_cost(replace(ask, alone=alone), trained([6, 4])) for alone in (False, True))
    assert together.messages > 0
    assert alone == Cost(passes=together.passes, steps=10, samples=38)
    counts = np.full((2, 2), 2)
    reply = Evaluated(HERE, counts, counts, counts, np.zeros(2), np.zeros(2))
    assert compute_cost(Evaluate(Serving.one(ASKED, MODELS[0]), "validation", alone=True), reply) == Cost(passes=2.0, samples=8)


def test_an_evaluation_that_nobody_answers_costs_the_questions() -> None:
    for alone, expected in ((False, Cost(messages=3, bytes_down=60)), (True, Cost())):
        ask = Evaluate(Serving.one(ASKED, MODELS[0]), "train", alone=alone)
        assert compute_cost(ask, make_empty_reply(ask)) == expected


def test_costs_add_up() -> None:
    assert Cost(1, 2, 3, 4.0, 5, 6) + Cost(10, 20, 30, 40.0, 50, 60) == Cost(11, 22, 33, 44.0, 55, 66)


def test_a_methods_own_evaluation_is_charged_and_the_central_set_is_not() -> None:
    """Three clients, the last served by both models; the second does not answer. Four samples each, two classes."""
    serving = Serving(ASKED, MODELS, np.array([0, 1, COMBINED]), Mixture(np.full((3, 2), 0.5)))
    counts = np.full((2, 2), 2)
    reply = Evaluated(ASKED[[0, 2]], counts, counts, counts, np.zeros(2), np.zeros(2))
    cost = compute_cost(Evaluate(serving, "validation"), reply)
    # Up: hits, predictions and samples by class, a loss and an AUROC. Passes: one model on the first client, two on the last.
    assert cost == Cost(messages=5, bytes_down=4 * (5 + 5 + 10), bytes_up=4 * 2 * 8, passes=3.0, steps=0, samples=4 + 8)
    assert compute_cost(Evaluate(serving, "central"), reply) == Cost()
