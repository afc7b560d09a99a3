"""Flux and FEROMA: descriptors, density groups, newcomers and received models, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Share
from coterie.core.descriptions import Describe, Described
from coterie.core.layout import Layout, Slice
from coterie.core.states import ClientTable
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.methods.client_descriptions import BlockScale, read_blocks
from coterie.methods.fedavg import FedAvg
from coterie.methods.feroma import FEROMA, FEROMAState
from coterie.methods.flux import Flux, FluxState, find_dense_groups, find_knee
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play

SIZES = [1, 3, 2, 2]
LINEAR = Layout((Slice("w", (1, 2), 0, "weight"),))  # two features enter the only dense layer


def context(sizes: Any = SIZES, **options: Any) -> Any:
    return replace(make_context(sizes, LINEAR, **options), outputs=2)


def described(means: Any, clients: Any = (0, 1, 2, 3), deviations: Any = None, counts: Any = None) -> Described:
    """Replies without classes: these means (n, p); by default nothing deviates."""
    means = np.array(means, np.float64)
    means = means[:, None, :] if means.ndim == 2 else means
    deviations = np.zeros_like(means) if deviations is None else np.array(deviations, np.float64)
    counts = np.full(means.shape[:2], 5) if counts is None else np.array(counts)
    return Described(np.array(clients), means, deviations, counts, counts[:, 0])


def test_blocks_by_hand() -> None:
    # One client, classes a (3 samples) and b (1): the moments of b are -1, whatever was sent; those of all samples stay.
    found = described([[[1, 2], [3, 4], [5, 6]]], (0,), [[[7, 8], [9, 10], [11, 12]]], [[4, 3, 1]])
    assert read_blocks(found).tolist() == [[[1, 2], [7, 8], [3, 4], [9, 10], [-1, -1], [-1, -1]]]
    # Each block by its least and largest number over all clients and numbers: 1..5 here; a block without a difference is zero.
    blocks = np.array([[[1.0, 3.0], [2, 2]], [[5.0, 2.0], [2, 2]]])
    scale = BlockScale.fit(blocks)
    assert scale.apply(blocks).tolist() == [[0, 0.5, 0, 0], [1, 0.25, 0, 0]]
    assert scale.apply(np.array([[[9.0, 1.0], [3, 2]]])).tolist() == [[2, 0, 1, 0]]  # a later client may be outside


def test_knee_by_hand() -> None:
    # 0, 0, 1, 10: below the line by 0, 1/3, 2/3 - 1/10, 0: the third.
    assert find_knee(np.array([0.0, 0.0, 1.0, 10.0])) == 2
    assert find_knee(np.array([1.0, 2.0, 3.0])) == 2  # a straight line has none: the last
    assert find_knee(np.array([2.0, 2.0, 2.0])) == 2


def test_dense_groups_and_points_alone() -> None:
    # Nearest neighbours are .1, .1, .2, .2 and 5 away: the knee is .2, so the pairs are groups and the last is one of its own.
    points = np.array([[0.0], [0.1], [3.0], [3.2], [8.2]])
    ctx = context()
    assert find_dense_groups(points, 1.0, ctx).tolist() == [0, 0, 1, 1, 2]
    assert ctx.notes.named["eps"] == pytest.approx(0.2)
    assert find_dense_groups(points, 100.0, ctx).tolist() == [0] * 5
    assert find_dense_groups(points[:1], 1.0, ctx).tolist() == [0]


def begin(clients: int = 4) -> FluxState:
    none = np.zeros(2)
    return FluxState(np.zeros((1, 2), np.float32), np.full(clients, -1), False, np.zeros((0, 2), np.float32), np.zeros((0, 0)), none, none)


REPLY = make_trained([0, 1, 2, 3], [[4, 0], [0, 4], [6, 6], [2, 2]], SIZES)
NEAR = described([[0, 0], [0, 0.1], [4, 4], [4, 3.9]])
FREE = Flux(warmup=0, labels=False)


def test_clustering_by_hand() -> None:
    # Groups {0, 1} and {2, 3}. By samples: (1 * 4, 3 * 4) / 4 = (1, 3), and (6 + 2, 6 + 2) / 2 = (4, 4).
    ctx = context()
    after, (ask,) = run_dialogue(FREE.round(begin(), ctx), (REPLY, NEAR))
    train, describe = ask.asks
    assert isinstance(describe, Describe)
    assert (describe.size, describe.key, describe.classes) == (2, None, 0)
    assert train.models.tolist() == describe.models.tolist() == [[0, 0]]
    np.testing.assert_allclose(after.models, [[1, 3], [4, 4]])
    assert after.groups.tolist() == [0, 0, 1, 1]
    assert after.described.tolist() == [[0, 0]]
    np.testing.assert_allclose(after.centres, [[0, 0.05 / 4, 0, 0], [1, 3.95 / 4, 0, 0]])
    assert ctx.notes.named["groups_found"] == 2
    again, (next_ask,) = run_dialogue(FREE.round(after, context()), REPLY)
    assert next_ask.start.tolist() == [0, 0, 1, 1]
    assert again.groups.tolist() == [0, 0, 1, 1]


def test_clustering_again_by_hand() -> None:
    # Groups {0, 1} at (1, 3) and {2, 3} at (4, 4). Client 1 (3 samples) moves to the others (2 each) of the other.
    method = replace(FREE, again=2)
    after, _ = run_dialogue(method.round(begin(), context()), (REPLY, NEAR))
    same, asks = run_dialogue(method.round(after, context(round_=3)), NEAR, REPLY)
    assert asks[0].models.tolist() == after.described.tolist()
    assert same.groups.tolist() == after.groups.tolist()
    assert asks[1].models.tolist() == after.models.tolist()
    moved, asks = run_dialogue(method.round(after, context(round_=3)), described([[0, 0], [4, 4], [4, 4], [4, 3.9]]), REPLY)
    assert moved.groups.tolist() == [0, 1, 1, 1]
    np.testing.assert_allclose(asks[1].models, np.array([[1, 3], [(3 * 1 + 4 * 4) / 7, (3 * 3 + 4 * 4) / 7]]), rtol=1e-6)
    assert asks[1].start.tolist() == [0, 1, 1, 1]
    assert len(run_dialogue(method.round(after, context(round_=2)), REPLY)[1]) == 1  # not due


def test_by_class_where_labels_are_described() -> None:
    _, (ask,) = run_dialogue(Flux(warmup=0).round(begin(), context()), (REPLY, described(np.ones((4, 3, 2)))))
    assert ask.asks[1].classes == 2


def test_a_client_that_does_not_answer_both_is_in_no_group() -> None:
    after, _ = run_dialogue(FREE.round(begin(), context()), (REPLY, NEAR.of(np.array([0, 1, 2]))))
    assert after.groups.tolist()[3] == -1
    same = begin()
    assert run_dialogue(FREE.round(same, context()), (REPLY, remove_clients(NEAR)))[0] is same


def test_a_newcomer_joins_the_nearest_centre_without_labels() -> None:
    after, _ = run_dialogue(FREE.round(begin(), context()), (REPLY, NEAR))
    ctx = context([*SIZES, 2])
    serving, (ask,) = run_dialogue(Flux(warmup=0).serve(after, np.array([4, 0]), ctx), described([[3, 3]], (4,)))
    assert (ask.clients.tolist(), ask.classes, ask.models.tolist()) == ([4], 0, [[0, 0]])
    assert serving.rows.tolist() == [1, 0]
    silent, _ = run_dialogue(FREE.serve(after, np.array([4, 0]), ctx), remove_clients(NEAR))
    assert silent.rows.tolist() == [0, 0]


@pytest.mark.parametrize(("assign", "groups"), [("one", [0] * 4), ("oracle", [0, 1, 2, 1]), ("round_robin", [0, 1, 0, 1])])
def test_controls(assign: Any, groups: list[int]) -> None:
    ctx = context(truth=np.array([5, 0, 1, 0]))
    after, _ = run_dialogue(replace(FREE, assign=assign).round(begin(), ctx), (REPLY, NEAR))
    assert after.groups.tolist() == groups


def test_a_number_of_groups_and_ours() -> None:
    after, _ = run_dialogue(replace(FREE, groups=3).round(begin(), context()), (REPLY, described([[0, 0], [0, 0.1], [4, 4], [9, 9]])))
    assert after.groups.tolist() == [0, 0, 1, 2]
    records = play(build("flux(warmup=0,groups=auto,most=2)"), rounds=1).records
    assert records[1].notes.choice is not None
    assert records[1].notes.choice.how == "structure"


@pytest.mark.parametrize("spec", ["flux(warmup=3)", "feroma(warmup=3)"])
def test_the_warm_up_is_fedavg_exactly(spec: str) -> None:
    ours, theirs = play(build(spec), rounds=3), play(FedAvg(), rounds=3)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    assert [r.cost for r in ours.records] == [r.cost for r in theirs.records]


def test_two_kinds_of_data_are_found() -> None:
    """Clients whose features are shifted against the others', through the whole engine."""
    made = worlds.make_federation((30,) * 6)
    x = made.x.copy()
    for client in (1, 3, 5):
        x[made.train[client]] += 4
    world = World.from_spec(made.replace(x=x), "mclr")
    last: Any = play(Flux(warmup=1, labels=False), world=world, rounds=2).states[-1]
    assert len({last.groups[i] for i in (0, 2, 4)} & {last.groups[i] for i in (1, 3, 5)}) == 0


