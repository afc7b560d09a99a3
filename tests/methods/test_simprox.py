"""SimProx: Eq. 7-14 by hand, its switches, its identities and its flatness."""

from dataclasses import replace
from math import exp, inf, sqrt
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.states import ClientTable
from coterie.grouping.landmarks import sample_landmarks
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.methods.simprox import SimProx, SimProxState
from coterie.testing import worlds
from coterie.testing.contracts import Checked, check_absent_is_as_if_not_picked, check_batch_norm, check_odd_cohorts
from coterie.testing.fakes import make_context, make_layout, make_model, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play

# From w_t = (1, 0): two clients move up and down, one goes on to the right; each by a distance of 1.
MODELS = make_trained([0, 1, 2], [[1, 1], [1, -1], [2, 0]], [1, 2, 5])


def round_of(method: SimProx, replies: Any = MODELS, start: tuple[float, ...] = (1, 0)) -> tuple[Any, dict[str, Any]]:
    ctx = make_context([1] * (int(replies.clients.max()) + 1), len(start))
    state, _ = run_dialogue(method.round(make_model(*start), ctx), replies)
    return state.models[0], ctx.notes.named


def hand_worked() -> tuple[list[float], float, float]:
    """The alphas of Eq. 12 up to a factor, lambda and sigma, for MODELS.

    Distances: 2 between clients 0 and 1, sqrt 2 between each of them and client 2.
    Cosines: (1,1).(1,-1) = 0; (1,1).(2,0) / (sqrt 2 * 2) = 1/sqrt 2. With w_t = (1, 0): 1/sqrt 2, 1/sqrt 2, 1.
    Every norm g is 1, so exp(-g) cancels.
    """
    sigma = (2 + 2 * sqrt(2)) / 3  # Eq. 7
    lam = 0.7 * ((2 / sqrt(2) + 1) / 3) / 0.9  # sbar = .8047 < tau
    s01 = lam * 0 + (1 - lam) * exp(-4 / (2 * sigma**2))  # Eq. 8-10
    s02 = lam / sqrt(2) + (1 - lam) * exp(-2 / (2 * sigma**2))
    return [1 + (s01 + s02) / 2, 1 + (s01 + s02) / 2, 1 + s02], lam, sigma


def test_one_round_by_hand() -> None:
    alphas, lam, sigma = hand_worked()
    shares = [a / sum(alphas) for a in alphas]  # Eq. 13
    weights = [exp(s) / sum(map(exp, shares)) for s in shares]  # Eq. 14
    new, records = round_of(SimProx())
    assert records["lambda"] == pytest.approx(lam)
    assert records["sigma"] == pytest.approx(sigma)
    assert weights[2] > weights[0]
    np.testing.assert_allclose(records["weights"], weights, rtol=1e-6)
    np.testing.assert_allclose(new, [weights[0] + weights[1] + 2 * weights[2], weights[0] - weights[1]], rtol=1e-6, atol=1e-7)
    assert records["flatness"] == pytest.approx(weights[2] / weights[0])
    assert records["effective_clients"] == pytest.approx(1 / sum(w**2 for w in weights))
    np.testing.assert_allclose(records["norms"], 1)


def test_without_the_softmax_the_weights_are_eq_13() -> None:
    alphas, _, _ = hand_worked()
    _, records = round_of(SimProx(softmax=False))
    np.testing.assert_allclose(records["weights"], np.array(alphas) / sum(alphas), rtol=1e-6)


def test_small_moves_count_more() -> None:
    """Two clients share one similarity, so only exp(-g) differs: g = 1 and 2 give 1/(1 + 1/e) = .7311, and the softmax .6135."""
    pair = make_trained([0, 1], [[1, 1], [3, 0]], [1, 1])
    first = 1 / (1 + exp(-1))
    assert round_of(SimProx(softmax=False), pair)[1]["weights"][0] == pytest.approx(first)
    assert round_of(SimProx(), pair)[1]["weights"][0] == pytest.approx(1 / (1 + exp(1 - 2 * first)))


