"""Samplers of one's own: by name, keyed, checked, and only with trust where a file names them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from core.own_samplers import largest
from coterie._util.errors import UserError
from coterie.core.plan import Plan
from coterie.core.roster import samplers
from coterie.core.specs import UntrustedCodeError
from coterie.evidence.reader import Evidence
from coterie.evidence.verify import digest
from coterie.run.resume import resume_study
from coterie.run.study_file import read_study_file
from coterie.testing.fakes import make_context

SIZES = list(range(1, 21))
LARGEST = "core.own_samplers:largest"


def test_a_cohort_is_whom_the_sampler_names() -> None:
    for round_ in range(1, 6):
        ctx = make_context(SIZES, plan=Plan(cohort=6, selection=f"{LARGEST}(share=0.5)"), round_=round_)
        found = ctx.cohort()
        assert (np.diff(found) > 0).all()
        assert {17, 18, 19} <= set(found.tolist())
        assert len(found) == 6
        assert (found == ctx.cohort()).all()  # keyed: the same however often it is asked for
        assert (found == make_context(SIZES, plan=Plan(cohort=6, selection=LARGEST), round_=round_).cohort()).all()
        assert (found == np.sort(largest(ctx, 6, "cohort"))).all()
    cohorts = {tuple(make_context(SIZES, plan=Plan(cohort=6, selection=LARGEST), round_=t).cohort().tolist()) for t in range(1, 9)}
    assert len(cohorts) > 1


def test_who_cannot_be_reached_does_not_take_part() -> None:
    ctx = make_context(SIZES, plan=Plan(cohort=6, selection=LARGEST))
    gone = replace(ctx, roster=replace(ctx.roster, reachable=np.arange(20) != 19))
    assert gone.cohort().tolist() == [client for client in ctx.cohort().tolist() if client != 19]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("core.own_samplers:twice", "each client of the cohort once"),
        ("core.own_samplers:beyond", "names client 20 of 20"),
        ("core.own_samplers:failing", "no idea whom to ask"),
        ("core.own_samplers:other", r"a function of \(ctx, size, purpose\)"),
        ("os:system", r"a function of \(ctx, size, purpose\)"),
        ("core.own_samplers:nobody", "has no 'nobody'"),
        (f"{LARGEST}(sharp=1)", "unexpected keyword"),
    ],
)
def test_what_is_no_sampler_is_refused(name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_context(SIZES, plan=Plan(selection=name)).cohort()


def test_a_name_may_be_registered() -> None:
    samplers.add("largest_first", largest)
    assert len(make_context(SIZES, plan=Plan(cohort=4, selection="largest_first(share=1.0)")).cohort()) == 4
    with pytest.raises(UserError, match="did you mean 'uniform'"):
        Plan(selection="unifrm")


def test_a_study_uses_it_and_goes_on_with_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": "synthetic(0,0,clients=8)", "cohort": 3, "selection": f"{LARGEST}(share=1.0)"}
    ct.study("fedavg", rounds=1, out=tmp_path / "s", **settings)
    with pytest.raises(UntrustedCodeError, match="the sampler"):
        resume_study(tmp_path / "s")
    ct.study("fedavg", rounds=3, out=tmp_path / "s", resume=True, **settings)
    whole = ct.study("fedavg", rounds=3, **settings)
    assert digest(Evidence.open(tmp_path / "s")) == digest(whole.evidence)
    mixing = whole.evidence.frame("mixing")
    assert len(set(mixing["source"])) == 3  # the same three in every round


def test_a_file_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(f'methods = ["fedavg"]\ndata = "digits/rotated"\nselection = "{LARGEST}"\n')
    with pytest.raises(UntrustedCodeError, match="the sampler"):
        read_study_file(path)
    assert read_study_file(path, trust=True)[0].settings.plan.selection == LARGEST
