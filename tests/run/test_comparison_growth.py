"""Comparisons that grow: more draws, seeds, methods, federations or rounds, to the evidence of one run of all."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie._util.errors import UserError
from coterie._util.files import write_atomic
from coterie.analysis.comparison import Comparison, open_comparison
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence import Evidence, digest
from coterie.evidence.manifest import find_broken_seals, find_studies
from coterie.evidence.verify import verify
from coterie.run.compare import FIRST_TUNING_SEED, compare
from coterie.run.execution import Execution

SMALL, OTHER = "synthetic(0,0,clients=4)", "synthetic(0,0,clients=5)"
LOCAL = Local(lr=0.1, max_steps=1)
LOOP = Execution(engine="loop")


def run(out: Path, methods: list[str], **more: Any) -> Comparison:
    usual: dict[str, Any] = {"data": SMALL, "seeds": (0,), "draws": 1, "rounds": 1, "controls": False}
    given = usual | more
    plan = Plan(rounds=given.pop("rounds"), local=LOCAL)
    return compare(methods, out=out, plan=plan, execution=LOOP, **given)


def digests(out: Path) -> dict[str, str]:
    assert find_broken_seals(out) == {}
    assert all(verify(path).whole for path in find_studies(out))
    return {path.relative_to(out).as_posix(): digest(Evidence.open(path)) for path in find_studies(out)}


@pytest.mark.parametrize(
    ("before", "more"),
    [
        (["fedavg"], {"seeds": (0, 1)}),
        (["fedavg"], {"draws": 2}),
        (["fedavg"], {"rounds": 2}),
        (["fedavg"], {"data": [SMALL, OTHER]}),
        (["fedavg"], {"seeds": (1, 0), "draws": 3, "rounds": 2, "data": [OTHER, SMALL]}),
    ],
    ids=["seeds", "draws", "rounds", "federations", "all"],
)
def test_growth_of_a_comparison_gives_that_of_all(before: list[str], more: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "grown", before)
    run(tmp_path / "grown", [*before, "fedprox(mu=1)"], resume=True, **more)
    run(tmp_path / "whole", [*before, "fedprox(mu=1)"], **more)
    assert digests(tmp_path / "grown") == digests(tmp_path / "whole")
    assert json.loads((tmp_path / "grown" / "compare.json").read_text()) == json.loads((tmp_path / "whole" / "compare.json").read_text())


def test_a_tuned_comparison_grows_and_its_seeds_do_not_meet_those_of_tuning(tmp_path: Path) -> None:
    tuned: dict[str, Any] = {"rates": (0.01, 0.1), "tuning_seeds": 1, "controls": True, "finetune": 1}
    run(tmp_path / "grown", ["fedprox(mu=1)"], **tuned)
    (grid,) = (tmp_path / "grown" / "tuning").glob("*/settings.json")
    assert json.loads(grid.read_text())["seeds"] == [FIRST_TUNING_SEED]
    more: dict[str, Any] = {"seeds": (0, 1), **tuned}
    run(tmp_path / "grown", ["fedprox(mu=1)", "fedgroup(groups=2)"], resume=True, **more)
    run(tmp_path / "whole", ["fedprox(mu=1)", "fedgroup(groups=2)"], **more)
    assert digests(tmp_path / "grown") == digests(tmp_path / "whole")
    with pytest.raises(UserError, match=r"differs in plan\.rounds: the learning rates were tuned for 1"):
        run(tmp_path / "grown", ["fedprox(mu=1)", "fedgroup(groups=2)"], resume=True, **more | {"rounds": 2})
    with pytest.raises(UserError, match=f"The seeds {FIRST_TUNING_SEED} are those that learning rates are tuned with"):
        run(tmp_path / "other", ["fedprox(mu=1)"], **tuned | {"seeds": (0, FIRST_TUNING_SEED)})
    assert not (tmp_path / "other").exists()


def test_what_is_no_growth_of_a_comparison_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    whole: dict[str, Any] = {"data": [SMALL, OTHER], "draws": 2, "controls": True}
    run(out, ["fedprox"], **whole)
    before = digests(out), (out / "compare.json").read_text()
    for methods, other, told in (
        (["fedavg"], {}, "methods, without fedprox"),
        (["fedprox"], {"data": SMALL}, "data, without"),
        (["fedprox"], {"draws": 1}, "draws of .*, without 1"),
        (["fedprox"], {"data_seed": 1}, "draws of .*, without 0"),
        (["fedprox"], {"finetune": 2}, "finetune"),
        (["fedprox"], {"controls": False}, "controls"),
        (["fedprox", "fedavg( weighting=uniform )"], {"seeds": (0, 1)}, r"methods, without fedavg\(weighting=uniform\)"),
    ):
        with pytest.raises(UserError, match=rf"holds another comparison \(it differs in {told}"):
            run(out, methods, resume=True, **whole | other)
    assert (digests(out), (out / "compare.json").read_text()) == before


def test_a_kill_between_seal_and_request_is_mended_by_the_command_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "compared"
    run(out, ["fedavg"])

    def killed(path: Path, text: str) -> None:
        if path.name == "compare.json":
            raise KeyboardInterrupt
        write_atomic(path, text)

    with monkeypatch.context() as patched:
        patched.setattr("coterie.evidence.manifest.write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            run(out, ["fedavg", "fedprox"], resume=True)
    run(out, ["fedavg", "fedprox"], resume=True)
    assert len(open_comparison(out).federations[0].methods) == 2
    assert digests(out)
