"""The overview: one verdict, one recommendation, and a row for each method and each simpler way, from numbers computed by hand."""

from math import isnan, sqrt

import pytest
from scipy import stats

from analysis.made_records import ALONE, AVG, GROUP, RANDOM, SIM, UNIFORM, by_hand, flat
from coterie.analysis.findings import compute_findings
from coterie.analysis.overview import Overview, make_overview
from coterie.analysis.roles import assign_roles, find_served, name_methods
from report.made_up import view

SEEDS = 6
BASE = [0.600 + 0.001 * i for i in range(SEEDS)]
TUNED = "fedavg+finetune(epochs=5)"


def above(gain: float, jitter: float = 0.001) -> list[float]:
    """The baseline plus a gain that differs a little from seed to seed."""
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


def overview(levels: dict[str, list[float]], **options: object) -> Overview:
    return make_overview(view(levels, **options).findings)


def test_a_row_holds_the_gain_with_its_widest_interval_and_all_comparisons() -> None:
    found = overview({AVG: BASE, UNIFORM: BASE, ALONE: above(0.04), TUNED: above(0.06), GROUP: above(0.1), RANDOM: above(0.02)})
    assert [row.label for row in found.rows] == [
        "FedAvg",
        "FedGroup",
        "FedGroup, random groups",
        "FedAvg, equal weights",
        "FedAvg, fine-tuned",
        "Training alone",
    ]
    row = found.row(GROUP)
    assert row.gain is not None
    assert row.gain.mean == pytest.approx(0.1)
    # Over seeds 0.001 * (i - 2.5) has the variance 3.5e-6: half the interval is t(5) * sqrt(3.5e-6 / 6) = 0.00196. A bound from counts
    # of right answers, which are all that is known of the samples, does not decide.
    half = stats.t.ppf(0.975, 5) * sqrt(3.5e-6 / 6)
    assert [row.gain.low, row.gain.high] == pytest.approx([0.1 - half, 0.1 + half], abs=1e-6)
    assert row.gain.verdict == "better"
    assert row.score == pytest.approx(0.7025)
    assert row.clearly_worse == 0
    assert row.against_alone is not None
    assert row.against_alone.mean == pytest.approx(0.06)
    assert row.against_finetuned is not None
    assert row.against_finetuned.mean == pytest.approx(0.04)
    assert row.similarity is not None
    assert row.similarity.mean == pytest.approx(0.08)
    assert row.similarity_share == pytest.approx(0.8)
    assert found.row(RANDOM).of == GROUP
    assert found.row(TUNED).served == AVG
    assert found.row(TUNED).epochs == 5
    assert found.baseline.gain is None
    assert isnan(found.baseline.clearly_worse)
    assert found.margin == 0.01


def test_costs_are_relative_to_the_baseline() -> None:
    """Method i of the records pays i + 1 of everything a round."""
    found = make_overview(compute_findings(by_hand({AVG: flat(50), GROUP: flat(58), SIM: flat(50)})))
    assert [(row.spec, row.relative_traffic, row.relative_passes) for row in found.rows] == [(AVG, 1, 1), (GROUP, 2, 2), (SIM, 3, 3)]


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (0.0, "FedSim beats FedAvg by +10.0 points (95 % CI +9.8 to +10.2); better than training alone too."),
        (0.1, "FedSim beats FedAvg by +10.0 points (95 % CI +9.8 to +10.2); equivalent to training alone."),
        (0.2, "FedSim beats FedAvg by +10.0 points (95 % CI +9.8 to +10.2); worse than training alone."),
    ],
)
def test_the_verdict_says_whether_what_is_simpler_does_as_well(alone: float, words: str) -> None:
    assert overview({AVG: BASE, ALONE: above(alone), SIM: above(0.1)}).verdict == words


def test_no_difference_found_is_not_called_none() -> None:
    found = overview({AVG: BASE, ALONE: above(0.1, 0.02), SIM: above(0.1)})
    assert found.verdict.endswith("; not significantly better than training alone.")
    assert found.row(SIM).against_alone.verdict == "inconclusive"  # type: ignore[union-attr]
    open_ = overview({AVG: BASE, SIM: above(0.01, 0.02)})
    assert open_.verdict.startswith("FedSim does not differ significantly from FedAvg: +1.0 points (95 % CI −")
    assert open_.recommendation == "Keep FedAvg: no other method is significantly better."


