"""FedGroup: the cold starts, a round and the variants, with numbers worked by hand; the identities; newcomers; serving."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Train
from coterie.core.layout import Layout, Slice
from coterie.core.local import Local
from coterie.core.method import Context
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedgroup import FedGroup, FedGroupRAC, FedGroupRCC, FedGrouProx, FedGroupState
from coterie.testing import worlds
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import PLAN, play, run_generator
from methods.noted import mixing_of

LAYOUT = Layout((Slice("w", (2,), 0, "weight"),))
W0 = np.array([1.0, 1.0], dtype=np.float32)
# Pre-training moves clients 0 and 1 along the first axis, 2 and 3 along the second, and client 4 nearly along the second.
UPDATES = np.array([[2, 0], [4, 0], [0, 1], [0, 3], [1, 5]], dtype=np.float64)
SIZES = (1, 3, 2, 2, 1)
TWO = FedGroup(groups=2, eta_g=0.0)


def context(round_: int, reachable: tuple[int, ...] = (0, 1, 2, 3), true: tuple[int, ...] | None = None, **plan: Any) -> Context:
    roster = Roster.from_sizes([f"c{i}" for i in range(5)], np.array(SIZES))
    roster = replace(roster, reachable=np.isin(np.arange(5), reachable))
    truth = None if true is None else np.array(true)
    return Context(roster, LAYOUT, Plan(local=Local(epochs=3), **plan), 0, round_, truth=truth)


def world(trained: dict[int, tuple[float, float]] | None = None, updates: Any = UPDATES) -> FakeEngine:
    """Pre-training adds the client's update to the model sent; training answers as told, and nobody else answers."""

    def answer(ask: Any, client: int) -> Any:
        if ask.purpose == "pretrain":
            sent = ask.models[ask.start[list(ask.clients).index(client)]]
            return {"vectors": sent + updates[client], "sizes": SIZES[client], "steps": 1}
        if trained is None or client not in trained:
            return None
        return {"vectors": trained[client], "sizes": SIZES[client], "steps": 1}

    return FakeEngine(answer)


def started(method: FedGroup = TWO, ctx: Context | None = None, updates: Any = UPDATES) -> FedGroupState:
    return run_generator(method.start(lambda i=0: W0, ctx or context(0)), worlds.make_world(), engine=world(updates=updates))


def asked(engine: FakeEngine) -> list[Train]:
    return [stamped.ask for call in engine.calls for stamped in call if isinstance(stamped.ask, Train)]


def test_group_cold_start() -> None:
    # The singular directions of the updates are the axes (squares 4 + 16 = 20 and 1 + 9 = 10), so M is (0, .5) for clients 0 and 1 and
    # (.5, 0) for 2 and 3: two points, whatever the lengths. Group models: w_0 + mean update = (1 + 3, 1) and (1, 1 + 2).
    ctx = context(0)
    state = started(ctx=ctx)
    assert state.groups.tolist() == [0, 0, 1, 1, -1]
    np.testing.assert_allclose(state.models, [[4, 1], [1, 3]])
    np.testing.assert_allclose(state.directions, [[3, 0], [0, 2]])
    assert ctx.notes.named["within"] == pytest.approx(0.0, abs=1e-12)
    assert ctx.notes.named["group_sizes"].tolist() == [2, 2]
    assert ctx.notes.named["groups_capped"] == 0


def test_groups_may_start_from_w0() -> None:
    state = started(replace(TWO, start_from="w0"))
    assert state.models.tolist() == [[1, 1], [1, 1]]
    np.testing.assert_allclose(state.directions, [[3, 0], [0, 2]])


def test_pretraining_is_short_without_proximal_term_and_of_alpha_m_clients() -> None:
    engine = world()
    ctx = context(0, tuple(range(5)))
    run_generator(FedGroup(groups=2, alpha=2, mu=1.0).start(lambda i=0: W0, ctx), worlds.make_world(), engine=engine)
    (ask,) = asked(engine)
    assert len(ask.clients) == 4  # min(alpha * m, N) = min(4, 5)
    assert (ask.local.epochs, ask.local.mu, ask.local.max_steps) == (1, 0.0, None)
    engine = world()
    run_generator(FedGroup(groups=2, pretrain_steps=50).start(lambda i=0: W0, ctx), worlds.make_world(), engine=engine)
    assert asked(engine)[0].local.max_steps == 50
    assert asked(engine)[0].local.epochs >= 50  # a client with one batch needs 50 epochs for 50 steps


