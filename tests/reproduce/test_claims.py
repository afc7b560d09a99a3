"""The rules of the verdict on numbers made by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.reproduce.claims import StudyResult, assess
from coterie.reproduce.file import Claim, Reproduction, StudyPart
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues

NOISE = np.array([-0.4, 0.3, -0.2, 0.1, 0.2, -0.1, 0.4, -0.3, 0.05, -0.05])  # mean 0


def values(**rows: Any) -> PartValues:
    """A part with these rows, one number a seed, under the score `mean`."""
    part = PartValues()
    for row, numbers in rows.items():
        for seed, number in enumerate(numbers):
            part.add(row, "mean", seed, float(number))
    return part


def ruling(claims: list[Claim], parts: Mapping[str, PartValues], why: Mapping[str, str] | None = None) -> StudyResult:
    made = [StudyPart(name=name) for name in parts]
    study = Reproduction(title="", paper="", where="", asks="", parts=made, claims=claims, name="t", path=Path("t.toml"))
    runs = [PartRun(part, why_not=(why or {}).get(part.name, "")) for part in made]
    return assess(study, runs, parts)


def outcome(claim: dict[str, Any], **rows: Any) -> str:
    return ruling([Claim(says="it", one="a", **claim)], {"all": values(**rows)}).results[0].outcome


@pytest.mark.parametrize(
    ("gap", "claim", "expected"),
    [
        (2.0, {}, "holds"),
        (2.0, {"paper": 7.3}, "holds"),  # the sign decides, not the size
        (2.0, {"paper": -7.3}, "the opposite"),
        (-2.0, {"paper": -7.3}, "holds"),
        (0.0, {}, "not shown"),
        (0.0, {"paper": -0.06, "sign": "0"}, "holds"),
        (2.0, {"sign": "0"}, "not shown"),
        (2.0, {"sign": "0", "within": 3.0}, "holds"),
    ],
)
def test_a_difference_is_judged_by_its_interval(gap: float, claim: dict[str, Any], expected: str) -> None:
    assert outcome({"two": "b", **claim}, a=50 + gap + NOISE, b=np.full(10, 50.0)) == expected


@pytest.mark.parametrize(
    ("kind", "paper", "expected"),
    [
        ("level", 50.9, "holds"),
        ("level", 51.1, "not shown"),
        ("at_least", 49.0, "holds"),
        ("at_least", 51.0, "the opposite"),
        ("at_least", 50.0, "not shown"),
        ("at_most", 51.0, "holds"),
        ("at_most", 49.0, "the opposite"),
    ],
)
def test_a_number_is_judged_against_the_papers(kind: str, paper: float, expected: str) -> None:
    assert outcome({"kind": kind, "paper": paper}, a=50 + NOISE) == expected


@pytest.mark.parametrize(("sign", "expected"), [("+", "holds"), ("-", "the opposite")])
def test_a_trend_is_a_correlation_with_the_order_of_the_parts(sign: Any, expected: str) -> None:
    parts = {name: values(a=level + NOISE) for name, level in (("x", 1.0), ("y", 2.0), ("z", 3.0))}
    claim = Claim(says="it", kind="trend", parts=["x", "y", "z"], one="a", sign=sign)
    judgement = ruling([claim], parts).results[0]
    assert judgement.outcome == expected
    assert judgement.ours == pytest.approx(1.0)


def test_equal_values_have_no_trend() -> None:
    parts = {name: values(a=np.ones(10)) for name in "xyz"}
    assert ruling([Claim(says="it", kind="trend", parts=["x", "y", "z"], one="a")], parts).verdict == "does not hold"


def test_rounds_counts_the_rounds_with_significance() -> None:
    part = values(a=NOISE)
    part.rounds = np.arange(1, 5)
    part.curves = {
        "a": {seed: np.array([noise, 1 + noise, 2 + noise, 3 + noise]) for seed, noise in enumerate(NOISE)},  # no better in the first
        "b": {seed: np.zeros(4) for seed in range(10)},
    }
    for paper, expected in ((75.0, "holds"), (76.0, "not shown")):
        judgement = ruling([Claim(says="it", kind="rounds", one="a", two="b", paper=paper)], {"all": part}).results[0]
        assert (judgement.ours, judgement.outcome) == (75.0, expected)


def test_many_claims_need_more_evidence_than_one() -> None:
    """Nine better seeds of ten, the worst only slightly worse: p is 2/1024 alone, and 0.06 among 30."""
    numbers = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, -0.1])
    part = {"all": values(a=numbers, b=np.zeros(10))}
    claim = Claim(says="it", one="a", two="b")
    assert ruling([claim], part).verdict == "holds"
    crowd = ruling([claim] * 30, part)
    assert crowd.results[0].p == pytest.approx(30 * 2 / 1024)
    assert crowd.verdict == "does not hold"


def test_controls_are_corrected_apart_and_do_not_decide() -> None:
    part = {"all": values(a=2 + NOISE, b=np.zeros(10), c=np.full(10, 2.0))}
    claim, control = Claim(says="it", one="a", two="b"), Claim(says="why", one="a", two="c", control=True)
    found = ruling([claim, *[control] * 40], part)
    assert found.verdict == "holds"
    assert found.claims[0].p == pytest.approx(1 / 1024)
    assert {judgement.outcome for judgement in found.controls} == {"not shown"}


def test_few_seeds_show_nothing() -> None:
    assert outcome({"two": "b"}, a=[2, 2.1, 2.2, 2.3], b=[0, 0, 0, 0]) == "too few seeds"
    five = {"all": values(a=[2, 2.1, 2.2, 2.3, 2.4], b=[0, 0, 0, 0, 0])}
    claim = Claim(says="it", one="a", two="b")
    assert ruling([claim], five).verdict == "holds"
    assert ruling([claim, claim], five).verdict == "too few seeds"  # twice 1/32 is above 5 %


def test_the_verdict_counts_what_was_run() -> None:
    parts = {"here": values(a=2 + NOISE, b=np.zeros(10)), "there": PartValues()}
    up, down = (Claim(says="it", part="here", one="a", two="b", sign=sign) for sign in ("+", "-"))
    away = Claim(says="it", part="there", one="a", two="b")
    assert ruling([up, away], parts, {"there": "no data"}).sentence == ("holds: 1 of 1 claims hold; 1 more could not be run here (no data)")
    assert ruling([up, away], parts).sentence == "holds: 1 of 1 claims hold; 1 more with too few seeds"
    assert ruling([up, down], parts).verdict == "partly"
    assert ruling([down], parts).verdict == "does not hold"
    assert ruling([away], parts, {"there": "no data"}).sentence == "cannot be run here: no data"


def test_seeds_are_paired_by_number() -> None:
    part = values(a=[10, 20, 30, 40, 50, 60], b=[0, 0, 0, 0, 0, 0])
    part.numbers["b", "mean"] = {seed: 10.0 * seed for seed in range(5, -1, -1)}  # in another order
    judgement = ruling([Claim(says="it", one="a", two="b")], {"all": part}).results[0]
    assert (judgement.ours, judgement.low, judgement.high) == (10.0, 10.0, 10.0)
