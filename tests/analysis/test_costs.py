"""Simulated time: what is read from curves and clocks, by hand and of a study."""

from dataclasses import replace

import numpy as np
import pytest

import coterie as ct
from coterie.analysis.costs import compute_time_curves, describe_times, find_time_to_target, sample_at_moments, stack_clocks
from coterie.analysis.draws import collect_draws
from coterie.analysis.record_reader import read_records
from coterie.testing import worlds

CURVE, CLOCK = np.array([0.1, 0.4, 0.3, 0.6]), np.array([0.0, 2.0, 3.0, 7.0])


def test_time_to_a_target_is_that_of_the_first_round_at_it() -> None:
    assert find_time_to_target(CURVE, CLOCK, 0.4) == 2.0
    assert find_time_to_target(CURVE, CLOCK, 0.45) == 7.0
    assert np.isnan(find_time_to_target(CURVE, CLOCK, 0.7))
    assert find_time_to_target(np.array([np.nan, 0.5]), np.array([1.0, 2.0]), 0.1) == 2.0


def test_at_any_moment_the_last_evaluated_round_counts() -> None:
    found = sample_at_moments(CURVE, CLOCK, np.array([0.0, 1.9, 2.0, 6.9, 7.0, 7.1]))
    assert found[:5].tolist() == [0.1, 0.1, 0.4, 0.3, 0.6]
    assert np.isnan(found[5])  # over
    skipped = sample_at_moments(np.array([0.1, np.nan, 0.3]), np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.5, 3.0]))
    assert np.isnan(skipped[0])
    assert skipped[1:].tolist() == [0.1, 0.3]
    assert np.isnan(sample_at_moments(CURVE * np.nan, CLOCK, np.array([1.0]))).all()


@pytest.fixture(scope="module")
def result() -> ct.Result:
    return ct.study(
        ["fedavg", "simprox"],
        data=worlds.make_federation(),
        rounds=6,
        seeds=range(3),
        buffer_size=2,
        speeds="lognormal(1.0)",
        evaluate_every=2,
    )


def test_a_study_knows_its_times(result: ct.Result) -> None:
    records = read_records(result.evidence)
    assert records.clock is not None
    study = collect_draws([records])
    clocks = stack_clocks(study, "simprox")
    assert clocks is not None
    assert clocks.shape == (3, 7)
    assert (clocks[:, 0] == 0).all()
    assert (np.diff(clocks, axis=1) >= 0).all()
    moments, curves = compute_time_curves(study)
    last = min(clocks[:, -1].min(), records.clock[0, :, -1].min())  # clients take the same time with every method
    assert moments[-1] == last
    mean, low, high = curves["fedavg"]
    assert mean[0] == pytest.approx(records.accuracy[0, :, 0].mean())
    assert (low <= mean).all()
    assert (mean <= high).all()
    frame = result.rounds
    own = frame[(frame["method"] == "fedavg") & (frame["seed"] == 1)].sort_values("round")
    assert own["clock"].tolist() == records.clock[0, 1, [0, 2, 4, 6]].tolist()


def test_what_is_told_of_time(result: ct.Result) -> None:
    (told,) = result.remarks
    finals = result.table()["final"]
    assert told.startswith(f"Simulated time to {100 * finals.min():.1f} % accuracy (the lowest mean at the end), median of runs: fedavg ")
    assert "of 3 runs)" in told
    records = read_records(result.evidence)
    hopeless = replace(records, clock=None)
    assert describe_times([hopeless]) == []
