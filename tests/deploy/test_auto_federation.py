"""`auto` on a real federation of four hospitals: the numbers of the simulation, and what the policy that kits come with leaves of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from coterie.analysis.auto_decisions import read_decisions, summarize_decisions
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import Models
from coterie.data.catalogue import load
from coterie.deploy.site.data import SiteSettings
from coterie.evidence.reader import Evidence
from coterie.evidence.records import LaneKey
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.methods.auto import AutoState
from coterie.run.execution import Execution
from coterie.run.study import Study
from deploy.running import Running

SITES = load("heart").ids
WITHOUT_GROUPS = "auto(groups=false)"
STUDY = Settings(methods=("auto", WITHOUT_GROUPS), data="heart", plan=Plan(rounds=3, local=Local(epochs=2, batch_size=40, lr=0.1)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The study of a real federation, a hospital a site. Its policies are those that kits come with, but that scores are not rounded and
    small parts answered: rounding draws secret numbers, and may change the choice."""
    sites = {name: SiteSettings("heart", (name,), engine="loop", threads=1) for name in SITES}
    federation = Running(tmp_path_factory.mktemp("hospitals") / "federation", sites)
    for name in SITES:
        policy = federation.federation.kit(name) / "policy.toml"
        text = policy.read_text()
        assert "rounding = 3" in text
        assert "minimum_samples = 10" in text
        policy.write_text(text.replace("rounding = 3", "rounding = 1").replace("minimum_samples = 10", "minimum_samples = 1"))
    with federation as running:
        running.study(STUDY, "choosing", minimum=len(SITES))
        yield running.study_folder("choosing")


def test_four_hospitals_choose_and_train_as_in_simulation(folder: Path, tmp_path: Path) -> None:
    """Where all arms may be answered, the decision and all models are those of the simulation, bitwise."""
    Study.prepare(STUDY).run(out=tmp_path / "study", execution=Execution(engine="loop"))
    simulated, real = (load_lanes(path).lanes for path in (tmp_path / "study", folder))
    own, other = (lanes[LaneKey(0, WITHOUT_GROUPS, 0)].state for lanes in (simulated, real))
    assert isinstance(own, AutoState)
    assert isinstance(other, AutoState)
    assert [state is None for state in own.full] == [state is None for state in other.full]
    for ours, theirs in zip(own.full, other.full, strict=True):
        if isinstance(ours, Models):
            assert isinstance(theirs, Models)
            np.testing.assert_array_equal(ours.models, theirs.models)
    decided = [read_decision(path, WITHOUT_GROUPS) for path in (tmp_path / "study", folder)]
    assert decided[0] == decided[1]
    assert decided[0]["judged_clients"] == len(SITES)
    assert decided[0]["left_out"] == []


def read_decision(folder: Path, method: str) -> dict[str, Any]:
    [found] = [decision for decision in read_decisions(Evidence.open(folder)) if decision.method == method]
    return dict(found.values)


def test_an_arm_that_the_policy_does_not_answer_is_left_out_and_that_is_said(folder: Path) -> None:
    """The test of structure asks class by class, and policies keep label counts unless they have `label_shares`."""
    decided = read_decision(folder, "auto")
    assert not any(option["option"].startswith("structured") for option in decided["options"])
    assert any(option["option"].startswith("continuum") or option["option"] == "local" for option in decided["options"])
    assert decided["left_out"] == ["structured"]
    sentence = summarize_decisions(Evidence.open(folder))[0]
    assert sentence.endswith("Not considered, since clients are too few, too many or may not answer: structured.")
