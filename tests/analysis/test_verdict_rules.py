"""The rules of a verdict, at their boundaries."""

import inspect

import numpy as np
import pytest
from scipy.stats import wilcoxon

from coterie.analysis.draws import Gap
from coterie.analysis.verdict_rules import (
    MARGIN,
    Decomposition,
    GainPart,
    choose_test,
    classify_origin,
    compute_advised_repetitions,
    compute_needed_repetitions,
    decide_by_interval,
    decide_outcome,
    describe_design,
)
from coterie.cli.report import report
from coterie.statistics import LEVEL, Equivalence, Interval, Sources, compare_pairs, correct_holm, estimate_variance_components

NOT_SHOWN = Equivalence(0.01, 1.0)


def gain(mean: float, spread: float = 0.0, seeds: int = 6, clients: Interval | str = "not known") -> Gap:
    """A difference that is nearly the same in every seed; its mean is exactly what was asked for where the numbers are round."""
    values = np.full(seeds, mean) + spread * (np.arange(seeds) - (seeds - 1) / 2)
    return Gap(compare_pairs(values), Sources("seeds are the units", "one draw", clients), estimate_variance_components(values))


def over_clients(low: float, high: float, bound: bool = False) -> Interval:
    return Interval((low + high) / 2, (high - low) / 2 / 1.96, 10_000, "test clients", bound=bound)


def parts(total: float, similarity: float, spread: float = 0.0) -> Decomposition:
    steps = (
        GainPart("groups", "fedavg", "random", gain(total - similarity)),
        GainPart("similarity", "random", "similar", gain(similarity, spread)),
    )
    return Decomposition(gain(total), steps)


@pytest.mark.parametrize(
    ("similarity", "origin"),
    [
        (0.5, "all"),  # exactly half of the gain
        (0.5 - 2**-20, "part"),  # just below
        (1.0, "all"),
        (1.5, "all"),  # random groups lose
        (2**-10, "part"),
        (0.0, "none"),
        (-0.5, "none"),
    ],
)
def test_a_gain_is_from_similarity_from_half_of_it_on(similarity: float, origin: str) -> None:
    assert classify_origin(parts(1.0, similarity)) == origin


def test_what_similarity_brings_must_be_shown() -> None:
    assert classify_origin(parts(1.0, 0.75, spread=0.125)) == "all"
    assert classify_origin(parts(1.0, 0.75, spread=1.0)) == "none"  # its interval holds 0
    assert classify_origin(Decomposition(gain(1.0), (GainPart("groups", "fedavg", "random", gain(1.0)),))) == "none"


@pytest.mark.parametrize("tests", range(1, 11))
def test_seeds_needed_are_the_fewest_with_which_the_test_can_speak(tests: int) -> None:
    """By brute force: the fewest seeds of which all speak for the best of so many methods, the others being no competition."""

    def speaks(seeds: int) -> bool:
        least = float(wilcoxon(np.arange(1, seeds + 1), alternative="greater", method="exact").pvalue)
        assert least == 2.0**-seeds
        return bool(correct_holm([least] + [1.0] * (tests - 1))[0] < LEVEL)

    assert compute_needed_repetitions(tests) == next(seeds for seeds in range(1, 30) if speaks(seeds))


def test_where_nothing_is_tested_seeds_are_needed_as_for_one_test() -> None:
    assert compute_needed_repetitions(0) == compute_needed_repetitions(1) == 5


@pytest.mark.parametrize("tests", range(1, 60))
def test_the_design_alone_names_the_test_that_decides(tests: int) -> None:
    decided = [choose_test(repetitions, tests) for repetitions in range(1, 12)]
    needed = compute_needed_repetitions(tests)
    assert decided == [None if n < 5 else "paired t" if n < needed else "signed-rank" for n in range(1, 12)]
    assert choose_test(10, tests) == "signed-rank" or tests > 51  # the usual ten draws


def test_with_one_more_than_needed_a_single_draw_may_be_against_a_method() -> None:
    for tests in range(1, 20):
        n = compute_advised_repetitions(tests)
        least = [float(wilcoxon([-0.5, *range(1, count)], alternative="greater", method="exact").pvalue) for count in (n - 1, n)]
        assert [tests * p < LEVEL for p in least] == [False, True]


def test_what_a_design_cannot_show_is_said_with_the_number_that_can() -> None:
    assert describe_design(8, "draw", 4, "--draws 8") is None
    assert describe_design(1, "seed", 0, "--seeds 0-9") is None  # baselines only
    said = describe_design(6, "draw", 4, "--draws 8")
    assert said is not None
    assert said.startswith("6 draws and 4 methods under test cannot reach significance at 5 % in the signed-rank test: the paired t test")
    assert said.endswith("8 draws need no such assumption (--draws 8).")
    assert describe_design(4, "draw", 1, "--draws 6") == (
        "4 draws and 1 method under test cannot reach significance at 5 %: 6 draws can (--draws 6)."
    )
    assert describe_design(6, "draw", 4, "--draws 8", "signed-rank") == (  # ten were planned
        "6 draws and 4 methods under test cannot reach significance at 5 %: 8 draws can (--draws 8)."
    )


