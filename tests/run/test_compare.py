"""`compare`: controls, tuning, budgets, resuming; the real thing on embedded data."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie._util.errors import DesignWarning, UserError
from coterie.analysis.comparison import open_comparison
from coterie.cli import main
from coterie.cli.console import PlainConsole
from coterie.cli.tables import print_comparison
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence import Evidence, digest
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.run.compare import add_controls, compare
from coterie.run.comparison_request import ComparisonRequest
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study
from coterie.run.tuning import add_validation, extend_rate, set_rate
from coterie.run.waves import TimeBudget

DATA = "digits/rotated(clients=8,groups=2)"
PLAN = Plan(rounds=2, local=Local(lr=0.1, batch_size=40))
LOOP = Execution(engine="loop")


def labels(methods: list[str], known: bool) -> list[str]:
    return [label for label, _ in add_controls([(name, build(name)) for name in methods], known, 5, sizes_differ=False)]


def test_controls_are_added_once() -> None:
    baselines = ["fedavg", "fedavg(weighting=uniform)", "local", "fedavg+finetune(epochs=5)"]
    assert labels(["fedprox"], True) == [*baselines, "fedprox"]
    assert labels(["fedsim( clusters=3 )"], False) == [*baselines, "fedsim( clusters=3 )", "fedsim(clusters=3,assign=random)"]
    own = ["fedavg( weighting=uniform )", "ifca+finetune", "ifca(assign=oracle)+finetune"]
    assert labels(own, True) == [
        *("fedavg", "fedavg( weighting=uniform )", "local", "fedavg+finetune(epochs=5)"),
        *("ifca+finetune", "ifca(assign=random)+finetune", "ifca(assign=oracle)+finetune"),
    ]


def test_where_clients_differ_in_size_random_groups_of_like_sizes_are_added() -> None:
    made = [label for label, _ in add_controls([("fedsim(clusters=3)", build("fedsim(clusters=3)"))], True, 5)]
    ways = [f"fedsim(clusters=3,assign={way})" for way in ("random", "matched", "oracle")]
    assert made[4:] == ["fedsim(clusters=3)", *ways]


def test_validation_parts_are_asked_for() -> None:
    assert add_validation("digits/rotated(clients=8)") == "digits/rotated(clients=8,validation=0.1)"
    assert add_validation("heart") == "heart(validation=0.1)"
    assert add_validation("digits/iid(10,0.1,0.2)") == "digits/iid(10,0.1,0.2)"
    assert add_validation("digits/iid(clients=8)/rotated") == "digits/iid(clients=8,validation=0.1)/rotated"
    assert add_validation("femnist") == "femnist/natural(validation=0.1)"
    with pytest.raises(UserError, match="cannot hold samples back"):
        add_validation("femnist/drift")
    with pytest.raises(UserError, match="validation=0"):
        add_validation("heart(validation=0)")


def test_a_rate_of_its_own_is_the_study_at_that_rate() -> None:
    label, method = set_rate(("fedavg", ct.FedAvg()), 0.1)
    assert build(label) == method
    own = ct.study(label, data=DATA, rounds=2, lr=0.7, execution=LOOP).rounds["accuracy"]
    assert own.tolist() == ct.study("fedavg", data=DATA, rounds=2, lr=0.1, execution=LOOP).rounds["accuracy"].tolist()
    with pytest.raises(UserError, match="lr=0"):
        build("fedavg+rate(lr=0)")


def test_an_optimiser_of_its_own_is_the_study_with_that_optimiser() -> None:
    plan = ct.Plan(rounds=2, local=ct.Local(lr=0.01, optimizer="adam"))
    sgd = ct.Plan(rounds=2, local=ct.Local(lr=0.01))
    own = ct.study(["fedavg", "fedavg+rate(optimizer=sgd)"], data=DATA, plan=plan, execution=LOOP).rounds
    theirs = ct.study("fedavg", data=DATA, plan=sgd, execution=LOOP).rounds["accuracy"].tolist()
    by_method = {name: rows["accuracy"].tolist() for name, rows in own.groupby("method", observed=True)}
    assert by_method["fedavg+rate(optimizer=sgd)"] == theirs
    assert by_method["fedavg"] != theirs


def test_a_comparison_on_two_federations(tmp_path: Path) -> None:
    comparison = compare(
        ["fedgroup(groups=2)"], data=[DATA, "heart"], out=tmp_path / "c", seeds=range(2), plan=PLAN, execution=LOOP, finetune=1
    )
    digits, heart = comparison.federations
    assert [digits.data, heart.data] == [DATA, "heart"]
    assert "fedgroup(groups=2,assign=oracle)" in digits.methods
    assert "fedgroup(groups=2,assign=oracle)" not in heart.methods
    assert comparison.ranking is not None
    assert comparison.ranking.federations == 2
    with pytest.raises(UserError, match="not empty"):
        compare(["fedavg"], data=DATA, out=tmp_path / "c")
    with pytest.raises(UserError, match=r"another comparison \(it differs in seeds of .*, without 1; seeds of 'heart', without 1\)"):
        compare(["fedgroup(groups=2)"], data=[DATA, "heart"], out=tmp_path / "c", seeds=(0,), plan=PLAN, finetune=1, resume=True)


def test_tuning_gives_every_method_the_same_grid_and_its_own_rate(tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    rates = (1e-6, 0.3)
    given: dict[str, Any] = {
        "data": DATA,
        "seeds": (0, 1),
        "plan": PLAN,
        "execution": LOOP,
        "rates": rates,
        "tuning_seeds": 1,
        "finetune": 1,
    }
    comparison = compare(["fedprox(mu=0.1)"], out=out, extensions=0, **given)
    (found,) = comparison.federations
    assert found.data == "digits/rotated(clients=8,groups=2,validation=0.1)"
    assert set(found.methods) == {f"{label}+rate(lr=0.3)" for label in labels(["fedprox(mu=0.1)"], True)} - {
        "fedavg+finetune(epochs=5)+rate(lr=0.3)"
    } | {"fedavg+finetune+rate(lr=0.3)"}
    assert found.roles.baseline == "fedavg+rate(lr=0.3)"
    (tuned,) = comparison.tuning.values()
    entry = tuned["fedprox(mu=0.1)"]
    assert entry["chosen"] == 0.3
    assert entry["at_edge"]
    assert entry["validation"][0] < entry["validation"][1]
    study = Evidence.open(next((out / "tuning").glob("*/settings.json")).parent)
    assert study.settings.seeds == (1_000_000_000,)  # none of the seeds compared, or that could be
    spent = study.frame("rounds").query("method in ['fedprox(mu=0.1)+rate(lr=1e-06)', 'fedprox(mu=0.1)+rate(lr=0.3)']")
    assert entry["passes"] == spent["passes"].sum() > 0


TUNED: dict[str, Any] = {
    **{"data": DATA, "seeds": (0,), "plan": PLAN, "execution": LOOP, "controls": False, "rates": (0.003, 0.01, 0.03), "tuning_seeds": 1}
}


def test_a_grid_is_widened_where_the_best_rate_is_its_edge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c"
    comparison = compare(["fedavg", "fedprox(mu=0.1)"], out=out, **TUNED)
    (tuned,) = comparison.tuning.values()
    assert tuned["fedavg"]["rates"] == [0.003, 0.01, 0.03, 0.1, 0.3]  # twice, and no further
    assert tuned["fedavg"]["chosen"] == 0.3
    assert tuned["fedavg"]["at_edge"]
    (found,) = comparison.federations
    assert comparison.at_edge(found) == {"fedavg+rate(lr=0.3)", "fedprox(mu=0.1)+rate(lr=0.3)"}
    told = "The best learning rate is still the lowest or highest that was tested for fedavg (0.3 of 0.003, 0.01, 0.03, 0.1, 0.3)"
    assert comparison.verdicts()[found.data][0].startswith(told)
    print_comparison(comparison, PlainConsole())
    assert "^ at the lowest or highest learning rate that was tested" in capsys.readouterr().out
    print_comparison(comparison, PlainConsole(), details=True)
    assert "^: at the lowest or highest learning rate that was evaluated." in " ".join(capsys.readouterr().out.split())
    assert json.loads((out / "compare.json").read_text())["extensions"] == 2
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    again = compare(["fedavg", "fedprox(mu=0.1)"], out=out, resume=True, **TUNED)  # nothing is run again
    assert again.tuning == comparison.tuning
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")} == before
    grown = compare(["fedavg", "fedprox(mu=0.1)", "fedprox(mu=1)"], out=out, resume=True, **TUNED)
    (more,) = grown.tuning.values()
    assert list(more["fedprox(mu=1)"]["rates"]) == tuned["fedavg"]["rates"]


def test_a_comparison_that_was_tuned_without_extensions_goes_on_without(tmp_path: Path) -> None:
    out = tmp_path / "c"
    compare(["fedavg"], out=out, extensions=0, **TUNED)
    (tuned,) = compare(["fedavg"], out=out, resume=True, **TUNED).tuning.values()
    assert tuned["fedavg"]["rates"] == [0.003, 0.01, 0.03]


def test_rates_at_which_training_diverged_are_not_chosen(tmp_path: Path) -> None:
    rates = (0.1, 0.3, 1e7, 1e8, 1e9)
    (tuned,) = compare(["fedavg"], out=tmp_path / "c", **{**TUNED, "rates": rates, "extensions": 0}).tuning.values()
    assert tuned["fedavg"]["validation"][2:] == [None, None, None]
    assert tuned["fedavg"]["chosen"] in (0.1, 0.3)


@pytest.mark.parametrize(
    ("rates", "up", "down"),
    [((0.003, 0.01, 0.03, 0.1, 0.3), 1.0, 0.001), ((0.1, 0.2, 0.4), 0.8, 0.05), ((0.3, 0.1), 0.9, 0.0333333), ((0.001, 0.1), 1.0, 0.0001)],
)
def test_a_grid_goes_on_in_its_own_steps(rates: tuple[float, ...], up: float, down: float) -> None:
    assert (extend_rate(rates, upwards=True), extend_rate(rates, upwards=False)) == (up, down)


@pytest.mark.parametrize(("draws", "test"), [(2, None), (5, "paired t"), (6, "signed-rank")])
def test_what_a_design_can_show_is_said_before_it_runs_and_recorded(draws: int, test: str | None, tmp_path: Path) -> None:
    class Told(ct.Callback):
        """What is told, and when."""

        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_notice(self, sentence: str) -> None:
            self.heard.append(sentence)

        def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
            self.heard.append("start")

    told, out = Told(), tmp_path / "c"
    options: dict[str, Any] = {"data": DATA, "plan": PLAN, "draws": draws, "seeds": (0,), "controls": False, "execution": LOOP}
    found = compare(["fedavg", "fedprox(mu=0.1)", "fedprox(mu=1)"], out=out, callbacks=[told], **options)
    if test == "signed-rank":
        assert told.heard == ["start"]
    else:
        assert told.heard[0].startswith(f"{draws} draws and 2 methods under test cannot reach significance at 5 %")
        assert told.heard[0].endswith("(--draws 7, in Python draws=7).")
        assert told.heard[1] == "start"
        with pytest.warns(DesignWarning, match=f"{draws} draws and 2 methods"):
            compare(["fedavg", "fedprox(mu=0.1)", "fedprox(mu=1)"], out=out, resume=True, **options)
    assert json.loads((out / "compare.json").read_text())["tests"] == [test] == [found.federations[0].test]
    assert set(found.table()["test"]) == {"", test or "none"}


class Clock(ct.Callback):
    """Time that passes by one second with each round of each lane."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        self.now += 1


