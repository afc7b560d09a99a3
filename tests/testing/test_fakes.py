from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.asks import Refusal, Train
from coterie.core.states import Models
from coterie.engines.engine import StampedAsk
from coterie.evidence.records import Cost
from coterie.methods.fedavg import FedAvg
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import PLAN, make_round_context, play, run_generator


def test_feeds_hand_written_replies() -> None:
    def answer(ask: Any, client: int) -> Mapping[str, Any] | None:
        return None if client == 2 else {"vectors": [client, 1.0], "sizes": 10 * (client + 1), "steps": 1}

    engine = FakeEngine(answer)
    ask = Train(np.array([3, 2, 0]), np.zeros((1, 2), np.float32), PLAN.local)
    (reply,) = engine.run([StampedAsk(ask, 0, 1)])
    assert reply.clients.tolist() == [0, 3]
    assert reply.vectors.tolist() == [[0, 1], [3, 1]]
    assert reply.sizes.tolist() == [10, 40]
    assert engine.calls[0][0].ask is ask


def test_one_equation_of_one_method() -> None:
    """The example a reader follows: McMahan et al., Algorithm 1: w = sum n_k / n w_k."""
    ctx = make_round_context()
    engine = FakeEngine(lambda ask, client: {"vectors": [client, 1.0], "sizes": client + 1, "steps": 1})
    state = run_generator(FedAvg().round(Models(np.zeros((1, 2), np.float32)), ctx), engine=engine)
    k = ctx.cohort()
    assert state.models[0].tolist() == [np.float32(((k + 1) * k).sum() / (k + 1).sum()), 1.0]


def test_an_odd_row_is_refused_as_it_is_in_a_real_federation() -> None:
    rows: dict[int, Mapping[str, Any]] = {
        0: {"vectors": [1.0, 2.0, 3.0], "sizes": 1, "steps": 1},
        1: {"vectors": [1.0, 2.0], "sizes": 1, "steps": 1},
        2: {"vectors": [1.0, 2.0]},
    }
    engine = FakeEngine(lambda ask, client: rows[client])
    (reply,) = engine.run([StampedAsk(Train(np.arange(3), np.zeros((1, 2), np.float32), PLAN.local), 0, 1)])
    assert reply.clients.tolist() == [1]
    assert {client: refused.why for client, refused in reply.refused.items()} == {0: Refusal.WRONG_SHAPE, 2: Refusal.UNREADABLE}


def test_a_whole_lane_whose_clients_never_answer() -> None:
    """Neither training nor evaluation has a row: the state stays, the record says so, and nothing breaks."""
    engine = FakeEngine(lambda ask, client: None)
    history = play(FedAvg(), engine=engine, plan=replace(PLAN, evaluate_every=1), rounds=2)
    assert history.data[0] == history.data[1] == history.data[2]
    for record in history.records[1:]:
        assert record.cost == Cost(messages=4, bytes_down=4 * 4 * 18)  # the questions to a cohort of four
        assert [absence.why for absence in record.absences] == ["ABSENT"] * 4
        assert record.evaluated is not None
        assert len(record.evaluated) == len(record.evaluated.sizes) == 0
    assert [[type(stamped.ask).__name__ for stamped in call] for call in engine.calls[-4:]] == [
        ["Train"],
        ["Evaluate"],  # of test parts
        ["Evaluate"],  # of validation parts
        ["Evaluate"],  # on the central set
    ]
