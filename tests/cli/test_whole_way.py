"""The whole way as a new user goes it: from a file with words and gaps to predictions on new rows and a new client's place."""

import json
from pathlib import Path

import pandas as pd
import pytest

from cli.test_commands import coterie
from coterie.data.catalogue import load
from coterie.deploy.bundle_files import read_bundle
from deploy.test_placing import people

SPEC = "csv(people.csv,label=ill,client=site,drop=id,categories=onehot,impute=mean,scale=standard)"
METHOD = "fedgroup(groups=2,pretrain=4)"
LEARN = ("--rounds", "3", "--lr", "0.2", "--epochs", "3")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_with_words_and_gaps(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    people(range(6)).to_csv("people.csv", index=False)
    people(range(7, 8)).to_csv("new.csv", index=False)

    def run(*words: str) -> str:
        code, out, err = coterie(capfd, monkeypatch, *words)
        assert code == 0, err
        assert "Traceback" not in err
        return out + err

    assert "6" in run("data", SPEC)
    assert "Would grouping help?" in run("inspect", "--data", SPEC, "--references", "19", "--rounds", "2", "--randoms", "3")
    run("compare", METHOD, "--data", SPEC, "--seeds", "0-1", *LEARN, "--out", "compared")
    run("report", "compared")
    assert list(here.glob("compared/**/report.html"))
    (study,) = [path.parent for path in here.glob("compared/*/settings.json")]
    run("export", str(study), "--method", METHOD, "--client", "s3", "--out", "bundle")
    run("predict", "bundle", "--data", "new.csv", "--label", "ill", "--out", "predicted.csv")
    assert len(pd.read_csv("predicted.csv")) == len(pd.read_csv("new.csv"))
    told = json.loads(run("place", str(study), "--method", METHOD, "--data", "new.csv", "--json").splitlines()[0])
    shown = run("show", str(study), "--groups")
    line = next(line for line in shown.splitlines() if f"{told['model']}:" in line)
    assert "s1, s3, s5" in line  # an odd one is placed with the odd


def test_a_table_of_texts(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    rows = [(f"r{i % 4}", f"{'good fine' if i % 3 else 'bad sad'} day {i}", "up" if i % 3 else "down") for i in range(48)]
    pd.DataFrame(rows, columns=["reader", "says", "mood"]).to_csv("texts.csv", index=False)
    spec = "csv(texts.csv,label=mood,client=reader,text=says,features=tokens,vocabulary=64,length=6)"
    words = (
        "run",
        "fedavg",
        "--data",
        spec,
        "--model",
        "rnn(8,vocabulary=64,width=8)",
        "--rounds",
        "2",
        "--optimizer",
        "adamw",
        "--out",
        "study",
    )
    commands = (
        words,
        ("report", "study"),
        ("export", "study", "--client", "r1", "--out", "bundle"),
        ("predict", "bundle", "--data", "texts.csv", "--label", "mood", "--out", "predicted.csv"),
        ("place", "study", "--data", "texts.csv", "--client", "new"),
    )
    for command in commands:
        code, out, err = coterie(capfd, monkeypatch, *command)
        assert code == 0, err
    assert "Expected accuracy" in out
    made = load(spec)
    bundle = read_bundle(here / "bundle")
    assert (bundle.predict(pd.read_csv("texts.csv")) == bundle.classes_[bundle.answer(made.x).classes]).all()
    assert pd.read_csv("predicted.csv")["class"].tolist() == bundle.predict(pd.read_csv("texts.csv")).tolist()
    code, _, err = coterie(capfd, monkeypatch, "predict", "bundle", "--data", "predicted.csv")
    assert (code, "has no text column 'says'" in err) == (2, True)
