"""The commands as a user meets them: what they print, and how bad input is answered."""

import json
import sys
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.inspect import InspectPlan, inspect_data

QUICK = ["--data", "digits/rotated(clients=8,groups=4)", "--rounds", "2"]


def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Run a command in this process: its exit code and what it wrote."""
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_run_ends_with_a_table_and_one_json_object(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = str(tmp_path / "study")
    code, stdout, stderr = coterie(
        capfd, monkeypatch, "run", "fedavg", "fedprox( mu=0.1 )", *QUICK, "--seeds", "0-1", "--out", out, "--json"
    )
    assert code == 0, stderr
    answer = json.loads(stdout.splitlines()[-1])
    assert answer.keys() == {"study", "seconds", "setup_seconds", "client_steps", "methods", "problems"}
    assert answer["study"] == out
    assert list(answer["methods"]) == ["fedavg", "fedprox( mu=0.1 )"]  # as the user wrote it
    assert answer["methods"]["fedavg"].keys() == {"final", "last10", "mean", "seeds", "ari"}
    assert answer["methods"]["fedavg"]["seeds"] == 2
    assert 0 <= answer["methods"]["fedavg"]["final"] <= 1
    assert answer["methods"]["fedavg"]["ari"] is None
    assert answer["client_steps"] > 0
    assert answer["problems"] == []
    assert "fedprox" in stderr  # the table, beside the JSON

    code, shown, _ = coterie(capfd, monkeypatch, "show", out, "--json")
    assert code == 0
    assert json.loads(shown.splitlines()[-1])["methods"] == answer["methods"]
    code, hashed, _ = coterie(capfd, monkeypatch, "digest", out)
    assert code == 0
    assert len(hashed.strip()) == 64


def test_a_lane_that_did_not_reach_the_end_is_told_as_a_problem(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, stdout, stderr = coterie(
        capfd, monkeypatch, "run", "fedavg", "fedprox(mu=1e30)", *QUICK, "--seeds", "3", "--data-seed", "7", "--json"
    )
    assert code == 0
    answer = json.loads(stdout.splitlines()[-1])
    (problem,) = answer["problems"]
    assert {name: problem[name] for name in ("draw", "method", "seed", "status")} == {
        "draw": 7,
        "method": "fedprox(mu=1e30)",
        "seed": 3,
        "status": "diverged",
    }
    assert "no client sent a finite model" in problem["reason"]
    assert problem["round"] < 2
    assert answer["methods"]["fedprox(mu=1e30)"]["final"] is None
    assert answer["methods"]["fedprox(mu=1e30)"]["seeds"] == 0
    assert answer["methods"]["fedavg"]["seeds"] == 1
    assert "diverged" in stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "fedavgg"], "Unknown method 'fedavgg': did you mean 'fedavg'"),
        (["run", "fedavg+finetun"], "Unknown wrapper 'finetun': did you mean 'finetune'"),
        (["run", "fedprox(nu=1)"], "has no setting 'nu': did you mean 'mu'"),
        (["run", "fedprox(mu=big)"], "cannot use mu='big': give a number"),
        (["run", "fedavg(weighting=sizes)"], "cannot use weighting='sizes'"),
        (["run", "fedprox(mu=1"], "Cannot read"),
        (["run", "fedavg", "--data", "digit/rotated"], "digits"),
        (["run", "fedavg", "--data", "digits/rotatd"], "rotated"),
        (["run", "fedavg", "--data", "digits/rotated(client=4)"], "clients"),
        (["run", "fedavg", "--model", "mclrr"], "did you mean 'mclr'"),
        (["run", "fedavg", "--model", "no.such:factory"], "no.such"),
        (["run", "fedavg", *QUICK, "--cohort", "99"], "cohort is 99 clients but the federation has only 8"),
        (["run", "fedavg", *QUICK[:2], "--rounds", "0"], "rounds=0"),
        (["run", "fedavg", *QUICK, "--lr", "0"], "lr=0.0"),
        (["run", "fedavg", *QUICK, "--lr", "-1"], "lr=-1.0"),
        (["run", "fedavg", *QUICK, "--epochs", "0"], "epochs=0"),
        (["run", "fedavg", *QUICK, "--batch", "-2"], "batch_size=-2"),
        (["run", "fedavg", *QUICK, "--seeds", "4-1"], "run backwards"),
        (["run", "fedavg", *QUICK, "--dropout", "1.5"], "dropout=1.5"),
        (["run", "fedavg", *QUICK, "--resume"], "--resume needs --out"),
        (["run", "nothing.toml"], "There is no study file nothing.toml"),
        (["run", "fedavg", "study.toml"], "either methods or one study file"),
        (["show", "nowhere"], "nowhere holds no study"),
        (["digest", "nowhere"], "nowhere holds no study"),
        (["methods", "fedsimm"], "Unknown method 'fedsimm'"),
        (["data", "digits"], "digits/iid"),
        (["run", "fedavg", "--data", "mnist/iid", "--data-dir", "nowhere"], "mnist"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, stderr = coterie(capfd, monkeypatch, *words)
    assert code == 2
    assert sentence in stderr
    assert "Traceback" not in stderr
    assert stderr.startswith("coterie: ")
    assert len(stderr.strip().splitlines()) == 1


def test_an_unwritable_place_is_one_sentence(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, stderr = coterie(capfd, monkeypatch, "run", "fedavg", *QUICK, "--out", str(tmp_path / "file" / "study"))
    assert code == 2
    assert "Cannot write to" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["methods"], ["fedavg", "fedprox", "finetune"]),
        (["methods", "fedprox"], ["mu", "1.0", "weighting"]),
        (["data"], ["digits", "heart", "rotated"]),
        (["data", "heart"], ["clients", "CC BY 4.0"]),
        (["models"], ["mclr", "mlp", "cnn"]),
        (["--help"], ["run", "show", "digest"]),
    ],
)
def test_listings(words: list[str], expected: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, stdout, stderr = coterie(capfd, monkeypatch, *words)
    assert code == 0, stderr
    for word in expected:
        assert word in stdout


def test_inspect_by_sketches(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command says is what the library finds with so many projections, and another thing than with whole gradients."""
    words = ("inspect", "--data", "digits/rotated(clients=8,groups=2)", "--references", "19", "--no-pilot", "--no-labels", "--json")
    code, stdout, stderr = coterie(capfd, monkeypatch, *words, "--sketch", "8")
    assert code == 0, stderr
    plan = InspectPlan(labels=False, sketch=8, pilot=None, references=19)
    found = inspect_data("digits/rotated(clients=8,groups=2)", plan=plan).as_json()
    assert json.loads(stdout.splitlines()[-1]) == json.loads(json.dumps(found)) | {"recommended": None}
    whole = coterie(capfd, monkeypatch, *words)[1]
    assert json.loads(whole.splitlines()[-1]) != found
    code, _, stderr = coterie(capfd, monkeypatch, *words, "--sketch", "0")
    assert (code, "Traceback" in stderr) == (2, False)
    assert "sketch=0: give a whole number of 1 or more" in " ".join(stderr.split())


