"""Reports and reproductions write into their folder and nowhere else, whatever names and links somebody planted."""

from pathlib import Path

import pytest

import coterie as ct
from cli.test_bundle_commands import Commands

TABLE = (
    'title = "t"\npaper = "p"\nwhere = "w"\nasks = "a"\n'
    'deviations = ["d"]\n'
    'protocol = { section = "Table 1", split = "s", sizes = "s", rounds = "r", test_set = "t", optimiser = "o", metric = "m" }\n'
    '[study]\nmethods = ["fedavg", "local"]\ndata = "digits/iid(clients=4)"\nrounds = 1\n'
    '[[parts]]\nname = NAME\n[[claims]]\nsays = "s"\npart = NAME\none = "fedavg"\ntwo = "local"\n'
)


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Commands(capfd, monkeypatch)


@pytest.mark.parametrize("name", ["../../..", "/tmp/x", "..", ".hidden", "a/b", "", "x" * 300, "a\\u0000b"])
def test_a_part_s_name_is_no_way_out(name: str, coterie: Commands, tmp_path: Path) -> None:
    Path("table.toml").write_text(TABLE.replace("NAME", f'"{name}"'))
    assert "has a part that cannot be called" in coterie.refused("reproduce", "table.toml")
    assert not list(tmp_path.rglob("settings.json"))


def test_a_reproduction_does_not_follow_planted_links(coterie: Commands, tmp_path: Path) -> None:
    Path("table.toml").write_text(TABLE.replace("NAME", '"all"'))
    Path("reproduced").symlink_to(tmp_path / "elsewhere")
    assert "lies outside" in coterie.refused("reproduce", "table.toml")
    Path("reproduced").unlink()
    Path("reproduced/table").mkdir(parents=True)
    Path("reproduced/table/all").symlink_to(tmp_path / "elsewhere")
    assert "lies outside" in coterie.refused("reproduce", "table.toml")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_report_does_not_follow_planted_links(coterie: Commands, tmp_path: Path) -> None:
    study, elsewhere, victim = Path("study"), tmp_path / "elsewhere", tmp_path / "victim"
    ct.study(["fedavg", "local"], data="digits/iid(clients=4)", rounds=1, seeds=range(2), out=study)
    victim.write_text("precious")
    (study / "tables").symlink_to(elsewhere)
    assert "study/tables lies outside study" in coterie.refused("report", study)
    (study / "tables").unlink()
    (study / "figures").symlink_to(elsewhere)
    assert "study/figures lies outside study" in coterie.refused("report", study, "--figures", "svg")
    for name in ("report.html", ".report.html", "tables/methods.csv"):
        (study / name).unlink(missing_ok=True)
        (study / name).symlink_to(victim)
    coterie("report", study)
    assert victim.read_text() == "precious"
    assert not any(elsewhere.iterdir())
    assert not (study / "report.html").is_symlink()
