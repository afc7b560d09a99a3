"""Where gains come from and who gets them, on records written by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from analysis.made_records import ALONE, AVG, GROUP, RANDOM, SIM, SIM_RANDOM, UNIFORM, by_hand, flat
from cli.test_commands import coterie
from coterie.analysis.comparison import compare_evidence
from coterie.analysis.findings import DIVERGENCE_FACTOR, compute_findings, compute_start_losses, find_diverged
from coterie.analysis.record_reader import read_records
from coterie.analysis.records import Records
from coterie.analysis.verdict import write_verdicts
from coterie.core.rng import make_generator, make_key
from coterie.report.federation_view import FederationView
from coterie.report.overview_section import list_details
from coterie.run.execution import Execution


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


LOOP = Execution(engine="loop")


def with_losses(start: float, last: list[float], method: int = 1) -> Records:
    """Six seeds of FedAvg and FedGroup; the losses of one of them."""
    made = by_hand({AVG: flat(50), GROUP: flat(60)})
    losses = np.ones_like(made.loss)
    losses[:, :, 0] = start
    losses[method, :, -1] = last
    return replace(made, loss=losses)


@pytest.mark.parametrize(
    ("ratio", "found"),
    [(0.2, False), (1.0, False), (DIVERGENCE_FACTOR, False), (DIVERGENCE_FACTOR + 0.01, True), (1e9, True), (np.nan, True)],
)
def test_a_loss_far_above_the_start_is_divergence(ratio: float, found: bool) -> None:
    records = with_losses(2.0, [2.0 * ratio] * 6)
    assert find_diverged(records, 2).tolist() == [[False] * 6, [found] * 6]


def test_it_is_said_beside_the_score() -> None:
    found = compute_findings(with_losses(2.0, [1.0] * 4 + [8e8, 8e8]))
    said = next(sentence for sentence in write_verdicts(found) if sentence.startswith("fedgroup"))
    told = "training diverged in 2 of 6 runs (final test loss 8e+08, above the start's 2): use a lower learning rate"
    assert f"Do not rely on its score, since {told}." in said
    mild = compute_findings(with_losses(2.0, [10.0] * 6)).methods[GROUP].divergence
    assert str(mild) == "training diverged or overfits (final test loss 10, above the start's 2): use a lower learning rate or fewer epochs"


def test_a_baseline_that_diverged_is_said_before_any_finding() -> None:
    said = write_verdicts(compute_findings(with_losses(2.0, [np.nan] * 6, method=0)))
    assert "fedavg: training diverged (the final test loss is not finite): use a lower learning rate." in said


def test_without_a_start_nothing_is_said() -> None:
    made = with_losses(2.0, [9e9] * 6)
    later = replace(made, rounds=made.rounds + 1)
    assert not find_diverged(later, 2).any()
    assert not find_diverged(replace(made, loss=np.zeros_like(made.loss)), 2).any()  # no losses were kept


def test_a_wild_rate_is_found_and_a_good_one_is_not() -> None:
    methods = ["fedavg", "local", "fedprox(mu=0.1)", "fedavg+finetune(epochs=2)"]
    wild = ct.study(methods, data="heart", rounds=3, lr=1e9, execution=LOOP, seeds=range(2))
    assert set(wild.diverged) == set(methods)  # also the one that is first scored after it was fine-tuned
    assert wild.table()["final"].max() > 0.5  # though it scores
    assert any(sentence.startswith("fedavg: training diverged (final test loss ") for sentence in wild.remarks)
    view = FederationView(compare_evidence([wild.evidence]).federations[0])
    shown = [list_details(view, row) for row in view.overview.rows[1:]]
    assert len(shown) == 3
    assert all(any("Do not rely on its score, since training diverged" in sentence for sentence in details) for details in shown)
    alone = ct.study("fedavg+finetune(epochs=2)", data="heart", rounds=3, lr=1e9, execution=LOOP)
    assert set(alone.diverged) == {"fedavg+finetune(epochs=2)"}
    assert not ct.study(methods, data="heart", rounds=3, lr=0.1, execution=LOOP).diverged


def test_what_else_is_in_a_study_does_not_matter() -> None:
    """So that a comparison can grow: a method that fine-tunes is first scored when it has already learned."""
    wild = ct.study("fedavg", data="heart", rounds=3, lr=10, execution=LOOP)
    beside = ct.study(["fedavg", "fedavg+finetune(epochs=20)+rate(lr=0.1)"], data="heart", rounds=3, lr=10, execution=LOOP)
    assert wild.diverged.get("fedavg") == beside.diverged.get("fedavg")
    assert np.array_equal(compute_start_losses(read_records(beside.evidence))[0], compute_start_losses(read_records(wild.evidence))[0])


def test_a_classifier_starts_no_better_than_guessing() -> None:
    learned = ct.study("fedavg+finetune(epochs=20)", data="heart", rounds=1, lr=0.1, execution=LOOP)
    records = read_records(learned.evidence)
    assert records.loss[0, 0, 0] < np.log(2) == compute_start_losses(records)[0, 0]


def test_the_terminal_marks_the_score(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", "fedavg", "--data", "heart", "--rounds", "2", "--lr", "1e9", "--out", str(tmp_path / "s"))
    code, out, _ = coterie(capfd, monkeypatch, *words)
    assert code == 0
    assert " !  " in out
    assert "fedavg: training diverged" in " ".join(out.split())
    _, out, _ = coterie(capfd, monkeypatch, "show", str(tmp_path / "s"), "--json")
    assert json.loads(out)["methods"]["fedavg"]["diverged"].startswith("training diverged")
