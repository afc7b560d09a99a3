"""FedAtt: attention by distance, tensor by tensor, worked by hand."""

from math import log

import numpy as np
import pytest

from coterie.core.errors import UserError
from coterie.methods.fedatt import FedAtt, attention
from coterie.testing.by_hand import context, dialogue, emptied, layout, model, trained
from methods.noted import mixing_of

LN3 = log(3)


def test_one_tensor_by_hand() -> None:
    """From w = 1: w_0 = 1 and w_1 = 1 + ln 3 are at distances 0 and ln 3, so a = softmax(0, ln 3) = 1/4, 3/4.

    w <- 1 - 1.2 * (1/4 * 0 + 3/4 * (-ln 3)) = 1 + .9 ln 3. As a matrix: 1.2 a on the replies, 1 - 1.2 on the model before.
    """
    ctx = context([1, 1], 1)
    state, _ = dialogue(FedAtt().round(model(1), ctx), trained([0, 1], [[1], [1 + LN3]], [9, 1]))
    assert state.models[0, 0] == pytest.approx(1 + 0.9 * LN3, rel=1e-6)
    np.testing.assert_allclose(mixing_of(ctx).replies, [[0.3, 0.9]], rtol=1e-6)
    np.testing.assert_allclose(mixing_of(ctx).before, [[-0.2]])
    assert not mixing_of(ctx).averages


def test_every_tensor_has_attention_of_its_own() -> None:
    ctx = context([1, 1], layout((1, "weight"), (2, "weight")))
    replies = trained([0, 1], [[LN3, 0, 0], [0, 0.6 * LN3, 0.8 * LN3]], [1, 1])  # the second tensor moves by ln 3 in all
    state, _ = dialogue(FedAtt(epsilon=1.0).round(model(0, 0, 0), ctx), replies)
    np.testing.assert_allclose(state.models[0], [0.75 * LN3, 0.75 * 0.6 * LN3, 0.75 * 0.8 * LN3], rtol=1e-6)


def test_far_clients_do_not_overflow() -> None:
    far = np.array([[1e5], [2e5]], dtype=np.float32)
    assert attention(far, np.zeros(1, dtype=np.float32)).tolist() == [0.0, 1.0]


def test_statistics_never_leave_the_range_of_the_replies() -> None:
    """A running variance falls from 10 to .1 and .3 on the clients: 1.2 steps beyond the mean would make it negative."""
    ctx = context([1, 1], layout((1, "weight"), (1, "statistic")))
    state, _ = dialogue(FedAtt().round(model(0, 10), ctx), trained([0, 1], [[0, 0.1], [LN3, 0.3]], [1, 1]))
    assert state.models[0, 1] == pytest.approx(0.25 * 0.1 + 0.75 * 0.3, rel=1e-6)  # averaged with the weights' attention


def test_defined_cases() -> None:
    still = trained([0, 1], [[2, 3], [2, 3]], [1, 1])
    state, _ = dialogue(FedAtt().round(model(2, 3), context([1, 1])), still)
    np.testing.assert_allclose(state.models, [[2, 3]], rtol=1e-6)
    state, _ = dialogue(FedAtt().round(model(0, 0), context([1])), trained([0], [[2, 3]], [1]))
    np.testing.assert_allclose(state.models, [[2.4, 3.6]], rtol=1e-6)
    before = model(0, 0)
    assert dialogue(FedAtt().round(before, context([1, 1])), emptied(still))[0] is before


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match="epsilon"):
        FedAtt(epsilon=0.0)