@pytest.mark.parametrize("spec", ["flux", "feroma"])
def test_models_without_a_dense_layer_are_refused(spec: str) -> None:
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten())
    )
    engine = AlteredEngine(pass_unchanged, world)
    with pytest.raises(UserError, match="no dense layer"):
        play(build(spec), world=world, engine=engine)
    assert engine.asked == []


FIRST = FEROMA(warmup=0, labels=False)


def known(blocks: Any, models: Any) -> FEROMAState:
    """Four clients with these descriptors (of one number) and last models."""
    own = ClientTable.empty(4, np.zeros(2, np.float32)).put(np.arange(4), np.array(models, np.float32))
    points = np.zeros((4, 2, 2))
    points[:, 0, 0] = blocks
    return FEROMAState(np.full((1, 2), 7, np.float32), own, points, np.ones(4, np.bool_), np.full((1, 2), 5, np.float32))


MODELS = [[8, 0], [0, 8], [4, 4], [2, 2]]


def test_received_models_by_hand() -> None:
    # Descriptors 0, 1, 2, 4 scaled by 4. A client at 1: distances 1/4, 0, 1/4, 3/4: its own inverse is 10^8, so it gets its own model back.
    # One at 3: distances 3/4, 2/4, 1/4, 1/4; inverses 4/3, 2, 4, 4, times samples 1, 3, 2, 2: 4/3, 6, 8, 8 of 70/3.
    found = described([[1, 0], [3, 0]], (1, 2))
    models, rows = FIRST.receive(known([0, 1, 2, 4], MODELS), found, np.array([1, 2, 3]), context())
    assert rows.tolist() == [1, 2, 0]  # client 3 did not answer: the average
    assert models[0].tolist() == [7, 7]
    np.testing.assert_allclose(models[1], [0, 8], atol=1e-4)
    weights = np.array([4 / 3, 6, 8, 8]) * 3 / 70
    np.testing.assert_allclose(models[2], weights @ np.array(MODELS), rtol=1e-6)
    alike, _ = replace(FIRST, weighting="uniform").receive(known([0, 1, 2, 4], MODELS), found, np.array([1, 2, 3]), context())
    even = np.array([4 / 3, 2, 4, 4]) * 3 / 34
    np.testing.assert_allclose(alike[2], even @ np.array(MODELS), rtol=1e-6)


