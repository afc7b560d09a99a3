"""`coterie export` and `coterie predict` as a site meets them."""

import csv
import json
import os
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.cli import main
from coterie.deploy.bundle import export
from coterie.deploy.bundle.files import read_bundle
from coterie.evidence.reader import Evidence

RAW = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal", "num")


class Commands:
    """Commands run in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capfd, self.monkeypatch = capfd, monkeypatch

    def __call__(self, *words: object) -> str:
        """What a command that succeeds prints."""
        code, stdout, stderr = self._run(words)
        assert code == 0, stderr
        return stdout

    def refused(self, *words: object) -> str:
        """The sentence with which a command refuses."""
        code, _, stderr = self._run(words)
        assert code == 2
        assert "Traceback" not in stderr
        assert stderr.startswith("coterie: ")
        assert len(stderr.strip().splitlines()) == 1
        return stderr

    def _run(self, words: tuple[object, ...]) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["coterie", *map(str, words)])
        self.monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self.capfd.readouterr()
        return code, out, err


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capfd, monkeypatch)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "heart"
    ct.study(["fedavg", "fedgroup(groups=2,pretrain=4)", "fedex"], data="heart", rounds=2, out=folder)
    return folder


def raw_csv(path: Path, hospital: str, rows: list[int] | None = None) -> Path:
    """Patients as the hospital's own file has them, with a line of names; the diagnosis as 0 or 1."""
    text = (files("coterie.data") / "heart_disease" / f"processed.{hospital}.data").read_text("ascii")
    lines = [line.split(",") for line in text.splitlines() if line]
    whole = [cells for cells in lines if "?" not in cells[:10] + cells[13:]]
    kept = whole if rows is None else [whole[i] for i in rows]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([RAW, *([*cells[:13], int(float(cells[13]) > 0)] for cells in kept)])
    return path


@pytest.mark.parametrize("method", ["fedavg", "fedgroup", "fedex"])
def test_raw_rows_of_a_hospital_are_answered_as_the_study_measured(coterie: Commands, study: Path, tmp_path: Path, method: str) -> None:
    federation = ct.load("heart")
    start = sum(len(federation.train[i]) + len(federation.test[i]) for i in range(3))
    data = raw_csv(tmp_path / "va.csv", "va", (federation.test[3] - start).tolist())
    printed = coterie("export", study, "--method", method, "--client", "va", "--out", tmp_path / "b")
    assert "The bundle of va" in printed
    answer = json.loads(coterie("predict", tmp_path / "b", "--data", data, "--label", "num", "--json").splitlines()[-1])
    frame = Evidence.open(study).frame("clients")
    own = frame[(frame["round"] == 2) & (frame["client"] == 3) & (frame["method"].astype(str).str.startswith(method))]
    assert answer["hits"] == own[["hits_0", "hits_1"]].to_numpy().sum()
    assert answer["rows"] == len(answer["predictions"]) == len(federation.test[3])
    assert answer["model"] == {"fedavg": "global", "fedgroup": answer["model"], "fedex": "group 0, group 1 combined"}[method]
    assert method != "fedgroup" or answer["model"].startswith("group ")


