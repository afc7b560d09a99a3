"""One table of settings: Python, the command line and study files have the same names, defaults and meanings."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.cli import compare as compare_command
from coterie.cli import run as run_command
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import convert_values
from coterie.run.compare import compare
from coterie.run.comparison_request import ComparisonRequest
from coterie.run.execution import EXECUTION_SETTINGS, LOCAL_SETTINGS, PLAN_SETTINGS, Execution, make_plan
from coterie.run.study_file import read_study_file

ALL = (*PLAN_SETTINGS, *LOCAL_SETTINGS, *EXECUTION_SETTINGS)
DATA = "digits/iid(clients=4)"


def test_run_and_compare_offer_every_setting() -> None:
    for command in (run_command.run, compare_command.compare):
        assert set(ALL) <= set(inspect.signature(command).parameters)


def test_a_study_file_has_every_setting(tmp_path: Path) -> None:
    def write_defaults(kind: Any) -> str:
        values = {f.name: f.default for f in fields(kind) if f.name in ALL and f.default is not None}
        return "\n".join(f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in values.items())

    file = tmp_path / "study.toml"
    tables = f"[local]\n{write_defaults(Local)}\n[execution]\n{write_defaults(Execution)}\n"
    file.write_text(f'methods = ["fedavg"]\ndata = "{DATA}"\n{write_defaults(Plan)}\n{tables}')
    (study,) = read_study_file(file)
    assert (study.settings.plan, study.execution) == (Plan(), Execution())
    for prefix, kind in (("", Plan), ("local", Local), ("execution", Execution)):  # a wrong value names the setting
        for name in (f.name for f in fields(kind) if f.name in ALL):
            rest = f"[{prefix}]\n" if prefix else ""
            file.write_text(f'methods = ["fedavg"]\ndata = "{DATA}"\n{rest}{name} = [1]\n')
            with pytest.raises(UserError, match=rf"The study file .* cannot use {name}=\[1\]: give "):
                read_study_file(file)


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
    assert convert_values(Local, {"batch_size": 0, "mu": 0}) == {"batch_size": None, "mu": 0.0}
    assert type(convert_values(Local, {"lr": 1})["lr"]) is float