def test_equal_distances_are_fedavg() -> None:
    models, _ = FIRST.receive(known([1, 1, 1, 1], MODELS), described([[1, 0]], (0,)), np.array([0]), context())
    np.testing.assert_allclose(models[1], np.array(SIZES) @ np.array(MODELS) / 8, rtol=1e-6)


def test_a_round_starts_from_what_is_received_and_remembers_what_was_trained() -> None:
    before = known([0, 1, 2, 4], MODELS)
    after, (describe, train) = run_dialogue(
        FIRST.round(before, context(round_=3)), described([[1, 0], [1, 0]], (1, 2)), REPLY.of(np.array([1, 2]))
    )
    assert describe.models.tolist() == [[5, 5]]  # descriptors are of one model, so that rounds can be compared
    assert describe.share == Share(1, folds=2)
    assert train.start.tolist() == [0, 1, 2, 0]
    assert after.own.get_all_rows().tolist() == [[8, 0], [0, 4], [6, 6], [2, 2]]
    assert after.blocks[:, 0, 0].tolist() == [0, 1, 1, 4]
    np.testing.assert_allclose(after.models, [[2.4, 4.8]])  # (3 * (0, 4) + 2 * (6, 6)) / 5
    assert replace(FIRST, folds=1)._get_share(3) is None


def test_served_is_what_a_client_would_receive_next() -> None:
    before = known([0, 1, 2, 4], MODELS)
    serving, (ask,) = run_dialogue(FIRST.serve(before, np.array([2, 1]), context(round_=3)), described([[1, 0], [3, 0]], (1, 2)))
    assert ask.share == Share(0, folds=2)  # the turn of the next round
    np.testing.assert_allclose(serving.models[serving.rows[1]], [0, 8], atol=1e-4)
    assert serving.models[serving.rows[0]].tolist() != [4, 4]


def test_with_all_samples_described_it_is_local_training() -> None:
    """The distance to oneself is then 0 on data that do not change: a client goes on with its own model."""
    states: Any = play(FEROMA(warmup=0, folds=1), plan=replace(PLAN, cohort=None), rounds=3).states
    engine = AlteredEngine(pass_unchanged)
    play(FEROMA(warmup=0, folds=1), plan=replace(PLAN, cohort=None), rounds=3, engine=engine)
    last = next(s.ask for s in engine.asked if s.round_ == 3 and not isinstance(s.ask, Describe))
    np.testing.assert_allclose(last.get_sent_models(np.arange(6)), states[2].own.of(np.arange(6)), atol=1e-5)  # type: ignore[attr-defined]
