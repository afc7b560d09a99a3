"""What a reader is told beside the scores."""

import shlex
from pathlib import Path

import pytest

import coterie as ct
from analysis.made_records import AVG, GROUP, by_hand, flat
from cli.test_commands import coterie
from coterie.analysis.caveats import collect_remarks, suggest_more_runs
from coterie.analysis.comparison import open_comparison
from coterie.analysis.findings import compute_findings


@pytest.mark.parametrize(
    ("method", "lr", "told"),
    [
        ("fesem(groups=2)", 3.0, "takes 60% of the way back"),  # 2 * 0.1 * 3
        ("fesem(groups=2)+rate(lr=3)", 0.1, "takes 60% of the way back"),
        ("fedprox(mu=1)", 0.5, "a weight of at most 0.2"),
        ("fesem(groups=2)", 0.1, None),
        ("fedavg", 3.0, None),
        ("moon(mu=5)", 1.0, None),  # a contrast, not a pull
    ],
)
def test_a_proximal_term_that_undoes_training_is_named(method: str, lr: float, told: str | None) -> None:
    result = ct.study(method, data="synthetic(0,0,clients=4)", rounds=1, max_steps=1, lr=lr)
    found = [remark for remark in collect_remarks(result.evidence) if "proximal" in remark]
    assert bool(found) == (told is not None)
    if told is not None:
        assert told in found[0]


def test_tune_is_an_argument(tmp_path: object) -> None:
    settings = {
        "data": "synthetic(0,0,clients=4)",
        "rounds": 1,
        "max_steps": 1,
        "draws": 2,
        "seeds": [0],
        "controls": False,
        "extensions": 0,
    }
    found = ct.compare("fedprox(mu=1)", tune=(0.01, 0.1), tuning_seeds=1, out=f"{tmp_path}/tuned", **settings)  # type: ignore[arg-type]
    assert all("+rate(lr=" in label for label in found.federations[0].methods)


DATA = "digits/iid(clients=4)"


@pytest.mark.parametrize(
    ("design", "asked"), [({"seeds": [0, 3]}, "--seeds 0,3,4,5,6,7,8,9,10,11"), ({"draws": 2, "seeds": [0]}, "--draws 10")]
)
def test_the_command_that_is_told_does_it(
    design: dict[str, object], asked: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a folder"
    found = ct.compare(["fedsim(clusters=2)"], data=DATA, rounds=1, controls=False, out=out, **design)  # type: ignore[arg-type]
    (sentence,) = suggest_more_runs(found.federations[0])
    assert found.verdicts()[DATA][-1] == sentence
    command = shlex.split(sentence.partition(": ")[2])
    assert (command[:2], " ".join(command[3:])) == (["coterie", "resume"], asked)
    code, _, err = coterie(capfd, monkeypatch, *command[1:])
    assert code == 0, err
    grown = open_comparison(out).federations[0]
    assert grown.repetitions.runs == 10
    assert suggest_more_runs(grown) == []


def test_a_study_is_grown_by_its_own_folder(tmp_path: Path) -> None:
    ct.study(["fedavg", "fedsim(clusters=2)"], data=DATA, rounds=1, seeds=range(2), out=tmp_path / "study")
    (sentence,) = suggest_more_runs(open_comparison(tmp_path / "study").federations[0])
    assert sentence == f"To run 10 seeds: coterie resume {tmp_path / 'study'} --seeds 0-9"


def test_no_command_where_none_can_do_it(tmp_path: Path) -> None:
    assert suggest_more_runs(compute_findings(by_hand({AVG: flat(50, 2), GROUP: flat(58, 2)}))) == []  # nothing is on disk
    mine = ct.load(DATA).replace(name="mine")
    found = ct.compare(["fedsim(clusters=2)"], data=mine, rounds=1, seeds=[0], controls=False, out=tmp_path / "mine")
    assert suggest_more_runs(found.federations[0]) == []  # an object
