"""The method of own-method.md, taken from the page: it passes the checks, has the roles of Coterie's own, and places newcomers."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.core.states import State
from coterie.deploy.bundle.export import load_served_models
from coterie.testing.play import play

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "own-method.md"
CODE = re.findall(r"```\{code-cell\} ipython3\n(?:%%writefile clove.py\n)?(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that the page has one write."""
    (tmp_path / "clove.py").write_text(CODE[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "clove", raising=False)
    import clove  # type: ignore[import-not-found]

    yield clove
    sys.modules.pop("clove", None)


def test_the_checks_of_the_page_pass(written: Any) -> None:
    exec(compile(CODE[1], str(PAGE), "exec"), {})


def test_one_group_is_fedavg(written: Any) -> None:
    one, plain = (play(method, rounds=3).states[-1] for method in (written.CLoVE(groups=1), ct.FedAvg()))
    assert np.array_equal(one.models, plain.models)  # type: ignore[attr-defined]


def test_its_controls_have_roles_its_groups_are_found_and_its_models_exported(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ct.compare(
        "clove:CLoVE(groups=2)", data="digits/rotated(clients=8,groups=2)", rounds=5, epochs=5, draws=6, trust=True, out=tmp_path / "all"
    )
    (findings,) = found.federations
    assert findings.roles.methods == ["clove:CLoVE(groups=2)"]  # random and true groups are controls
    assert {"random", "oracle"} <= set(findings.roles.controls["clove:CLoVE(groups=2)"])
    assert findings.methods["clove:CLoVE(groups=2)"].group_quality.ari.mean > 0.8  # type: ignore[union-attr]
    assert any("similarity" in sentence for sentence in found.verdicts()[findings.data])
    monkeypatch.delitem(sys.modules, "clove")  # as in another process, where nothing has imported it yet
    monkeypatch.delitem(State._known, "clove:LossGroups")
    assert load_served_models(tmp_path / "all", "clove:CLoVE(groups=2)", trust=True).bundle(["client-0"]).classes_.size == 10
