"""The findings in plain words."""

from math import isnan

import pytest

from analysis.made_records import ALONE, AVG, GROUP, RANDOM, by_hand, flat
from coterie.analysis.findings import findings_of
from coterie.analysis.verdict import verdicts
from coterie.core.arrays import Array


def sentence(right: dict[str, Array]) -> str:
    return verdicts(findings_of(by_hand(right)))[-1]


def test_the_verdict_tells_where_a_gain_comes_from() -> None:
    from_similarity = sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(50)})
    assert "fedgroup(groups=2) gains 8.0 points over fedavg" in from_similarity
    assert "0 % of clients score lower, 0 of 4 clearly" in from_similarity
    assert "Random groups of the same sizes gain 0.0: the gain is from similarity" in from_similarity
    assert "the gain is not shown to be from similarity" in sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(58)})
    assert "only 2.0 of the 8.0 points are from similarity" in sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(56)})
    lost = sentence({AVG: flat(50), GROUP: flat(42), RANDOM: flat(45), ALONE: flat(60)})
    assert "loses 8.0 points to fedavg" in lost
    assert "100 % of clients score lower, 0 of 4 clearly" in lost  # 8 of 100 samples: not known on which the two differ
    assert "Clients that train alone do 18.0 points better" in lost
    level = sentence({AVG: flat(50), GROUP: flat(50), RANDOM: flat(50)})
    assert "is shown to be within 1.0 points of fedavg" in level  # every pair is equal: not "no clear difference", but none
    noisy = flat(50)
    noisy[::2] += 6
    noisy[1::2] -= 6
    assert "shows no clear difference from fedavg" in sentence({AVG: flat(50), GROUP: noisy, RANDOM: flat(50)})


def test_a_study_of_one_split_says_what_it_cannot_tell() -> None:
    said = verdicts(findings_of(by_hand({AVG: flat(50), GROUP: flat(58)})))
    assert "Not told by this study: one draw, so it says nothing about other splits of the data." in said
    assert any("these 4 clients, so it says nothing about others" in sentence for sentence in said)
    many = verdicts(findings_of(by_hand({AVG: flat(50, clients=12), GROUP: flat(58, clients=12)})))
    assert not any("these 12 clients" in sentence for sentence in many)
    assert "over 12 test clients, 1200 samples" in many[-1]


def test_a_single_seed_cannot_test_and_says_so() -> None:
    first, *_, last = verdicts(findings_of(by_hand({AVG: flat(50, 1), GROUP: flat(58, 1), RANDOM: flat(50, 1)})))
    assert first.startswith("One seed cannot test")
    assert "differs by +8.0 points from fedavg" in last
    assert "gain is" not in last
    few = verdicts(findings_of(by_hand({AVG: flat(50, 4), GROUP: flat(58, 4)})))
    assert few[0].startswith("4 seeds cannot reach 5 %")
    assert "is 8.0 points ahead of fedavg" in few[-1]
    assert "4 seeds are too few for Wilcoxon's test of 1 method to reach 5 %: run at least 5" in few[-1]


def test_a_method_that_always_diverges_cannot_be_judged() -> None:
    gone = flat(58)
    gone[:, 2:] = -1
    found = findings_of(by_hand({AVG: flat(50), GROUP: gone, "fedprox": flat(51)}))
    said = verdicts(found)
    assert "fedgroup(groups=2) cannot be judged" in said[-2]
    assert isnan(found.methods[GROUP].corrected_p)
    assert found.methods["fedprox"].corrected_p == pytest.approx(2**-6)  # what could not be tested does not weigh on the others


def test_several_methods_are_corrected_for() -> None:
    """Holm: the smallest p times the number of methods."""
    found = findings_of(by_hand({AVG: flat(50), GROUP: flat(58), "fedprox": flat(53)}))
    assert found.methods[GROUP].corrected_p == pytest.approx(2 * 2**-6)
    assert found.methods["fedprox"].corrected_p == pytest.approx(2 * 2**-6)
    assert isnan(found.methods[AVG].corrected_p)
