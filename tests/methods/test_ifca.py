"""IFCA: choosing, averaging, several starts, collapse, controls and serving, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.core.arrays import Ids
from coterie.core.asks import Losses, LossTable, Train
from coterie.core.errors import UserError
from coterie.methods.catalogue import build, spec_of
from coterie.methods.fedavg import FedAvg
from coterie.methods.ifca import IFCA, HypoCluster, Hypotheses
from coterie.testing import worlds
from coterie.testing.by_hand import answer, context, nobody, trained
from coterie.testing.play import PLAN, Altered, absent, as_it_is, carry, play
from coterie.testing.play import context as real_context

TWO = IFCA(groups=2, starts=1)
SIZES = [1, 3, 2]


def state(models: Any, starts: int = 1, groups: Any = (-1, -1, -1), losses: Any = None) -> Hypotheses:
    return Hypotheses(np.array(models, np.float32), np.array(groups), np.zeros(starts) if losses is None else np.array(losses))


def table(losses: Any, clients: Any = (0, 1, 2)) -> LossTable:
    return LossTable(np.array(clients), np.array(losses, np.float64), np.array(SIZES)[list(clients)])


REPLY = trained([0, 1, 2], [[1, 1], [3, 3], [6, 6]], SIZES)


def test_round_by_hand() -> None:
    # Clients 0 and 1 take model 0 (loss .1 < .2, .3 < .9), client 2 takes model 1. Uniform: (1 + 3) / 2 = 2 and 6.
    before = state([[0, 0], [9, 9]])
    losses = table([[0.1, 0.2], [0.3, 0.9], [0.8, 0.5]])
    ctx = context(SIZES)
    after, (ask, train) = answer(TWO.round(before, ctx), losses, REPLY)
    assert isinstance(ask, Losses)
    assert len(ask.models) == 2
    assert train.start.tolist() == [0, 0, 1]
    np.testing.assert_allclose(after.models, [[2, 2], [6, 6]])
    assert after.groups.tolist() == [0, 0, 1]
    np.testing.assert_allclose(after.losses, [(1 * 0.1 + 3 * 0.3 + 2 * 0.5) / 6])
    assert ctx.records["collapsed"] == 0
    # By samples: (1 * 1 + 3 * 3) / 4 = 2.5.
    after, _ = answer(replace(TWO, weighting="samples").round(before, context(SIZES)), losses, REPLY)
    np.testing.assert_allclose(after.models[0], [2.5, 2.5])


def test_a_model_that_nobody_takes_stays_and_is_a_collapse() -> None:
    ctx = context(SIZES)
    after, _ = answer(TWO.round(state([[0, 0], [9, 9]]), ctx), table([[0.1, 0.2]] * 3), REPLY)
    assert after.models[1].tolist() == [9, 9]
    assert ctx.records["collapsed"] == 1


def test_a_client_that_misses_the_probe_goes_on_with_its_last_model() -> None:
    before = state([[0, 0], [9, 9]], groups=(-1, 1, 0))
    losses = table([[0.8, 0.5]], clients=(2,))
    after, (_, train) = answer(TWO.round(before, context(SIZES)), losses, REPLY.of(np.array([1, 2])))
    assert train.clients.tolist() == [1, 2]  # of client 0 nothing is known
    assert train.start.tolist() == [1, 1]
    assert after.groups.tolist() == [-1, 1, 1]


def test_start_with_the_lowest_loss_stays_after_the_trial() -> None:
    method = IFCA(groups=2, starts=2, trial=1)
    before = carry(method.start(lambda i=0: np.full(2, float(i), np.float32), context(SIZES, round_=0)), worlds.problem())
    assert before.models[:, 0].tolist() == [0, 1, 2, 3]
    # Round 1, the trial: both starts go on. In the first everybody takes model 0, in the second they part.
    ctx = context(SIZES)
    losses = table([[0.1, 0.9, 0.2, 0.9], [0.1, 0.9, 0.2, 0.9], [0.1, 0.9, 0.9, 0.2]])
    middle, (ask, one, two) = answer(method.round(before, ctx), losses, REPLY, REPLY)
    assert len(ask.models) == 4
    assert one.start.tolist() == [0, 0, 0]
    assert two.start.tolist() == [0, 0, 1]
    np.testing.assert_allclose(two.models, [[2, 2], [3, 3]])
    np.testing.assert_allclose(middle.models[:, 0], [10 / 3, 1, 2, 6], rtol=1e-6)
    np.testing.assert_allclose(ctx.records["start_losses"], [0.1, 0.2])
    # Round 2: now the second start fits better (.3 against .5), so it stays, with its two models.
    ctx = context(SIZES, round_=2)
    losses = table([[0.5, 0.9, 0.3, 0.9], [0.5, 0.9, 0.3, 0.9], [0.5, 0.9, 0.9, 0.3]])
    after, (_, train) = answer(method.round(middle, ctx), losses, REPLY.of(np.array([2])))
    np.testing.assert_allclose(train.models[:, 0], [2, 6])
    np.testing.assert_allclose(after.models, [[2, 2], [6, 6]])
    assert ctx.records["start_kept"] == 1
    assert ctx.records["mixing"].before.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]  # model 0 of the second start was kept
    assert len(after.losses) == 1


def test_trial_is_charged_and_counts_as_rounds() -> None:
    one, many = play(IFCA(groups=2, starts=1), rounds=3), play(IFCA(groups=2, starts=4, trial=1), rounds=3)
    steps = [[r.cost.steps for r in history.records] for history in (one, many)]
    assert steps[1][1] == 4 * steps[0][1] > 0
    assert steps[1][2:] == steps[0][2:]
    assert many.records[2].cost.bytes_down > one.records[2].cost.bytes_down  # the choice asks for the losses of all of them
    assert many.records[3].cost == one.records[3].cost


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_group_is_fedavg_exactly(weighting: Any, dropout: float) -> None:
    plan = replace(PLAN, dropout=dropout)
    ours, theirs = play(IFCA(groups=1, weighting=weighting), plan=plan, rounds=4), play(FedAvg(weighting=weighting), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    assert [r.cost for r in ours.records] == [r.cost for r in theirs.records]
    two = play(IFCA(groups=2, weighting=weighting), plan=plan, rounds=4)
    assert two.states[-1].models[0].tobytes() != theirs.states[-1].models[0].tobytes()  # type: ignore[attr-defined]


def test_more_groups_than_clients_are_capped() -> None:
    assert len(play(IFCA(groups=50, starts=1)).states[0].models) == 6  # type: ignore[attr-defined]


def test_nobody_answers() -> None:
    before = state([[0, 0], [9, 9]], groups=(0, 1, -1))
    assert answer(TWO.round(before, context(SIZES)), nobody(table([[0, 0]] * 3)), nobody(REPLY))[0] is before
    assert answer(TWO.round(before, context(SIZES)), table([[0, 0]] * 3), nobody(REPLY))[0] is before
    trial = state([[0, 0]] * 4, starts=2)
    method = IFCA(groups=2, starts=2)
    assert answer(method.round(trial, context(SIZES)), table([[0] * 4] * 3), nobody(REPLY), nobody(REPLY))[0] is trial


@pytest.mark.parametrize(("assign", "starts"), [("one", [0, 0, 0]), ("round_robin", [0, 1, 0]), ("oracle", [1, 0, 1])])
def test_controls(assign: Any, starts: list[int]) -> None:
    method = replace(TWO, assign=assign)
    ctx = context(SIZES, groups=np.array([1, 0, 1]))
    _, (_, train) = answer(method.round(state([[0, 0], [9, 9]]), ctx), table([[0.1, 0.2]] * 3), REPLY)
    assert train.start.tolist() == starts


def test_random_control_keeps_the_sizes() -> None:
    n = 12
    losses = LossTable(np.arange(n), np.tile([[0.1, 0.2]], (n, 1)), np.ones(n, np.int64))
    losses.losses[:4] = [0.2, 0.1]
    before = Hypotheses(np.zeros((2, 2), np.float32), np.full(n, -1), np.zeros(1))
    reply = trained(list(range(n)), np.zeros((n, 2)), [1] * n)
    starts: list[Ids] = []
    for seed in (0, 0, 1):
        _, (_, train) = answer(replace(TWO, assign="random").round(before, context([1] * n, seed=seed)), losses, reply)
        assert sorted(train.start) == [0] * 8 + [1] * 4
        starts.append(train.start)
    assert starts[0].tolist() == starts[1].tolist() != starts[2].tolist()


def test_oracle_has_a_model_for_every_true_group() -> None:
    started = carry(
        IFCA(groups=2, assign="oracle").start(lambda i=0: np.zeros(2, np.float32), context(SIZES, groups=np.array([0, 2, 1]))),
        worlds.problem(),
    )
    assert len(started.models) == 3
    with pytest.raises(UserError, match="oracle"):
        play(IFCA(assign="oracle"))


def test_number_of_groups_from_a_probe() -> None:
    # Nine clients in three directions; pre-training shows them.
    directions = np.repeat([[5, 0], [-3, 4], [-3, -4]], 3, axis=0) + np.arange(9)[:, None] * 0.01
    ctx = context([1] * 9, round_=0)
    method = IFCA(groups="auto", starts=1)
    started, (probe,) = answer(method.start(lambda i=0: np.zeros(2, np.float32), ctx), trained(list(range(9)), directions, [1] * 9))
    assert isinstance(probe, Train)
    assert probe.purpose == "probe"
    assert len(started.models) == 3
    assert ctx.records["groups_asked"] == 3
    silent, _ = answer(method.start(lambda i=0: np.zeros(2, np.float32), ctx), trained([], np.zeros((0, 2)), []))
    assert len(silent.models) == 2


def test_serving() -> None:
    problem, method = worlds.problem(), IFCA(groups=2, starts=1)
    last = play(method, rounds=3).states[-1]
    assert isinstance(last, Hypotheses)
    clients = np.array([5, 0, 3])
    serving = carry(method.serve(last, clients, real_context(problem)), problem)
    best = carry(iter(Losses(np.array([0, 3, 5]), last.models)), problem).losses.argmin(axis=1)
    assert serving.rows.tolist() == [best[2], best[0], best[1]]
    engine = Altered(absent(clients, (1,)))
    fallback = carry(
        method.serve(replace(last, groups=np.array([1, 1, 0, -1, 1, 0])), clients, real_context(problem)), problem, engine=engine
    )
    assert fallback.rows.tolist() == [0, 1, 1]  # its last group, or the largest
    engine = Altered(as_it_is)
    carry(
        replace(method, assign="random").serve(replace(last, groups=np.zeros(6, np.int64)), clients, real_context(problem)),
        problem,
        engine=engine,
    )
    assert not engine.asked  # a control does not let clients choose


def test_names_and_settings() -> None:
    assert isinstance(build("hypocluster(groups=4)"), HypoCluster)
    assert spec_of(IFCA(groups=2)) == "ifca(groups=2)"
    bad: list[dict[str, Any]] = [{"groups": 0}, {"starts": 0}, {"trial": 0}]
    for settings in bad:
        with pytest.raises(UserError, match=next(iter(settings))):
            IFCA(**settings)