def test_moves_from_a_clients_own_last_model() -> None:
    """Round 1 from (0, 0): clients 0 and 1 train to (3, 0) and (0, 4): g is from the model received, 3 and 4.
    Round 2: client 0 stays at (3, 0), client 1 goes to (0, 1), client 2 trains for the first time.
    g is 0, 3, and client 2's distance from the shared model of round 1.
    """
    method = SimProx(previous="own", softmax=False)
    ctx = make_context([1] * 3, 2)
    zeros = np.zeros(2, np.float32)
    start = SimProxState(zeros[None, :], ClientTable.empty(3, zeros))
    state, _ = run_dialogue(method.round(start, ctx), make_trained([0, 1], [[3, 0], [0, 4]], [1, 1]))
    np.testing.assert_allclose(ctx.notes.named["norms"], [3, 4])
    shared = state.models[0]
    ctx = make_context([1] * 3, 2)
    after, _ = run_dialogue(method.round(state, ctx), make_trained([0, 1, 2], [[3, 0], [0, 1], shared + np.array([5, 12])], [1, 1, 1]))
    np.testing.assert_allclose(ctx.notes.named["norms"], [0, 3, 13], rtol=1e-6)
    assert isinstance(after, SimProxState)
    np.testing.assert_allclose(after.last.of(np.arange(3)), [[3, 0], [0, 1], shared + np.array([5, 12])], rtol=1e-6)
    assert after.models[0, 0] > shared[0]  # client 0 has not moved: it counts most


def test_the_first_round_does_not_depend_on_the_previous_model() -> None:
    plays = play(SimProx(previous="received"), rounds=2), play(SimProx(previous="own"), rounds=2)
    received, own = ([state.models.tobytes() for state in one.states] for one in plays)  # type: ignore[attr-defined]
    assert received[1] == own[1]
    assert received[2] != own[2]


def test_similarity_of_updates() -> None:
    """Updates (0,1), (0,-1), (1,0): all at right angles or opposite; their mean (1/3, 0) has cosines 0, 0, 1, so sbar = 1/3."""
    _, _, sigma = hand_worked()
    lam = 0.7 * (1 / 3) / 0.9
    s01, s02 = -lam + (1 - lam) * exp(-4 / (2 * sigma**2)), (1 - lam) * exp(-2 / (2 * sigma**2))
    alphas = np.array([1 + (s01 + s02) / 2, 1 + (s01 + s02) / 2, 1 + s02])
    _, records = round_of(SimProx(similarity_of="updates", softmax=False))
    assert records["lambda"] == pytest.approx(lam)
    np.testing.assert_allclose(records["weights"], alphas / alphas.sum(), rtol=1e-6)


def test_lambda_is_kept_above_tau_and_never_negative() -> None:
    near = make_trained([0, 1], [[10, 1], [10, -1]], [1, 1])
    assert round_of(SimProx(), near, (10, 0))[1]["lambda"] == pytest.approx(0.7)
    against = make_trained([0, 1], [[-1, 0], [-2, 0]], [1, 1])
    assert round_of(SimProx(), against)[1]["lambda"] == 0.0
    assert round_of(SimProx(), MODELS, (0, 0))[1]["lambda"] == 0.0  # a model of zeros has no direction


def test_norms_in_the_log_domain() -> None:
    """exp(-2000) is zero in float64; the weights are still 1/(1 + 1/e) and its complement."""
    far = make_trained([0, 1], [[2000, 0], [0, 2001]], [1, 1])
    _, records = round_of(SimProx(softmax=False), far, (0, 0))
    np.testing.assert_allclose(records["weights"], [1 / (1 + exp(-1)), 1 / (1 + exp(1))], rtol=1e-9)


def test_scaled_norms_depend_on_no_unit() -> None:
    moved = np.array([[1.0, 0], [0, 2], [-3, 0]])
    small = round_of(SimProx(scale_norms=True), make_trained([0, 1, 2], moved / 100, [1] * 3), (0, 0))[1]["weights"]
    large = round_of(SimProx(scale_norms=True), make_trained([0, 1, 2], moved * 100, [1] * 3), (0, 0))[1]["weights"]
    np.testing.assert_allclose(small, large, rtol=1e-5)
    assert small[0] > small[1] > small[2]


def test_robust_weights_do_not_reward_a_client_that_stands_still() -> None:
    """g = 0, 1, 1.1, 1.2: the median is 1.05, deviations 1.05, .05, .05, .15, their median .1; so exp(-10.5) for the first."""
    replies = make_trained(range(4), [[0, 0], [1, 0], [0, 1.1], [-1.2, 0]], [1] * 4)
    plain = round_of(SimProx(softmax=False), replies, (0, 0))[1]["weights"]
    robust = round_of(SimProx(softmax=False, robust=True), replies, (0, 0))[1]["weights"]
    assert plain.argmax() == 0
    assert robust[0] < 1e-4
    np.testing.assert_allclose(SimProx(robust=True).compute_log_proximity(np.array([0, 1, 1.1, 1.2])), [-10.5, -0.5, -0.5, -1.5])
    assert np.all(SimProx(robust=True).compute_log_proximity(np.full(4, 0.3) + np.array([0, 1e-16, 0, 0])) == 0)
    # more than half alike: the median deviation is 0, and the mean one (.25) stands in
    np.testing.assert_allclose(SimProx(robust=True).compute_log_proximity(np.array([1, 1, 1, 2.0])), [0, 0, 0, -4])


