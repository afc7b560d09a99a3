"""A user's own methods in a comparison: the same roles, controls and correction as Coterie's, read without their code."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.findings import compute_findings
from coterie.analysis.record_reader import read_records
from coterie.analysis.roles import assign_roles, collect_facts, extract_facts
from coterie.evidence import Evidence, digest
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build, get_spec, methods
from coterie.report.federation_view import FederationView
from coterie.run.execution import Execution
from methods.own_grouping import ChosenOnce

DATA = "digits/rotated(clients=8,groups=2)"
SPEC = "methods.own_grouping:ChosenOnce(groups=2)"
LOOP = Execution(engine="loop")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installed package added the name."""
    monkeypatch.setattr(methods, "_entries", dict(methods._entries))
    methods.add("chosen_once", ChosenOnce)


def compared(method: Any, out: Path, **more: Any) -> Comparison:
    return ct.compare(
        [method, "fedprox(mu=0.1)"], data=DATA, out=out, draws=2, seeds=(0,), rounds=1, lr=0.1, execution=LOOP, finetune=1, **more
    )


def check(comparison: Comparison, tested: str) -> None:
    """Its random and true groups are controls: two methods are under test, as with a method of the catalogue."""
    (found,) = comparison.federations
    assert found.roles.methods == [tested, "fedprox(mu=0.1)"]
    assert set(found.roles.controls[tested]) == {"random", "oracle"}
    assert {label for label, role in found.roles.of.items() if role == "control"} == set(found.roles.controls[tested].values())
    parts = found.methods[tested].decomposition
    assert parts is not None
    assert [step.name for step in parts.steps] == ["groups", "similarity"]
    assert sum("Random groups of the same sizes" in sentence for sentence in comparison.verdicts()[DATA]) == 1
    rows = FederationView(found).overview.rows
    assert {row.spec for row in rows if row.role == "method"} == {tested, "fedprox(mu=0.1)"}
    assert [row.of for row in rows if row.role == "control"] == [tested]  # beside the true groups, which are no row


@pytest.mark.parametrize(("given", "label"), [(ChosenOnce(groups=2), "chosenonce"), (SPEC, SPEC)], ids=["object", "module:Class"])
def test_own_methods_have_the_roles_of_ours(given: Any, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(compared(given, tmp_path / "c"), label)
    monkeypatch.setitem(sys.modules, "methods.own_grouping", None)  # whoever imports it now fails
    check(open_comparison(tmp_path / "c"), label)


def test_so_do_those_of_installed_packages(registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(compared("chosen_once(groups=2)", tmp_path / "c"), "chosen_once(groups=2)")
    monkeypatch.delitem(methods._entries, "chosen_once")  # the package is not installed where the evidence is read
    check(open_comparison(tmp_path / "c"), "chosen_once(groups=2)")


def test_a_tuned_method_of_ones_own_keeps_its_controls(tmp_path: Path) -> None:
    comparison = compared(SPEC, tmp_path / "c", rates=(0.1, 0.2), tuning_seeds=1)
    (found,) = comparison.federations
    (tested,) = [label for label in found.roles.methods if label.startswith(SPEC)]
    assert set(found.roles.controls[tested]) == {"random", "oracle"}
    assert found.display_name(tested) == SPEC  # without the rate
    assert tested != SPEC


def test_facts_are_stored_of_own_methods_only(tmp_path: Path) -> None:
    ct.study(["fedavg", ChosenOnce(assign="random")], data=DATA, rounds=1, out=tmp_path / "own", execution=LOOP)
    stored = json.loads((tmp_path / "own" / "settings.json").read_text())
    assert list(stored["facts"]) == ["chosenonce(assign=random)"]
    assert stored["facts"]["chosenonce(assign=random)"]["assign"] == "random"
    settings = Evidence.open(tmp_path / "own").settings
    assert Settings.from_json(settings.as_json()).facts == settings.facts
    ct.study("fedavg", data=DATA, rounds=1, out=tmp_path / "ours", execution=LOOP)
    assert "facts" not in json.loads((tmp_path / "ours" / "settings.json").read_text())


def test_facts_change_neither_the_digest_nor_what_a_study_may_become(tmp_path: Path) -> None:
    evidence = ct.study(ChosenOnce(), data=DATA, rounds=1, out=tmp_path / "own", execution=LOOP).evidence
    without = Settings.from_json({name: value for name, value in evidence.settings.as_json().items() if name != "facts"})
    assert not without.facts
    assert without.identity() == evidence.settings.identity()
    assert without.differences(evidence.settings) == []
    grown = ct.study([ChosenOnce(), "fedavg"], data=DATA, rounds=1, out=tmp_path / "own", resume=True, execution=LOOP)
    assert digest(grown.evidence) == digest(ct.study([ChosenOnce(), "fedavg"], data=DATA, rounds=1, execution=LOOP).evidence)


@pytest.mark.parametrize("facts", [{"x": {"design": 1}}, {"x": {"design": "a", "assign": "os"}}, {"x": 5}, 5, {"x": {"other": 1}}])
def test_facts_that_cannot_be_are_refused(facts: Any) -> None:
    tree = Settings(methods=("x",), data="heart").as_json() | {"facts": facts}
    with pytest.raises(UserError, match="settings cannot be read"):
        Settings.from_json(tree)


@dataclass(frozen=True, kw_only=True)
class FedGroup(ct.FedGroup):
    """Of the same name as one of Coterie's, and another method."""

    twist: float = 1.0


def test_a_name_that_is_taken_does_not_make_a_method_ours() -> None:
    mine, ours = FedGroup(groups=2), ct.FedGroup(groups=2)
    assert get_spec(mine) == get_spec(ours)
    assert extract_facts(mine).design != extract_facts(ours).design
    assert list(collect_facts(["fedgroup(groups=2)"], [mine])) == ["fedgroup(groups=2)"]
    assert not collect_facts(["fedgroup(groups=2)", "fedavg+finetune"], [ours, build("fedavg+finetune")])


def test_a_control_is_one_of_its_own_method_only() -> None:
    made = {"a": ChosenOnce(groups=2), "b": ChosenOnce(groups=3), "c": ChosenOnce(groups=3, assign="random")}
    roles = assign_roles(["fedavg", *made], facts=collect_facts(list(made), list(made.values())))
    assert roles.controls == {"b": {"random": "c"}}
    assert roles.methods == ["a", "b"]


def test_evidence_without_facts_is_read_as_before() -> None:
    """Of own methods nothing but the label is known there."""
    evidence = ct.study(["fedavg", ChosenOnce(), ChosenOnce(assign="random")], data=DATA, rounds=1, execution=LOOP).evidence
    assert compute_findings(read_records(evidence)).roles.methods == ["chosenonce"]
    assert assign_roles(evidence.settings.methods).methods == ["chosenonce", "chosenonce(assign=random)"]