def test_the_t_test_needs_five_repetitions_and_a_spread() -> None:
    assert decide_outcome(gain(1.0, 0.1), 0.001, 4, NOT_SHOWN, "paired t") == "better"
    assert decide_outcome(gain(1.0, 0.1), 0.06, 4, NOT_SHOWN, "paired t") == "unclear"
    assert decide_outcome(gain(1.0, 0.1, seeds=4), 0.001, 4, NOT_SHOWN, "paired t") == "unproven"  # not all of the design is complete
    assert decide_outcome(gain(1.0), 4 * 2.0**-6, 4, NOT_SHOWN, "paired t") == "unproven"  # equal differences
    assert decide_outcome(gain(1.0, 0.1, seeds=3), 4 * 2.0**-3, 4, NOT_SHOWN, None) == "unproven"


def test_the_deciding_test_gives_the_p_value() -> None:
    spread = gain(1.0, 0.1)
    assert spread.get_p_value("signed-rank") == spread.get_p_value(None) == spread.p == 2.0**-6
    assert spread.get_p_value("paired t") == spread.units.t_p < 2.0**-6
    assert gain(1.0).get_p_value("paired t") == 2.0**-6  # where t is undefined
    wide = gain(1.0, 0.1, clients=over_clients(-1.0, 3.0))
    assert wide.get_p_value("paired t") == wide.p > LEVEL  # the other sources have to agree


@pytest.mark.parametrize(
    ("test", "p", "outcome"),
    [
        (gain(1.0, 0.1), 0.02, "better"),
        (gain(1.0, 0.1), LEVEL, "unclear"),  # not below the level, with seeds enough
        (gain(1.0, 0.1, seeds=4), 0.0625, "unproven"),  # with four seeds no test can speak
        (gain(-1.0, 0.1), 1.0, "worse"),
        (gain(0.0, 0.1), 0.5, "unclear"),
        (gain(1.0, 0.1, clients=over_clients(-0.1, 2.1)), 0.02, "unclear"),  # a test that rejects is not enough where an interval holds 0
        (gain(-1.0, 0.1, clients=over_clients(-2.1, 0.1)), 1.0, "unclear"),  # nor are seeds for a loss
        (gain(1.0, 0.1, clients=over_clients(-0.1, 2.1, bound=True)), 0.02, "better"),  # a bound is no error: it decides nothing
        (gain(1.0, seeds=1), float("nan"), "unjudged"),
        (gain(float("nan"), seeds=3), float("nan"), "unjudged"),
    ],
)
def test_outcomes(test: Gap, p: float, outcome: str) -> None:
    assert decide_outcome(test, p, 1, NOT_SHOWN) == outcome


def test_a_simpler_method_is_judged_by_its_interval() -> None:
    shown = Equivalence(0.01, 0.03)
    few = gain(1.0, 0.1, seeds=4)  # whatever the number of seeds: it is no hypothesis
    found = [decide_by_interval(gap, shown) for gap in (few, gain(-1.0, 0.1), gain(0.01, 0.1), gain(1.0, seeds=1))]
    assert found == ["better", "worse", "same", "unjudged"]
    assert decide_by_interval(gain(0.01, 0.1), NOT_SHOWN) == "unclear"


def test_the_commands_margin_is_the_rules() -> None:
    assert inspect.signature(report).parameters["margin"].default == pytest.approx(100 * MARGIN)


def test_no_difference_is_said_where_it_is_shown_and_nothing_else_is() -> None:
    shown = Equivalence(0.01, 0.03)
    assert decide_outcome(gain(0.001, 0.001), 0.2, 1, shown) == "same"
    assert decide_outcome(gain(0.005, 0.0001), 0.02, 1, shown) == "better"  # small, and still clear
    assert decide_outcome(gain(0.001, seeds=1), float("nan"), 1, shown) == "unjudged"


def test_the_widest_interval_and_the_largest_p_decide() -> None:
    gap = gain(1.0, 0.1, clients=over_clients(0.2, 1.8))
    assert (gap.low, gap.high) == pytest.approx((0.2, 1.8), abs=1e-3)
    assert gap.p == gap.units.wilcoxon_p == 2.0**-6  # that of the clients is smaller
    assert gain(1.0, 0.1, clients=over_clients(-1.0, 3.0)).p == pytest.approx(0.1635, abs=1e-3)  # one-sided, z = 1 / 1.02 = 0.98
