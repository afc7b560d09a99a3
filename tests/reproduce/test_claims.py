"""Every kind of claim and every verdict on numbers made by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from coterie.reproduce.claims import ClaimResult, StudyVerdict, judge_claims
from coterie.reproduce.page import make_claim_cells
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, StudyPart
from coterie.reproduce.values import PartValues, count_better_rounds
from coterie.statistics import Interval
from made_studies import made_study

NOISE = np.array([-0.4, 0.3, -0.2, 0.1, 0.2, -0.1, 0.4, -0.3, 0.05, -0.05])  # mean 0
ERROR = float(NOISE.std(ddof=1) / 10**0.5)  # 0.083: Student's 95 % interval is +- 0.19
STUDY = {"methods": ["fedavg"], "data": "synthetic(0,0)", "seeds": "0-9", "rounds": 4}


def values(**rows: Any) -> PartValues:
    """A part with these rows, one number a seed, under the score `mean`."""
    part = PartValues()
    for row, numbers in rows.items():
        for seed, number in enumerate(numbers):
            part.add(row, "mean", seed, float(number))
    return part


def ruling(claims: list[Claim], parts: Mapping[str, PartValues], why: Mapping[str, str] | None = None, **part: Any) -> StudyVerdict:
    """Judge claims about parts that are the paper's own rows unless something else is said."""
    made = [StudyPart(name=name, **{"variant": "", **part}) for name in parts]
    study = made_study(STUDY, made, claims)
    return judge_claims(study, [PartRun(own, why_not=(why or {}).get(own.name, "")) for own in made], parts)


def outcome(claim: dict[str, Any], **rows: Any) -> str:
    return ruling([Claim(says="it", one="a", **claim)], {"all": values(**rows)}).results[0].outcome


@pytest.mark.parametrize(
    ("gap", "claim", "expected"),
    [
        (2.0, {}, "replicates"),
        (2.0, {"paper": 7.3}, "replicates"),  # the sign decides, not the size
        (2.0, {"paper": -7.3}, "contradicted"),
        (-2.0, {"paper": -7.3}, "replicates"),
        (0.0, {}, "inconclusive"),
        (0.0, {"paper": -0.06, "sign": "0"}, "replicates"),  # +- 0.15 at 90 % is within a point
        (0.0, {"sign": "0", "within": 0.1}, "inconclusive"),  # and not within a tenth: no difference has to be shown
        (2.0, {"sign": "0"}, "contradicted"),
        (2.0, {"sign": "0", "within": 3.0}, "replicates"),
        (1.0, {"sign": "0"}, "inconclusive"),  # at the margin
    ],
)
def test_a_difference_is_shown_or_its_opposite_or_neither(gap: float, claim: dict[str, Any], expected: str) -> None:
    assert outcome({"two": "b", **claim}, a=50 + gap + NOISE, b=np.full(10, 50.0)) == expected


@pytest.mark.parametrize(
    ("kind", "paper", "expected"),
    [
        ("level", 50.5, "replicates"),
        ("level", 50.9, "inconclusive"),  # the mean is within a point, which is not shown of what it estimates
        ("level", 51.5, "contradicted"),
        ("at_least", 49.0, "replicates"),
        ("at_least", 51.0, "contradicted"),
        ("at_least", 50.0, "inconclusive"),
        ("at_most", 51.0, "replicates"),
        ("at_most", 49.0, "contradicted"),
        ("at_most", 50.0, "inconclusive"),
    ],
)
def test_a_number_is_judged_against_the_papers(kind: str, paper: float, expected: str) -> None:
    assert outcome({"kind": kind, "paper": paper}, a=50 + NOISE) == expected


@pytest.mark.parametrize(("sign", "expected"), [("+", "replicates"), ("-", "contradicted")])
def test_a_trend_is_the_change_over_the_parts(sign: Any, expected: str) -> None:
    parts = {name: values(a=level + NOISE) for name, level in (("x", 1.0), ("y", 2.0), ("z", 4.0))}
    claim = Claim(says="it", kind="trend", parts=["x", "y", "z"], one="a", sign=sign)
    found = ruling([claim], parts).results[0]
    assert found.outcome == expected
    assert found.ours == pytest.approx(3.0)  # three points: between the ends
    placed = claim.model_copy(update={"at": [0.0, 1.0, 4.0]})  # slope (-5/3 - 4/3 + 28/3) / (26/3) over a range of 4
    assert ruling([placed], parts).results[0].ours == pytest.approx(4 * (1 * -5 / 3 + 2 * -2 / 3 + 4 * 7 / 3) / (26 / 3))