@pytest.mark.parametrize(
    ("levels", "verdict", "advice"),
    [
        ({SIM: BASE}, "FedSim is equivalent to FedAvg (within 1.0 points).", "Keep FedAvg: no other method is significantly better."),
        ({SIM: above(-0.1)}, "FedSim is worse than FedAvg by −10.0 points (95 % CI −10.2 to −9.8).", "Keep FedAvg"),
        ({SIM: BASE, "fedprox(mu=1)": BASE}, "All 2 methods are equivalent to FedAvg (within 1.0 points).", "Keep FedAvg"),
        ({ALONE: above(0.1)}, "Nothing was compared: the study holds baselines only.", "Let every client train alone (70.2 % accuracy)."),
        ({SIM: above(0.1), "fedprox(mu=1)": above(0.02)}, "FedSim beats FedAvg by +10.0 points", "Use FedSim (70.2 % accuracy)."),
        ({SIM: above(0.1), "fedprox(mu=1)": above(0.1, -0.001)}, "FedSim beats", "; FedProx does not differ from it significantly."),
        ({SIM: above(0.1), ALONE: above(0.097)}, "FedSim beats", "Let every client train alone (70.0 % accuracy): it is simpler, and"),
    ],
)
def test_each_case_has_its_sentence_and_its_advice(levels: dict[str, list[float]], verdict: str, advice: str) -> None:
    found = overview({AVG: BASE, **levels})
    assert found.verdict.startswith(verdict)
    assert advice in found.recommendation


def test_few_seeds_and_one_seed() -> None:
    few = overview({AVG: BASE[:4], SIM: above(0.1)[:4], "fedprox(mu=1)": BASE[:4]})
    assert few.verdict.endswith(", but 4 seeds are too few to test it: no significant result yet.")
    assert few.recommendation == "Run 7 seeds before you decide; keep FedAvg until then."
    assert few.methods[0].gain.verdict == "inconclusive"  # type: ignore[union-attr]
    one = overview({AVG: [0.6], SIM: [0.7]})
    assert one.verdict == "One repetition cannot show which method is better: FedSim differs by +10.0 points."
    assert one.recommendation.startswith("Repeat the study before you decide")
    assert one.recommended is None
    gain = one.row(SIM).gain
    assert gain is not None
    assert isnan(gain.low)
    assert str(gain) == "+10.0"


def test_clients_that_lose_are_a_share_and_are_named_in_the_advice() -> None:
    found = overview({AVG: BASE, GROUP: above(0.1), RANDOM: above(0.0)}, losses={GROUP: 0.3})
    assert found.row(GROUP).clearly_worse == pytest.approx(1 / 6)
    assert found.recommendation == "Use FedGroup (65.2 % accuracy), except for client 0: FedAvg serves it better."


def test_a_share_due_to_similarity_is_not_given_where_there_is_no_gain() -> None:
    found = overview({AVG: BASE, GROUP: above(0.001), RANDOM: above(-0.05)})
    assert found.row(GROUP).similarity is not None
    assert isnan(found.row(GROUP).similarity_share)


def test_methods_of_one_class_are_named_by_the_settings_in_which_they_differ() -> None:
    names = name_methods(assign_roles([AVG, "fedgroup(groups=2,pretrain=20)", "fedgroup(groups=4,pretrain=20)", "fedprox(mu=1)"]))
    assert list(names.values()) == ["FedAvg", "FedGroup(groups=2)", "FedGroup(groups=4)", "FedProx"]


def test_the_served_model_of_a_fine_tuned_method_is_found_whatever_its_rate() -> None:
    labels = ["fedavg+rate(lr=0.1)", "local", "fedavg+finetune(epochs=5)+rate(lr=0.3)"]
    assert find_served(labels[2], labels) == labels[0]
    assert find_served(labels[0], labels) is None