SETTINGS = Settings(methods=("fedavg", "local"), data=DATA, seeds=(0, 1, 2, 3), plan=Plan(rounds=3, local=Local(lr=0.1, batch_size=40)))
SEED_BY_SEED = Execution(engine="loop", checkpoint_every=1, seeds_per_wave=1)


@pytest.mark.parametrize(
    ("seconds", "seeds", "last"),
    [
        (20.0, (0, 1), 3),  # a wave takes 2 lanes x 4 rounds = 8 s: two end at 16, a third would end at 24
        (5.0, (0,), 2),  # rounds 0 and 1 end at 4, round 2 at 6: there the budget is over
    ],
)
def test_a_budget_ends_with_complete_pairs_and_can_be_resumed(tmp_path: Path, seconds: float, seeds: tuple[int, ...], last: int) -> None:
    clock, out = Clock(), tmp_path / "study"
    Study.prepare(SETTINGS).run(out=out, execution=SEED_BY_SEED, callbacks=[clock], budget=TimeBudget(seconds, clock))
    found = open_comparison(out).federations[0]
    assert (found.seeds, found.scope.last) == (seeds, last)
    assert all(finding.scores["final"].values.shape == (len(seeds),) for finding in found.methods.values())
    Study.prepare(SETTINGS).run(out=out, resume=True)
    whole = Study.prepare(SETTINGS).run(execution=LOOP)
    assert digest(Evidence.open(out)) == digest(whole.evidence)