def test_a_trend_of_differences_is_the_change_of_the_gain() -> None:
    """Gains of 1 and 4: the second row moves by 10 from part to part, which the gain does not see."""
    parts = {"x": values(a=51 + NOISE, b=np.full(10, 50.0)), "y": values(a=64 + 2 * NOISE, b=np.full(10, 60.0))}
    found = ruling([Claim(says="it", kind="trend", parts=["x", "y"], one="a", two="b", sign="+")], parts).results[0]
    assert found.outcome == "replicates"
    assert found.ours == pytest.approx(3.0)
    assert found.high - found.low == pytest.approx(2 * stats.t.ppf(0.975, 9) * ERROR)  # 2 NOISE - NOISE


def test_an_average_over_differences() -> None:
    """Of the seeds that all parts have: gains of 2 and 6, rows of different names."""
    parts = {"x": values(a=52 + NOISE, b=np.full(10, 50.0)), "y": values(c=66 + NOISE[:6], d=np.full(10, 60.0))}
    first, second = Claim(says="f", part="x", one="a", two="b"), Claim(says="g", part="y", one="c", two="d")
    average = Claim(says="it", kind="average", parts=["x", "y"], of=["f", "g"], one="a", two="b", paper=9.0)
    found = ruling([first, second, average], parts).results[2]
    assert (found.outcome, found.repetitions) == ("holds in our variant", 6)  # of ten seeds
    assert found.ours == pytest.approx(4 + NOISE[:6].mean())
    against = ruling([first, second, average.model_copy(update={"paper": -9.0})], parts).results[2]
    assert against.outcome == "opposite sign in our variant"


def test_a_trend_that_ranks_throw_away() -> None:
    """Most seeds fall a little, some rise much: Spearman's correlations do not rise, the index does."""
    changes = np.array([6.0, 7.0, 8.0, 6.5, 7.5, 5.5, -0.1, -0.2, -0.3, -0.1, -0.2, -0.4])
    ends = {"x": np.zeros(12), "y": np.where(changes > 0, changes / 2, 0.1), "z": changes}
    ranks = [stats.spearmanr(range(3), [ends[name][seed] for name in "xyz"]).statistic for seed in range(12)]
    assert stats.ttest_1samp(ranks, 0, alternative="greater").pvalue > 0.05  # the old rule: does not hold
    parts = {name: values(a=numbers) for name, numbers in ends.items()}
    found = ruling([Claim(says="it", kind="trend", parts=["x", "y", "z"], one="a", sign="+")], parts).results[0]
    assert found.outcome == "replicates"
    assert found.ours == pytest.approx(changes.mean())
    assert found.p == pytest.approx(2 * stats.ttest_1samp(changes, 0, alternative="greater").pvalue)


def test_equal_values_have_no_trend() -> None:
    parts = {name: values(a=np.ones(10)) for name in "xyz"}
    assert ruling([Claim(says="it", kind="trend", parts=["x", "y", "z"], one="a")], parts).results[0].outcome == "inconclusive"


def test_rounding_is_no_trend() -> None:
    """Eleven equal parts of a hundred draws: what a product sums to in the last digit was shown to rise."""
    numbers = np.random.default_rng(0).normal(12.7, 1.5, 100).round(4)
    names = [f"alpha {k}" for k in range(11)]
    parts = {name: values(a=numbers) for name in names}
    for sign in ("+", "-"):
        found = ruling([Claim(says="it", kind="trend", parts=names, one="a", sign=sign)], parts).results[0]
        assert (found.outcome, found.ours) == ("inconclusive", 0.0)


@pytest.mark.parametrize(("paper", "expected"), [(75.0, "replicates"), (76.0, "inconclusive")])
def test_rounds_are_tested_together(paper: float, expected: str) -> None:
    claim = Claim(says="it", kind="rounds", one="a", two="b", paper=paper)
    curves = {
        "a": {seed: np.array([noise, 1 + noise, 2 + noise, 3 + noise]) for seed, noise in enumerate(NOISE)},  # no better in the first
        "b": {seed: np.zeros(4) for seed in range(10)},
    }
    part = PartValues(better={"it": count_better_rounds(claim, curves, np.arange(1, 5))})
    found = ruling([claim], {"all": part}).results[0]
    assert (found.ours, found.outcome) == (75.0, expected)
    if paper == 75.0:
        assert found.p == pytest.approx(2 * 2 / 1024)  # two of four left, the third least p is 2 ** -10, and both directions


