"""Measurements of the papers' figures: similarity of features, a map of gradients, times of rounds."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

import coterie as ct
from coterie.data.catalogue import load
from coterie.evidence.settings import Settings
from coterie.reproduce.run import load_measure
from coterie.reproduce.study_files import StudyPart
from study_scripts import script

DATA = "digits/rotated(clients=6,groups=2)"
MEASURES = script("measurements")


@pytest.mark.parametrize("name", ["pni", "ternary", "features", "map", "times"])
def test_every_measure_of_a_study_file_is_found(name: str) -> None:
    assert StudyPart(measure=name).measure == name  # type: ignore[arg-type]
    assert callable(load_measure(name))


def test_similarity_of_features_is_scipys() -> None:
    federation = load("synthetic(0,0,clients=3)")
    found = {(m.row, m.seed): m.value for m in MEASURES.measure_features(federation, Settings(methods=("fedavg",), data="x", seeds=(0, 1)))}
    rows = [federation.x[own] for own in federation.train]
    pairs = [np.mean([1 - ks_2samp(rows[a][:, j], rows[b][:, j]).statistic for j in range(60)]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx({("pairs", seed): np.mean(pairs) for seed in (0, 1)})


def test_pairs_of_one_group_are_more_similar() -> None:
    found = {m.row: m.value for m in MEASURES.measure_features(load(DATA), Settings(methods=("fedavg",), data=DATA))}
    assert found["alike"] > found["pairs"] > found["apart"]


def test_a_map_of_clear_groups_has_a_high_silhouette() -> None:
    plain, swapped = (load(f"digits/{spec}") for spec in ("iid(clients=40)", "pathological(classes=1,clients=40)"))
    settings = Settings(methods=("fedavg",), data="x")
    ((iid,), (clear,)) = (MEASURES.measure_map(federation, settings) for federation in (plain, swapped))
    assert (iid.row, iid.score) == ("clusters", "silhouette")
    assert clear.value > 0.6 > iid.value


def test_rounds_are_timed_by_method() -> None:
    settings = Settings(methods=("fedavg", "fedsim(clusters=2)"), data=DATA, seeds=(0, 1), plan=ct.Plan(rounds=2))
    found = {(m.row, m.score, m.seed): m.value for m in MEASURES.measure_times(load(DATA), settings)}
    assert len(found) == 8
    assert all(value > 0 for value in found.values())
    for seed in (0, 1):
        assert found["fedavg", "round_ratio", seed] == 1
        ratio = found["fedsim(clusters=2)", "round_ms", seed] / found["fedavg", "round_ms", seed]
        assert found["fedsim(clusters=2)", "round_ratio", seed] == pytest.approx(ratio)