def test_predictions_are_shown_or_written(coterie: Commands, study: Path, tmp_path: Path) -> None:
    coterie("export", study, "--method", "fedgroup", "--client", "hungary", "--out", tmp_path / "b")
    data = raw_csv(tmp_path / "rows.csv", "hungarian")
    shown = coterie("predict", tmp_path / "b", "--data", data)
    assert "and 251 more" in shown
    assert "261 rows answered by group" in shown
    assert "right" not in shown
    told = coterie("predict", tmp_path / "b", "--data", data, "--label", "num", "--out", tmp_path / "p.csv")
    assert "of 261 right" in told
    with (tmp_path / "p.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 261
    assert lines[0].keys() == {"row", "class", "probability", "model"}
    assert {line["class"] for line in lines} <= {"absent", "present"}
    assert all(0.5 <= float(line["probability"]) <= 1 for line in lines)


def test_scaled_rows_need_no_scaling(coterie: Commands, study: Path, tmp_path: Path) -> None:
    federation = ct.load("heart")
    coterie("export", study, "--method", "fedavg", "--client", "va", "--out", tmp_path / "b")
    np.savez(tmp_path / "x.npz", x=federation.x[:7], y=federation.y[:7])
    answer = json.loads(coterie("predict", tmp_path / "b", "--data", tmp_path / "x.npz", "--scaled", "--json").splitlines()[-1])
    expected = read_bundle(tmp_path / "b").answer(federation.x[:7])
    assert [line["class"] for line in answer["predictions"]] == [federation.classes[c] for c in expected.classes]


def test_all_writes_a_folder_for_each_client(coterie: Commands, study: Path, tmp_path: Path) -> None:
    assert "4 bundles in" in coterie("export", study, "--method", "fedgroup", "--all", "--out", tmp_path / "all")
    assert sorted(os.listdir(tmp_path / "all")) == ["cleveland", "hungary", "switzerland", "va"]
    for name in os.listdir(tmp_path / "all"):
        bundle = read_bundle(tmp_path / "all" / name)
        assert list(bundle.clients) == list(bundle.scaling) == [name]
        assert len(bundle.models) == 1


def test_odd_client_names_make_safe_folders() -> None:
    from coterie.cli.export import make_folder_name

    assert make_folder_name("../a b/c") == "%2E.%2Fa b%2Fc"
    assert make_folder_name("f01_12") == "f01_12"


def test_bad_input_to_export_is_one_sentence(coterie: Commands, study: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "b"]
    assert "--client NAME, or --all" in coterie.refused("export", study, "--method", "fedavg", *out)
    assert "Unknown client 'vaa': did you mean 'va'" in coterie.refused("export", study, "--method", "fedavg", "--client", "vaa", *out)
    assert "name one with --method" in coterie.refused("export", study, "--client", "va", *out)
    assert "holds no study" in coterie.refused("export", tmp_path / "nowhere", "--client", "va", *out)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    assert "exists already" in coterie.refused("export", study, "--method", "fedavg", "--client", "va", *out)


def test_bad_input_to_predict_is_one_sentence(coterie: Commands, study: Path, tmp_path: Path) -> None:
    coterie("export", study, "--method", "fedgroup", "--client", "va", "--client", "cleveland", "--out", tmp_path / "b")
    data = raw_csv(tmp_path / "rows.csv", "va")
    assert "There is no file" in coterie.refused("predict", tmp_path / "b", "--data", tmp_path / "none.csv")
    assert "name one with --client" in coterie.refused("predict", study, "--data", data)
    assert "holds no bundle" in coterie.refused("predict", tmp_path, "--data", data)
    assert "Name the client of these rows" in coterie.refused("predict", tmp_path / "b", "--data", data)
    assert "client 'hungary'" in coterie.refused("predict", tmp_path / "b", "--data", data, "--client", "hungary")
    assert "has no label column" in coterie.refused("predict", tmp_path / "b", "--data", data, "--client", "va", "--label", "disease")
    (tmp_path / "short.csv").write_text("age,sex\n60,1\n")
    assert "lacks the column 'cp=2'" in coterie.refused("predict", tmp_path / "b", "--data", tmp_path / "short.csv", "--client", "va")
    out = tmp_path / "no" / "such" / "p.csv"
    assert "Cannot write to" in coterie.refused("predict", tmp_path / "b", "--data", data, "--client", "va", "--out", out)


def test_onnx_without_its_packages_is_one_sentence(coterie: Commands, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ONNX_PACKAGES", ("no_such_package",))
    words = ("export", study, "--method", "fedavg", "--client", "va", "--out", tmp_path / "b", "--onnx")
    assert "--onnx needs the package no_such_package: install it with pip install 'coterie[onnx]'" in coterie.refused(*words)
    assert not (tmp_path / "b").exists()


@pytest.mark.skipif(any(find_spec(name) is None for name in (*export.ONNX_PACKAGES, "onnxruntime")), reason="needs the extra onnx")
def test_onnx_answers_as_the_bundle(coterie: Commands, study: Path, tmp_path: Path) -> None:
    import onnxruntime

    coterie("export", study, "--method", "fedavg", "--client", "va", "--out", tmp_path / "b", "--onnx")
    x = ct.load("heart").x[:9]
    session = onnxruntime.InferenceSession(str(tmp_path / "b" / export.ONNX_FILE))
    assert session.run(None, {"x": x})[0] == pytest.approx(read_bundle(tmp_path / "b").answer(x).probabilities, abs=1e-5)
    assert "omit --onnx" in coterie.refused("export", study, "--method", "fedex", "--client", "va", "--out", tmp_path / "c", "--onnx")
