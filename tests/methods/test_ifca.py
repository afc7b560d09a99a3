"""IFCA: choosing, averaging, several starts, collapse, controls and serving, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.asks import Losses, LossTable, Train
from coterie.methods.catalogue import build, get_spec
from coterie.methods.fedavg import FedAvg
from coterie.methods.grouped import Groups
from coterie.methods.ifca import IFCA, HypoCluster
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, drop_replies, make_round_context, pass_unchanged, play, run_generator

TWO = IFCA(groups=2)
SIZES = [1, 3, 2]


def state(models: Any, groups: Any = (-1, -1, -1)) -> Groups:
    return Groups(np.array(models, np.float32), np.array(groups))


def table(losses: Any, clients: Any = (0, 1, 2)) -> LossTable:
    return LossTable(np.array(clients), np.array(losses, np.float64), np.array(SIZES)[list(clients)])


REPLY = make_trained([0, 1, 2], [[1, 1], [3, 3], [6, 6]], SIZES)


def test_round_by_hand() -> None:
    # Clients 0 and 1 take model 0 (loss .1 < .2, .3 < .9), client 2 takes model 1. Uniform: (1 + 3) / 2 = 2 and 6.
    before = state([[0, 0], [9, 9]])
    losses = table([[0.1, 0.2], [0.3, 0.9], [0.8, 0.5]])
    ctx = make_context(SIZES)
    after, (ask, train) = run_dialogue(TWO.round(before, ctx), losses, REPLY)
    assert isinstance(ask, Losses)
    assert len(ask.models) == 2
    assert train.start.tolist() == [0, 0, 1]
    np.testing.assert_allclose(after.models, [[2, 2], [6, 6]])
    assert after.groups.tolist() == [0, 0, 1]
    assert ctx.notes.named["collapsed"] == 0
    assert ctx.notes.named["switched"] == 0  # nobody had a group to leave
    # By samples: (1 * 1 + 3 * 3) / 4 = 2.5.
    after, _ = run_dialogue(replace(TWO, weighting="samples").round(before, make_context(SIZES)), losses, REPLY)
    np.testing.assert_allclose(after.models[0], [2.5, 2.5])


def test_a_model_that_nobody_takes_stays_and_is_a_collapse() -> None:
    ctx = make_context(SIZES)
    after, _ = run_dialogue(TWO.round(state([[0, 0], [9, 9]]), ctx), table([[0.1, 0.2]] * 3), REPLY)
    assert after.models[1].tolist() == [9, 9]
    assert ctx.notes.named["collapsed"] == 1


def test_a_client_that_misses_the_probe_goes_on_with_its_last_model() -> None:
    before = state([[0, 0], [9, 9]], groups=(-1, 1, 0))
    losses = table([[0.8, 0.5]], clients=(2,))
    after, (_, train) = run_dialogue(TWO.round(before, make_context(SIZES)), losses, REPLY.of(np.array([1, 2])))
    assert train.clients.tolist() == [1, 2]  # of client 0 nothing is known
    assert train.start.tolist() == [1, 1]
    assert after.groups.tolist() == [-1, 1, 1]


def test_a_client_whose_losses_change_switches() -> None:
    ctx = make_context(SIZES)
    after, _ = run_dialogue(TWO.round(state([[0, 0], [9, 9]], groups=(0, 1, 1)), ctx), table([[0.2, 0.1], [0.2, 0.1], [0.2, 0.1]]), REPLY)
    assert after.groups.tolist() == [1, 1, 1]
    assert ctx.notes.named["switched"] == 1
    assert ctx.notes.named["collapsed"] == 1


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
    assert len(play(IFCA(groups=50)).states[0].models) == 6  # type: ignore[attr-defined]


def test_nobody_answers() -> None:
    before = state([[0, 0], [9, 9]], groups=(0, 1, -1))
    assert run_dialogue(TWO.round(before, make_context(SIZES)), remove_clients(table([[0, 0]] * 3)), remove_clients(REPLY))[0] is before
    assert run_dialogue(TWO.round(before, make_context(SIZES)), table([[0, 0]] * 3), remove_clients(REPLY))[0] is before


@pytest.mark.parametrize(("assign", "starts"), [("one", [0, 0, 0]), ("round_robin", [0, 1, 0]), ("oracle", [1, 0, 1])])
def test_controls(assign: Any, starts: list[int]) -> None:
    method = replace(TWO, assign=assign)
    ctx = make_context(SIZES, truth=np.array([1, 0, 1]))
    _, (_, train) = run_dialogue(method.round(state([[0, 0], [9, 9]]), ctx), table([[0.1, 0.2]] * 3), REPLY)
    assert train.start.tolist() == starts


def test_random_control_keeps_the_sizes() -> None:
    n = 12
    losses = LossTable(np.arange(n), np.tile([[0.1, 0.2]], (n, 1)), np.ones(n, np.int64))
    losses.losses[:4] = [0.2, 0.1]
    before = state(np.zeros((2, 2)), np.full(n, -1))
    reply = make_trained(list(range(n)), np.zeros((n, 2)), [1] * n)
    starts: list[Ids] = []
    for seed in (0, 0, 1):
        _, (_, train) = run_dialogue(replace(TWO, assign="random").round(before, make_context([1] * n, seed=seed)), losses, reply)
        assert sorted(train.start) == [0] * 8 + [1] * 4
        starts.append(train.start)
    assert starts[0].tolist() == starts[1].tolist() != starts[2].tolist()


@pytest.mark.parametrize("assign", ["random", "round_robin"])
def test_a_control_keeps_every_clients_group_over_partial_cohorts(assign: Any) -> None:
    history = play(replace(TWO, assign=assign), plan=replace(PLAN, cohort=3, dropout=0.2), rounds=8)
    groups = np.stack([state.groups for state in history.states])  # type: ignore[attr-defined]
    assert (groups[0] < 0).all()
    assert (groups[1] < 0).any()  # not everybody is in the first cohort
    assert set(groups[-1]) == {0, 1}
    for client in range(6):
        known = groups[groups[:, client] >= 0, client]
        assert len(set(known)) == 1, f"client {client} changes groups"
        assert len(known) == len(groups) - np.argmax(groups[:, client] >= 0)  # nor does it fall out of its group again
    assert [record.notes.named["switched"] for record in history.records[1:]] == [0] * 8


def test_a_client_that_joins_later_is_dealt_out_like_the_others() -> None:
    # Round robin: by number over the models, whatever its losses say. Random: the group of somebody drawn, so that groups grow as they are.
    losses, later = table([[0.1, 0.2]], clients=(2,)), REPLY
    before = state([[0, 0], [9, 9]], groups=(1, 1, -1))
    robin, (ask, _) = run_dialogue(replace(TWO, assign="round_robin").round(before, make_context(SIZES)), losses, later)
    assert ask.clients.tolist() == [2]  # the others are not asked for their losses
    assert robin.groups.tolist() == [1, 1, 0]
    for seed in range(4):
        drawn, _ = run_dialogue(replace(TWO, assign="random").round(before, make_context(SIZES, seed=seed)), losses, later)
        assert drawn.groups.tolist() == [1, 1, 1]  # both others are in group 1


def test_oracle_has_a_model_for_every_true_group() -> None:
    started = run_generator(
        IFCA(groups=2, assign="oracle").start(lambda i=0: np.zeros(2, np.float32), make_context(SIZES, truth=np.array([0, 2, 1]))),
        worlds.make_world(),
    )
    assert len(started.models) == 3
    with pytest.raises(UserError, match="oracle"):
        play(IFCA(assign="oracle"))


def test_number_of_groups_from_a_probe() -> None:
    # Nine clients in three directions; pre-training shows them.
    directions = np.repeat([[5, 0], [-3, 4], [-3, -4]], 3, axis=0) + np.arange(9)[:, None] * 0.01
    ctx = make_context([1] * 9, round_=0)
    method = IFCA(groups="auto", choice="silhouette")
    started, (probe,) = run_dialogue(
        method.start(lambda i=0: np.zeros(2, np.float32), ctx), make_trained(list(range(9)), directions, [1] * 9)
    )
    assert isinstance(probe, Train)
    assert probe.purpose == "probe"
    assert len(started.models) == 3
    assert ctx.notes.choice is not None
    assert ctx.notes.choice.k == 3
    silent, _ = run_dialogue(method.start(lambda i=0: np.zeros(2, np.float32), ctx), make_trained([], np.zeros((0, 2)), []))
    assert len(silent.models) == 1  # where nobody answers nothing speaks for more


@pytest.mark.parametrize("choice", ["structure", "trial"])
def test_number_of_groups_may_be_asked_for(choice: Any) -> None:
    start = play(IFCA(groups="auto", choice=choice, most=2), rounds=0)
    chosen = start.records[0].notes.choice
    assert chosen is not None
    assert chosen.how == choice
    assert len(start.states[0].models) == chosen.k in (1, 2)  # type: ignore[attr-defined]
    assert start.records[0].cost.messages > 0


def test_serving() -> None:
    world, method = worlds.make_world(), IFCA(groups=2)
    last = play(method, rounds=3).states[-1]
    assert isinstance(last, Groups)
    clients = np.array([5, 0, 3])
    serving = run_generator(method.serve(last, clients, make_round_context(world)), world)
    best = run_generator(iter(Losses(np.array([0, 3, 5]), last.models)), world).losses.argmin(axis=1)
    assert serving.rows.tolist() == [best[2], best[0], best[1]]
    engine = AlteredEngine(drop_replies(clients, (1,)))
    fallback = run_generator(
        method.serve(replace(last, groups=np.array([1, 1, 0, -1, 1, 0])), clients, make_round_context(world)), world, engine=engine
    )
    assert fallback.rows.tolist() == [0, 1, 1]  # its last group, or the largest
    engine = AlteredEngine(pass_unchanged)
    run_generator(
        replace(method, assign="random").serve(replace(last, groups=np.zeros(6, np.int64)), clients, make_round_context(world)),
        world,
        engine=engine,
    )
    assert not engine.asked  # a control does not let clients choose


def test_names_and_settings() -> None:
    assert isinstance(build("hypocluster(groups=4)"), HypoCluster)
    assert get_spec(IFCA(groups=2)) == "ifca(groups=2)"
    bad: list[dict[str, Any]] = [{"groups": 0}, {"probe": 0}, {"most": 0}]
    for settings in bad:
        with pytest.raises(UserError, match=next(iter(settings))):
            IFCA(**settings)
