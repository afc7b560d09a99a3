"""`coterie verify`, what other commands say of a study that is not whole, and processes that are killed or meet in one folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import integrity
from cli.test_bundle_commands import Commands
from coterie.cli import main
from coterie.evidence import Evidence
from coterie.evidence.verify import verify
from integrity import killed_at

RUN = ("run", "fedavg", "local", "--data", "synthetic(1,1,clients=6)", "--rounds", "4", "--engine", "loop", "--checkpoint-every", "1")


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capfd, monkeypatch)


def test_verify_says_what_is_damaged_and_what_is_good(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = tmp_path / "study"

    def said(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coterie", *words])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    assert said(*RUN, "--out", str(study))[0] == 0
    code, stdout, stderr = said("verify", str(study))
    assert (code, stderr) == (0, "")
    assert "is intact: 4 segments with 10 rounds of lanes." in stdout
    before = said("digest", str(study))
    assert said("digest", "--counts", str(study))[1] != before[1]
    integrity.rewrite_table(study, "clients", 1, integrity.double_hits)
    code, stdout, stderr = said("verify", str(study), "--json")
    told = json.loads(stdout)
    assert (code, told["whole"]) == (1, False)
    (one,) = told["studies"]
    assert one["good"] == {"segments": ["000001", "000003", "000004"], "rounds": 8}
    assert one["damaged"] == [f"{study}/segments/000002 is damaged (clients.parquet is not as it was written)"]
    for name in ("show", "report", "digest"):
        code, _, stderr = said(name, str(study))
        assert code == 2
        assert stderr.startswith(f"coterie: {study} is not whole: {study}/segments/000002 is damaged")
    code, stdout, stderr = said(*RUN, "--out", str(study), "--resume")
    assert code == 0, stderr
    assert "000002 is damaged (clients.parquet is not as it was written): its rounds are run again." in stdout
    assert said("digest", str(study)) == before
    assert "Moved aside by earlier runs: segments-000001, segments-000002" in said("verify", str(study))[1]
    assert said("verify", str(study / "segments"))[0] == 2


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    """Both begin at once; one is refused in a sentence, and the other is as if it had been alone."""
    out = tmp_path / "study"
    words = [sys.executable, "-c", "from coterie.cli import main; main()", *RUN, "--rounds", "20", "--out", str(out), "--resume"]
    both = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    codes = sorted(code for _, code in ends)
    assert codes in ([0, 2], [0, 0])  # one may be over before the other begins
    for said, code in ends:
        assert code == 0 or f"{out} is being written to by process" in said
    found = Evidence.open(out).frame("rounds")
    assert len(found) == 2 * 21
    assert not found.duplicated(["method", "round"]).any()


def test_a_command_killed_while_it_makes_its_folder_can_be_given_again(coterie: Commands, tmp_path: Path) -> None:
    out = tmp_path / "study"
    assert killed_at(14, out, *RUN, "--out", str(out))
    assert not (out / "settings.json").exists()
    coterie(*RUN, "--out", out)
    assert verify(out).whole


def test_a_comparison_killed_while_it_makes_its_folder_can_be_given_again(coterie: Commands, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    words = ("compare", "fedavg", "--no-controls", "--data", "synthetic(1,1,clients=6)", "--rounds", "1", "--seeds", "0", "--out", str(out))
    assert killed_at(4, out, *words)
    assert not (out / "compare.json").exists()
    coterie(*words)
    assert all(verify(path.parent).whole for path in out.glob("*/settings.json"))