def test_plan_says_what_a_study_would_take_and_runs_none(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'methods = ["fedavg", "local"]\ndata = "digits/rotated(clients=8,groups=4)"\nrounds = 6\nseeds = "0-1"\ncohort = 4\n'
        f'out = "{tmp_path}/out"\n'
    )
    code, stdout, stderr = coterie(capfd, monkeypatch, "plan", str(file), "--evaluate-clients", "3", "--json")
    assert code == 0, stderr
    (study,) = json.loads(stdout.splitlines()[-1])["studies"]
    assert [each["method"] for each in study["methods"]] == ["fedavg", "local"]
    assert study["methods"][0]["cost"]["messages"] == 2 * 6 * 8  # two seeds, six rounds, four clients asked and four answers
    assert study["methods"][1]["cost"]["messages"] == 0
    assert (study["clients"], study["evaluated"], study["lanes"]) == (8, 3, 4)
    assert study["total"]["seconds"] == sum(each["seconds"] for each in study["methods"])
    assert "8 clients, 3 of them evaluated, 650 parameters, 6 rounds, 4 lanes" in " ".join(stderr.split())
    assert {kind: (route["route"], route["backend"]) for kind, route in study["routes"].items()} == {"mclr with sgd": ("fused", "numba")}
    assert "Route of mclr with sgd: fused: numba (row 4), since a whole local training is one compiled function." in stderr
    assert [line.split()[:2] for line in stderr.splitlines() if line.startswith(">")] == [[">", "4"]]
    assert not (tmp_path / "out").exists()

    monkeypatch.setattr("coterie.run.waves.get_host_memory", lambda: 1000)
    code, _, stderr = coterie(capfd, monkeypatch, "plan", str(file))
    assert code == 2
    assert "One seed of this study holds 41.6 kB" in stderr
    assert "Traceback" not in stderr


def test_asynchronous_rounds_tell_their_time_and_refuse_in_a_sentence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, slow = str(tmp_path / "study"), ["--speeds", "slowed(factor=4)", "--buffer-size", "3", "--concurrency", "6"]
    code, stdout, stderr = coterie(capfd, monkeypatch, "run", "fedavg", *QUICK, *slow, "--out", out)
    assert code == 0, stderr
    assert "Simulated time to" in stdout
    code, again, _ = coterie(capfd, monkeypatch, "show", out)
    assert code == 0
    assert "Simulated time to" in again
    code, _, stderr = coterie(capfd, monkeypatch, "run", "fedsim", *QUICK, *slow)
    assert code == 2
    assert stderr.startswith("coterie: The method 'fedsim' cannot be run with buffer_size=3: asynchronous rounds are for methods")
    code, _, stderr = coterie(capfd, monkeypatch, "run", "fedavg", *QUICK, "--speeds", "lognormal(sigma=-1)")
    assert code == 2
    assert "sigma=-1" in stderr
