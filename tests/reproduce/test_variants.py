"""Only what the study file vouches for, run in full, can replicate."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.claims import ClaimResult, StudyVerdict, judge_claims
from coterie.reproduce.page import make_claim_cells
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, Paper, StudyPart
from coterie.reproduce.values import PartValues
from made_studies import made_study

STUDIES = Path(__file__).parents[2] / "studies"
STUDY = {"methods": ["fedavg"], "data": "synthetic(0,0)", "seeds": "0-9", "rounds": 20}


def shown(
    variant: str | None,
    *,
    seeds: int = 10,
    rounds: int = 20,
    claim: str = "",
    sign: Any = "+",
    level: float = 0.0,
    printed: Sequence[Paper] = (),
    part: dict[str, Any] | None = None,
) -> ClaimResult:
    """A claim that is true beyond doubt, or false, on a part of which this is said; 'whole' is the part in whose place it stands."""
    own, one = StudyPart(variant=variant, **(part or {})), Claim(says="it", one="a", two="b", variant=claim, sign=sign)
    whole = StudyPart(name="whole", instead="all", variant="")
    study = made_study(STUDY, [own, whole], [one]).model_copy(update={"published": list(printed)})
    settings = study.get_settings(own).settings
    settings = replace(settings, plan=replace(settings.plan, rounds=rounds))
    values = PartValues()
    for seed, noise in enumerate(np.linspace(-0.1, 0.1, seeds)):
        values.add("a", "mean", seed, level + 5.0 + float(noise))
        values.add("b", "mean", seed, level)
    return judge_claims(study, [PartRun(own, settings=settings)], {"all": values}).results[0]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"variant": None}, "not declared as the paper's own row"),
        ({"variant": "another model"}, "another model"),
        ({"variant": "", "claim": "our reading"}, "our reading"),
        ({"variant": "", "rounds": 5}, "5 of 20 rounds"),
        ({"variant": "", "seeds": 8}, "8 of 10 seeds"),
        ({"variant": "other data", "seeds": 8, "rounds": 5}, "other data; 5 of 20 rounds, 8 of 10 seeds"),
    ],
)
def test_a_variant_never_replicates(how: dict[str, Any], why: str) -> None:
    found = shown(**how)
    assert (found.outcome, found.variant) == ("holds in our variant", why)


def test_the_papers_own_row_replicates() -> None:
    assert (shown("").outcome, shown("").variant) == ("replicates", "")


@pytest.mark.parametrize(("variant", "word"), [("", "contradicted"), ("another model", "opposite sign in our variant")])
def test_only_the_papers_own_row_contradicts(variant: str, word: str) -> None:
    """In --json, tables and sentences alike."""
    found = shown(variant, sign="-")
    assert (found.outcome, found.verdict, found.as_json()["outcome"]) == (word, word, word)
    assert StudyVerdict((found,)).sentence == f"1 {word}"


PRINTED = Paper(score="mean", values={"b": 60.0})


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"variant": "other data"}, "b has 44.0 % accuracy, in the paper 60 %"),
        ({"variant": "", "rounds": 5}, "b has 44.0 % accuracy, in the paper 60 %"),
        ({"variant": "other data", "level": 45.5}, ""),  # 14.5 points below
        ({"variant": ""}, ""),  # the paper's own row in full is what it is
        ({"variant": "other data", "level": 70.0, "part": {"not_comparable": "another data set"}}, "another data set"),
        ({"variant": "", "level": 62.0, "part": {"majority": 63.0}}, "b has 62.0 % accuracy, the most frequent class 63 %"),
        ({"variant": "", "level": 62.0, "part": {"majority": 61.0}}, ""),
        ({"variant": "", "level": 62.0, "printed": [], "part": {"majority": 70.0}}, "b has 62.0 % accuracy, the most frequent class 70 %"),
        ({"variant": "other data", "printed": []}, ""),  # no number, no rule
        ({"variant": "other data", "printed": [Paper(score="mean", values={"a": 60.0})]}, ""),  # 49: the method's own, the last resort
        (
            {"variant": "other data", "printed": [Paper(score="mean", values={"a": 65.0})]},
            "a has 49.0 % accuracy, in the paper 65 %",
        ),
        (
            {"variant": "other data", "printed": [Paper(part="whole", score="mean", values={"b": 60.0})]},
            "b has 44.0 % accuracy, in the paper 60 %",
        ),
        ({"variant": "other data", "printed": [Paper(score="rounds_to", values={"b": 60.0})]}, ""),  # no accuracy
    ],
)
def test_what_is_not_comparable_has_no_verdict(how: dict[str, Any], why: str) -> None:
    found = shown(**{"printed": [PRINTED], "level": 44.0, **how})
    assert (found.why_not, found.outcome == "not comparable") == (why, bool(why))
    if why:
        assert np.isnan(found.p)
        assert found.ours == pytest.approx(5.0)  # it is reported
        assert make_claim_cells(found)[5:] == ["", "", f"not comparable †: {why}"]


def test_what_is_set_aside_makes_no_other_verdict_stronger() -> None:
    """It counts in Holm's correction, as two tests."""
    claims = [Claim(says=name, part=name, one="a", two="b") for name in ("here", "there")]
    p = [judge_parts(claims, {"there": why})["here"].p for why in ("", "another data set")]
    assert p[0] == p[1] == pytest.approx(2 * judge_parts(claims[:1], {})["here"].p, rel=0.01)


def judge_parts(claims: list[Claim], why: dict[str, str]) -> dict[str, ClaimResult]:
    """Each about a part of its own, with the same scores."""
    parts = [StudyPart(name=claim.part, variant="", not_comparable=why.get(claim.part, "")) for claim in claims]
    values = PartValues()
    for seed, noise in enumerate(np.linspace(-1, 1, 10)):
        values.add("a", "mean", seed, 1.0 + float(noise))
        values.add("b", "mean", seed, 0.0)
    study = made_study(STUDY, parts, claims)
    judged = judge_claims(study, [PartRun(part) for part in parts], {part.name: values for part in parts})
    return {one.claim.says: one for one in judged.results}


@pytest.mark.parametrize("name", sorted(list_studies(STUDIES)))
def test_every_part_of_the_repositorys_studies_says_what_it_is(name: str) -> None:
    assert all(part.variant is not None for part in read_reproduction(find_study(name, STUDIES)).parts)