def test_rounds_that_are_worse_contradict() -> None:
    claim = Claim(says="it", kind="rounds", one="b", two="a", paper=50.0)
    curves = {"a": {seed: np.ones(4) + seed for seed in range(10)}, "b": {seed: np.zeros(4) for seed in range(10)}}
    part = PartValues(better={"it": count_better_rounds(claim, curves, np.arange(1, 5))})
    assert ruling([claim], {"all": part}).results[0].outcome == "contradicted"


def test_both_directions_of_all_claims_are_corrected_for() -> None:
    """p of one claim alone is twice Student's; among ten, the least of twenty tests is multiplied by twenty."""
    numbers = 0.25 + NOISE
    part = {"all": values(a=numbers, b=np.zeros(10))}
    alone = float(stats.t.sf(0.25 / ERROR, 9))  # 0.0076
    claim = Claim(says="it", one="a", two="b")
    assert ruling([claim], part).results[0].p == pytest.approx(2 * alone)
    assert ruling([claim], part).results[0].outcome == "replicates"
    crowd = ruling([claim] * 10, part)
    assert crowd.results[0].p == pytest.approx(20 * alone)
    assert {found.outcome for found in crowd.results} == {"inconclusive"}
    against = claim.model_copy(update={"sign": "-"})
    assert ruling([against], part).results[0].outcome == "contradicted"
    assert {found.outcome for found in ruling([against] * 10, part).results} == {"inconclusive"}


def test_controls_are_corrected_apart_and_do_not_count() -> None:
    part = {"all": values(a=2 + NOISE, b=np.zeros(10), c=np.full(10, 2.0))}
    claim = Claim(says="it", one="a", two="b")
    why = claim.model_copy(update={"control": True})
    controls = [why.model_copy(update={"two": two, "sign": sign}) for two, sign in (("c", "+"), ("b", "+"), ("b", "-"))]
    found = ruling([claim, *controls], part)
    assert found.sentence == "1 replicates"
    assert [control.outcome for control in found.controls] == ["inconclusive", "significant", "opposite significant"]
    assert found.claims[0].p == pytest.approx(2 * stats.t.sf(2 / ERROR, 9))


def test_few_runs_decide_nothing() -> None:
    found = ruling([Claim(says="it", one="a", two="b")], {"all": values(a=[2, 2.1, 2.2, 2.3], b=[0, 0, 0, 0])}).results[0]
    assert found.outcome == "inconclusive"
    assert found.ours == pytest.approx(2.15)
    assert np.isnan(found.p)
    assert found.variant == "4 of 10 seeds"


def test_what_was_written_down_later_changes_no_declared_verdict() -> None:
    """A p of 0.015 is significant alone; with nine later claims in its family it would not be."""
    gap = 2.6 * ERROR + NOISE
    declared = Claim(says="it", one="a", two="b")
    later = [Claim(says=f"more {i} (written down after the scores)", one="a", two="b") for i in range(9)]
    parts = {"all": values(a=50 + gap, b=np.full(10, 50.0))}
    alone, joined = (ruling(claims, parts).results for claims in ([declared], [declared, *later]))
    assert alone[0].p < 0.05
    assert (joined[0].outcome, joined[0].p) == (alone[0].outcome, alone[0].p)
    assert {one.outcome for one in joined[1:]} == {"inconclusive"}


def test_a_decision_about_a_declared_claim_makes_no_other_verdict_stronger() -> None:
    """An older claim that was moved or set apart with the scores known has a dagger, and still counts in the correction."""
    parts = {"all": values(a=50 + 2.6 * ERROR + NOISE, b=np.full(10, 50.0))}
    claims = [Claim(says=f"it {i}", one="a", two="b") for i in range(4)]
    moved = [claims[0], *(claim.model_copy(update={"after_scores": "moved"}) for claim in claims[1:])]
    before, after = (ruling(found, parts).results for found in (claims, moved))
    assert [one.p for one in after] == [one.p for one in before]
    assert [one.claim.exploratory for one in after] == [False, True, True, True]


def test_draws_and_seeds_are_told_apart() -> None:
    claim, part = Claim(says="it", one="a", two="b"), {"all": values(a=2 + NOISE, b=np.zeros(10))}
    fixed, redrawn = ruling([claim], part).results[0], ruling([claim], part, redrawn=True).results[0]
    half = float(stats.t.ppf(0.975, 9)) * ERROR
    for found, over in ((fixed, "10 seeds"), (redrawn, "10 draws x 1 seed")):
        assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
        assert found.over == over
    assert fixed.unknown == ("one draw: no estimate for other splits of the data",)
    assert not any("other splits" in text for text in redrawn.unknown)