def test_intra_group_aggregation() -> None:
    # Group 0: (1 * (5, 1) + 3 * (7, 1)) / 4 = (6.5, 1). Group 1: client 3 does not answer, so (1, 4) of client 2 alone.
    engine = world({0: (5, 1), 1: (7, 1), 2: (1, 4)})
    ctx = context(1)
    state = run_generator(TWO.round(started(), ctx), worlds.make_world(), engine=engine)
    np.testing.assert_allclose(state.models, [[6.5, 1.0], [1.0, 4.0]])
    (ask,) = asked(engine)
    assert ask.start.tolist() == [0, 0, 1, 1]
    assert mixing_of(ctx).replies.tolist() == [[0.25, 0.75, 0], [0, 0, 1]]


def test_inter_group_aggregation() -> None:
    # Interim models a = (6.5, 1) and b = (1, 4), ||a||^2 = 43.25, ||b||^2 = 17. Lines 22-23 give a + eta_g b/||b|| and b + eta_g a/||a||;
    # the authors' code divides by 1 + eta_g/||b|| and 1 + eta_g/||a||, which makes the rows of the matrix sum to one.
    trained = {0: (5.0, 1.0), 1: (7.0, 1.0), 2: (1.0, 4.0)}
    a, b, eta = np.array([6.5, 1]), np.array([1.0, 4]), 0.5
    literal_a, literal_b = a + eta * b / np.sqrt(17), b + eta * a / np.sqrt(43.25)
    ctx = context(1)
    state = run_generator(replace(TWO, eta_g=eta).round(started(), ctx), worlds.make_world(), engine=world(trained))
    np.testing.assert_allclose(state.models, [literal_a / (1 + eta / np.sqrt(17)), literal_b / (1 + eta / np.sqrt(43.25))], rtol=1e-6)
    np.testing.assert_allclose(mixing_of(ctx).replies.sum(1), 1.0)
    assert mixing_of(ctx).averages
    literal = replace(TWO, eta_g=eta, literal=True)
    state = run_generator(literal.round(started(), ctx), worlds.make_world(), engine=world(trained))
    np.testing.assert_allclose(state.models, [literal_a, literal_b], rtol=1e-6)
    assert not mixing_of(ctx).averages


def test_idle_groups_keep_their_bits_or_take_part_between_groups() -> None:
    before = started()
    engine = world({0: (5, 1)})
    state = run_generator(TWO.round(before, context(1)), worlds.make_world(), engine=engine)
    assert state.models[1].tobytes() == before.models[1].tobytes()
    moved = run_generator(replace(TWO, eta_g=0.5).round(before, context(1)), worlds.make_world(), engine=world({0: (5, 1)}))
    b, a = np.array([1.0, 3]), np.array([5.0, 1])
    np.testing.assert_allclose(moved.models[1], (b + 0.5 * a / np.sqrt(26)) / (1 + 0.5 / np.sqrt(26)), rtol=1e-6)


def test_models_of_norm_zero_pull_nobody() -> None:
    # Client 0 and 1 come back at the origin, so group 0 has no direction; group 1 pulls group 0.
    engine = world({0: (0, 0), 1: (0, 0), 2: (3, 4)})
    state = run_generator(replace(TWO, eta_g=0.5).round(started(), context(1)), worlds.make_world(), engine=engine)
    np.testing.assert_allclose(state.models[1], [3, 4])
    np.testing.assert_allclose(state.models[0], 0.5 * np.array([3, 4]) / 5 / (1 + 0.5 / 5), rtol=1e-6)


