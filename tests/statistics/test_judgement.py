"""Sources, equivalence, judgements, trends and clients worse off: rules on numbers worked by hand."""

import csv
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.statistics import (
    ClaimTests,
    Hits,
    Interval,
    Sources,
    check_equivalence,
    compute_claim_tests,
    compute_draw_interval,
    compute_seed_interval,
    compute_sources,
    compute_trends,
    find_worse_off,
    judge,
)
from coterie.statistics.clients import compute_sign_p
from coterie.statistics.judgement import compute_p_beyond

FIGURE_10 = Path(__file__).parents[2] / "results" / "fedsim_figure10.csv"


def interval_of(mean: float, error: float, degrees: float = 9, caveat: str = "") -> Interval:
    return Interval(mean, error, degrees, "ten", caveat)


def test_the_widest_that_decides() -> None:
    narrow, wide, wider = interval_of(1, 0.1), interval_of(1, 0.5, caveat="not other clients"), interval_of(1, 2)
    all_three = Sources(wider, narrow, wide)
    # Seeds are within draws: where draws are known, seeds explain only, however wide.
    assert list(all_three.deciding) == ["draws", "test clients"]
    assert all_three.widest == ("test clients", wide)
    assert all_three.unknown == ["not other clients"]
    one_draw = Sources(narrow, "one draw: nothing about others", wide)
    assert list(one_draw.deciding) == ["seeds", "test clients"]
    assert one_draw.unknown == ["one draw: nothing about others", "not other clients"]
    assert all_three.p_above() == wide.p_above() > narrow.p_above()
    assert all_three.p_below(2) == wide.p_below(2)
    nothing = Sources("a", "b", "b")
    assert nothing.widest is None
    assert nothing.unknown == ["a", "b"]
    assert isnan(nothing.p_above())
    assert isnan(nothing.p_below())


def test_one_split_says_what_it_cannot_tell() -> None:
    """Seeds agree closely; the client differences behind them do not: 3 of 20 samples for one half of the clients, none for the others."""
    gains = np.array([3.0, 0.0] * 6)
    hits = Hits(np.tile((10 + gains)[None, :, None], (4, 1, 1)), np.full((4, 12, 1), 10.0), np.full((12, 1), 20.0))
    found = compute_sources(np.array([[0.074, 0.075, 0.076, 0.075]]), [hits])
    assert found.unknown == ["one draw: no estimate for other splits of the data"]
    assert found.widest is not None
    assert found.widest[0] == "test clients"
    assert found.widest[1].low < found.estimated["seeds"].low
    assert found.widest[1].mean == pytest.approx(0.075)
    assert compute_sources(np.array([[0.1, 0.2]])).unknown[1].startswith("no test samples")
    twice = compute_sources(np.array([[0.074, 0.075], [0.09, 0.08]]), [hits, hits], shared=False, overlap=0.0)
    assert list(twice.deciding) == ["draws", "test clients"]
    assert twice.estimated["test clients"].error == pytest.approx(found.estimated["test clients"].error / 2**0.5)


def test_equivalence_is_two_one_sided_tests() -> None:
    values = np.array([0.2, -0.1, 0.3, 0.1, 0.0, 0.2, -0.2, 0.1])
    found = compute_seed_interval(values[None])
    sources = Sources(found, "one draw", "none")
    above = stats.ttest_1samp(values, -0.25, alternative="greater").pvalue
    below = stats.ttest_1samp(values, 0.25, alternative="less").pvalue
    assert check_equivalence(sources, 0.25).p == pytest.approx(max(above, below))
    assert check_equivalence(sources, 0.25).is_significant
    assert isinstance(found, Interval)
    assert found.at(0.9)[0] > -0.25
    assert found.at(0.9)[1] < 0.25
    assert not check_equivalence(sources, 0.15).is_significant
    assert not check_equivalence(Sources("a", "b", "c"), 10).is_significant
    with pytest.raises(ValueError, match="margin"):
        check_equivalence(sources, 0)


def test_not_significant_is_not_equivalent() -> None:
    sources = Sources(interval_of(0.1, 5.0), "one draw", "none")
    assert sources.p_above() > 0.05
    assert sources.p_below() > 0.05
    assert not check_equivalence(sources, 1.0).is_significant
    assert judge([compute_claim_tests(sources, 0, own_row=True, margin=1.0)]) == ["inconclusive"]


