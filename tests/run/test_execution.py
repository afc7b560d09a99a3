"""One table of settings: Python, the command line and study files have the same names, defaults and meanings."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.cli import compare as compare_command
from coterie.cli import run as run_command
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.run import execution
from coterie.run.compare import compare
from coterie.run.comparison_request import ComparisonRequest
from coterie.run.execution import EXECUTION_SETTINGS, LOCAL_SETTINGS, PLAN_SETTINGS, Execution, get_defaults, make_plan
from coterie.run.study_file import ExecutionTable, LocalTable, StudyTable, read_study_file

ALL = (*PLAN_SETTINGS, *LOCAL_SETTINGS, *EXECUTION_SETTINGS)
DATA = "digits/iid(clients=4)"


def test_run_and_compare_offer_every_setting() -> None:
    for command in (run_command.run, compare_command.compare):
        assert set(ALL) <= set(inspect.signature(command).parameters)


def test_a_study_file_has_every_setting_with_its_default() -> None:
    for table, kind in ((LocalTable, Local), (ExecutionTable, Execution)):
        assert {name: field.default for name, field in table.model_fields.items()} == get_defaults(kind)
    assert {name: StudyTable.model_fields[name].default for name in PLAN_SETTINGS} == get_defaults(Plan)


def test_nothing_said_is_the_same_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(f'methods = ["fedavg"]\ndata = "{DATA}"\n')
    (study,) = read_study_file(file)
    assert (
        study.settings.plan == Plan() == ComparisonRequest(methods=("fedavg",), data=(DATA,), designs=()).plan == make_plan({}, None, None)
    )
    assert study.execution == Execution()


def test_python_takes_short_names_and_refuses_what_is_said_twice(tmp_path: Path) -> None:
    made = ct.study("fedavg", data=DATA, rounds=1, lr=0.3, dropout=0.25, momentum=0.5).evidence.settings.plan
    assert made == Plan(rounds=1, dropout=0.25, local=Local(lr=0.3, momentum=0.5))
    found = compare(["fedprox"], data=DATA, out=tmp_path / "c", rounds=1, lr=0.3, seeds=(0,), controls=False)
    assert found.federations[0].records.settings.plan == Plan(rounds=1, local=Local(lr=0.3))
    twice: list[dict[str, Any]] = [
        {"lr": 0.3, "local": Local(epochs=2)},
        {"rounds": 3, "plan": Plan()},
        {"local": Local(), "plan": Plan()},
    ]
    for said in twice:
        with pytest.raises(UserError, match="given twice"):
            ct.study("fedavg", data=DATA, **said)
    with pytest.raises(UserError, match="no setting 'epoch': did you mean 'epochs'"):
        ct.study("fedavg", data=DATA, epoch=3)


def test_zero_is_none_only_where_it_can_be_meant() -> None:
    assert execution.replace_zeros(Local, {"batch_size": 0, "mu": 0}) == {"batch_size": None, "mu": 0}