def test_the_widest_source_decides() -> None:
    """Seeds are sure of it and test clients are not: 2 +- 2 over 20 clients."""
    part = values(a=2 + NOISE, b=np.zeros(10))
    part.clients["it"] = Interval(2.0, 1.0, 19, "20 test clients, 130 samples")
    found = ruling([Claim(says="it", one="a", two="b")], {"all": part}).results[0]
    assert (found.outcome, found.over) == ("inconclusive", "20 test clients, 130 samples")
    assert found.low == pytest.approx(2 - stats.t.ppf(0.975, 19))
    assert found.p == pytest.approx(2 * stats.t.sf(2, 19))


def test_the_verdict_is_counted() -> None:
    parts = {"here": values(a=2 + NOISE, b=np.zeros(10), c=np.full(10, 2.0)), "there": PartValues()}
    up, down = (Claim(says="it", part="here", one="a", two="b", sign=sign) for sign in ("+", "-"))
    open_, away = Claim(says="it", part="here", one="a", two="c"), Claim(says="it", part="there", one="a", two="b")
    found = ruling([up, up, down, open_, away], parts, {"there": "no data"})
    assert found.sentence == "2 replicate, 1 contradicted, 1 inconclusive, 1 not run; not run: no data"
    assert {word: n for word, n in found.counts.items() if n} == {"replicates": 2, "contradicted": 1, "inconclusive": 1, "not run": 1}
    assert ruling([away], parts).sentence == "1 not run; not run: there are no scores of it"
    other = ruling([up, down, down], parts, variant="other data")
    assert other.sentence == "1 holds in our variant, 2 have the opposite sign in our variant"


@pytest.mark.parametrize(
    ("paper", "covers", "words"), [(2.1, True, "replicates (sign; number in CI)"), (7.3, False, "replicates (sign only)")]
)
def test_replicates_says_sign_and_whether_the_number_is_in_our_interval(paper: float, covers: bool, words: str) -> None:
    found = ruling([Claim(says="it", one="a", two="b", paper=paper)], {"all": values(a=2 + NOISE, b=np.zeros(10))})
    (one,) = found.results
    assert (one.outcome, one.covers, one.verdict) == ("replicates", covers, words)
    assert one.as_json()["paper_in_interval"] is covers
    assert found.sentence == f"1 replicates; printed number in our interval: {int(covers)} of 1 that agree"


@pytest.mark.parametrize(
    ("claim", "own", "other"),
    [
        ({"two": "b"}, "replicates", "holds in our variant"),
        ({"two": "b", "sign": "-"}, "contradicted", "opposite sign in our variant"),
        ({"two": "b", "sign": "0", "within": 3.0, "paper": 2.1}, "replicates (tolerance; number in CI)", "holds in our variant"),
        ({"two": "b", "sign": "0", "within": 3.0, "paper": 0.6}, "replicates (tolerance only)", "holds in our variant"),
        ({"two": "b", "sign": "0"}, "contradicted", "outside the tolerance in our variant"),
        ({"kind": "level", "paper": 2.1}, "replicates (tolerance; number in CI)", "holds in our variant"),
        ({"kind": "level", "paper": 7.0}, "contradicted", "outside the tolerance in our variant"),
        ({"kind": "at_least", "paper": 4.0}, "contradicted", "outside the bound in our variant"),
    ],
)
def test_what_has_no_sign_has_no_verdict_of_a_sign(claim: dict[str, Any], own: str, other: str) -> None:
    parts = {"all": values(a=2 + NOISE, b=np.zeros(10))}
    made = Claim(says="it", one="a", **claim)
    assert ruling([made], parts).results[0].verdict == own
    variant = ruling([made], parts, variant="other data")
    assert variant.results[0].verdict == other
    assert variant.sentence.startswith(f"1 {other}")


