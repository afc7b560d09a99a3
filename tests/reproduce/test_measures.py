"""Numbers of the papers' figures: F1 over clients, who is put together, similarity of features, a map of gradients, times of rounds."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

import coterie as ct
from coterie.analysis.class_scores import iter_f1
from coterie.data.catalogue import load
from coterie.evidence.settings import Settings
from coterie.reproduce.measurements import measure_features, measure_gradient_map, measure_round_times
from coterie.reproduce.values import compute_gathered, compute_label_overlap

DATA = "digits/rotated(clients=6,groups=2)"


def test_f1_of_one_client_is_the_mean_over_its_classes() -> None:
    """By hand: 2 hits / (predicted + actual), the mean over classes; over one client both means are that."""
    result = ct.study("fedavg", data="digits/iid(clients=1,test=0.3)", rounds=2, lr=0.1)
    found = {score: value for _, score, _, value in iter_f1(result.evidence, 2)}
    frame = result.evidence.frame("clients").query("round == 2").iloc[0]
    hits, predicted = (np.array([frame[f"{name}_{c}"] for c in range(10)]) for name in ("hits", "predicted"))
    expected = 100 * float(np.mean(2 * hits / (predicted + result.evidence.actual[0])))
    assert found == pytest.approx({"f1": expected, "f1_macro": expected})


def test_weights_of_f1() -> None:
    result = ct.study("fedavg", data="digits/quantity(0.5,clients=4)", rounds=1, lr=0.1)
    found = {score: value for _, score, _, value in iter_f1(result.evidence, 1)}
    table = result.rounds.query("round == 1").iloc[0]
    assert (found["f1"], found["f1_macro"]) == pytest.approx((100 * table["f1"], 100 * table["f1_macro"]))
    assert found["f1"] != pytest.approx(found["f1_macro"])


def test_who_is_gathered() -> None:
    truth = np.array([0, 0, 0, 0, 1, 1, 1])
    assert compute_gathered(np.array([0, 0, 1, 1, 2, 2, 2]), truth) == 100
    assert compute_gathered(np.array([0, 0, 1, 1, 2, 2, 0]), truth) == pytest.approx(200 / 3)
    assert compute_gathered(np.array([0, 0, 1, 1, 2, -1, -1]), truth) == pytest.approx(100 / 3)  # who is in no group is not gathered
    assert np.isnan(compute_gathered(np.array([0, 0, 0, 0, -1, -1, -1]), truth))


def test_overlap_of_labels() -> None:
    labels = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1.0], [0, 0.5, 0.5]])
    # pairs of one group share 50 % each; of two groups (0,2) 0, (0,3) 0, (1,2) 0 and (1,3) 50 %
    assert compute_label_overlap(np.array([0, 0, 1, 1]), labels) == pytest.approx(50 - 12.5)
    assert np.isnan(compute_label_overlap(np.zeros(4, np.int64), labels))


def test_similarity_of_features_is_scipys() -> None:
    federation = load("synthetic(0,0,clients=3)")
    found = {(m.row, m.seed): m.value for m in measure_features(federation, Settings(methods=("fedavg",), data="x", seeds=(0, 1)))}
    rows = [federation.x[own] for own in federation.train]
    pairs = [np.mean([1 - ks_2samp(rows[a][:, j], rows[b][:, j]).statistic for j in range(60)]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx({("pairs", seed): np.mean(pairs) for seed in (0, 1)})


def test_pairs_of_one_group_are_told_apart() -> None:
    found = {m.row: m.value for m in measure_features(load(DATA), Settings(methods=("fedavg",), data=DATA))}
    assert found["alike"] > found["pairs"] > found["apart"]


def test_a_map_of_clear_groups_has_a_high_silhouette() -> None:
    plain, swapped = (load(f"digits/{spec}") for spec in ("iid(clients=40)", "pathological(classes=1,clients=40)"))
    settings = Settings(methods=("fedavg",), data="x")
    ((iid,), (clear,)) = (measure_gradient_map(federation, settings) for federation in (plain, swapped))
    assert (iid.row, iid.score) == ("clusters", "silhouette")
    assert clear.value > 0.6 > iid.value


def test_rounds_are_timed_by_method() -> None:
    settings = Settings(methods=("fedavg", "fedsim(clusters=2)"), data=DATA, seeds=(0, 1), plan=ct.Plan(rounds=2))
    found = {(m.row, m.score, m.seed): m.value for m in measure_round_times(load(DATA), settings)}
    assert len(found) == 8
    assert all(value > 0 for value in found.values())
    for seed in (0, 1):
        assert found["fedavg", "round_ratio", seed] == 1
        ratio = found["fedsim(clusters=2)", "round_ms", seed] / found["fedavg", "round_ms", seed]
        assert found["fedsim(clusters=2)", "round_ratio", seed] == pytest.approx(ratio)