@given(st.floats(-3, 3), st.floats(0.01, 2), st.integers(2, 40), st.floats(0.1, 2))
def test_equivalence_is_the_90_percent_interval_within_the_margin(mean: float, error: float, degrees: int, margin: float) -> None:
    own = interval_of(mean, error, degrees)
    low, high = own.at(0.9)
    sources = Sources(own, "one draw", "none")
    if min(abs(low + margin), abs(high - margin)) > 1e-9:
        assert check_equivalence(sources, margin).is_significant == (-margin < low and high < margin)
    assert not (check_equivalence(sources, margin).p < 0.05 and compute_p_beyond(sources, margin) < 0.05)


def test_every_source_has_to_show_equivalence() -> None:
    close, far = interval_of(0, 0.1), interval_of(0, 3)
    assert check_equivalence(Sources(close, close, "none"), 1).is_significant
    assert not check_equivalence(Sources(close, close, far), 1).is_significant


def test_every_judgement() -> None:
    up, flat, none = Sources(interval_of(2, 0.1), "one", "none"), Sources(interval_of(0.05, 0.1), "one", "none"), Sources("a", "b", "c")
    claims = [
        compute_claim_tests(up, 1, own_row=True),
        compute_claim_tests(up, 1, own_row=False),
        compute_claim_tests(up, -1, own_row=True),
        compute_claim_tests(flat, 1, own_row=True),
        ClaimTests(nan, nan, own_row=True, run=False),
        compute_claim_tests(none, 1, own_row=True),
        compute_claim_tests(flat, 0, own_row=True, margin=1),
        compute_claim_tests(up, 0, own_row=True, margin=1),
        compute_claim_tests(up, 1, own_row=True, bound=1.5),
        compute_claim_tests(up, 0, own_row=False, bound=2.2, margin=0.6),  # a level: within 0.6 of the paper's 2.2
        compute_claim_tests(up, -1, own_row=False),
        replace(compute_claim_tests(up, 1, own_row=True), comparable=False),
    ]
    assert judge(claims) == [
        "replicates",
        "holds in our variant",
        "contradicted",
        "inconclusive",
        "not run",
        "inconclusive",
        "replicates",
        "contradicted",
        "replicates",
        "holds in our variant",
        "opposite sign in our variant",
        "not comparable",
    ]
    with pytest.raises(ValueError, match="margin"):
        compute_claim_tests(up, 0, own_row=True)


def test_judgements_are_corrected_for_both_directions() -> None:
    assert judge([ClaimTests(0.03, 0.97, own_row=True)]) == ["inconclusive"]  # two tests: 0.06
    assert judge([ClaimTests(0.024, 0.976, own_row=True)]) == ["replicates"]
    assert judge([ClaimTests(0.97, 0.03, own_row=True)]) == ["inconclusive"]
    assert judge([ClaimTests(0.976, 0.024, own_row=True)]) == ["contradicted"]
    # Three claims are six tests. Holm: 6 x .008 = .048, 5 x .0099 = .0495, 4 x .013 = .052.
    three = [ClaimTests(0.008, 0.99, own_row=True), ClaimTests(0.99, 0.0099, own_row=True), ClaimTests(0.013, 0.98, own_row=True)]
    assert judge(three) == ["replicates", "contradicted", "inconclusive"]
    assert judge([*three, ClaimTests(nan, nan, own_row=True)])[:3] == ["replicates", "contradicted", "inconclusive"]  # no test, no cost


@given(st.integers(0, 1000))
def test_judgements_of_nothing_are_seldom_anything(seed: int) -> None:
    """The two directions of one claim are never both shown."""
    p = np.random.default_rng(seed).random(4) ** 4
    assert "contradicted" not in judge([ClaimTests(float(x), 1 - float(x), own_row=True) for x in p if x < 0.5])


def test_a_rise_is_the_change_along_the_line() -> None:
    assert compute_trends(np.array([[1.0], [5.0], [2.0]])) == pytest.approx(1.0)  # three at equal distance: between the ends
    # x = 0, 1, 3: off by -4/3, -1/3, 5/3, squares 42/9; slope (-4/3 * 1 - 1/3 * 2 + 5/3 * 6) / (42/9) = 8 / (14/3), times the range 3.
    assert compute_trends(np.array([1.0, 2.0, 6.0]), [0, 1, 3]) == pytest.approx(8 / (14 / 3) * 3)
    assert np.isnan(compute_trends(np.array([[1.0, 1.0], [nan, 2.0]]))).tolist() == [True, False]
    for wrong in ([0, 1], [0, 0, 1], [2, 1, 0]):
        with pytest.raises(ValueError, match="rising order"):
            compute_trends(np.zeros((3, 2)), wrong)


