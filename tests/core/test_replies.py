from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coterie.core import replies
from coterie.core.asks import AskErrors, Evaluate, Evaluated, Gradient, Losses, Refusal, RefusedReply, Train, Trained
from coterie.core.local import Local
from coterie.core.replies import accept, assemble, make_empty_reply
from coterie.core.serving import Serving

MODELS = np.zeros((2, 3), np.float32)
ASK = Train(np.array([1, 4, 6]), MODELS, Local())
EVALUATE = Evaluate(Serving.one(ASK.clients, MODELS[0]))
GOOD: dict[str, Any] = {"vectors": [1.0, 2.0, 3.0], "sizes": 5, "steps": 2}


def test_assembles_in_ascending_order() -> None:
    reply = assemble(ASK, {6: GOOD, 1: {**GOOD, "sizes": 9}})
    assert isinstance(reply, Trained)
    assert reply.clients.tolist() == [1, 6]
    assert reply.sizes.tolist() == [9, 5]
    assert reply.vectors.dtype == np.float32
    assert reply.refused == {}


def test_nobody_answered() -> None:
    for ask in (ASK, Gradient(ASK.clients, MODELS), Losses(ASK.clients, MODELS), AskErrors(ASK.clients, MODELS), EVALUATE):
        reply = accept(ask, make_empty_reply(ask))
        assert isinstance(reply, ask.reply)
        assert len(reply) == len(reply.sizes) == 0
        assert reply.refused == {}
        assert accept(ask, assemble(ask, {})).clients.tolist() == []
    assert make_empty_reply(ASK).vectors.shape == (0, 3)
    assert make_empty_reply(ASK).vectors.dtype == np.float32
    assert make_empty_reply(Losses(ASK.clients, MODELS)).losses.shape == (0, 2)
    assert make_empty_reply(EVALUATE).hits.ndim == 2  # of how many classes is not known


@pytest.mark.parametrize(
    ("bad", "why", "detail"),
    [
        ({**GOOD, "vectors": [1.0, 2.0]}, Refusal.WRONG_SHAPE, "vectors has shape (2,), expected (3,)"),
        ({**GOOD, "vectors": 1.0}, Refusal.WRONG_SHAPE, "vectors has shape ()"),
        ({**GOOD, "steps": [1, 2]}, Refusal.WRONG_SHAPE, "steps has shape (2,), expected ()"),
        ({**GOOD, "sizes": float("nan")}, Refusal.UNREADABLE, "ValueError: nan is not a whole number"),
        ({**GOOD, "sizes": float("inf")}, Refusal.UNREADABLE, "inf is not a whole number"),
        ({**GOOD, "steps": 2.5}, Refusal.UNREADABLE, "2.5 is not a whole number"),
        ({**GOOD, "vectors": "abc"}, Refusal.UNREADABLE, "ValueError"),
        ({**GOOD, "vectors": [[1], [2, 3]]}, Refusal.UNREADABLE, "ValueError"),
        ({"vectors": [1.0, 2.0, 3.0]}, Refusal.UNREADABLE, "KeyError: 'sizes'"),
        (None, Refusal.UNREADABLE, "TypeError"),
        ([1], Refusal.UNREADABLE, "TypeError"),
        ({**GOOD, "vectors": [np.nan, 0, 0]}, Refusal.NOT_FINITE, "vectors"),
        ({**GOOD, "vectors": [0, 0, -np.inf]}, Refusal.NOT_FINITE, "vectors"),
        ({**GOOD, "vectors": np.array([1e300, 0, 0])}, Refusal.NOT_FINITE, "vectors"),
        ({**GOOD, "sizes": 0}, Refusal.NO_SAMPLES, ""),
        ({**GOOD, "sizes": -3}, Refusal.NO_SAMPLES, ""),
    ],
)
def test_one_odd_client_is_refused_and_costs_nobody_else_the_round(bad: Any, why: Refusal, detail: str) -> None:
    reply = accept(ASK, assemble(ASK, {1: GOOD, 4: bad, 6: GOOD}))
    assert reply.clients.tolist() == [1, 6]
    assert list(reply.refused) == [4]
    assert reply.refused[4].why is why
    assert detail in reply.refused[4].detail
    assert np.isfinite(reply.vectors).all()


def test_a_refusal_says_itself() -> None:
    assert str(RefusedReply(Refusal.NOT_FINITE, "vectors")) == "sent numbers that are not finite (vectors)"
    assert str(RefusedReply(Refusal.TWICE)) == "answered twice"
    assert len({refusal.value for refusal in Refusal}) == len(Refusal) == 12  # none is another's alias


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
    assert reply.refused == {2: RefusedReply(Refusal.NOT_ASKED)}