def test_times_samples() -> None:
    plain, weighted = (round_of(SimProx(times_samples=t))[1]["weights"] for t in (False, True))
    np.testing.assert_allclose(weighted, plain * [1, 2, 5] / np.sum(plain * [1, 2, 5]))


def test_defined_cases() -> None:
    alone = make_trained([0], [[4, 4]], [3])
    new, records = round_of(SimProx(), alone)
    assert new.tolist() == [4, 4]
    assert records["weights"].tolist() == [1.0]
    still = make_trained([0, 1], [[1, 0], [1, 0]], [1, 1])  # sigma = 0: S = 1 for both
    np.testing.assert_allclose(round_of(SimProx(), still)[1]["weights"], 0.5)
    opposite = make_trained([0, 1], [[1, 0], [-1, 0]], [1, 1])  # lambda = 1 and cosine -1: 1 + S = 0
    _, records = round_of(SimProx(lambda0=1.0, tau=1e-9, similarity_of="updates", softmax=False), opposite, (0, 0))
    np.testing.assert_allclose(records["weights"], 0.5)
    before = make_model(1, 0)
    assert run_dialogue(SimProx().round(before, make_context([1])), remove_clients(alone))[0] is before


def test_statistics_are_averaged_but_not_compared() -> None:
    """The third column is a statistic: it changes no weight, and is averaged with them."""
    wide = replace(MODELS, vectors=np.column_stack([MODELS.vectors, [100, -7, 3]]).astype(np.float32))
    ctx = make_context([1, 1, 1], make_layout((2, "weight"), (1, "statistic")))
    state, _ = run_dialogue(SimProx().round(make_model(1, 0, 0), ctx), wide)
    weights = round_of(SimProx())[1]["weights"]
    assert ctx.notes.named["weights"].tobytes() == weights.tobytes()
    assert state.models[0, 2] == pytest.approx(weights @ [100, -7, 3], rel=1e-6)


def models_of(method: Any, **options: Any) -> bytes:
    return play(method, rounds=3, **options).states[-1].models.tobytes()  # type: ignore[attr-defined, no-any-return]


def test_infinite_temperature_is_fedavg() -> None:
    plan = replace(PLAN, dropout=0.3, cohort=5)
    for softmax in (True, False):
        flat = SimProx(temperature=inf, softmax=softmax)
        assert models_of(flat, plan=plan) == models_of(FedAvg(weighting="uniform"), plan=plan)
        assert models_of(replace(flat, times_samples=True), plan=plan) == models_of(FedAvg(), plan=plan)
    assert build("simprox(temperature=inf)") == SimProx(temperature=inf)
    assert models_of(SimProx(), plan=plan) != models_of(FedAvg(weighting="uniform"), plan=plan)


@pytest.mark.parametrize(
    "settings", ["", "softmax=false", "similarity_of=updates", "robust=true,softmax=false", "scale_norms=true,softmax=false"]
)
def test_identical_clients_get_equal_weights(settings: str) -> None:
    rng = np.random.default_rng(0)
    same = make_trained(range(5), np.repeat(rng.normal(size=(1, 301)), 5, axis=0), [1] * 5)
    ctx = make_context([1] * 5, 301)
    run_dialogue(build(f"simprox({settings})").round(make_model(*rng.normal(size=301)), ctx), same)
    np.testing.assert_allclose(ctx.notes.named["weights"], 0.2, rtol=1e-12)


def test_robust_weights_do_not_read_rounding() -> None:
    """The same samples in another order give the same model up to float32 rounding, which must not be scaled up into weights."""
    plan = replace(PLAN, cohort=None, local=Local(batch_size=None, lr=0.1))
    history = play(SimProx(robust=True), world=worlds.make_identical_world(), plan=plan)
    np.testing.assert_allclose(history.records[1].notes.named["weights"], 0.2, rtol=1e-2)


def test_the_softmax_is_flat() -> None:
    """Numbers that sum to one differ by one at most, so their softmax differs by a factor e at most."""
    for record in play(SimProx()).records[1:]:
        assert 1 <= record.notes.named["flatness"] <= np.e


@pytest.mark.parametrize(
    "settings",
    [
        "pairs=landmarks,compared=2",
        "pairs=sketches,compared=8",
        "robust=true,softmax=false",
        "similarity_of=updates,scale_norms=true,times_samples=true",
    ],
)
def test_switches_keep_the_contracts(settings: str) -> None:
    subject = Checked(lambda: build(f"simprox({settings})"))
    for check in (check_odd_cohorts, check_absent_is_as_if_not_picked, check_batch_norm):
        check(subject)


