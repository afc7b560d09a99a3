"""FedAtt: attention by distance, tensor by tensor, worked by hand."""

from math import log

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.methods.fedatt import FedAtt, compute_attention
from coterie.testing.fakes import make_context, make_layout, make_model, make_trained, remove_clients, run_dialogue
from methods.noted import mixing_of

LN3 = log(3)


def test_one_tensor_by_hand() -> None:
    """From w = 1: w_0 = 1 and w_1 = 1 + ln 3 are at distances 0 and ln 3, so a = softmax(0, ln 3) = 1/4, 3/4.

    w <- 1 - 1.2 * (1/4 * 0 + 3/4 * (-ln 3)) = 1 + .9 ln 3. As a matrix: 1.2 a on the replies, 1 - 1.2 on the model before.
    """
    ctx = make_context([1, 1], 1)
    state, _ = run_dialogue(FedAtt().round(make_model(1), ctx), make_trained([0, 1], [[1], [1 + LN3]], [9, 1]))
    assert state.models[0, 0] == pytest.approx(1 + 0.9 * LN3, rel=1e-6)
    np.testing.assert_allclose(mixing_of(ctx).replies, [[0.3, 0.9]], rtol=1e-6)
    np.testing.assert_allclose(mixing_of(ctx).before, [[-0.2]])
    assert not mixing_of(ctx).averages


def test_every_tensor_has_attention_of_its_own() -> None:
    ctx = make_context([1, 1], make_layout((1, "weight"), (2, "weight")))
    replies = make_trained([0, 1], [[LN3, 0, 0], [0, 0.6 * LN3, 0.8 * LN3]], [1, 1])  # the second tensor moves by ln 3 in all
    state, _ = run_dialogue(FedAtt(epsilon=1.0).round(make_model(0, 0, 0), ctx), replies)
    np.testing.assert_allclose(state.models[0], [0.75 * LN3, 0.75 * 0.6 * LN3, 0.75 * 0.8 * LN3], rtol=1e-6)


def test_far_clients_do_not_overflow() -> None:
    far = np.array([[1e5], [2e5]], dtype=np.float32)
    assert compute_attention(far, np.zeros(1, dtype=np.float32)).tolist() == [0.0, 1.0]


def test_statistics_never_leave_the_range_of_the_replies() -> None:
    """A running variance falls from 10 to .1 and .3 on the clients: 1.2 steps beyond the mean would make it negative."""
    ctx = make_context([1, 1], make_layout((1, "weight"), (1, "statistic")))
    state, _ = run_dialogue(FedAtt().round(make_model(0, 10), ctx), make_trained([0, 1], [[0, 0.1], [LN3, 0.3]], [1, 1]))
    assert state.models[0, 1] == pytest.approx(0.25 * 0.1 + 0.75 * 0.3, rel=1e-6)  # averaged with the weights' attention


def test_defined_cases() -> None:
    still = make_trained([0, 1], [[2, 3], [2, 3]], [1, 1])
    state, _ = run_dialogue(FedAtt().round(make_model(2, 3), make_context([1, 1])), still)
    np.testing.assert_allclose(state.models, [[2, 3]], rtol=1e-6)
    state, _ = run_dialogue(FedAtt().round(make_model(0, 0), make_context([1])), make_trained([0], [[2, 3]], [1]))
    np.testing.assert_allclose(state.models, [[2.4, 3.6]], rtol=1e-6)
    before = make_model(0, 0)
    assert run_dialogue(FedAtt().round(before, make_context([1, 1])), remove_clients(still))[0] is before


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match="epsilon"):
        FedAtt(epsilon=0.0)
