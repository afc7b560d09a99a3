"""FedEx: the clustering round, experts, latecomers, the gate, central models and serving, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Evaluated, Train
from coterie.core.plan import Plan
from coterie.core.serving import COMBINED, Serving
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World
from coterie.methods.combiners import MostConfident, OwnExpert
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedex import FedEx, FedExState, merge_lone_clients
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, get_loop_engine, make_round_context, pass_unchanged, play, run_generator
from methods.noted import mixing_of

W0 = np.array([10.0, 10.0], np.float32)
SIZES = [1, 3, 1, 1]
# Updates along the first axis (clients 0 and 1) and along the second (2 and 3).
APART = make_trained([0, 1, 2, 3], W0 + np.array([[1, 0], [5, 0.5], [0, 2], [0.1, 4]], np.float32), SIZES)
QUIET = FedEx(groups=2)


def start(method: FedEx = QUIET, n: int = 4) -> FedExState:
    return run_generator(method.start(lambda i=0: W0 + np.float32(i), make_context([1] * n, round_=0)), worlds.make_world())


def clustered(method: FedEx = QUIET, reply: Any = APART, **options: Any) -> FedExState:
    return run_dialogue(method.round(start(method), make_context(SIZES, **options)), reply)[0]


def test_clustering_round_by_hand() -> None:
    ctx = make_context(SIZES)
    state, (ask,) = run_dialogue(QUIET.round(start(), ctx), APART)
    assert ask.clients.tolist() == [0, 1, 2, 3]
    assert ask.local.epochs == 5
    assert ask.purpose == "pretrain"
    assert state.groups.tolist() == [0, 0, 1, 1]
    assert state.models.tolist() == [W0.tolist()] * 2  # experts begin at w_0
    assert state.centres is not None
    np.testing.assert_allclose(state.centres, [[13, 10.25], [10.05, 13]], rtol=1e-6)
    assert ctx.notes.named["experts"] == 2
    assert mixing_of(ctx).before.tolist() == [[1], [1]]


def test_where_experts_begin() -> None:
    first = clustered(replace(QUIET, start_from="first_round"))
    np.testing.assert_allclose(first.models, [[10 + (1 + 15) / 4, 10 + 1.5 / 4], [10.05, 13]], rtol=1e-6)  # by samples
    fresh = clustered(replace(QUIET, start_from="fresh"))
    assert fresh.models.tolist() == [[11, 11], [12, 12]]  # the keyed factory's next ones, none of them w_0
    assert fresh.fresh is None


def test_updates_or_raw_weights() -> None:
    # From w_0 = (10, 0) the updates point to 90, 90, 0, 113 and 3 degrees: clients 2 and 4 are apart from the others. The models
    # themselves point to 6, 42, 0, 45 and 0 degrees: now 1 and 3 are.
    w0 = np.array([[10, 0]], np.float32)
    reply = make_trained(list(range(5)), w0 + np.array([[0, 1], [0, 9], [1, 0], [-3, 7], [2, 0.1]], np.float32), [1] * 5)
    before = FedExState(w0, np.full(5, -1), w0, None, None, None)
    assert run_dialogue(QUIET.round(before, make_context([1] * 5)), reply)[0].groups.tolist() == [0, 0, 1, 0, 1]
    literal = run_dialogue(replace(QUIET, on="weights").round(before, make_context([1] * 5)), reply)[0]
    assert literal.groups.tolist() == [0, 1, 0, 1, 0]


def test_experts_train_on_their_own_clusters() -> None:
    state = clustered()
    reply = make_trained([0, 1, 3], [[1, 1], [3, 3], [8, 8]], [1, 3, 1])
    after, (ask,) = run_dialogue(QUIET.round(state, make_context(SIZES, round_=2)), reply)
    assert ask.start.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(after.models, [[2.5, 2.5], [8.0, 8.0]])  # (1 + 9) / 4 by samples
    idle, _ = run_dialogue(QUIET.round(after, make_context(SIZES, round_=3)), reply.of(np.array([3])))
    assert idle.models[0].tobytes() == after.models[0].tobytes()


def test_cohorts_of_the_experts() -> None:
    groups = np.array([0] * 7 + [1] * 3)
    state = FedExState(np.zeros((2, 2), np.float32), groups, np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32), None, None)
    for method, plan, expected in (
        (replace(QUIET, fraction=0.5), Plan(), [4, 2]),  # ceil(3.5), ceil(1.5)
        (QUIET, Plan(cohort=2), [2, 1]),  # 2 of 10 clients: ceil(1.4), ceil(.6)
        (QUIET, Plan(), [7, 3]),
    ):
        ask: Any = next(method.round(state, make_context([1] * 10, plan=plan, round_=2)))
        assert np.bincount(groups[ask.clients]).tolist() == expected
    one = replace(state, models=state.models[:1], groups=np.zeros(10, np.int64))
    for cohort in range(1, 11):  # 10 * (3 / 10) must not become 4
        ctx = make_context([1] * 10, plan=Plan(cohort=cohort), round_=2)
        ask = next(QUIET.round(one, ctx))
        assert ask.clients.tolist() == ctx.cohort().tolist()


def test_a_lone_client_joins_the_nearest_cluster_and_nobody_is_lost() -> None:
    affinity = np.array(
        [[1, 0.9, 0.2, 0.1, 0.6], [0.9, 1, 0.2, 0.1, 0.3], [0.2, 0.2, 1, 0.8, 0.5], [0.1, 0.1, 0.8, 1, 0.3], [0.6, 0.3, 0.5, 0.3, 1]]
    )
    # Client 4 is on average .45 like the first cluster and .4 like the second.
    assert merge_lone_clients(np.array([0, 0, 1, 1, 2]), affinity).tolist() == [0, 0, 1, 1, 0]
    # Everybody alone: 0 joins 1 (.9), then 2 joins 3 (.8), then 4 the first.
    assert merge_lone_clients(np.arange(5), affinity).tolist() == [0, 0, 1, 1, 0]
    assert merge_lone_clients(np.array([0]), affinity[:1, :1]).tolist() == [0]
    assert merge_lone_clients(np.zeros(3, np.int64), affinity[:3, :3]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 9])
def test_the_wrong_number_of_groups_loses_nobody(groups: int) -> None:
    state = clustered(replace(QUIET, groups=groups))
    assert set(state.groups) == set(range(len(state.models)))
    assert np.bincount(state.groups).min() > 1


def test_identical_clients_and_zero_updates() -> None:
    ctx = make_context(SIZES)
    state, _ = run_dialogue(QUIET.round(start(), ctx), make_trained([0, 1, 2, 3], [[11, 12]] * 4, SIZES))
    assert state.groups.tolist() == [0] * 4
    assert ctx.notes.named["groups_missing"] == 1
    still, _ = run_dialogue(QUIET.round(start(), ctx), make_trained([0, 1, 2, 3], [W0] * 4, SIZES))  # alike to nobody: any groups will do
    assert np.bincount(still.groups).min() > 1


def test_automatic_number_of_groups() -> None:
    rng = np.random.default_rng(0)
    directions = np.repeat(np.eye(3) * 5, 4, axis=0) + rng.normal(0, 0.1, (12, 3))
    state = FedExState(np.zeros((1, 3), np.float32), np.full(12, -1), np.zeros((1, 3), np.float32), None, None, None)
    ctx = make_context([1] * 12, 3)
    found, _ = run_dialogue(
        replace(QUIET, groups="auto", choice="silhouette").round(state, ctx), make_trained(list(range(12)), directions, [1] * 12)
    )
    assert found.groups.tolist() == np.repeat([0, 1, 2], 4).tolist()
    assert ctx.notes.choice is not None
    assert ctx.notes.choice.k == 3
    assert len(ctx.notes.choice.curves["silhouette"]) >= 3


def test_the_number_of_experts_is_found_by_the_test_of_structure_unless_said_otherwise() -> None:
    history = play(FedEx(groups="auto", most=3), rounds=1)
    choice, state = history.records[1].notes.choice, history.states[-1]
    assert choice is not None
    assert choice.how == "structure"
    assert isinstance(state, FedExState)
    assert 1 <= len(state.models) <= choice.k <= 3


def test_a_client_that_missed_the_clustering_is_admitted_by_its_own_update() -> None:
    state = clustered(reply=APART.of(np.array([0, 1, 2])))
    # Client 2 was alone and joined the others: make the clusters by hand instead.
    state = replace(
        state, models=np.zeros((2, 2), np.float32), groups=np.array([0, 0, 1, -1]), centres=W0 + np.array([[3, 0], [0, 2]], np.float32)
    )
    reply = make_trained([0, 1, 2, 3], [[1, 1]] * 4, SIZES)
    ctx = make_context(SIZES, round_=2)
    after, (ask, train) = run_dialogue(QUIET.round(state, ctx), APART.of(np.array([3])), reply)
    assert ask.clients.tolist() == [3]
    assert ask.models.tolist() == [W0.tolist()]
    assert ask.purpose == "pretrain"
    assert train.start.tolist() == [0, 0, 1, 1]  # (.1, 4) points along the second axis
    assert after.groups.tolist() == [0, 0, 1, 1]
    assert ctx.notes.named["admitted"] == 1
    silent, (_, train) = run_dialogue(
        QUIET.round(state, make_context(SIZES, round_=2)), remove_clients(APART), reply.of(np.array([0, 1, 2]))
    )
    assert train.clients.tolist() == [0, 1, 2]
    assert silent.groups.tolist() == [0, 0, 1, -1]


def test_nobody_answers() -> None:
    before = start()
    assert run_dialogue(QUIET.round(before, make_context(SIZES)), remove_clients(APART))[0] is before
    state = clustered()
    assert run_dialogue(QUIET.round(state, make_context(SIZES, round_=2)), remove_clients(APART))[0] is state


def counts(hits: list[list[int]], predicted: list[list[int]]) -> Evaluated:
    n = len(hits)
    return Evaluated(np.arange(n), np.array(hits), np.array(predicted), np.array(predicted), np.zeros(n), np.zeros(n))


def test_accuracy_gate_sums_what_clients_count() -> None:
    method = FedEx(groups=2, combiner="gate")
    ctx = replace(make_context(SIZES), validation=True)
    one, two = counts([[1, 0], [2, 1]], [[2, 1], [2, 1]]), counts([[0, 1], [0, 1]], [[0, 3], [2, 1]])
    state, (_, first, second) = run_dialogue(method.round(start(), ctx), APART, one, two)  # the clusters are those of QUIET
    assert isinstance(first, Evaluate)
    assert first.part == "validation"
    assert (set(first.serving.rows), set(second.serving.rows)) == ({0}, {1})
    # Expert 0: hits (3, 1) of (4, 2) -> 4/6, 2/4. Expert 1: hits (0, 2) of (2, 4) -> 1/4, 3/6.
    weights = np.array([[4 / 6, 2 / 4], [1 / 4, 3 / 6]])
    assert state.gate is not None
    np.testing.assert_allclose(state.gate, weights / weights.sum(axis=0))
    trains = replace(method, gate_part="train")
    _, (_, first, second) = run_dialogue(trains.round(start(trains), make_context(SIZES)), APART, one, two)
    assert first.part == second.part == "train"


@pytest.mark.parametrize("combiner", ["online", "mean", "confident", "own", "gate"])
def test_clients_count_for_the_gate_only_where_the_gate_answers(combiner: Any) -> None:
    engine = AlteredEngine(pass_unchanged)
    history = play(FedEx(groups=2, combiner=combiner), engine=engine, rounds=3)
    counted = [s.ask.part for s in engine.asked if isinstance(s.ask, Evaluate) and s.round_ > 0]  # round 0 is evaluated by the study
    state = history.states[-1]
    assert isinstance(state, FedExState)
    assert counted == (["validation"] * 3 * len(state.models) if combiner == "gate" else [])
    assert (state.gate is not None) == (combiner == "gate")


def test_a_gate_needs_validation_parts_or_must_be_told_to_do_without() -> None:
    world = World.from_spec(worlds.make_federation().replace(validation=None), "mclr")
    with pytest.raises(UserError) as refused:
        play(FedEx(groups=2, combiner="gate"), world=world)
    sentence = str(refused.value)
    assert "validation=0.1" in sentence
    assert "gate_part=train" in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    told = play(FedEx(groups=2, combiner="gate", gate_part="train"), world=world).states[-1]
    assert isinstance(told, FedExState)
    assert told.gate is not None
    play(FedEx(groups=2), world=world)  # other combiners need none


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_group_from_its_first_round_is_fedavg_exactly(dropout: float) -> None:
    """All clients every round, the clustering round with the same local training."""
    plan = replace(PLAN, cohort=None, dropout=dropout)
    ours = play(FedEx(groups=1, start_from="first_round", warmup=PLAN.local.epochs), plan=plan, rounds=4)
    theirs = play(FedAvg(), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    if not dropout:  # who misses the clustering round is asked to warm up later
        assert [r.cost for r in ours.records] == [r.cost for r in theirs.records]
    other = play(FedEx(groups=1, start_from="first_round", warmup=PLAN.local.epochs + 1), plan=plan, rounds=1)
    assert other.states[1].models.tobytes() != theirs.states[1].models.tobytes()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("assign", "expected"), [("one", [0] * 4), ("round_robin", [0, 1, 0, 1]), ("oracle", [0, 1, 1, 2])])
def test_controls(assign: Any, expected: list[int]) -> None:
    assert clustered(replace(QUIET, assign=assign), truth=np.array([5, 2, 2, 7])).groups.tolist() == expected


def test_random_control_keeps_the_sizes() -> None:
    sets = [clustered(replace(QUIET, assign="random"), seed=seed).groups for seed in range(8)]
    assert {tuple(sorted(np.bincount(groups))) for groups in sets} == {(2, 2)}
    assert len({tuple(groups) for groups in sets}) > 1


def played(method: FedEx, rounds: int = 3) -> FedExState:
    state = play(method, rounds=rounds).states[-1]
    assert isinstance(state, FedExState)
    return state


def test_central_models_are_every_expert_and_every_combiner() -> None:
    method = FedEx(groups=2, combiner="gate")
    plan = replace(PLAN, evaluate_every=1)
    history = play(method, plan=plan, rounds=2)
    assert history.records[0].central is not None
    assert history.records[0].central[0] == ("global",)
    assert history.records[2].central is not None
    names, judged = history.records[2].central
    assert names == ("group 0", "group 1", "online", "mean", "confident", "gate")
    state = history.states[2]
    assert isinstance(state, FedExState)
    assert state.gate is not None
    without = FedEx(groups=2).central(replace(state, gate=None))  # nobody was asked: there is no gate to show
    assert without.names == ("group 0", "group 1", "online", "mean", "confident")
    # "confident" by its definition, from each expert's own probabilities on the ten central samples.
    federation = worlds.make_world().federation
    assert federation.central is not None
    space = get_loop_engine().space(worlds.make_world())
    outputs = np.stack([space.predict(model, None)[0] for model in state.models])
    right = MostConfident().combine(outputs, 0).argmax(1) == federation.central[1]
    assert judged.hits[names.index("confident")].sum() == right.sum()
    assert (judged.sizes == 10).all()


def test_combined_rows_are_judged_client_by_client() -> None:
    """The judge predicts once for all combined rows and cuts the outputs by client: the own expert must score as if served plainly."""
    state, clients = played(FedEx(groups=2)), np.array([5, 0, 3])
    rows = state.groups[clients]
    plain = Serving(clients, state.models, rows)
    combined = Serving(clients, state.models, np.full(3, COMBINED), OwnExpert(rows))
    one, two = (get_loop_engine().run([StampedAsk(Evaluate(serving), 0, 1)])[0] for serving in (plain, combined))
    assert one.hits.tolist() == two.hits.tolist()
    assert one.predicted.tolist() == two.predicted.tolist()
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-5)


@pytest.mark.parametrize("combiner", ["online", "mean", "confident", "gate"])
def test_serving_a_mixture(combiner: Any) -> None:
    method = FedEx(groups=2, combiner=combiner)
    state = played(method)
    for world in (worlds.make_world(), worlds.make_newcomer_world()):  # newcomers need no expert of their own
        clients = world.problem.roster.clients
        serving = run_generator(method.serve(state, clients, make_round_context(world)), world)
        assert set(serving.rows) == {COMBINED}
        assert len(get_loop_engine(world).run([StampedAsk(Evaluate(serving), 0, 1)])[0]) == len(clients)


def test_serving_the_own_expert() -> None:
    method = FedEx(groups=2, combiner="own")
    state = played(method)
    engine = AlteredEngine(pass_unchanged)
    serving = run_generator(
        method.serve(state, np.array([3, 1]), make_round_context(worlds.make_world())), worlds.make_world(), engine=engine
    )
    assert serving.rows.tolist() == state.groups[[3, 1]].tolist()
    assert not engine.asked  # known clients need not be asked
    grown = worlds.make_newcomer_world()
    engine = AlteredEngine(pass_unchanged, grown)
    serving = run_generator(method.serve(state, np.array([7]), make_round_context(grown)), grown, engine=engine)
    assert len(engine.asked) == 1
    assert serving.rows[0] in range(len(state.models))


def test_before_the_clustering_everybody_gets_the_first_model() -> None:
    serving = run_generator(QUIET.serve(start(), np.array([2, 0]), make_context(SIZES, round_=0)), worlds.make_world())
    assert serving.rows.tolist() == [0, 0]
    assert serving.models.tolist() == [W0.tolist()]


def test_costs_of_the_clustering_round_are_on_the_round_axis() -> None:
    history = play(FedEx(groups=2, warmup=3), rounds=2)
    assert history.records[0].cost.messages == 0
    assert history.records[1].cost.passes == 3 * 6  # everybody, three epochs
    gated = play(FedEx(groups=2, warmup=3, combiner="gate"), rounds=2)
    assert gated.records[1].cost.passes == 3 * 6 + 2 * 6  # and then both experts judged for the gate
    engine = AlteredEngine(pass_unchanged)
    play(FedEx(groups=2, warmup=3), engine=engine, rounds=2)
    assert [(s.round_, s.ask.local.epochs) for s in engine.asked if isinstance(s.ask, Train)] == [(1, 3), (2, PLAN.local.epochs)]


def test_bad_settings() -> None:
    bad: list[dict[str, Any]] = [{"groups": 0}, {"warmup": 0}, {"fraction": 0.0}, {"fraction": 1.5}]
    for settings in bad:
        with pytest.raises(UserError, match=next(iter(settings))):
            FedEx(**settings)
