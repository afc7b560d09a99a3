"""A trial as a researcher would make it: texts in planted groups, a model and a clustered method of one's own."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import coterie as ct
from coterie.analysis.caveats import collect_remarks
from study_scripts import script

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tutorials" / "own-method.md").read_text(encoding="utf-8")
CODE = re.findall(r"```\{code-cell\} ipython3\n%%writefile clove.py\n(.*?)```", PAGE, re.DOTALL)[0]


class Words(nn.Module):
    """A model of one's own: words, one hidden layer, topics."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


@pytest.fixture(scope="module")
def texts() -> ct.Federation:
    """Twenty clients in five groups, each with words and labels of its own."""
    frame = script("fesem_rate").texts()
    frame = frame[frame["client"].isin([f"c{i}" for i in range(20)])]
    return ct.Federation.from_frame(frame, client="client", label="label", text="text", groups="group", test=0.3, width=256)


@pytest.fixture
def clove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "clove.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import clove as written  # type: ignore[import-not-found]

    yield written
    sys.modules.pop("clove", None)


def test_an_own_model_and_an_own_method_are_compared_as_ours_are(texts: ct.Federation, clove: Any, tmp_path: Path) -> None:
    method = clove.CLoVE(groups=5)
    found = ct.compare(
        [method, "ifca(groups=5)"], data=texts, model=Words, rounds=2, epochs=2, lr=1.0, draws=6, seeds=[0], out=tmp_path / "trial"
    )
    (findings,) = found.federations
    assert len(findings.roles.methods) == 2  # ours and one's own; all others are baselines and controls
    assert set(findings.roles.controls) == set(findings.roles.methods)
    for tested in findings.roles.methods:
        assert {"random", "oracle"} <= set(findings.roles.controls[tested])
    assert {own.role for own in findings.methods.values()} == {"baseline", "uniform", "local", "finetuned", "control", "method"}
    (chosen,) = found.recommendations().values()
    assert chosen is not None
    assert findings.roles.of[chosen.label] != "control"
    assert (tmp_path / "trial" / "compare.json").exists()


def test_fesem_with_the_true_groups_is_held_back_by_its_distance_term_and_says_so(texts: ct.Federation) -> None:
    """At the rates that texts need, the term undoes training; a remark names the weight that does not."""
    held, free = "fesem(groups=5,assign=oracle)", "fesem(groups=5,lam=0,assign=oracle)"
    result = ct.study([held, free, "fedavg"], data=texts, rounds=12, epochs=5, lr=5.0)
    scores = result.table()["last10"]
    assert scores[free] > scores["fedavg"]
    assert scores[free] > scores[held] + 0.05
    (remark,) = [remark for remark in collect_remarks(result.evidence) if "proximal" in remark]
    assert remark.startswith(held)
    assert "at most 0.02" in remark
