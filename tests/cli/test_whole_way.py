"""The whole way as a new user goes it: from a file with words and gaps to predictions on new rows and a new client's place."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cli.test_commands import coterie
from coterie.data.catalogue import load
from coterie.deploy.bundle.files import read_bundle
from deploy.test_placement import people

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
    people(range(7, 8)).assign(job="pilot").to_csv("strange.csv", index=False)
    code, _, err = coterie(capfd, monkeypatch, "predict", "bundle", "--data", "strange.csv", "--label", "ill")
    assert code == 2
    assert "strange.csv has 'pilot' in row 0, which is no word of column 'job': " in err
    told = json.loads(run("place", str(study), "--method", METHOD, "--data", "new.csv", "--json").splitlines()[0])
    shown = run("show", str(study), "--groups")
    line = next(line for line in shown.splitlines() if f"{told['model']}:" in line)
    assert "s1, s3, s5" in line  # an odd one is placed with the odd


def houses(sites: range, rows: int = 40) -> pd.DataFrame:
    """Prices that follow the area upwards in odd sites and downwards in even ones; a column of words, and gaps."""
    frames = []
    for site in sites:
        rng = np.random.default_rng(site)
        area, age = rng.normal(100, 20, rows), rng.normal(size=rows)
        sign = 1 if site % 2 else -1
        kind = rng.choice(["flat", "house"], rows)
        price = 2e5 + sign * 1500 * (area - 100) + 4e3 * age + 2e3 * (kind == "house") + 1e3 * rng.normal(size=rows)
        frames.append(pd.DataFrame({"site": f"s{site}", "area": area, "age": age, "kind": kind, "price": price.round(2)}))
    made = pd.concat(frames, ignore_index=True)
    made.loc[1::17, "age"] = np.nan
    return made


def test_a_table_of_numbers_to_predict(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    houses(range(6)).to_csv("houses.csv", index=False)
    houses(range(7, 8)).to_csv("new.csv", index=False)
    spec = "csv(houses.csv,label=price,client=site,categories=onehot,impute=mean,scale=standard)"
    said: list[str] = []

    def run(*words: str) -> str:
        code, out, err = coterie(capfd, monkeypatch, *words)
        assert code == 0, err
        assert "Traceback" not in err
        said.append(out + err)
        return said[-1] if "--groups" in words or "--json" in words else " ".join(said[-1].split())  # whatever the terminal's width

    assert "price: a regression" in run("data", spec)
    assert "R2 in hundredths" in run("inspect", "--data", spec, "--references", "19", "--rounds", "2", "--randoms", "3")
    told = run("compare", METHOD, "--data", spec, "--seeds", "0-1", *LEARN, "--out", "compared")
    assert "mean R2 of rounds" in told
    run("report", "compared")
    (page,) = here.glob("compared/**/report.html")
    text = page.read_text()
    assert "R2 is 1 less the squared error" in text
    (study,) = [path.parent for path in here.glob("compared/*/settings.json")]
    run("export", str(study), "--method", METHOD, "--client", "s3", "--out", "bundle")
    told = run("predict", "bundle", "--data", "new.csv", "--label", "price", "--out", "predicted.csv")
    found, true = pd.read_csv("predicted.csv")["price"], pd.read_csv("new.csv")["price"]
    assert f"mean absolute error {(found - true).abs().mean():.4g}" in told
    assert 1 - ((found - true) ** 2).mean() / true.var(ddof=0) > 0.8  # in the units of prices
    told_place = json.loads(run("place", str(study), "--method", METHOD, "--data", "new.csv", "--json").splitlines()[0])
    assert told_place["low"] <= told_place["mae"] <= told_place["high"] < told_place["usual"]
    shown = run("show", str(study), "--groups")
    assert "s1, s3, s5" in next(line for line in shown.splitlines() if f"{told_place['model']}:" in line)
    assert "Accuracy" not in "".join(said) + text  # no sentence calls it so
    assert "accuracy" not in "".join(said)


def test_a_table_of_several_labels(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    made = houses(range(4), rows=30)
    made = made.assign(dear=(made["price"] > 2e5) * 1, large=(made["area"] > 100) * 1).drop(columns=["price", "age"])
    made.to_csv("marks.csv", index=False)
    spec = "csv(marks.csv,label=[dear,large],client=site,categories=onehot,scale=standard)"
    commands = (
        ("inspect", "--data", spec, "--references", "19", "--rounds", "1", "--randoms", "2"),
        ("compare", METHOD, "--data", spec, "--seeds", "0-1", *LEARN, "--metric", "f1", "--out", "compared"),
        ("report", "compared"),
        ("report", "compared", "--metric", "exact"),
    )
    for command in commands:
        code, out, err = coterie(capfd, monkeypatch, *command)
        assert code == 0, err
        if command[0] == "compare":
            assert "mean F1 of rounds" in " ".join(out.split())
    (study,) = [path.parent for path in here.glob("compared/*/settings.json")]
    words = ("export", str(study), "--method", METHOD, "--client", "s1", "--out", "bundle")
    assert coterie(capfd, monkeypatch, *words)[0] == 0
    words = ("predict", "bundle", "--data", "marks.csv", "--label", "dear,large", "--out", "predicted.csv")
    code, out, err = coterie(capfd, monkeypatch, *words)
    assert (code, "of the labels right" in out + err) == (0, True)
    assert set(pd.read_csv("predicted.csv")[["dear", "large"]].to_numpy().ravel()) <= {0, 1}
    code, out, err = coterie(capfd, monkeypatch, "place", str(study), "--method", METHOD, "--data", "marks.csv", "--client", "new")
    assert (code, "Expected label accuracy" in out) == (0, True), err


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
