"""The findings in plain words."""

from math import isnan

import numpy as np
import pytest
from scipy import stats

from analysis.made_records import ALONE, AVG, GROUP, RANDOM, by_hand, flat
from coterie.analysis.findings import compute_findings
from coterie.analysis.verdict import write_verdicts
from coterie.core.arrays import Array


def sentence(right: dict[str, Array]) -> str:
    return write_verdicts(compute_findings(by_hand(right)))[-1]


def test_the_verdict_tells_where_a_gain_comes_from() -> None:
    from_similarity = sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(50)})
    assert "fedgroup(groups=2) gains 8.0 points over fedavg" in from_similarity
    assert "0 % of clients score lower, 0 of 4 clearly" in from_similarity
    assert "Random groups of the same sizes change nothing: the gain is from similarity" in from_similarity
    assert "the gain is not attributable to similarity" in sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(58)})
    assert "only 2.0 of the 8.0 points are from similarity" in sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(56)})
    lost = sentence({AVG: flat(50), GROUP: flat(42), RANDOM: flat(45), ALONE: flat(60)})
    assert "loses 8.0 points to fedavg" in lost
    assert "100 % of clients score lower, 0 of 4 clearly" in lost  # 8 of 100 samples: not known on which the two differ
    assert "Clients that train alone do 18.0 points better" in lost
    level = sentence({AVG: flat(50), GROUP: flat(50), RANDOM: flat(50)})
    assert "is equivalent to fedavg within 1.0 points" in level  # every pair is equal: not "no significant difference", but none
    noisy = flat(50)
    noisy[::2] += 6
    noisy[1::2] -= 6
    assert "does not differ significantly from fedavg" in sentence({AVG: flat(50), GROUP: noisy, RANDOM: flat(50)})


def test_a_study_of_one_split_says_what_it_cannot_tell() -> None:
    said = write_verdicts(compute_findings(by_hand({AVG: flat(50), GROUP: flat(58)})))
    assert "Limitation: one draw, so no estimate for other splits of the data." in said
    assert any("these 4 clients, so no estimate for other clients" in sentence for sentence in said)
    many = write_verdicts(compute_findings(by_hand({AVG: flat(50, clients=12), GROUP: flat(58, clients=12)})))
    assert not any("these 12 clients" in sentence for sentence in many)
    assert "over 12 test clients, 1200 samples" in many[-1]


def test_a_single_seed_cannot_test_and_says_so() -> None:
    first, *_, last = write_verdicts(compute_findings(by_hand({AVG: flat(50, 1), GROUP: flat(58, 1), RANDOM: flat(50, 1)})))
    assert first.startswith("One seed cannot test")
    assert "differs by +8.0 points from fedavg" in last
    assert "gain is" not in last
    few = write_verdicts(compute_findings(by_hand({AVG: flat(50, 4), GROUP: flat(58, 4)})))
    assert few[0].startswith("4 seeds and 1 method under test cannot reach significance at 5 %: 6 seeds can")
    assert "is 8.0 points ahead of fedavg" in few[-1]
    assert "4 seeds are too few for the test of 1 method; the 95 % interval excludes 0. Run 6 seeds to settle it." in few[-1]


OTHERS = ("fedprox", "fedsim(clusters=2)", "ifca(groups=2)")  # with one more, four methods are under test
SCATTER = np.array([0, 3, 1, 4, 2, 5])[:, None, None] / 2  # of six seeds, so that differences are not equal


