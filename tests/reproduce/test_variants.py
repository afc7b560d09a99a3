"""Only what the study file vouches for, run in full, can replicate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.claims import ClaimResult, StudyVerdict, judge_claims
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim, StudyPart
from coterie.reproduce.values import PartValues
from made_studies import made_study

STUDIES = Path(__file__).parents[2] / "studies"
STUDY = {"methods": ["fedavg"], "data": "synthetic(0,0)", "seeds": "0-9", "rounds": 20}


def shown(variant: str | None, *, seeds: int = 10, rounds: int = 20, claim: str = "") -> ClaimResult:
    """A claim that is true beyond doubt, on a part of which this is said."""
    part, one = StudyPart(variant=variant), Claim(says="it", one="a", two="b", variant=claim)
    study = made_study(STUDY, [part], [one])
    settings = study.get_settings(part).settings
    settings = replace(settings, plan=replace(settings.plan, rounds=rounds))
    values = PartValues()
    for seed, noise in enumerate(np.linspace(-0.1, 0.1, seeds)):
        values.add("a", "mean", seed, 5.0 + float(noise))
        values.add("b", "mean", seed, 0.0)
    return judge_claims(study, [PartRun(part, settings=settings)], {"all": values}).results[0]


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


@pytest.mark.parametrize(("variant", "words"), [("", "contradicted"), ("another model", "opposite in our variant")])
def test_only_the_papers_own_row_contradicts(variant: str, words: str) -> None:
    found = replace(shown(variant), outcome="contradicted")
    assert (found.verdict, found.as_json()["outcome"]) == (words, "contradicted")
    assert StudyVerdict((found, found)).sentence == f"2 {words}"


@pytest.mark.parametrize("name", sorted(list_studies(STUDIES)))
def test_every_part_of_the_repositorys_studies_says_what_it_is(name: str) -> None:
    assert all(part.variant is not None for part in read_reproduction(find_study(name, STUDIES)).parts)