def test_a_newcomer_pretrains_from_w0_and_joins_the_nearest_direction() -> None:
    # Eq. 10: (1, 5) has cosine 1/sqrt(26) = .196 with (3, 0) and 5/sqrt(26) = .981 with (0, 2): group 1.
    engine = world({4: (9, 9), 2: (1, 4)})
    ctx = context(1, (2, 4))
    state = run_generator(TWO.round(started(), ctx), worlds.make_world(), engine=engine)
    pretraining, training = asked(engine)
    assert pretraining.clients.tolist() == [4]
    assert pretraining.models.tolist() == [W0.tolist()]
    assert training.start.tolist() == [1, 1]
    assert training.epochs is None  # all of E, from the group's model
    assert state.groups.tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_allclose(state.models[1], [(2 * 1 + 9) / 3, (2 * 4 + 9) / 3], rtol=1e-6)
    assert ctx.notes.named["joined"] == 1


def test_literally_a_newcomer_starts_from_the_global_model_and_goes_on() -> None:
    literal = replace(TWO, literal=True)
    # Round 1: group 0 goes from (4, 1) to (4, 0), an update of (0, -1); group 1 is idle and keeps its direction (0, 2).
    state = run_generator(literal.round(started(), context(1)), worlds.make_world(), engine=world({0: (4, 0), 1: (4, 0)}))
    np.testing.assert_allclose(state.directions, [[0, -1], [0, 2]])
    # Round 2: client 4 pre-trains from the mean of (4, 0) and (1, 3), which is (2.5, 1.5), to (3.5, 6.5); with (1, 5) it is group 1's.
    engine = world({4: (9, 9)})
    state = run_generator(literal.round(state, context(2, (4,))), worlds.make_world(), engine=engine)
    pretraining, training = asked(engine)
    np.testing.assert_allclose(pretraining.models, [[2.5, 1.5]])
    np.testing.assert_allclose(training.models[training.start[0]], [3.5, 6.5])
    assert training.epochs is not None
    assert training.epochs.tolist() == [2]  # E - 1
    assert training.anchors is None
    assert state.groups[4] == 1
    prox = world({4: (9, 9)})
    run_generator(replace(literal, mu=1.0).round(started(), context(2, (0, 4))), worlds.make_world(), engine=prox)
    anchors = asked(prox)[1].anchors
    assert anchors is not None
    np.testing.assert_allclose(anchors, [[4, 1], [1, 3]])  # the proximal term holds to the group's model


def test_a_newcomer_that_misses_the_training_stays_cold() -> None:
    before = started()
    state = run_generator(TWO.round(before, context(1, (0, 4))), worlds.make_world(), engine=world({0: (5, 1)}))
    assert state.groups.tolist() == [0, 0, 1, 1, -1]


def test_nobody_answers_the_cold_start() -> None:
    silent = FakeEngine(lambda ask, client: None)
    state = run_generator(TWO.start(lambda i=0: W0, context(0)), worlds.make_world(), engine=silent)
    assert state.models.tolist() == [W0.tolist()]
    assert TWO.members(state).tolist() == [-1] * 5
    assert TWO.central(state).names == ("global",)
    serving = run_generator(TWO.serve(state, np.array([3, 1]), context(0)), worlds.make_world(), engine=silent)
    assert serving.rows.tolist() == [0, 0]
    state = run_generator(TWO.round(state, context(1)), worlds.make_world(), engine=world())  # the cold start takes the next round
    assert state.groups.tolist() == [0, 0, 1, 1, -1]


def test_identical_and_zero_updates_make_one_group() -> None:
    for updates in (np.zeros((5, 2)), np.ones((5, 2))):
        ctx = context(0)
        state = started(FedGroup(groups=3), ctx, updates)
        assert state.groups.tolist() == [0, 0, 0, 0, -1]
        assert ctx.notes.named["groups_capped"] == 2


def test_more_groups_than_clients() -> None:
    ctx = context(0)
    updates = np.array([[1, 0], [0, 1], [-1, 0], [0, -1], [0, 0]])
    state = started(FedGroup(groups=9), ctx, updates)
    assert sorted(state.groups[:4]) == [0, 1, 2, 3]
    assert ctx.notes.named["groups_capped"] == 5