def test_with_few_seeds_the_paired_t_test_decides_as_the_design_says() -> None:
    """Six seeds and four methods: the signed-rank test cannot reach 5 % (4 / 64), whatever the gain."""
    right = {AVG: flat(50), GROUP: 62 + SCATTER + flat(0), **{name: flat(50) for name in OTHERS}}
    found = compute_findings(by_hand(right))
    assert found.test == "paired t"
    gap = found.methods[GROUP].gap
    expected = stats.ttest_1samp(12 + SCATTER.ravel(), 0, alternative="greater").pvalue
    assert found.methods[GROUP].corrected_p == pytest.approx(4 * expected)
    assert (found.methods[GROUP].outcome, gap.units.wins) == ("better", 6)
    said = " ".join(write_verdicts(found))
    assert "the paired t test decides, which assumes that differences are about normal. 8 seeds need no such assumption" in said
    assert "p < 0.001, paired t test" in said
    assert "chance" not in said


def test_equal_differences_are_no_proof_and_are_not_called_chance() -> None:
    found = compute_findings(by_hand({AVG: flat(50), GROUP: flat(62), **{name: flat(50) for name in OTHERS}}))
    assert found.methods[GROUP].outcome == "unproven"  # the t test is undefined
    said = next(sentence for sentence in write_verdicts(found) if sentence.startswith("fedgroup"))
    assert "6 seeds are too few for the test of 4 methods; the 95 % interval excludes 0. Run 8 seeds to settle it." in said
    assert "chance" not in said


def test_a_gain_that_correction_leaves_open_is_not_called_no_difference() -> None:
    spread = np.array([-2.2, 3.0, 1.0, 4.0, 2.0, 5.0, 3.0])[:, None, None]  # seven seeds, one against it: p = 2 / 128 by ranks
    right = {AVG: flat(50, 7), GROUP: flat(50, 7) + spread, **{name: flat(50, 7) for name in OTHERS}}
    found = compute_findings(by_hand(right))
    assert (found.test, found.methods[GROUP].outcome) == ("signed-rank", "unclear")
    assert found.methods[GROUP].gap.low > 0
    said = next(sentence for sentence in write_verdicts(found) if sentence.startswith("fedgroup"))
    assert "The 95 % interval excludes 0, but after Holm's correction for 4 methods p = 0." in said
    assert "does not differ significantly" not in said


def test_seeds_that_are_planned_choose_the_test_not_those_that_are_complete() -> None:
    right = {AVG: flat(50, 10), GROUP: flat(62, 10) + np.arange(10)[:, None, None] / 4, **{name: flat(50, 10) for name in OTHERS}}
    right = {name: table.astype(np.float64) for name, table in right.items()}
    for table in right.values():
        table[6:, 1:] = np.nan  # four seeds have not run yet
    found = compute_findings(by_hand(right))
    assert (found.test, found.methods[GROUP].gap.n, found.methods[GROUP].outcome) == ("signed-rank", 6, "unproven")
    assert "6 seeds and 4 methods under test cannot reach significance at 5 %: 8 seeds can" in write_verdicts(found)[0]


def test_a_gain_that_similarity_lowers_is_not_from_it() -> None:
    costs = sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(61) + np.arange(6)[:, None, None] / 10})
    assert "gain 11.2 points: the gain is not from similarity, which costs (-3.2" in costs


def test_a_method_that_always_diverges_cannot_be_judged() -> None:
    gone = flat(58)
    gone[:, 2:] = -1
    found = compute_findings(by_hand({AVG: flat(50), GROUP: gone, "fedprox": flat(51)}))
    said = write_verdicts(found)
    assert "fedgroup(groups=2) cannot be judged" in said[-2]
    assert isnan(found.methods[GROUP].corrected_p)
    assert found.methods["fedprox"].corrected_p == pytest.approx(2**-6)  # what could not be tested does not weigh on the others


def test_several_methods_are_corrected_for() -> None:
    """Holm: the smallest p times the number of methods."""
    found = compute_findings(by_hand({AVG: flat(50), GROUP: flat(58), "fedprox": flat(53)}))
    assert found.methods[GROUP].corrected_p == pytest.approx(2 * 2**-6)
    assert found.methods["fedprox"].corrected_p == pytest.approx(2 * 2**-6)
    assert isnan(found.methods[AVG].corrected_p)
