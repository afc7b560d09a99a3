"""The table of docs/reference/policy.md has every method of the catalogue, with the asks that a study of it makes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.core.specs import split_at
from coterie.deploy.site.policy import Policy
from coterie.engines.engine import StampedAsk
from coterie.engines.local_engine import LocalEngine
from coterie.methods.catalogue import methods

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")
HEAD = "| methods | asks | what a policy can do |\n| --- | --- | --- |\n"


def read_rows() -> list[tuple[str, str]]:
    """Each spec of the table with the cell of its asks."""
    (table,) = re.findall(rf"{re.escape(HEAD)}(.*?)\n\n", PAGE, re.DOTALL)
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    return [(spec.strip(), asks) for names, asks, *_ in rows for spec in split_at(names, ",")]


ROWS = read_rows()


def test_every_method_has_one_row() -> None:
    assert sorted(spec for spec, _ in ROWS if "(" not in spec) == sorted(methods)


@pytest.mark.parametrize(("spec", "cell"), ROWS, ids=[spec for spec, _ in ROWS])
def test_a_study_asks_what_the_page_lists(spec: str, cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    has_rule: set[bool] = set()
    run = LocalEngine.run

    def record(self: LocalEngine, asks: Sequence[StampedAsk]) -> list[Any]:
        asked.update(stamped.ask.kind for stamped in asks)
        has_rule.update(stamped.ask.local.rule is not None for stamped in asks if isinstance(stamped.ask, ct.Train))
        return run(self, asks)

    monkeypatch.setattr(LocalEngine, "run", record)
    rounds = 7 if "`Describe`" in cell else 3  # after rounds of FedAvg
    ct.study(
        spec, data="synthetic(0,0,clients=6,most=12)", rounds=rounds, batch_size=None, execution=ct.Execution(engine="loop", threads=1)
    )
    assert asked - {"Evaluate"} == set(re.findall(r"`(\w+)`", cell))
    assert has_rule == ({False, True} if "also by a local rule" in cell else {"local rule" in cell})


def test_every_key_has_a_row_with_its_default() -> None:
    (table,) = re.findall(r"\| key \| default \| meaning \|\n\| --- \| --- \| --- \|\n(.*?)\n\n", PAGE, re.DOTALL)
    shown: dict[str, str] = {}
    for row in table.splitlines():
        names, default, *_ = row.strip("| ").split(" | ")
        defaults = re.split(r",(?= )", default) if "," in names and default[0].isdigit() else [default] * names.count("`")
        shown |= dict(zip(re.findall(r"`\[?(\w+)\]?`", names), defaults, strict=False))
    settings = {name: field.default for name, field in Policy.model_fields.items() if name not in ("privacy", "approve")}
    assert set(shown) == set(settings)
    for name, value in settings.items():
        if isinstance(value, bool | int | float):
            assert shown[name].strip().replace(",", "") == (str(value).lower() if isinstance(value, bool) else f"{value:.0f}"), name