@pytest.mark.parametrize(
    ("claim", "cell", "ends"),
    [
        ({"two": "b", "sign": "0", "paper": 0.6}, "0 ± 1 (prints +0.6)", (-1.0, 1.0)),
        ({"two": "b", "sign": "0", "within": 0.5}, "0 ± 0.5", (-0.5, 0.5)),
        ({"kind": "trend", "parts": ["all", "all"], "sign": "0"}, "0 ± 1", (-1.0, 1.0)),
        ({"kind": "level", "paper": 87.2, "within": 2.0}, "87.2 ± 2", (85.2, 89.2)),
        ({"two": "b", "paper": 0.6}, "+0.60", None),
    ],
)
def test_no_difference_is_centred_on_0_and_printed_so(claim: dict[str, Any], cell: str, ends: tuple[float, float] | None) -> None:
    """ "+0.60 ± 1" was printed of a test around 0."""
    made = Claim(says="it", one="a", **claim)
    assert make_claim_cells(ClaimResult(made, "inconclusive", 1.0, 0.5, 1.5))[1] == cell
    assert made.tolerated == (None if ends is None else pytest.approx(ends))


def test_a_bound_is_no_number_to_lie_in_an_interval() -> None:
    for claim in (Claim(says="it", kind="at_least", one="a", paper=2.0), Claim(says="it", one="a", two="b")):
        found = ruling([claim], {"all": values(a=2.5 + NOISE, b=np.zeros(10))}).results[0]
        assert (found.outcome, found.covers, found.verdict) == ("replicates", None, "replicates")


@pytest.mark.parametrize(("gap", "sign"), [(0.15, "+"), (-0.15, "+"), (0.15, "-"), (-0.15, "-"), (0.3, "-")])
def test_p_is_of_the_side_on_which_ours_lies(gap: float, sign: Any) -> None:
    """Beside an interval on one side of 0, the other side's p of 1 was printed."""
    found = ruling([Claim(says="it", one="a", two="b", sign=sign)] * 3, {"all": values(a=gap + NOISE, b=np.zeros(10))}).results[0]
    alone = float(stats.t.sf(abs(gap) / ERROR, 9))
    assert found.p == pytest.approx(6 * alone)
    assert found.opposite == ((gap > 0) != (sign == "+")) == found.as_json()["p_of_opposite"]
    assert ("(opposite)" in make_claim_cells(found)[5]) == found.opposite


def test_positive_is_better_also_where_less_is() -> None:
    part = PartValues()
    for seed, noise in enumerate(NOISE):
        part.add("a", "server_ms", seed, 10.0 + noise)
        part.add("b", "server_ms", seed, 12.0)
    found = ruling([Claim(says="it", one="a", two="b", score="server_ms", sign="+")], {"all": part}).results[0]
    assert (found.outcome, round(found.ours, 6)) == ("replicates", 2.0)


def test_a_claim_says_how_many_controls_its_method_beats() -> None:
    part = {"all": values(a=2 + NOISE, b=np.zeros(10), c=np.full(10, 2.0), d=np.ones(10))}
    claim = Claim(says="it", one="a", two="b")
    beats = [claim.model_copy(update={"two": two, "control": True}) for two in "cd"]
    others = [  # of another method, of nothing better, and not run
        Claim(says="it", one="b", two="c", control=True),
        Claim(says="it", one="a", two="c", sign="0", control=True),
        Claim(says="it", one="a", two="nothing", control=True),
    ]
    found = ruling([claim, *beats, *others], part)
    assert [one.controls for one in found.results] == [(1, 2), *[None] * 5]
    assert found.claims[0].as_json()["controls"] == {"beaten": 1, "of": 2}
    assert make_claim_cells(found.claims[0])[6] == "1 of 2"
    assert found.control_sentence == "2 significant, 1 opposite significant, 1 inconclusive, 1 not run"
    assert ruling([claim], part).results[0].controls is None
    for seed in range(10):  # a control of something else than accuracy
        part["all"].add("a", "change", seed, 1.0 + NOISE[seed])
        part["all"].add("d", "change", seed, 5.0)
    stable = beats[1].model_copy(update={"score": "change"})
    assert ruling([claim, *beats, stable], part).results[0].controls == (1, 2)
    assert ruling([claim.model_copy(update={"two": "d", "score": "change"}), *beats, stable], part).results[0].controls == (1, 1)


def test_seeds_are_paired_by_number() -> None:
    part = values(a=[10, 20, 30, 40, 50, 60], b=[0, 0, 0, 0, 0, 0])
    part.numbers["b", "mean"] = {seed: 10.0 * seed for seed in range(5, -1, -1)}  # in another order
    found = ruling([Claim(says="it", one="a", two="b")], {"all": part}).results[0]
    assert (found.ours, found.low, found.high) == (10.0, 10.0, 10.0)