def test_sizes_show_a_trend_that_ranks_hide() -> None:
    """12 seeds rise by 10, 18 fall by 1. Ranks: 12 times +1, 18 times -1. Sizes: a mean rise of 102 / 30."""
    rise = np.array([10.0] * 12 + [-1.0] * 18)
    values = np.array([np.zeros(30), rise / 2, rise])
    ranks = [stats.spearmanr(range(3), column).statistic for column in values.T]
    assert np.mean(ranks) == pytest.approx(-6 / 30)
    found = compute_seed_interval(compute_trends(values)[None])
    assert isinstance(found, Interval)
    assert found.mean == pytest.approx(102 / 30)
    assert found.p_above() == pytest.approx(stats.ttest_1samp(rise, 0, alternative="greater").pvalue)
    assert found.p_above() < 0.005


def test_figure_10_is_judged_by_sizes() -> None:
    """The seeds of the page: mean rise as the table of means says, 13.30 - 12.68 but for rounding; Student's by SciPy."""
    with FIGURE_10.open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] in ("beta 0", "beta 0.5", "beta 1")]
    values = np.array([[float(row["literal"]) for row in rows if row["part"] == part] for part in ("beta 0", "beta 0.5", "beta 1")])
    found = compute_draw_interval(
        compute_trends(values, [0, 0.5, 1])[:, None], shared=False
    )  # redrawn for every seed: 100 draws of one seed each
    assert isinstance(found, Interval)
    assert found.mean == pytest.approx(0.61, abs=0.01)
    assert found.p_above() == pytest.approx(stats.ttest_rel(values[2], values[0], alternative="greater").pvalue)


def test_a_loss_of_few_samples_is_no_loss() -> None:
    # Five samples, all lost: 2^-5. Four of five that differ against us: 6 / 32. No loss: at least half.
    assert compute_sign_p(np.array([5.0, 3.0, 0.0]), np.array([5.0, 5.0, 4.0])) == pytest.approx([1 / 32, 6 / 32, 11 / 16])
    assert compute_sign_p(np.array([-2.0, nan, 0.0]), np.array([2.0, 2.0, 0.0]))[[0, 2]].tolist() == [1, 1]
    for n, b in ((7, 5), (12, 9), (1, 1)):
        assert compute_sign_p(np.array([2.0 * b - n]), np.array([float(n)])) == pytest.approx(
            stats.binomtest(b, n, alternative="greater").pvalue
        )


def test_clients_clearly_worse_off() -> None:
    rng = np.random.default_rng(0)
    samples = np.tile([200.0, 200, 5, 200, 0], (3, 1))  # (3 draws, 5 clients)
    theirs = np.tile(samples * 0.9, (1, 1))[:, None, :] * np.ones((3, 4, 1))
    change = np.array([-0.4, 0.0, -0.2, 0.3, 0.0])
    ours = theirs + samples[:, None, :] * (change + 0.01 * rng.standard_normal((3, 4, 5)))
    found = find_worse_off(ours, theirs, samples)
    # Client 2 loses one of five samples in every run: runs are sure, samples are not.
    assert found.significant.tolist() == [True, False, False, False, False]
    assert found.tested == 4
    assert found.samples[:4].tolist() == [200, 200, 5, 200]
    assert isnan(found.samples[4])
    assert np.isnan(found.corrected).tolist() == [False] * 4 + [True]
    assert found.low[0] < -0.4 + 0.05 < 0
    assert found.high[0] < 0 < found.low[3]
    known = np.full((3, 4, 5), 1.0)  # where it is known that a single sample differs, nothing changes for that client
    assert find_worse_off(ours, theirs, samples, differing=np.maximum(known, np.abs(ours - theirs))).significant[2] == np.False_


def test_false_discoveries_are_controlled_over_clients() -> None:
    """Benjamini and Hochberg by hand: with p in order, the i-th of m times m / i, none above a later one."""
    rng = np.random.default_rng(1)
    samples = np.full((1, 20), 1e6)
    theirs = np.full((1, 6, 20), 5e5)
    found = find_worse_off(theirs + 1e4 * (rng.standard_normal((1, 6, 20)) - 1), theirs, samples)
    order = np.argsort(found.p)
    stepped = np.minimum.accumulate((found.p[order] * 20 / np.arange(1, 21))[::-1])[::-1]
    assert found.corrected[order] == pytest.approx(np.minimum(stepped, 1))
    assert 0 < found.significant.sum() < 20


def test_one_run_tests_nobody() -> None:
    found = find_worse_off(np.zeros((1, 1, 3)), np.full((1, 1, 3), 9.0), np.full((1, 3), 10.0))
    assert found.tested == 0
    assert not found.significant.any()