@pytest.mark.parametrize("order", [[1, 4, 4], [4, 1, 4], [4, 4, 1]])
def test_who_answers_twice_counts_not_at_all(order: list[int]) -> None:
    reply = accept(ASK, trained(order))
    assert reply.clients.tolist() == [1]
    assert reply.refused == {4: RefusedReply(Refusal.TWICE)}


def test_a_whole_reply_of_the_wrong_length() -> None:
    reply = accept(ASK, Trained(np.array([1, 4]), np.zeros((2, 2), np.float32), np.ones(2, np.int64), np.ones(2, np.int64)))
    assert len(reply) == 0
    wrong = RefusedReply(Refusal.WRONG_SHAPE, "vectors has shape (2,), expected (3,)")
    assert reply.refused == {1: wrong, 4: wrong}


def test_reasons_of_the_wire_are_kept() -> None:
    odd = RefusedReply(Refusal.UNREADABLE, "half of it was lost")
    early = Trained(np.array([1]), np.zeros((1, 3), np.float32), np.ones(1, np.int64), np.ones(1, np.int64), refused={4: odd})
    assert accept(ASK, early).refused == {4: odd}
    poisoned = Trained(np.array([1]), np.full((1, 3), np.inf, np.float32), np.ones(1, np.int64), np.ones(1, np.int64), refused={4: odd})
    assert accept(ASK, poisoned).refused == {4: odd, 1: RefusedReply(Refusal.NOT_FINITE, "vectors")}


def test_losses_and_errors_are_checked_too() -> None:
    losses = Losses(ASK.clients, MODELS)
    rows = {1: {"losses": [1.0, np.nan], "sizes": 3}, 4: {"losses": [1.0, 2.0], "sizes": 3}, 6: {"losses": [1.0], "sizes": 3}}
    reply = accept(losses, assemble(losses, rows))
    assert reply.clients.tolist() == [4]
    assert {client: refused.why for client, refused in reply.refused.items()} == {1: Refusal.NOT_FINITE, 6: Refusal.WRONG_SHAPE}
    error = AskErrors(ASK.clients, MODELS)
    row = {"labels": [1.0, 2.0], "probabilities": [0.5, np.inf], "sizes": 3}
    assert accept(error, assemble(error, {1: row})).refused == {1: RefusedReply(Refusal.NOT_FINITE, "probabilities")}


def counted(classes: int) -> dict[str, Any]:
    counts = np.ones(classes, np.int64)
    return {"hits": counts, "predicted": counts, "actual": 2 * counts, "loss": 0.5, "auroc": np.nan}


def test_of_evaluations_that_differ_in_length_the_odd_ones_are_refused() -> None:
    """The ask does not say how many classes there are: what most send is right."""
    reply = accept(EVALUATE, assemble(EVALUATE, {1: counted(2), 4: counted(3), 6: counted(3)}))
    assert isinstance(reply, Evaluated)
    assert reply.clients.tolist() == [4, 6]
    assert reply.sizes.tolist() == [6, 6]
    assert reply.refused == {1: RefusedReply(Refusal.WRONG_SHAPE, "hits has shape (2,), expected (3,)")}


@pytest.mark.parametrize("hits", [1, [[1, 1, 1]]], ids=["a number", "a table"])
@pytest.mark.parametrize("odd", [(1,), (1, 4), (1, 4, 6)])
def test_counts_that_are_not_by_class_are_refused_however_many_send_them(hits: Any, odd: Sequence[int]) -> None:
    rows = {client: counted(3) | ({"hits": hits} if client in odd else {}) for client in (1, 4, 6)}
    reply = accept(EVALUATE, assemble(EVALUATE, rows))
    assert reply.clients.tolist() == [client for client in (1, 4, 6) if client not in odd]
    assert {client: refused.why for client, refused in reply.refused.items()} == dict.fromkeys(odd, Refusal.WRONG_SHAPE)
    assert len(reply.sizes) == len(reply)


@pytest.mark.parametrize(("shape", "pieces"), [((1 << 21, 2), 4), ((5, 1 << 20), 5), ((3, 3 << 20), 3)], ids=["clients", "models", "large"])
def test_many_clients_few_numbers_are_looked_at_in_few_pieces(shape: tuple[int, int], pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece a client would cost a million times the handing out."""
    seen: list[int] = []

    def counted_in_order(work: Any, given: Any, workers: int) -> Any:
        found = [work(piece) for piece in given]
        seen.append(len(found))
        return found

    monkeypatch.setattr(replies, "map_in_order", counted_in_order)
    values = np.zeros(shape, np.float32)
    assert replies._is_all_finite(values)
    values[-1, -1] = np.nan
    assert not replies._is_all_finite(values)
    assert seen == [pieces, pieces]