def test_budgets_are_shared_and_checked() -> None:
    clock = Clock()
    budget = TimeBudget(30, clock)
    first = budget.share(3)
    assert first.left == 10
    clock.now = 4  # the first part took 4: the others have 13 each
    assert budget.share(2).left == 13
    with pytest.raises(UserError, match="leaves no time"):
        TimeBudget(0)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(UserError, match="needs data"):
        compare(["fedavg"], data=(), out="never")
    with pytest.raises(UserError, match="finetune=0"):
        ComparisonRequest(methods=("fedavg",), data=(DATA,), designs=(), finetune=0)
    named = ComparisonRequest(methods=("fedavg",), data=("heart", "heart()", "digits/iid"), designs=())
    assert named.folders == ["heart", "heart-2", "digits-iid"]


def test_nothing_is_written_for_data_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hart"):
        compare(["fedavg"], data=[DATA, "hart"], out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


COMMAND = ["compare", "fedprox(mu=0.1)", "--data", DATA, "--rounds", "12", "--seeds", "0-1", "--engine", "loop", "--lr", "0.1"]
COMMAND += ["--checkpoint-every", "1", "--finetune", "1", "--batch", "40"]


def test_a_killed_comparison_resumes(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def coterie(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["coterie", *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capfd.readouterr().out

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    start = [sys.executable, "-c", "from coterie.cli import main; main()", *COMMAND, "--out", str(cut)]
    source = str(Path(ct.__file__).parents[1])
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": source})
    while process.poll() is None and len(list(cut.glob("*/segments/0*"))) < 2:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    answer = json.loads(coterie(*COMMAND, "--out", str(cut), "--resume", "--json").splitlines()[-1])
    text = coterie(*COMMAND, "--out", str(whole))
    folders = [next(folder.glob("*/settings.json")).parent for folder in (cut, whole)]
    assert len({digest(Evidence.open(folder)) for folder in folders}) == 1
    assert answer["folder"] == str(cut)
    assert [row["method"] for row in answer["table"]][-1] == "fedprox(mu=0.1)"
    assert "2 seeds and 1 method under test cannot reach significance at 5 %: 6 seeds can (--seeds 0-5" in " ".join(text.split())
    assert "2 seeds, to round 12" in " ".join(text.split())