def test_landmarks_by_hand() -> None:
    """MODELS with landmarks 0 and 2 (of two drawn): every Gaussian mean is over these, mean cosines are over all pairs.

    Distances to landmarks: client 0: sqrt 2 (to 2); client 1: 2 and sqrt 2; client 2: sqrt 2 (to 0). sigma is their mean over four pairs.
    """
    ctx = make_context([1] * 3, 2, seed=next(seed for seed in range(99) if landmarks_of(seed) == [0, 2]))
    run_dialogue(SimProx(pairs="landmarks", compared=2, softmax=False).round(make_model(1, 0), ctx), MODELS)
    sigma = (2 + 3 * sqrt(2)) / 4
    near, far = exp(-2 / (2 * sigma**2)), exp(-4 / (2 * sigma**2))
    gaussian, cosine = np.array([near, (near + far) / 2, near]), np.array([0.5, 0.5, 1.0]) / sqrt(2)
    lam = 0.7 * ((2 / sqrt(2) + 1) / 3) / 0.9
    alphas = 1 + lam * cosine + (1 - lam) * gaussian
    np.testing.assert_allclose(ctx.notes.named["weights"], alphas / alphas.sum(), rtol=1e-6)
    assert ctx.notes.named["sigma"] == pytest.approx(sigma)
    assert ctx.notes.named["landmarks"] == 2


def landmarks_of(seed: int) -> list[int]:
    return list(map(int, sample_landmarks(3, make_context([1] * 3, 2, seed=seed).rng("landmarks"), 2)))


@pytest.mark.parametrize("pairs", ["landmarks", "sketches"])
def test_as_many_landmarks_or_numbers_as_there_are_is_exact(pairs: Any) -> None:
    assert models_of(SimProx(pairs=pairs, compared=500)) == models_of(SimProx())


@pytest.mark.parametrize("of", ["weights", "updates"])
def test_sketches_and_landmarks_are_near_the_exact_weights(of: Any) -> None:
    """200 clients of three kinds, 4,000 numbers: weights within 3 % by 256 numbers or 100 landmarks; norms are exact."""
    rng = np.random.default_rng(0)
    moved = rng.normal(size=(3, 4000))[rng.integers(3, size=200)] + 0.7 * rng.normal(size=(200, 4000))
    start = rng.normal(size=4000)
    replies = make_trained(range(200), start + 0.01 * moved, [1] * 200)
    exact = round_of(SimProx(similarity_of=of, softmax=False), replies, tuple(start))[1]
    for pairs, compared in (("sketches", 256), ("landmarks", 100)):
        method = SimProx(similarity_of=of, softmax=False, pairs=pairs, compared=compared)  # type: ignore[arg-type]
        near = round_of(method, replies, tuple(start))[1]
        np.testing.assert_allclose(near["weights"], exact["weights"], rtol=3e-2)
        np.testing.assert_allclose(near["norms"], exact["norms"], rtol=1e-9)
        assert np.abs(near["weights"] - exact["weights"]).max() > 0


def test_a_client_that_stands_still_has_no_cosine_with_others() -> None:
    """Updates 0, (1, 0), (1, 0): mean cosines 0, 1/2, 1/2, by landmarks as by all pairs."""
    still = make_trained([0, 1, 2], [[0, 0], [1, 0], [1, 0]], [1] * 3)
    method = SimProx(similarity_of="updates", lambda0=1.0, tau=1e-9, softmax=False)
    exact = round_of(method, still, (0, 0))[1]["weights"]
    np.testing.assert_allclose(round_of(replace(method, pairs="landmarks", compared=2), still, (0, 0))[1]["weights"], exact, rtol=1e-9)


@pytest.mark.parametrize("wrong", [{"compared": 1}, {"lambda0": 1.5}, {"tau": 0.0}, {"temperature": 0.0}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        SimProx(**wrong)


def test_shuffled_weights_are_the_same_ones_of_other_clients() -> None:
    """As a multiset they are SimProx's; over rounds every client gets each of them; and it matters who gets which."""
    spread = make_trained(list(range(4)), [[1, 1], [1, 4], [3, 0], [9, 0]], [1, 2, 5, 7])
    own = round_of(SimProx(), spread)[1]["weights"]
    seen = []
    for round_ in range(12):
        ctx = make_context([1] * 4, 2, round_=round_)
        run_dialogue(SimProx(shuffled=True).round(make_model(1, 0), ctx), spread)
        dealt = ctx.notes.named["weights"]
        np.testing.assert_allclose(np.sort(dealt), np.sort(own))
        seen.append(dealt)
    assert all(len(np.unique(column.round(9))) > 1 for column in np.array(seen).T)
    assert any(not np.allclose(dealt, own) for dealt in seen)


def test_shuffled_weights_do_not_depend_on_who_was_absent() -> None:
    check_absent_is_as_if_not_picked(Checked(lambda: SimProx(shuffled=True)))
