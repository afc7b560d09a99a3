"""FedSim: the worked numbers of Eq. 5-7, 13 and 14, the identities with FedAvg, and the edges of its clustering."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Evaluated, Gradient, Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsim import FedSim, FedSimState
from coterie.testing.contracts import Checked, check_absent_is_as_if_not_picked, check_each_ask_may_lose_replies, check_odd_cohorts
from coterie.testing.fakes import make_context, make_gradients, make_layout, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, drop_replies, play
from methods.noted import clusters_of, mixing_of

# Three clients pull one way and one the other; all gradients lie on a line.
SIZES = [1, 3, 2, 2]
PROBES = make_gradients([0, 1, 2, 3], [[1, 0], [1.1, 0], [0.9, 0], [-1, 0]], losses=[1, 2, 3, 6])
MODELS = make_trained([0, 1, 2, 3], [[1, 0], [5, 0], [1, 6], [0, 4]], SIZES)


def guided(clusters: int | None, *values: float) -> FedSimState:
    """The shared model, and the number of clusters; None where every round finds out."""
    return FedSimState(np.array([values], dtype=np.float32), clusters)


def test_one_round_by_hand() -> None:
    """Clusters {0, 1, 2} and {3}. Eq. 13, over the cluster's own samples: (1*(1,0) + 3*(5,0) + 2*(1,6)) / 6 = (3, 2), and (0, 4).

    Eq. 14: their plain mean is (1.5, 3). F_O = (1+2+3+6)/4 = 3 (Eq. 5); F_G = ((1+2+3)/3 + 6) / 2 = 4 (Eq. 6-7).
    """
    ctx = make_context(SIZES)
    state, asks = run_dialogue(FedSim(clusters=2).round(guided(2, 0, 0), ctx), PROBES, MODELS)
    np.testing.assert_allclose(state.models, [[1.5, 3]], rtol=1e-6)
    assert [type(ask) for ask in asks] == [Gradient, Train]
    assert all(ask.clients.tolist() == [0, 1, 2, 3] for ask in asks)
    assert ctx.notes.named["F_O"] == 3
    assert ctx.notes.named["F_G"] == 4
    assert ctx.notes.named["components"] == 1
    assert clusters_of(ctx) == [0, 0, 0, 1]
    np.testing.assert_allclose(mixing_of(ctx).replies, [[1 / 12, 3 / 12, 2 / 12, 1 / 2]])


def test_across_by_samples_is_fedavg() -> None:
    """Clusters count by their samples, 6 and 2 of 8: (6 * (3, 2) + 2 * (0, 4)) / 8 = (2.25, 2.5) = sum n_k w_k / 8."""
    state, _ = run_dialogue(FedSim(clusters=2, across="samples").round(guided(2, 0, 0), make_context(SIZES)), PROBES, MODELS)
    np.testing.assert_allclose(state.models, [[2.25, 2.5]], rtol=1e-6)


def test_a_client_without_a_probe_joins_by_its_update() -> None:
    """Client 2 sends no gradient. Mean updates from (1, 1) are (2, -1) for {0, 1} and (-1, 3) for {3}; its own, (0, 5), is nearer {3}.

    So {2, 3}: (2*(1,6) + 2*(0,4)) / 4 = (.5, 5) and {0, 1}: (1*(1,0) + 3*(5,0)) / 4 = (4, 0); their mean is (2.25, 2.5).
    """
    ctx = make_context(SIZES)
    some = PROBES.take(np.array([0, 1, 3]))
    state, _ = run_dialogue(FedSim(clusters=2).round(guided(2, 1, 1), ctx), some, MODELS)
    assert clusters_of(ctx) == [0, 0, 1, 1]
    np.testing.assert_allclose(state.models, [[2.25, 2.5]], rtol=1e-6)


def test_a_client_without_a_model_is_left_out() -> None:
    """Client 3, a cluster by itself, sends no model: the other cluster is all there is, and counts as a whole."""
    ctx = make_context(SIZES)
    state, _ = run_dialogue(FedSim(clusters=2).round(guided(2, 0, 0), ctx), PROBES, MODELS.take(np.array([0, 1, 2])))
    np.testing.assert_allclose(state.models, [[3, 2]], rtol=1e-6)
    assert ctx.notes.named["clusters_found"] == 2


def test_without_any_probe_it_is_fedavg_and_without_a_model_nothing_moves() -> None:
    state, _ = run_dialogue(FedSim().round(guided(5, 0, 0), make_context(SIZES)), remove_clients(PROBES), MODELS)
    np.testing.assert_allclose(state.models, [[2.25, 2.5]], rtol=1e-6)
    before = guided(5, 7, 7)
    after, _ = run_dialogue(FedSim().round(before, make_context(SIZES)), PROBES, remove_clients(MODELS))
    assert after is before


def test_more_clusters_than_clients_or_gradients_is_capped_and_recorded() -> None:
    ctx = make_context(SIZES)
    run_dialogue(FedSim(clusters=9).round(guided(9, 0, 0), ctx), PROBES, MODELS)
    assert ctx.notes.named["clusters_found"] == 4
    ctx = make_context(SIZES)
    same = make_gradients([0, 1, 2, 3], [[1, 2]] * 4, losses=[1, 2, 3, 6])
    state, _ = run_dialogue(FedSim(clusters=3).round(guided(3, 0, 0), ctx), same, MODELS)
    assert ctx.notes.named["clusters_found"] == 1
    assert ctx.notes.named["components"] == 0
    np.testing.assert_allclose(state.models, [[2.25, 2.5]], rtol=1e-6)


def models_of(method: Any, plan: Plan = PLAN, **options: Any) -> bytes:
    return play(method, plan=plan, rounds=3, **options).states[-1].models.tobytes()  # type: ignore[attr-defined, no-any-return]


RAGGED = replace(PLAN, dropout=0.4, cohort=5)


@pytest.mark.parametrize("plan", [PLAN, RAGGED, replace(RAGGED, stragglers=0.4)], ids=["all answer", "dropouts", "stragglers"])
def test_one_cluster_is_fedavg(plan: Plan) -> None:
    assert models_of(FedSim(clusters=1), plan) == models_of(FedAvg(), plan)
    assert models_of(FedSim(assign="one"), plan) == models_of(FedAvg(), plan)


def test_one_cluster_is_fedavg_whatever_is_lost() -> None:
    gone = np.array([1, 3])
    assert models_of(FedSim(clusters=1), engine=AlteredEngine(drop_replies(gone, (1, 2), number=0))) == models_of(
        FedAvg()
    )  # the probe only
    without = models_of(FedAvg(), engine=AlteredEngine(drop_replies(gone, (1, 2))))
    assert models_of(FedSim(clusters=1), engine=AlteredEngine(drop_replies(gone, (1, 2), number=1))) == without  # the training only
    assert without != models_of(FedAvg())


def test_a_cluster_for_every_client_is_uniform_fedavg() -> None:
    assert models_of(FedSim(clusters=4)) == models_of(FedAvg(weighting="uniform"))
    assert models_of(FedSim(clusters=2)) != models_of(FedAvg(weighting="uniform"))


def test_across_by_samples_is_fedavg_to_rounding() -> None:
    ours, theirs = (np.frombuffer(models_of(m), np.float32) for m in (FedSim(clusters=2, across="samples"), FedAvg()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_proximal_term_makes_it_fedprox_with_clusters() -> None:
    plan = replace(PLAN, stragglers=0.5)
    assert models_of(FedSim(clusters=1, mu=0.5), plan) == models_of(FedProx(mu=0.5), plan)
    ask = run_dialogue(FedSim(mu=0.5).round(guided(5, 0, 0), make_context(SIZES, plan=Plan(local=Local(mu=2.0)))), PROBES, MODELS)[1][1]
    assert ask.local.mu == 0.5
    assert ask.partial


def test_controls_keep_or_change_what_they_should() -> None:
    sizes = [1] * 6
    probes = make_gradients(range(6), [[1, 0], [1.1, 0], [0.9, 0], [1.05, 0], [-1, 0], [0, 5]], [1] * 6)
    models = make_trained(range(6), np.arange(12).reshape(6, 2), sizes)

    def clusters(assign: str, round_: int = 1) -> list[int]:
        ctx = make_context(sizes, round_=round_, truth=np.array([1, 1, 0, 0, 2, 2]))
        run_dialogue(FedSim(clusters=3, assign=assign).round(guided(3, 0, 0), ctx), probes, models)  # type: ignore[arg-type]
        return clusters_of(ctx)

    assert clusters("similar") == [0, 0, 0, 0, 1, 2]
    drawn = [clusters("random", t) for t in range(6)]
    assert all(sorted(np.bincount(labels)) == [1, 1, 4] for labels in drawn)  # the same sizes
    assert len({tuple(labels) for labels in drawn}) > 1  # clusters live for a round: so do random ones
    assert clusters("round_robin") == [0, 1, 2, 0, 1, 2]
    assert clusters("oracle") == [0, 0, 1, 1, 2, 2]
    assert clusters("one") == [0] * 6


@pytest.mark.parametrize(
    "settings",
    ["reducer=none", "reducer=random_projection", "clusterer=spectral", "clusterer=agglomerative", "clusters=auto,choice=silhouette"],
)
def test_switches_find_the_same_plain_clusters(settings: str) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 40))
    vectors = np.repeat(centres, 4, axis=0) + 0.05 * rng.normal(size=(12, 40))
    ctx = make_context([1] * 12, 40)
    method = build(f"fedsim({settings})" if "auto" in settings else f"fedsim({settings},clusters=3)")
    run_dialogue(
        method.round(guided(None if "auto" in settings else 3, *[0] * 40), ctx),
        make_gradients(range(12), vectors, [1] * 12),
        make_trained(range(12), vectors, [1] * 12),
    )
    assert clusters_of(ctx) == np.repeat([0, 1, 2], 4).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        "clusters=auto",
        "clusters=auto,choice=silhouette",
        "clusterer=spectral,clusters=2",
        "clusterer=agglomerative",
        "assign=random,clusters=2",
        "clusters=2,switch=2",
        "clusters=2,switch=2,switch_on=sample",
    ],
)
def test_switches_keep_the_contracts(settings: str) -> None:
    subject = Checked(lambda: build(f"fedsim({settings})"))
    check_odd_cohorts(subject)
    check_each_ask_may_lose_replies(subject)
    check_absent_is_as_if_not_picked(subject)


def test_auto_records_the_curve_it_chose_by() -> None:
    ctx = make_context(SIZES)
    run_dialogue(FedSim(clusters="auto", choice="silhouette").round(guided(None, 0, 0), ctx), PROBES, MODELS)
    assert ctx.notes.named["clusters_found"] == 2
    assert ctx.notes.choice is not None
    assert ctx.notes.choice.k == 2
    assert int(np.nanargmax(ctx.notes.choice.curves["silhouette"])) + 1 == 2


@pytest.mark.parametrize("choice", ["structure", "trial"])
def test_a_number_that_is_asked_for_is_asked_for_once_and_kept(choice: Any) -> None:
    history = play(FedSim(clusters="auto", choice=choice, most=2), rounds=2)
    chosen = history.records[0].notes.choice
    assert chosen is not None
    assert chosen.how == choice
    assert chosen.k in (1, 2)
    assert [record.notes.choice for record in history.records[1:]] == [None, None]
    assert [state.clusters for state in history.states] == [chosen.k] * 3  # type: ignore[attr-defined]
    assert history.records[0].cost.messages > 0
    read = play(FedSim(clusters="auto", choice="gap", most=2), rounds=2)
    assert [record.notes.choice is not None for record in read.records] == [False, True, True]  # of every round's own points


def test_batch_norm_statistics_do_not_decide() -> None:
    """Client 2, without a probe, has the weight of cluster {0} and a statistic like cluster {1}: the weight counts."""
    ctx = make_context([1, 1, 1], make_layout((1, "weight"), (1, "statistic")))
    probes = make_gradients([0, 1], [[1, 0], [-1, 0]], losses=[1, 1])
    models = make_trained([0, 1, 2], [[1, 0], [-1, 50], [0.9, 50]], [1, 1, 1])
    state, _ = run_dialogue(FedSim(clusters=2).round(guided(2, 0, 0), ctx), probes, models)
    assert clusters_of(ctx) == [0, 1, 0]
    np.testing.assert_allclose(state.models, [[(0.95 - 1) / 2, (25 + 50) / 2]], rtol=1e-5)  # averaged with the same weights


def judge(hits: list[int], clients: tuple[int, ...] = (0, 1, 2, 3), samples: int = 10) -> Evaluated:
    """A reply to `Evaluate`: so many of ten validation samples right, of one class."""
    counts = np.array(hits)[:, None]
    sizes = np.full_like(counts, samples)
    nothing = np.full(len(hits), np.nan)
    return Evaluated(np.array(clients), counts, sizes, sizes, nothing, nothing)


SIMILAR, AVERAGE = [1.5, 3], [2.25, 2.5]  # test_one_round_by_hand, test_across_by_samples_is_fedavg


def switched(before: tuple[float, ...], one: Evaluated, two: Evaluated, **settings: Any) -> tuple[FedSimState, Any]:
    ctx = make_context(SIZES)
    method = FedSim(clusters=2, **{"switch": 2, **settings})
    state, asks = run_dialogue(method.round(replace(guided(2, 0, 0), gains=before), ctx), PROBES, MODELS, one, two)
    assert [type(ask) for ask in asks] == [Gradient, Train, Evaluate, Evaluate]
    assert [ask.part for ask in asks[2:]] == ["validation"] * 2
    np.testing.assert_allclose([ask.serving.models[0] for ask in asks[2:]], [SIMILAR, AVERAGE], rtol=1e-6)
    return state, ctx


def test_the_gain_of_the_last_rounds_switches_by_hand() -> None:
    """FedSim's average has 20 of 40 right and FedAvg's 28: a gain of -0.2, with +0.3 before 0.05 on average, with +0.1 before -0.05.

    Of three gains a window of two reads the last two.
    """
    worse = judge([5, 5, 5, 5]), judge([7, 7, 7, 7])
    kept, ctx = switched((0.3,), *worse)
    np.testing.assert_allclose(kept.models, [SIMILAR], rtol=1e-6)
    assert kept.gains == pytest.approx((0.3, -0.2))
    assert ctx.notes.named["validation_gain"] == pytest.approx(-0.2)
    assert ctx.notes.named["used_clusters"] == 1
    changed, ctx = switched((0.9, 0.1), *worse)
    np.testing.assert_allclose(changed.models, [AVERAGE], rtol=1e-6)
    assert changed.gains == pytest.approx((0.1, -0.2))
    assert ctx.notes.named["used_clusters"] == 0
    assert clusters_of(ctx) == [0, 0, 0, 1]  # found all the same
    np.testing.assert_allclose(mixing_of(ctx).replies, [[1 / 8, 3 / 8, 2 / 8, 2 / 8]])
    np.testing.assert_allclose(switched((0.3,), *worse, switch_margin=0.06)[0].models, [AVERAGE], rtol=1e-6)
    np.testing.assert_allclose(switched((), *[judge([5] * 4)] * 2)[0].models, [SIMILAR], rtol=1e-6)  # a tie is FedSim's


def test_only_clients_that_judge_both_averages_count() -> None:
    """Clients 1 and 2 answer both times: 9 and 3 right against 5 and 5 of 20 in all, a gain of 0.1. Without samples the past decides."""
    state, _ = switched((), judge([0, 9, 3], (0, 1, 2)), judge([5, 5, 10], (1, 2, 3)))
    assert state.gains == pytest.approx((0.1,))
    empty = judge([0] * 4, samples=0)
    state, ctx = switched((-0.1,), empty, empty)
    assert state.gains == (-0.1,)
    assert ctx.notes.named["validation_gain"] is None
    np.testing.assert_allclose(state.models, [AVERAGE], rtol=1e-6)
    np.testing.assert_allclose(switched((), empty, empty)[0].models, [SIMILAR], rtol=1e-6)


def test_another_sample_may_judge() -> None:
    """Of eight clients four train and four, drawn for another purpose, judge: another sample in every round, the same for every method."""
    plan = Plan(local=Local(lr=0.1), cohort=4)
    judged = []
    for round_ in range(1, 5):
        ctx = make_context([1] * 8, plan=plan, round_=round_)
        cohort = tuple(ctx.cohort().tolist())
        probes, models = replace(PROBES, clients=np.array(cohort)), replace(MODELS, clients=np.array(cohort))
        method = FedSim(clusters=2, switch=2, switch_on="sample")
        sample = tuple(ctx.cohort("switch").tolist())
        replies = probes, models, judge([5] * 4, sample), judge([5] * 4, sample)
        _, asks = run_dialogue(method.round(guided(2, 0, 0), ctx), *replies)
        assert [tuple(ask.clients.tolist()) for ask in asks[2:]] == [sample] * 2
        judged.append((cohort, sample))
    assert all(cohort != sample for cohort, sample in judged)
    assert len({sample for _, sample in judged}) > 1


@pytest.mark.parametrize("plan", [PLAN, RAGGED, replace(RAGGED, stragglers=0.4)], ids=["all answer", "dropouts", "stragglers"])
def test_a_switch_that_never_switches_is_fedsim_and_one_that_always_does_is_fedavg(plan: Plan) -> None:
    assert models_of(FedSim(clusters=2, switch=2, switch_margin=-inf), plan) == models_of(FedSim(clusters=2), plan)
    assert models_of(FedSim(clusters=2, switch=2, switch_margin=inf), plan) == models_of(FedAvg(), plan)
    assert models_of(FedSim(clusters=2), plan) != models_of(FedAvg(), plan)
    assert build("fedsim(switch=3,switch_margin=-inf)") == FedSim(switch=3, switch_margin=-inf)


def test_the_averages_that_are_judged_are_made_as_the_models_are() -> None:
    """A guard makes models in another way, here of sevens: these are judged, not plain means that would never be served."""
    ctx = replace(make_context(SIZES), aggregate=lambda mixing, vectors, before: (np.full_like(before, 7), mixing))
    replies = PROBES, MODELS, judge([5] * 4), judge([5] * 4)
    _, asks = run_dialogue(FedSim(clusters=2, switch=2).round(guided(2, 0, 0), ctx), *replies)
    assert [ask.serving.models.tolist() for ask in asks[2:]] == [[[7, 7]]] * 2


def test_a_switch_needs_validation_parts() -> None:
    with pytest.raises(UserError, match=r"validation=0\.1"):
        next(FedSim(switch=2).start(lambda i=0: np.zeros(2, np.float32), make_context(SIZES)))


@pytest.mark.parametrize("wrong", [{"switch": 0}, {"clusters": 0}, {"variance": 0.0}, {"mu": -1.0}, {"dimensions": 0}, {"most": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        FedSim(**wrong)
