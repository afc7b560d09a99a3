"""FedDrift: which clients leave, which models are merged, with numbers worked by hand."""

from typing import Any

import numpy as np

from coterie.core.asks import LossTable
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.methods.feddrift import FedDrift, FedDriftState
from coterie.testing.fakes import make_context, make_trained, run_dialogue
from coterie.testing.play import play

SIZES = [1, 3, 2, 2]


def losses(table: Any, clients: Any = (0, 1, 2, 3)) -> LossTable:
    return LossTable(np.array(clients), np.array(table, np.float64), np.array(SIZES)[list(clients)])


def state(models: Any, groups: Any, last: Any) -> FedDriftState:
    return FedDriftState(np.array(models, np.float32), np.array(groups), np.array(last, np.float64))


def begin(before: FedDriftState, table: LossTable, method: FedDrift | None = None) -> tuple[FedDriftState, Any]:
    """The state after a step began, and what was asked; all clients train to 9, and count by samples."""
    ctx = make_context(SIZES, round_=6)
    trained = make_trained([0, 1, 2, 3], [[9, 9]] * 4, SIZES)
    after, asks = run_dialogue((method or FedDrift(delta=0.5)).round(before, ctx), table, trained)
    return after, (asks, ctx.notes.named)


def test_a_client_whose_best_loss_rises_gets_a_model_of_its_own() -> None:
    # Losses were .2 everywhere. Client 3's best is now .9 > .2 + .5; client 2's .7 is not more than that.
    before = state([[1, 1]], [0, 0, 0, 0], [0.2] * 4)
    after, (asks, notes) = begin(before, losses([[0.1], [0.2], [0.7], [0.9]]))
    assert [type(ask).__name__ for ask in asks] == ["Losses", "Train"]
    assert asks[0].clients.tolist() == [0, 1, 2, 3]
    assert asks[1].models.tolist() == [[1, 1], [1, 1]]  # the new one begins as the best one
    assert asks[1].start.tolist() == [0, 0, 0, 1]
    assert after.groups.tolist() == [0, 0, 0, 1]
    assert after.losses.tolist() == [0.1, 0.2, 0.7, 0.9]
    assert (notes["drifted"], notes["merged"], notes["models"]) == (1, 0, 2)


def test_without_a_last_loss_nothing_is_a_drift_and_the_most_models_bound_it() -> None:
    before = state([[1, 1]], [0, 0, 0, 0], [np.inf, 0.0, 0.0, 0.0])
    after, _ = begin(before, losses([[9.0], [9.0], [9.0], [9.0]]), FedDrift(delta=0.5, most=3))
    assert after.groups.tolist() == [0, 1, 2, 0]  # client 3 finds no place
    assert after.losses.tolist() == [9.0] * 4


def test_models_that_fit_each_others_clients_are_merged() -> None:
    # Clients 0, 1 fit model 0, 2 fits 1, 3 fits 2. Model 0 has .1 on its own clients and .3 on those of model 1, which has .2 and, on
    # those of model 0, .5: distance max(.3 - .1, .5 - .2) = .3 < .5, merged. Model 2 is 2 from both.
    table = losses([[0.1, 0.5, 3.0], [0.1, 0.5, 3.0], [0.3, 0.2, 3.0], [2.2, 2.2, 0.1]])
    before = state([[0, 0], [4, 4], [7, 7]], [0, 0, 1, 2], [0.2, 0.2, 0.2, 0.2])
    after, (asks, notes) = begin(before, table)
    np.testing.assert_allclose(asks[1].models, np.array([[4 * 2 / 6] * 2, [7, 7]]), rtol=1e-6)  # by samples, 1 + 3 and 2
    assert asks[1].start.tolist() == [0, 0, 0, 1]
    assert after.groups.tolist() == [0, 0, 0, 1]
    assert notes["merged"] == 1
    # Complete linkage: 0 and 1 at .3, 1 and 2 at .4, but 0 and 2 at .9 stay apart. By the same rule .2 merges none.
    chain = losses([[0.1, 0.4, 1.0], [0.1, 0.4, 1.0], [0.4, 0.1, 0.5], [1.0, 0.5, 0.1]])
    assert begin(before, chain)[0].groups.tolist() == [0, 0, 0, 1]
    assert begin(before, chain, FedDrift(delta=0.2))[0].groups.tolist() == [0, 0, 1, 2]


def test_a_model_without_clients_stays_for_those_who_may_return() -> None:
    before = state([[0, 0], [4, 4]], [0, 0, 0, 0], [0.2] * 4)
    after, (_, notes) = begin(before, losses([[0.1, 0.15]] * 4))
    assert after.models.shape == (2, 2)
    assert notes["merged"] == 0


def test_before_the_first_step_it_is_fedavg() -> None:
    drift, plain = play(FedDrift(every=4), rounds=4), play(FedAvg(), rounds=4)
    for own, other in zip(drift.states, plain.states, strict=True):
        assert own.models.tobytes() == other.models.tobytes()  # type: ignore[attr-defined]
    assert build("feddrift(delta=0.1)") == FedDrift()