def test_rcc_takes_random_clients_as_centres() -> None:
    assert isinstance(build("rcc(groups=2)"), FedGroupRCC)
    seen = set()
    for seed in range(8):
        ctx = replace(context(0), seed=seed)
        state = started(FedGroupRCC(groups=2), ctx)
        assert state.groups[0] == state.groups[1]  # equal directions are never apart
        assert state.groups[2] == state.groups[3]
        seen.add(len(state.models))
    assert seen == {1, 2}  # two centres of one kind leave one group; k-means would not


def test_rac_gives_cold_clients_a_random_group_without_asking() -> None:
    assert isinstance(build("rac"), FedGroupRAC)
    method = FedGroupRAC(groups=2, eta_g=0.0)
    found = set()
    for seed in range(8):
        engine = world({4: (9, 9)})
        ctx = replace(context(1, (4,)), seed=seed)
        state = run_generator(method.round(started(), ctx), worlds.make_world(), engine=engine)
        assert [ask.purpose for ask in asked(engine)] == ["train"]
        found.add(int(state.groups[4]))
        again = run_generator(method.serve(started(), np.array([4]), replace(ctx, round_=9)), worlds.make_world(), engine=engine)
        assert again.rows.tolist() == [state.groups[4]]  # the same group whenever it is looked at
    assert found == {0, 1}


def test_controls() -> None:
    true = (1, 0, 1, 0, 1)
    assert started(replace(TWO, assign="oracle"), context(0, true=true)).groups.tolist() == [0, 1, 0, 1, -1]
    assert started(replace(TWO, assign="round_robin")).groups.tolist() == [0, 1, 0, 1, -1]
    one = started(replace(TWO, assign="one"))
    assert one.groups.tolist() == [0, 0, 0, 0, -1]
    np.testing.assert_allclose(one.models, [[1 + 1.5, 1 + 1]])
    uneven = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]])
    random = [started(replace(TWO, assign="random"), replace(context(0), seed=s), uneven).groups[:4] for s in range(9)]
    assert all(sorted(np.bincount(labels)) == [1, 3] for labels in random)  # the sizes of the similar groups
    assert len({tuple(labels) for labels in random}) > 1
    with pytest.raises(UserError, match="true groups"):
        started(replace(TWO, assign="oracle"))


def test_newcomers_under_a_control_do_not_join_by_similarity() -> None:
    # Client 4 is of true group 1, whose members 0 and 2 are in group 0, while its update resembles the other group's.
    method = replace(TWO, assign="oracle")
    ctx = context(1, (4,), true=(1, 0, 1, 0, 1))
    before = started(method, context(0, true=(1, 0, 1, 0, 1)))
    assert run_generator(method.round(before, ctx), worlds.make_world(), engine=world({4: (9, 9)})).groups[4] == 0
    robin = replace(TWO, assign="round_robin")
    assert (
        run_generator(robin.round(started(robin), context(1, (4,))), worlds.make_world(), engine=world({4: (9, 9)})).groups[4] == 0
    )  # 4 mod 2


def test_serving() -> None:
    state = started()
    engine = world()
    serving = run_generator(TWO.serve(state, np.array([4, 0, 3]), context(1)), worlds.make_world(), engine=engine)
    assert serving.rows.tolist() == [1, 0, 1]  # client 4 has pre-trained and is nearest to group 1
    assert asked(engine)[0].clients.tolist() == [4]
    silent = run_generator(TWO.serve(state, np.array([4, 0]), context(1)), worlds.make_world(), engine=FakeEngine(lambda ask, client: None))
    np.testing.assert_allclose(silent.models[silent.rows[0]], [2.5, 2])  # the plain mean of (4, 1) and (1, 3)
    assert silent.rows[1] == 0
    assert TWO.central(state).names == ("global", "group 0", "group 1")


