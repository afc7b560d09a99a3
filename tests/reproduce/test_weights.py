"""The weights that were really used: read from the evidence, kept beside the scores, drawn; and how they follow the samples."""

from dataclasses import replace
from pathlib import Path

import altair
import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.analysis.groups import RoundWeights, fit_sample_slope
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import add_weights, format_weights
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, StudyPart
from coterie.reproduce.values import PartValues, read_values
from coterie.run.study import study
from coterie.testing import worlds
from study_scripts import script

METHODS = ("fedavg", "fedavg(weighting=uniform)", "simprox")


@pytest.fixture(scope="module")
def values() -> PartValues:
    """Three rounds, of which a claim is about each method's weights."""
    claims = [Claim(says=method, kind="at_most", one=method, score="by_samples", paper=0.0) for method in METHODS]
    evidence = study(list(METHODS), data=worlds.make_federation(), rounds=3, cohort=3).evidence
    return read_values(PartRun(StudyPart(), studies=(evidence,)), None, claims)


def test_the_slope_by_hand() -> None:
    """Samples 10 and 30 are 0.5 and 1.5 of their mean, weights 0.6 and 0.4 are 1.2 and 0.8: (-.5 * .2 + .5 * -.2) / (.25 + .25) = -0.4."""
    one = RoundWeights(1, np.array([10, 30]), np.array([0.6, 0.4]))
    assert fit_sample_slope([one]) == pytest.approx(-0.4)
    equal = RoundWeights(2, np.array([5, 5]), np.array([0.9, 0.1]))
    assert fit_sample_slope([one, equal]) == pytest.approx(-0.4)  # where all have as many, nothing is to be learned
    assert np.isnan(fit_sample_slope([equal]))


def test_fedavg_follows_samples_and_uniform_weights_do_not(values: PartValues) -> None:
    assert values.of("fedavg", "by_samples")[0] == pytest.approx(1)
    assert values.of("fedavg(weighting=uniform)", "by_samples")[0] == pytest.approx(0, abs=1e-12)


def test_weights_give_the_flatness_that_was_noted(values: PartValues) -> None:
    rounds = values.weights["simprox"][0]
    assert [one.round_ for one in rounds] == [1, 2, 3]
    assert all(len(one.weights) == 3 and one.weights.sum() == pytest.approx(1) for one in rounds)
    assert values.of("simprox", "flatness")[0] == pytest.approx(np.mean([one.weights.max() / one.weights.min() for one in rounds]))


def test_weights_are_kept_only_where_a_claim_is_about_them() -> None:
    evidence = study("simprox", data=worlds.make_federation(), rounds=1).evidence
    found = read_values(PartRun(StudyPart(), studies=(evidence,)), None, [Claim(says="s", one="simprox", two="simprox")])
    assert not found.weights
    assert not found.of("simprox", "by_samples")


def test_weights_are_written_and_read_again(values: PartValues, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(format_weights({"a": values, "b": PartValues()}))
    again = {"a": PartValues()}
    add_weights(path, again)
    for method in METHODS:
        for old, new in zip(values.weights[method][0], again["a"].weights[method][0], strict=True):
            assert (old.round_, *old.samples) == (new.round_, *new.samples)
            np.testing.assert_allclose(new.weights, old.weights, atol=6e-6)
    assert format_weights({"a": PartValues()}) == ""
    add_weights(tmp_path / "none.csv", again)


@pytest.mark.parametrize("text", ["part,method\na,b\n", "part,method,seed,round,samples,weights\na,b,0,1,3 4,0.5\n"])
def test_a_wrong_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(text)
    with pytest.raises(UserError, match="are not what 'coterie reproduce --page' writes"):
        add_weights(path, {"a": PartValues()})


def test_the_figure_has_a_point_for_each_client_and_the_lines_of_fedavg(
    values: PartValues, carried: tuple[ReproductionResult, Path]
) -> None:
    outcome = replace(carried[0], values={"fixed": values, "redrawn": PartValues()})
    drawn = script("simprox_figures").draw_weights(altair, outcome).to_dict()
    rows = [row for name in drawn["datasets"] for row in drawn["datasets"][name]]
    assert sum(row["line"] == "simprox" for row in rows) == 3 * 3
    assert {row["weight"] for row in rows if row["line"] == "FedAvg, uniform"} == {1.0}
    assert all(row["weight"] == row["samples"] for row in rows if row["line"] == "FedAvg by samples")
    assert script("simprox_figures").draw_weights(altair, replace(outcome, values={"fixed": PartValues()})) is None
