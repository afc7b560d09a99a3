"""Scores of parts: F1 over clients, and how groups gather clients."""

import numpy as np
import pytest

import coterie as ct
from coterie.analysis.class_scores import iter_f1
from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import find_scope
from coterie.reproduce.values import compute_gathered, compute_label_overlap, score_assigned


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


def test_gathered_clients() -> None:
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


def test_highest_accuracy_of_the_clients_assigned_so_far() -> None:
    """From the evidence's own tables: right answers over samples of clients that are in a group by then, the best round."""
    methods = ["fedavg", "fedgroup(groups=2,alpha=2,literal=true)"]
    result = ct.study(methods, data="digits/pathological(classes=2,clients=12)", rounds=6, cohort=2, evaluate_every=2, lr=0.1, seeds=[3])
    records = read_records(result.evidence)
    found = {method: (score, seed, value) for method, score, seed, value in score_assigned(records, find_scope(records))}
    groups = records.groups[methods[1]][0]
    best, partial = [], []
    for place, t in enumerate(records.rounds):
        if t < 1:
            continue
        inside = groups[t] >= 0
        partial.append(bool(inside.any() and not inside.all()))
        best.append(100 * records.credits[1, 0, place][inside].sum() / records.tested[place][inside].sum())
    assert any(partial)
    assert found[methods[1]][:2] == ("max_assigned", 3)
    assert found[methods[1]][2] == pytest.approx(max(best))
    assert found[methods[1]][2] != pytest.approx(100 * records.accuracy[1, 0, 1:].max())
    assert found["fedavg"][2] == pytest.approx(100 * records.accuracy[0, 0, records.rounds >= 1].max())
