"""Scores from counts, against scikit-learn on the predictions behind the counts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, f1_score, precision_score, r2_score, recall_score

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis import metrics
from coterie.analysis.comparison import compare_evidence, open_comparison
from coterie.analysis.draws import collect_hits, compute_per_sample_scores, compute_sample_differences
from coterie.analysis.metrics import METRICS, Counts, get_metric
from coterie.analysis.record_reader import read_records
from coterie.analysis.scores import find_scope
from coterie.core.arrays import Array
from coterie.evidence import digest
from coterie.run.study import study
from coterie.statistics.clients import compute_shift_p, find_worse_off


def counts(y: Array, guess: Array, classes: int) -> tuple[Array, Array, Array]:
    hits = np.bincount(y[y == guess], minlength=classes)
    return hits, np.bincount(guess, minlength=classes), np.bincount(y, minlength=classes)


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, guess = rng.integers(0, 4, 30), rng.integers(0, 4, 30)
    hits, predicted, actual = counts(y, guess, 6)  # classes 4 and 5 are neither present nor predicted: they do not count
    assert metrics.accuracy(hits, actual) == pytest.approx(np.mean(y == guess))
    assert metrics.f1(hits, predicted, actual) == pytest.approx(f1_score(y, guess, average="macro", zero_division=0))
    assert metrics.precision(hits, predicted, actual) == pytest.approx(precision_score(y, guess, average="macro", zero_division=0))
    assert metrics.recall(hits, predicted, actual) == pytest.approx(recall_score(y, guess, average="macro", zero_division=0))


def test_a_client_without_samples_is_undefined_and_left_out_of_means() -> None:
    hits = np.array([[3, 0], [0, 0]])
    actual = np.array([[4, 0], [0, 0]])
    accuracy = metrics.accuracy(hits, actual)
    assert accuracy[0] == 0.75
    assert np.isnan(accuracy[1])
    assert metrics.mean(accuracy) == 0.75
    assert metrics.worst(accuracy) == 0.75
    assert np.isnan(metrics.worst(np.array([np.nan])))


def test_bottom_decile_is_the_mean_of_the_worst_tenth() -> None:
    values = np.arange(20, dtype=np.float64)
    assert metrics.bottom_decile(values) == pytest.approx(0.5)  # the two worst of twenty: 0 and 1
    assert metrics.bottom_decile(np.array([0.3, np.nan, 0.9])) == pytest.approx(0.3)  # at least one client


NUMBERS = "linear(clients=5,samples=20)"


@pytest.fixture(scope="module")
def numbers() -> Any:
    return study(["fedavg", "ifca(groups=2)"], data=NUMBERS, rounds=2, lr=0.1, seeds=range(2))


def test_metrics_of_classes_by_hand() -> None:
    """A client with classes a, a, a, b answered a, a, b, b: balanced accuracy (2/3 + 1)/2 = 5/6; F1 of a 2*2/(2+3) = 0.8, of b 2/3."""
    counts = Counts(np.array([[2, 1]]), np.array([[2, 2]]), np.array([[3, 1]]), np.array([4]), np.array([0.9]))
    assert METRICS["accuracy"].compute(counts).tolist() == [0.75]
    assert METRICS["balanced_accuracy"].compute(counts).tolist() == pytest.approx([5 / 6])
    assert METRICS["balanced_accuracy"].compute(counts)[0] == pytest.approx(balanced_accuracy_score([0, 0, 0, 1], [0, 0, 1, 1]))
    assert (
        METRICS["f1"].compute(counts)[0]
        == pytest.approx((0.8 + 2 / 3) / 2)
        == pytest.approx(f1_score([0, 0, 0, 1], [0, 0, 1, 1], average="macro"))
    )
    assert METRICS["auroc"].compute(counts).tolist() == [0.9]
    one_class = replace(counts, hits=np.array([[2, 0]]), actual=np.array([[3, 0]]))
    assert METRICS["balanced_accuracy"].compute(one_class).tolist() == pytest.approx([2 / 3])  # over the classes that the client has


def test_metrics_of_labels_and_numbers_by_hand() -> None:
    """Labels: two samples of two labels, one label wrong in one of them: 3/4 of the labels, one sample exactly.
    Numbers: two errors of 1 where the variance is 4 and the mean distance 1.5: R2 1 - 2/2/4 = 0.75, and 1 - 1/1.5 = 1/3."""
    labels = Counts(np.array([[1, 1]]), np.array([[2, 1]]), np.array([[1, 1]]), np.array([2]), np.array([np.nan]), {"exact": np.array([1])})
    assert METRICS["labels"].compute(labels).tolist() == [0.75]
    assert METRICS["exact"].compute(labels).tolist() == [0.5]
    none = np.zeros((1, 0), dtype=np.int64)
    sums = {"squared_error": np.array([2.0]), "absolute_error": np.array([2.0])}
    told = Counts(none, none, none, np.array([2]), np.array([np.nan]), sums, np.array([4.0]), np.array([1.5]))
    assert METRICS["r2"].compute(told).tolist() == [0.75]
    assert METRICS["mae"].compute(told).tolist() == pytest.approx([1 / 3])


def test_the_federations_r2_is_that_of_all_predictions_pooled(numbers: Any) -> None:
    records = read_records(numbers.evidence)
    made = ct.load(NUMBERS)
    true, said = [], []
    for client, name in enumerate(made.ids):
        rows = made.test[client]
        true += made.task.in_units(made.y[rows]).tolist()
        said += ct.get_bundle(numbers, name, "fedavg", seed=0).predict(made.x[rows]).tolist()
    assert records.accuracy[0, 0, -1] == pytest.approx(r2_score(true, said), rel=1e-6)
    assert records.mae is not None
    assert records.rmse is not None
    assert records.mae[0, 0, -1] == pytest.approx(np.abs(np.subtract(true, said)).mean(), rel=1e-6)
    assert records.rmse[0, 0, -1] == pytest.approx((np.subtract(true, said) ** 2).mean() ** 0.5, rel=1e-6)
    assert records.macro[0, 0, -1] == pytest.approx(np.mean([records.compute_client_values(0, slice(-1, None))[0]]))
    weighted = np.average(records.compute_client_values(0, slice(-1, None))[0], weights=records.test)
    assert weighted == pytest.approx(records.accuracy[0, 0, -1])
    table = numbers.table()
    assert {"mae", "rmse"} <= set(table.columns)
    assert {"r2", "r2_macro", "mae", "rmse"} <= set(numbers.rounds.columns)


@pytest.mark.parametrize("metric", ["r2", "mae"])
def test_differences_of_single_samples_add_up_to_those_of_clients(numbers: Any, metric: str) -> None:
    records = read_records(numbers.evidence, metric)
    ours, theirs = compute_per_sample_scores(records, 1), compute_per_sample_scores(records, 0)
    credits = records.credits[1, :, -1] - records.credits[0, :, -1]
    np.testing.assert_allclose((ours - theirs).sum(axis=-1), credits, rtol=1e-4, atol=1e-5)
    squares = compute_sample_differences(records, 1, 0)
    assert squares is not None
    np.testing.assert_allclose(squares, ((ours - theirs) ** 2).sum(axis=-1))
    hits = collect_hits(records, find_scope(records), "final", 1, 0, np.ones(2, dtype=bool))
    assert not isinstance(hits, str)
    assert hits.differing is not None
    np.testing.assert_allclose(hits.differing, squares)


def test_labels_and_exact_matches_of_single_samples() -> None:
    found = study(["fedavg", "local"], data="linear(multilabel,clients=4,samples=20,labels=3)", rounds=2, lr=0.5).evidence
    for metric in ("labels", "exact"):
        records = read_records(found, metric)
        credits = records.credits[1, :, -1].astype(float) - records.credits[0, :, -1]
        np.testing.assert_allclose(
            (compute_per_sample_scores(records, 1) - compute_per_sample_scores(records, 0)).sum(axis=-1), credits, atol=1e-6
        )
    assert compare_evidence([found], metric="exact").federations[0].metric.noun == "exact-match accuracy"


def test_a_metric_of_clients_is_a_mean_over_them_with_an_interval_over_them() -> None:
    found = study(["fedavg", "local"], data="digits/dirichlet(0.5,clients=12)", rounds=2, seeds=range(2)).evidence
    records, plain = read_records(found, "balanced_accuracy"), read_records(found)
    values = records.compute_client_values(0, slice(-1, None))[0]
    assert records.accuracy[0, 0, -1] == pytest.approx(np.nanmean(values))
    assert records.accuracy[0, 0, -1] != pytest.approx(plain.accuracy[0, 0, -1])
    findings = compare_evidence([found], metric="balanced_accuracy").federations[0]
    interval = findings.methods["local"].gap.sources.clients
    gains = records.compute_client_values(1, findings.scope.tail).mean(0) - records.compute_client_values(0, findings.scope.tail).mean(0)
    assert not isinstance(interval, str)
    assert interval.error == pytest.approx(stats.sem(gains[np.isfinite(gains)]))  # every client counts alike
    assert findings.methods["local"].fairness.losers is None  # nothing is known of single samples


def test_with_few_clients_it_says_what_is_not_known() -> None:
    found = study(["fedavg", "local"], data="heart", rounds=1, seeds=range(2)).evidence
    findings = compare_evidence([found], metric="auroc").federations[0]
    told = findings.methods["local"].gap.sources.clients
    assert told == "no interval over test samples, since AUROC is no mean over samples, and none over test clients, since they are too few"
    area = read_records(found).auroc
    assert area is not None
    np.testing.assert_allclose(findings.records.accuracy, area)  # the mean over the clients that have both classes


def youden(counts: ct.Counts) -> Any:
    """Sensitivity + specificity - 1."""
    return (counts.hits / np.maximum(counts.actual, 1)).sum(axis=1) - 1


def test_a_metric_of_ones_own(tmp_path: Path) -> None:
    found = ct.compare(["fedprox"], data="heart", out=tmp_path / "c", rounds=1, draws=1, seeds=range(2), controls=False, metric=youden)
    (own,) = found.federations
    assert (own.metric.noun, own.metric.is_macro) == ("youden", True)
    again = open_comparison(tmp_path / "c", metric=youden)
    assert again.federations[0].records.accuracy.tolist() == own.records.accuracy.tolist()
    with pytest.raises(UserError, match=r"is compared by code that is not Coterie's, the metric '.*:youden'.*say metric="):
        open_comparison(tmp_path / "c")
    with pytest.raises(UserError, match=r"gives values of shape \(2,\) for \d+ rows"):
        compare_evidence([own.records.evidence], metric=lambda counts: np.zeros(2))


def test_wrong_metrics_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    cases = {
        "r2": r"'r2' is not for a classification: choose from accuracy, balanced_accuracy, f1, auroc\.",
        "auroc": r"'auroc' is of two classes, and there are 10: choose from accuracy, balanced_accuracy, f1\.",
        "acuracy": r"no metric 'acuracy': did you mean 'accuracy'",
        "nowhere:thing": r"there is no module 'nowhere'",
    }
    for name, told in cases.items():
        with pytest.raises(UserError, match=told):
            ct.compare(["fedavg"], data="digits/iid(clients=4)", out=tmp_path / "c", rounds=1, metric=name)
    assert not (tmp_path / "c").exists()
    assert get_metric(None, "multilabel", 3).name == "labels"


def test_another_metric_reads_the_same_evidence(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": "heart", "rounds": 1, "draws": 1, "seeds": range(2), "controls": False, "out": tmp_path / "c"}
    first = ct.compare(["fedprox"], **options, metric="f1")
    before = digest(first.federations[0].records.evidence)
    again = ct.compare(["fedprox"], **options, metric="auroc", resume=True)  # nothing is run again
    assert digest(again.federations[0].records.evidence) == before
    assert open_comparison(tmp_path / "c").federations[0].metric.name == "auroc"


def test_who_loses_beyond_the_chance_of_samples_by_a_t_test() -> None:
    """Credits that are no counts: P(T >= t) of the samples' own differences, as `scipy` has it."""
    apart = np.array([0.5, 0.2, -0.1, 0.4, 0.3])
    p = compute_shift_p(np.array([apart.sum()]), np.array([(apart**2).sum()]), np.array([5.0]))
    assert p[0] == pytest.approx(stats.ttest_1samp(apart, 0, alternative="greater").pvalue)
    assert compute_shift_p(np.array([1.0, -1.0, np.nan]), np.array([1.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0]))[:2].tolist() == [1.0, 1.0]
    ours, theirs = np.zeros((1, 4, 1)), np.full((1, 4, 1), apart.sum()) + np.arange(4)[None, :, None] * 1e-3
    found = find_worse_off(ours, theirs, np.array([[5.0]]), differing=np.full((1, 4, 1), (apart**2).sum()), whole=False)
    assert found.p[0] == pytest.approx(p[0], rel=0.05)
