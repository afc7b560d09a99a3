from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.core.asks import Train
from coterie.core.states import Models
from coterie.engines.engine import Stamped
from coterie.methods.fedavg import FedAvg
from coterie.testing import worlds
from coterie.testing.fake import FakeEngine
from coterie.testing.play import PLAN, carry, context


def test_feeds_hand_written_replies() -> None:
    def answer(ask: Any, client: int) -> Mapping[str, Any] | None:
        return None if client == 2 else {"vectors": [client, 1.0], "sizes": 10 * (client + 1), "steps": 1}

    engine = FakeEngine(answer)
    ask = Train(np.array([3, 2, 0]), np.zeros((1, 2), np.float32), PLAN.local)
    (reply,) = engine.run([Stamped(ask, worlds.problem(), 0, 1)])
    assert reply.clients.tolist() == [0, 3]
    assert reply.vectors.tolist() == [[0, 1], [3, 1]]
    assert reply.sizes.tolist() == [10, 40]
    assert engine.calls[0][0].ask is ask


def test_one_equation_of_one_method() -> None:
    """The example a reader follows: McMahan et al., Algorithm 1: w = sum n_k / n w_k."""
    ctx = context(worlds.problem())
    engine = FakeEngine(lambda ask, client: {"vectors": [client, 1.0], "sizes": client + 1, "steps": 1})
    state = carry(FedAvg().round(Models(np.zeros((1, 2), np.float32)), ctx), worlds.problem(), engine=engine)
    k = ctx.cohort()
    assert state.models[0].tolist() == [np.float32(((k + 1) * k).sum() / (k + 1).sum()), 1.0]
