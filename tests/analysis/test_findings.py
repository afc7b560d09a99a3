"""Where gains come from and who gets them, on records written by hand."""

import pytest

from analysis.made_records import ALONE, AVG, GROUP, RANDOM, SIM, SIM_RANDOM, UNIFORM, by_hand, flat
from coterie.analysis.findings import compute_findings
from coterie.core.rng import make_generator, make_key


def test_the_decomposition_adds_up_and_takes_only_seeds_that_all_have() -> None:
    rng = make_generator(make_key(0, "decomposition"))
    right = {label: rng.integers(0, 100, (8, 3, 5)) for label in (AVG, UNIFORM, SIM, SIM_RANDOM, GROUP, RANDOM)}
    right[UNIFORM][3, 2:] = -1  # diverged: neither FedAvg's nor FedSim's fourth seed may count
    found = compute_findings(by_hand(right))
    for label, names in ((SIM, ["weights", "groups", "similarity"]), (GROUP, ["groups", "similarity"])):
        parts = found.methods[label].decomposition
        assert parts is not None
        assert [step.name for step in parts.steps] == names  # FedGroup weighs by samples, as FedAvg does
        assert sum(step.gain.mean for step in parts.steps) == pytest.approx(parts.total.mean, abs=1e-12)
        assert {step.gain.n for step in parts.steps} == {parts.total.n} == {7 if label == SIM else 8}
    assert found.methods[UNIFORM].over_baseline["final"].missing == 1


def test_fairness_by_hand() -> None:
    base, own, alone = flat(50), flat(50), flat(80)
    own[:, :, 0] += 20  # one client gains 20, one loses 10, two stay
    own[:, :, 3] -= 10
    fairness = compute_findings(by_hand({AVG: base, GROUP: own, ALONE: alone})).methods[GROUP].fairness
    assert fairness.gain == pytest.approx([0.2, 0, 0, -0.1])
    assert (fairness.worse, fairness.worse_than_alone) == (0.25, 1)
    assert fairness.gain_over_local == pytest.approx([-0.1, -0.3, -0.3, -0.4])
    assert fairness.worst.mean == pytest.approx(0.41) == fairness.bottom_decile.mean
