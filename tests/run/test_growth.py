"""Studies that grow: nothing is run again, and the whole is that of one run of all, whatever came when."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

import coterie as ct
import integrity
from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence import Evidence, digest
from coterie.evidence.manifest import HEAD
from coterie.evidence.records import LaneKey, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import KEYS
from coterie.evidence.verify import verify
from coterie.evidence.writer import GROWTH_FOLDER
from coterie.methods.catalogue import methods
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.resume import Extension, resume_study
from coterie.run.study import Study

DATA = "synthetic(0,0,clients=4,validation=0.2)"
LOCAL = Local(epochs=1, lr=0.1, max_steps=1)
LOOP = Execution(engine="loop", checkpoint_every=2)
POOL = ("fedavg+finetune(epochs=1)", "fedgroup(groups=2)")
WHOLE = Settings(methods=POOL, data=DATA, seeds=(0, 1), draws=(0, 1), own_seeds=True, plan=Plan(rounds=3, evaluate_every=2, local=LOCAL))


class Watch(ct.Callback):
    """Which rounds of which lanes were run."""

    def __init__(self) -> None:
        self.made: list[tuple[LaneKey, int]] = []

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        self.made.append((lane.key, record.round_))


def run(settings: Settings, out: Path, watch: Watch | None = None, **more: Any) -> str:
    study = Study.prepare(settings)
    study.run(out=out, resume=True, execution=more.pop("execution", LOOP), callbacks=[watch or Watch()], **more)
    assert verify(out).damaged == ()
    return digest(Evidence.open(out))


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(WHOLE, tmp_path_factory.mktemp("all") / "study")


def subsets(items: tuple[Any, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(items), min_size=1, unique=True).map(tuple)


@st.composite
def beginnings(draw: st.DrawFn) -> list[Settings]:
    """A study that is a part of the whole, and one between them, with what it names in any order."""
    parts = [WHOLE]
    for _ in range(draw(st.integers(1, 2))):
        last = parts[0]
        named: dict[str, Any] = {name: draw(subsets(getattr(last, name))) for name in ("methods", "seeds", "draws")}
        parts.insert(0, replace(last, **named, plan=replace(last.plan, rounds=draw(st.integers(1, last.plan.rounds)))))
    return parts


@how(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=beginnings())
def test_growth_in_every_direction_gives_the_run_of_all(parts: list[Settings], of_all: str, tmp_path: Path) -> None:
    out = tmp_path / "study"
    shutil.rmtree(out, ignore_errors=True)
    watch = Watch()
    for part in parts:
        found = run(part, out, watch)
    assert found == of_all
    assert len(watch.made) == len(set(watch.made))  # nothing was run twice
    assert len(watch.made) == 2 * 2 * 2 * 4


def test_the_extra_evaluation_of_a_round_that_was_the_last_leaves_no_trace(tmp_path: Path) -> None:
    """Of every method: neither its scores nor what serving and measuring noted or refused."""
    plan = Plan(rounds=1, evaluate_every=2, cohort=3, local=LOCAL, attack="backdoor(share=0.3)")
    labels = (*methods, "fedavg+finetune(lr=1e38,epochs=3)")  # whose tuned models are refused when they are measured
    settings = Settings(methods=labels, data=DATA, plan=plan)
    before = run(settings, tmp_path / "grown")
    assert set(Evidence.open(tmp_path / "grown").frame("clients")["round"]) == {0, 1}
    assert 1 in set(Evidence.open(tmp_path / "grown").frame("absences").query("ask == 'Train'")["round"])
    assert "backdoor_success" in set(Evidence.open(tmp_path / "grown").frame("notes").query("round == 1")["name"])
    whole = replace(settings, plan=replace(plan, rounds=2))
    assert before != run(whole, tmp_path / "grown") == run(whole, tmp_path / "whole")


def test_what_is_no_growth_is_refused_by_name_and_nothing_changes(tmp_path: Path) -> None:
    out = tmp_path / "study"
    small = replace(WHOLE, seeds=(0, 1), draws=(0,), methods=("fedavg",))
    before = run(small, out)
    plan = small.plan
    for other, told in (
        (replace(small, seeds=(1, 2)), "seeds, without 0"),
        (replace(small, methods=("fedprox",)), "methods, without fedavg"),
        (replace(small, plan=replace(plan, rounds=2)), "plan.rounds, fewer than 3"),
        (replace(small, seeds=(0, 1, 2), plan=replace(plan, local=Local(lr=0.2))), "plan.local.lr; plan.local.max_steps"),
        (replace(small, own_seeds=False), "own_seeds"),
    ):
        with pytest.raises(UserError, match=rf"holds another study \(it differs in {told}\): choose another out="):
            run(other, out)
    assert run(small, out) == before


def test_a_rate_that_falls_along_a_cosine_does_not_let_rounds_grow(tmp_path: Path) -> None:
    settings = Settings(methods=("fedavg",), data=DATA, plan=Plan(rounds=1, schedule="cosine", local=LOCAL))
    run(settings, tmp_path / "study")
    with pytest.raises(UserError, match="along a cosine every round's rate depends on their number"):
        run(replace(settings, plan=replace(settings.plan, rounds=2)), tmp_path / "study")
    run(replace(settings, seeds=(0, 1)), tmp_path / "study")


def test_other_data_do_not_join_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = tmp_path / "sites.csv"
    table.write_text(integrity.csv_of("abcdef"))
    settings = Settings(methods=("fedavg",), data=f"csv('{table}',label='label',client='client')", plan=Plan(rounds=1, local=LOCAL))
    run(settings, tmp_path / "study")
    table.write_text(integrity.csv_of("abcdeg"))
    with pytest.raises(UserError, match="are not those it was started with"):
        run(replace(settings, seeds=(0, 1)), tmp_path / "study")


def test_every_kill_while_growing_leaves_the_old_or_the_new_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(WHOLE, seeds=(0,), methods=("fedavg",), draws=(0,), plan=replace(WHOLE.plan, rounds=1))
    large = replace(small, draws=(0, 1), plan=replace(small.plan, rounds=2))
    run(small, tmp_path / "small")
    whole, steps = run(large, tmp_path / "large"), [0, -1]
    study = Study.prepare(large)

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            steps[0] += 1
            if steps[0] == steps[1]:
                raise KeyboardInterrupt
            return act(*given)

        return step

    def grow(out: Path, at: int) -> int:
        """Grow a copy and be killed at a step; how many there were."""
        shutil.copytree(tmp_path / "small", out)
        steps[:] = [0, at]
        with monkeypatch.context() as patched:
            for name in ("rename", "replace"):
                patched.setattr(Path, name, counted(getattr(Path, name)))
            study.run(out=out, resume=True, execution=LOOP)
        return steps[0]

    count = grow(tmp_path / "counted", -1)
    in_between = 0
    for at in range(1, count + 1):
        out = tmp_path / f"killed-{at}"
        with pytest.raises(KeyboardInterrupt):
            grow(out, at)
        in_between += (out / GROWTH_FOLDER).exists()
        study.run(out=out, resume=True, execution=LOOP)
        assert verify(out).whole
        assert digest(Evidence.open(out)) == whole
    assert in_between >= 5  # the new settings, data, two rosters and the head


def test_a_study_that_has_grown_mends_its_head(tmp_path: Path) -> None:
    out = tmp_path / "study"
    small = replace(WHOLE, seeds=(0,), methods=("fedavg",), draws=(0,))
    large = replace(small, seeds=(0, 1))
    run(small, out)
    before = run(large, out)
    (out / HEAD).unlink()
    assert not verify(out).whole
    assert run(large, out) == before
    (out / HEAD).unlink()
    (out / "settings.json").write_text((out / "settings.json").read_text().replace('"mclr"', '"mlp"'))
    with pytest.raises(UserError, match="is not whole"):
        Evidence.open(out)
    assert run(large, out) == before  # the command says what the last segment knows


def test_fast_routes_grow_to_the_run_of_all(tmp_path: Path) -> None:
    settings = Settings(methods=("fedavg",), data="digits/rotated(clients=8,groups=2)", plan=Plan(rounds=1, local=LOCAL))
    large = replace(settings, methods=("fedavg", "fedprox"), seeds=(0, 1), plan=replace(settings.plan, rounds=2))
    run(settings, tmp_path / "grown", execution=Execution())
    assert run(large, tmp_path / "grown", execution=Execution()) == run(large, tmp_path / "whole", execution=Execution())
    order = [(key, "ascending") for key in (*KEYS, "client")]
    grown, at_once = (Evidence.open(tmp_path / name).table("clients").sort_by(order) for name in ("grown", "whole"))
    assert grown["answers"].equals(at_once["answers"])  # of the last round only


def test_a_study_with_a_loss_of_its_own_does_not_go_on_with_another(tmp_path: Path) -> None:
    def half(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

    said = {"data": "synthetic(0,0,clients=4)", "rounds": 1, "out": tmp_path / "own", "execution": Execution(engine="loop")}
    ct.study("fedavg", loss=half, **said)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"started with the loss 'half', not 'cross_entropy': resume in Python"):
        resume_study(tmp_path / "own", more=Extension(rounds=2))
    grown = ct.study("fedavg", loss=half, resume=True, **said | {"rounds": 2})  # type: ignore[arg-type]
    whole = ct.study("fedavg", loss=half, **said | {"rounds": 2, "out": None})  # type: ignore[arg-type]
    assert digest(grown.evidence) == digest(whole.evidence)
