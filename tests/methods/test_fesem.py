"""FeSEM: warm-up, E-step, M-step and distance term by hand; the identity; newcomers, empty centres, choice of K."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Losses, Train
from coterie.core.layout import Layout, Slice
from coterie.core.local import Local
from coterie.core.method import Context, Notes
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.core.vectors import as_vectors
from coterie.methods.fedavg import FedAvg
from coterie.methods.fesem import FeSEM, FeSEMState
from coterie.testing import worlds
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import PLAN, play, run_generator
from methods.noted import mixing_of

LAYOUT = Layout((Slice("body.weight", (1,), 0, "weight"), Slice("head.weight", (1,), 1, "weight")))
W0 = np.zeros(2, dtype=np.float32)
WARM = {0: (1.0, 0.0), 1: (3.0, 0.0), 2: (0.0, 10.0), 3: (0.0, 12.0), 4: (1.0, 9.0)}
SIZES = (1, 3, 2, 2, 2)
TWO = FeSEM(groups=2)

Answers = dict[int, tuple[float, float]]


def context(round_: int, reachable: tuple[int, ...] = (0, 1, 2, 3), true: tuple[int, ...] | None = None, **plan: Any) -> Context:
    roster = Roster.from_sizes([f"c{i}" for i in range(5)], np.array(SIZES))
    roster = replace(roster, reachable=np.isin(np.arange(5), reachable))
    truth = None if true is None else np.array(true)
    return Context(roster, LAYOUT, Plan(local=Local(epochs=3), **plan), 0, round_, truth=truth)


def world(trained: Answers, losses: tuple[float, ...] = ()) -> FakeEngine:
    """Warm-ups from w_0 give WARM; other training answers as told, and nobody else answers."""

    def answer(ask: Any, client: int) -> Any:
        if isinstance(ask, Losses):
            return {"losses": losses, "sizes": 1}
        at = WARM if not ask.models.any() else trained
        return {"vectors": at[client], "sizes": SIZES[client], "steps": 1} if client in at else None

    return FakeEngine(answer)


def asked(engine: FakeEngine) -> list[Train]:
    return [stamped.ask for call in engine.calls for stamped in call if isinstance(stamped.ask, Train)]


def warmed(method: FeSEM = TWO, ctx: Context | None = None) -> FeSEMState:
    state = run_generator(method.start(lambda i=0: W0, ctx or context(0)), worlds.make_world(), engine=world({}))
    return run_generator(method.round(state, ctx or context(1)), worlds.make_world(), engine=world({}))


def after(state: FeSEMState, trained: Answers, ctx: Context, method: FeSEM = TWO) -> FeSEMState:
    return run_generator(method.round(state, ctx), worlds.make_world(), engine=world(trained))


def test_the_warm_up_is_round_one() -> None:
    # Four models in two pairs: centres at the means of (1, 0), (3, 0) and of (0, 10), (0, 12).
    engine = world({})
    start = run_generator(TWO.start(lambda i=0: W0, context(0)), worlds.make_world(), engine=engine)
    assert not engine.calls
    assert TWO.members(start).tolist() == [-1] * 5
    assert run_generator(TWO.serve(start, np.array([2, 0]), context(0)), worlds.make_world(), engine=engine).rows.tolist() == [0, 0]
    ctx = context(1)
    state = run_generator(TWO.round(start, ctx), worlds.make_world(), engine=engine)
    np.testing.assert_allclose(state.models, [[2, 0], [0, 11]])
    assert state.groups.tolist() == [0, 0, 1, 1, -1]
    (ask,) = asked(engine)
    assert (ask.local.mu, ask.local.epochs, ask.purpose) == (0.0, 3, "train")  # no centre yet: no distance term
    assert ctx.notes.named["group_sizes"].tolist() == [2, 2]
    assert mixing_of(ctx).replies.tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]


def test_warm_up_epochs_and_clients() -> None:
    for method, epochs, clients in ((FeSEM(warmup=10), 10, 4), (FeSEM(warmup_by="cohort"), 3, 2)):
        engine, ctx = world({}), context(1, cohort=2)
        start = run_generator(method.start(lambda i=0: W0, ctx), worlds.make_world(), engine=engine)
        run_generator(method.round(start, ctx), worlds.make_world(), engine=engine)
        assert asked(engine)[0].local.epochs == epochs
        assert len(asked(engine)[0].clients) == clients


def test_e_step_and_m_step() -> None:
    # Centres (2, 0) and (0, 11). Client 0 at (2, 1): squared distances 1 and 104, stays. Client 1 at (0, 9): 85 and 4, switches.
    # Client 2 at (1, 11): 122 and 1, stays. Client 3 is silent. Centres: (2, 1) and the mean of (0, 9), (1, 11) = (.5, 10).
    # Eq. 6 at the old centres: (1 + 4 + 1) / 3 = 2.
    ctx = context(2)
    state = after(warmed(), {0: (2, 1), 1: (0, 9), 2: (1, 11)}, ctx)
    np.testing.assert_allclose(state.models, [[2.0, 1.0], [0.5, 10.0]])
    assert state.groups.tolist() == [0, 1, 1, 1, -1]
    assert ctx.notes.named["switches"] == 1
    assert ctx.notes.named["intra_distance"] == pytest.approx(2.0)
    assert ctx.notes.named["reseeded"].tolist() == []


def test_sample_weights() -> None:
    # Clients 1 (n = 3) and 2 (n = 2) share centre 1: (3 * (0, 9) + 2 * (1, 11)) / 5 = (.4, 9.8).
    method = FeSEM(groups=2, weighting="samples")
    state = after(warmed(method), {0: (2, 1), 1: (0, 9), 2: (1, 11)}, context(2), method)
    np.testing.assert_allclose(state.models[1], [0.4, 9.8])


def test_an_idle_centre_keeps_its_bits_and_a_tie_changes_nothing() -> None:
    before = warmed()
    # (1, 5.5) is as far from (2, 0) as from (0, 11): 1 + 30.25 both; client 2 stays with centre 1.
    state = after(before, {2: (1, 5.5)}, context(2, (2,)))
    assert state.groups.tolist() == before.groups.tolist()
    assert state.models[0].tobytes() == before.models[0].tobytes()
    np.testing.assert_allclose(state.models[1], [1, 5.5])


def test_distance_term() -> None:
    # The default takes mu = 2 lambda; literally mu_i = 2 lambda mean(n) / n_i, with mean(n) = (1 + 3 + 2 + 2 + 2) / 5 = 2.
    for method, mus in ((FeSEM(groups=2, lam=0.25), None), (FeSEM(groups=2, lam=0.25, literal=True), [1.0, 1 / 3, 0.5, 0.5])):
        engine = world({0: (2, 1)})
        run_generator(method.round(warmed(method), context(2)), worlds.make_world(), engine=engine)
        (ask,) = asked(engine)
        assert ask.local.mu == 0.5
        assert ask.start.tolist() == [0, 0, 1, 1]
        if mus is None:
            assert ask.mus is None
        else:
            assert ask.mus is not None
            np.testing.assert_allclose(ask.mus, mus)


def test_an_empty_centre_is_reseeded_at_the_farthest_client() -> None:
    # All go near centre 1 at (0, 11): distances 1, 9, 1, 1. Client 1 is the farthest and becomes centre 0; the others average without it.
    ctx = context(2)
    state = after(warmed(), {0: (0, 10), 1: (0, 8), 2: (0, 12), 3: (1, 11)}, ctx)
    assert state.groups.tolist() == [1, 0, 1, 1, -1]
    np.testing.assert_allclose(state.models, [[0.0, 8.0], [1 / 3, 11.0]], rtol=1e-6)
    assert ctx.notes.named["reseeded"].tolist() == [0]


def test_an_empty_centre_is_left_where_all_models_are_equal() -> None:
    ctx, before = context(2), warmed()
    state = after(before, dict.fromkeys(range(4), (0, 11)), ctx)
    assert ctx.notes.named["reseeded"].tolist() == []
    assert state.groups.tolist() == [1, 1, 1, 1, -1]
    assert state.models[0].tobytes() == before.models[0].tobytes()


def test_a_centre_whose_clients_are_away_is_not_empty() -> None:
    ctx = context(2, (2, 3))
    state = after(warmed(), {2: (0, 30), 3: (0, 11)}, ctx)
    assert ctx.notes.named["reseeded"].tolist() == []
    assert state.groups.tolist() == [0, 0, 1, 1, -1]


def test_a_client_never_seen_is_compared_with_the_first_centres() -> None:
    state = after(warmed(), {0: (0, 9), 1: (1, 9), 2: (50, 50), 3: (50, 50)}, context(2))  # groups drift: centre 0 is reseeded
    assert state.first.tolist() == [[2, 0], [0, 11]]
    engine = world({4: (7, 7)})
    state = run_generator(TWO.round(warmed(), context(2, (4,))), worlds.make_world(), engine=engine)
    warm, training = asked(engine)
    assert (warm.purpose, warm.models.tolist(), warm.local.mu) == ("warm-up", [W0.tolist()], 0.0)
    assert training.start.tolist() == [1]  # (1, 9) is nearest to (0, 11)
    assert state.groups[4] == 1
    missed = after(warmed(), {}, context(2, (4,)))
    assert missed.groups[4] == -1  # it has not trained: not in yet


def test_a_client_never_seen_may_take_the_lowest_loss() -> None:
    method = FeSEM(groups=2, newcomers="loss")
    engine = world({4: (7, 7)}, losses=(0.1, 0.9))
    run_generator(method.round(warmed(method), context(2, (4,))), worlds.make_world(), engine=engine)
    assert asked(engine)[0].start.tolist() == [0]


def test_what_is_compared() -> None:
    # On all weights (4, 10) is nearer to (0, 11); on the last layer, the second number alone, likewise; (0, 5) is nearer to (2, 0) on
    # all (29 against 36), and (0, 6) on neither; with a body of 40, (40, 4) is nearer to centre 0 on both, (40, 6) only on all.
    rows = np.array([[40, 6]], dtype=np.float32)
    centres = np.array([[2, 0], [0, 11]], dtype=np.float32)
    np.testing.assert_allclose(as_vectors(rows).squared_distances(centres), [[38**2 + 36, 40**2 + 25]])
    for on, members in (("all", 0), ("last_layer", 1)):
        method = FeSEM(groups=2, assign_on=on)  # type: ignore[arg-type]
        assert after(warmed(method), {0: (40, 6), 1: (2, 0)}, context(2), method).groups[0] == members


def test_a_sketch_keeps_distances_roughly_and_projects_alike_in_every_round() -> None:
    method = FeSEM(groups=2, assign_on="sketch")
    state = warmed(method)
    assert state.groups.tolist() == [0, 0, 1, 1, -1]
    rows = np.array([[3, 4], [1, 1]], dtype=np.float32)
    one, two = (method.distances(rows, rows, context(round_)) for round_ in (2, 7))
    assert one.tobytes() == two.tobytes()
    assert one[0, 0] == 0.0
    assert one[0, 1] == pytest.approx(13.0, rel=0.3)
    assert after(state, {1: (0, 9), 0: (2, 1)}, context(2), method).groups.tolist() == [0, 1, 1, 1, -1]


def test_capped_centres_and_silent_warm_ups() -> None:
    ctx = context(1)
    state = warmed(FeSEM(groups=9), ctx)
    assert len(state.models) == 4
    assert ctx.notes.named["groups_capped"] == 5
    start = run_generator(TWO.start(lambda i=0: W0, context(0)), worlds.make_world(), engine=world({}))
    silent = FakeEngine(lambda ask, client: None)
    assert run_generator(TWO.round(start, context(1)), worlds.make_world(), engine=silent) is start
    assert len(run_generator(TWO.round(start, context(2)), worlds.make_world(), engine=world({})).first) == 2  # tried again


def test_controls_hold_their_groups() -> None:
    moving: Answers = {0: (0, 10), 1: (0, 10), 2: (2, 0), 3: (2, 0)}  # by similarity everybody would switch
    for assign, true, expected in (
        ("oracle", (1, 0, 1, 0, 1), [0, 1, 0, 1]),
        ("round_robin", None, [0, 1, 0, 1]),
        ("one", None, [0, 0, 0, 0]),
    ):
        method = FeSEM(groups=2, assign=assign)  # type: ignore[arg-type]
        ctx = context(1, true=true)
        state = warmed(method, ctx)
        assert state.groups[:4].tolist() == expected
        assert after(state, moving, replace(ctx, round_=2, notes=Notes()), method).groups[:4].tolist() == expected
    random = [warmed(FeSEM(groups=2, assign="random"), replace(context(1), seed=s)).groups[:4] for s in range(9)]
    assert all(np.bincount(labels).tolist() == [2, 2] for labels in random)
    assert len({tuple(labels) for labels in random}) > 1
    assert after(warmed(), moving, context(2)).groups[:4].tolist() == [1, 1, 0, 0]


def test_serving() -> None:
    state = after(warmed(), {0: (2, 1), 1: (0, 9), 2: (1, 11)}, context(2))  # groups of one and three
    serving = run_generator(TWO.serve(state, np.array([4, 0, 3]), context(2)), worlds.make_world(), engine=world({}))
    assert serving.rows.tolist() == [1, 0, 1]
    silent = run_generator(TWO.serve(state, np.array([4, 0]), context(2)), worlds.make_world(), engine=FakeEngine(lambda ask, client: None))
    assert silent.rows.tolist() == [1, 0]  # the largest group's for a client that does not answer
    assert TWO.central(state).names == ("group 0", "group 1")


@pytest.mark.parametrize("plan", [replace(PLAN, cohort=None), replace(PLAN, cohort=None, dropout=0.3, decay=0.9)])
def test_one_centre_without_distance_term_is_uniform_fedavg(plan: Plan) -> None:
    ours = play(FeSEM(groups=1, lam=0.0), plan=plan, rounds=4)
    theirs = play(FedAvg(weighting="uniform"), plan=plan, rounds=4)
    for a, b in zip(ours.states, theirs.states, strict=True):
        assert isinstance(a, FeSEMState)
        assert a.models.tobytes() == b.models.tobytes()  # type: ignore[attr-defined]
    assert play(FeSEM(groups=1, lam=0.1), plan=plan, rounds=4).data[-1] != ours.data[-1]


def test_the_number_of_centres_can_be_found() -> None:
    plan = replace(PLAN, cohort=None)
    trial = play(FeSEM(groups="auto", choice="trial", most=3), plan=plan, rounds=2)
    chosen, cost = trial.records[1].notes.choice, trial.records[1].cost
    assert chosen is not None
    assert 1 <= chosen.k <= 3
    assert np.isfinite(chosen.curves["accuracy"]).all()
    assert chosen.curves["distance"][2] < chosen.curves["distance"][0]
    # Six clients are asked by three trials of three rounds and a validation each, and by the warm-up itself.
    assert cost.messages == 2 * 6 * (3 * (3 + 1) + 1)
    for choice in ("silhouette", "gap", "stability"):
        found = play(FeSEM(groups="auto", choice=choice, most=3), plan=plan, rounds=2)
        read = found.records[1].notes.choice
        assert read is not None
        assert read.how == choice
        curve = read.curves[choice]
        assert 2 <= len(curve) <= 3
        state = found.states[-1]
        assert isinstance(state, FeSEMState)
        assert len(state.models) == read.k
        assert read.k == 1 + np.nanargmax(curve) or choice != "silhouette"
    asked = play(FeSEM(groups="auto", most=3), plan=plan, rounds=2)
    structure, state = asked.records[1].notes.choice, asked.states[-1]
    assert structure is not None
    assert structure.how == "structure"  # unless said otherwise
    assert isinstance(state, FeSEMState)
    assert len(state.models) == structure.k <= 3


@pytest.mark.parametrize("make", [lambda: FeSEM(groups=0), lambda: FeSEM(lam=-1), lambda: FeSEM(warmup=0), lambda: FeSEM(restarts=0)])
def test_bad_settings(make: Callable[[], FeSEM]) -> None:
    with pytest.raises(UserError, match=r"FeSEM cannot use .*: give .*\."):
        make()
