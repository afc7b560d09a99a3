from typing import Any

import numpy as np
import pytest

from coterie.core.acceptance import accept, assemble
from coterie.core.asks import Error, Gradient, Losses, Train, Trained
from coterie.core.local import Local

MODELS = np.zeros((2, 3), np.float32)
ASK = Train(np.array([1, 4, 6]), MODELS, Local())
GOOD: dict[str, Any] = {"vectors": [1.0, 2.0, 3.0], "sizes": 5, "steps": 2}


def test_assembles_in_ascending_order() -> None:
    reply = assemble(ASK, {6: GOOD, 1: {**GOOD, "sizes": 9}})
    assert isinstance(reply, Trained)
    assert reply.clients.tolist() == [1, 6]
    assert reply.sizes.tolist() == [9, 5]
    assert reply.vectors.dtype == np.float32
    assert reply.refused == {}


def test_nobody_answered() -> None:
    for ask in (ASK, Gradient(ASK.clients, MODELS), Losses(ASK.clients, MODELS), Error(ASK.clients, MODELS)):
        reply = accept(ask, assemble(ask, {}))
        assert len(reply) == 0
        assert reply.refused == {}
    assert assemble(ASK, {}).vectors.shape == (0, 3)
    assert assemble(Losses(ASK.clients, MODELS), {}).losses.shape == (0, 2)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({**GOOD, "vectors": [1.0, 2.0]}, "wrong length: vectors has shape (2,), expected (3,)"),
        ({**GOOD, "vectors": 1.0}, "wrong length: vectors has shape ()"),
        ({**GOOD, "steps": [1, 2]}, "wrong length: steps has shape (2,), expected ()"),
        ({**GOOD, "sizes": float("nan")}, "cannot be read (ValueError: nan is not a whole number)"),
        ({**GOOD, "sizes": float("inf")}, "cannot be read"),
        ({**GOOD, "steps": 2.5}, "cannot be read"),
        ({**GOOD, "vectors": "abc"}, "cannot be read"),
        ({**GOOD, "vectors": [[1], [2, 3]]}, "cannot be read"),
        ({"vectors": [1.0, 2.0, 3.0]}, "cannot be read (KeyError: 'sizes')"),
        (None, "cannot be read"),
        ([1], "cannot be read"),
        ({**GOOD, "vectors": [np.nan, 0, 0]}, "sent vectors that are not finite"),
        ({**GOOD, "vectors": [0, 0, -np.inf]}, "sent vectors that are not finite"),
        ({**GOOD, "vectors": np.array([1e300, 0, 0])}, "sent vectors that are not finite"),
        ({**GOOD, "sizes": 0}, "says it has no samples"),
        ({**GOOD, "sizes": -3}, "says it has no samples"),
    ],
)
def test_one_odd_client_is_refused_and_costs_nobody_else_the_round(bad: Any, reason: str) -> None:
    reply = accept(ASK, assemble(ASK, {1: GOOD, 4: bad, 6: GOOD}))
    assert reply.clients.tolist() == [1, 6]
    assert list(reply.refused) == [4]
    assert reason in reply.refused[4]
    assert np.isfinite(reply.vectors).all()


def trained(clients: list[int]) -> Trained:
    n = len(clients)
    return Trained(np.array(clients), np.arange(3.0 * n, dtype=np.float32).reshape(n, 3), np.arange(1, n + 1), np.ones(n, np.int64))


def test_sorts_every_array_alike() -> None:
    reply = accept(ASK, trained([6, 1, 4]))
    assert reply.clients.tolist() == [1, 4, 6]
    assert reply.sizes.tolist() == [2, 3, 1]
    assert reply.vectors[:, 0].tolist() == [3, 6, 0]


def test_strangers_are_refused() -> None:
    reply = accept(ASK, trained([1, 2]))
    assert reply.clients.tolist() == [1]
    assert reply.refused == {2: "was not asked"}


@pytest.mark.parametrize("order", [[1, 4, 4], [4, 1, 4], [4, 4, 1]])
def test_who_answers_twice_counts_not_at_all(order: list[int]) -> None:
    reply = accept(ASK, trained(order))
    assert reply.clients.tolist() == [1]
    assert reply.refused == {4: "answered twice"}


def test_a_whole_reply_of_the_wrong_length() -> None:
    reply = accept(ASK, Trained(np.array([1, 4]), np.zeros((2, 2), np.float32), np.ones(2, np.int64), np.ones(2, np.int64)))
    assert len(reply) == 0
    assert "wrong length" in reply.refused[1]


def test_reasons_of_the_wire_are_kept() -> None:
    early = Trained(np.array([1]), np.zeros((1, 3), np.float32), np.ones(1, np.int64), np.ones(1, np.int64), refused={4: "timed out"})
    assert accept(ASK, early).refused == {4: "timed out"}


def test_losses_and_errors_are_checked_too() -> None:
    losses = Losses(ASK.clients, MODELS)
    rows = {1: {"losses": [1.0, np.nan], "sizes": 3}, 4: {"losses": [1.0, 2.0], "sizes": 3}, 6: {"losses": [1.0], "sizes": 3}}
    reply = accept(losses, assemble(losses, rows))
    assert reply.clients.tolist() == [4]
    assert sorted(reply.refused) == [1, 6]
    error = Error(ASK.clients, MODELS)
    row = {"labels": [1.0, 2.0], "probabilities": [0.5, np.inf], "sizes": 3}
    assert "probabilities that are not finite" in accept(error, assemble(error, {1: row})).refused[1]