def test_the_number_of_groups_can_be_found() -> None:
    angles = np.deg2rad([0, 2, 4, 120, 122, 124, 240, 242, 244])
    updates = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    roster = Roster.from_sizes([f"c{i}" for i in range(9)], np.ones(9, dtype=np.int64))
    engine = FakeEngine(lambda ask, client: {"vectors": W0 + updates[client], "sizes": 1, "steps": 1})
    ctx = Context(roster, LAYOUT, Plan(), 0, 0)
    state = run_generator(FedGroup(groups="auto", choice="silhouette").start(lambda i=0: W0, ctx), worlds.make_world(), engine=engine)
    assert len(state.models) == 3
    assert ctx.notes.choice is not None
    assert (ctx.notes.choice.k, ctx.notes.choice.how) == (3, "silhouette")
    assert int(np.nanargmax(ctx.notes.choice.curves["silhouette"])) == 2  # at three groups
    assert ctx.notes.silhouette == pytest.approx(ctx.notes.choice.curves["silhouette"][2])  # of the groups that were made
    short = play(FedGroup(groups="auto", choice="trial", most=2), rounds=1).records[0]
    assert short.notes.choice is not None
    assert short.notes.choice.k in (1, 2)
    assert short.cost.messages > 2 * 2 * 3 * 6  # two trials of three rounds with six clients are paid for


def test_the_number_of_groups_is_found_by_the_test_of_structure_unless_said_otherwise() -> None:
    start = play(FedGroup(groups="auto", most=3), rounds=0)
    (state,), choice = start.states, start.records[0].notes.choice
    assert isinstance(state, FedGroupState)
    assert choice is not None
    assert choice.how == "structure"
    assert 1 <= len(state.models) <= choice.k <= 3
    classes, clients = 3, 6
    assert start.records[0].cost.messages > 2 * classes * clients  # gradients on two halves, class by class, are paid for


def same_models(one: Any, other: Any) -> bool:
    return all(a.models.tobytes() == b.models.tobytes() for a, b in zip(one.states, other.states, strict=True))


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, cohort=None), replace(PLAN, dropout=0.3)])
def test_one_group_from_w0_is_fedavg(plan: Plan) -> None:
    ours = play(FedGroup(groups=1, eta_g=0, start_from="w0"), plan=plan, rounds=4)
    assert same_models(ours, play(FedAvg(), plan=plan, rounds=4))
    moved = play(FedGroup(groups=1, eta_g=0), plan=plan, rounds=4)
    assert not same_models(ours, moved)  # pre-training shows: the identity can fail


def test_fedgrouprox_without_a_proximal_term_is_fedgroup() -> None:
    assert play(FedGrouProx(mu=0.0)).data == play(FedGroup()).data
    assert play(FedGrouProx(mu=0.5)).data != play(FedGroup()).data
    engine = world({0: (5, 1)})
    run_generator(FedGrouProx(groups=2).round(started(), context(1)), worlds.make_world(), engine=engine)
    assert asked(engine)[0].local.mu == 1.0
    assert asked(engine)[0].partial  # FedProx keeps the work of stragglers


def test_newcomers_arrive_over_time() -> None:
    """A client a round becomes reachable; each is in a group after its first round, and nobody ever changes groups."""
    state: Any = started(TWO, context(0, (0, 2)))
    assert state.groups.tolist() == [0, -1, 1, -1, -1]
    everyone: dict[int, tuple[float, float]] = {i: (1.0 + i, 1.0) for i in range(5)}
    for round_, reachable in enumerate([(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4)], start=1):
        before = state.groups
        state = run_generator(TWO.round(state, context(round_, reachable)), worlds.make_world(), engine=world(everyone))
        assert (state.groups[list(reachable)] >= 0).all()
        assert (state.groups[before >= 0] == before[before >= 0]).all()
    assert state.groups.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedGroup(groups=0),
        lambda: FedGroup(alpha=0),
        lambda: FedGroup(eta_g=-0.1),
        lambda: FedGrouProx(mu=float("nan")),
        lambda: FedGroup(pretrain_steps=0),
    ],
)
def test_bad_settings(make: Callable[[], FedGroup]) -> None:
    with pytest.raises(UserError, match=r"FedGrou(p|Prox) cannot use .*: give .*\."):
        make()
