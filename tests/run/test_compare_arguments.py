"""What a comparison takes: objects as models, one method, a study file, short names; and what it does where nothing comes of it."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.app import app
from coterie.core.specs import UntrustedCodeError
from coterie.evidence.reader import Evidence
from coterie.evidence.verify import digest
from coterie.testing.worlds import make_federation
from run.run_own_models import Plain

FEW: dict[str, Any] = {"draws": 1, "seeds": [0], "controls": False}
FILE = """
methods = ["fedavg", "fedprox(mu=1)"]
data = "synthetic(0,0,clients=5)"
model = "mlp(4)"
rounds = 3
data_seed = 2
evaluate_every = 3
[local]
lr = 0.2
epochs = 2
[execution]
memory = 1.0
"""


def study_file(tmp_path: Path, text: str = FILE) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("model", [Plain, Plain(), lambda: Plain()])
def test_a_model_may_be_an_object(model: Any, tmp_path: Path) -> None:
    comparison = ct.compare("fedavg", data=make_federation((4, 3, 5)), model=model, rounds=1, out=tmp_path / "c", **FEW)
    (findings,) = comparison.federations
    assert ":" in findings.records.settings.model
    alone = ct.study("fedavg", data=make_federation((4, 3, 5)), model=model, rounds=1)
    assert findings.methods["fedavg"].scores["final"].mean == alone.table()["final"].iloc[0]


def settings_in(folder: Path) -> Any:
    (path,) = [path.parent for path in folder.glob("*/settings.json")]
    return Evidence.open(path).settings


def test_a_study_file_says_what_is_compared_and_arguments_win(tmp_path: Path) -> None:
    path = study_file(tmp_path)
    ct.compare(str(path), out=tmp_path / "a", **FEW)
    found = settings_in(tmp_path / "a")
    assert found.methods == ("fedavg", "fedprox(mu=1)")
    assert (found.data, found.model, found.draws) == ("synthetic(0,0,clients=5)", "mlp(4)", (2,))
    assert (found.plan.rounds, found.plan.evaluate_every, found.plan.local.lr, found.plan.local.epochs) == (3, 3, 0.2, 2)
    ct.compare(str(path), out=tmp_path / "b", rounds=1, lr=0.1, data_seed=0, model="mclr", **FEW)
    other = settings_in(tmp_path / "b")
    assert (other.plan.rounds, other.plan.local.lr, other.plan.local.epochs, other.draws, other.model) == (1, 0.1, 2, (0,), "mclr")


def test_the_command_takes_the_same_file(tmp_path: Path) -> None:
    path = study_file(tmp_path, f'out = "{tmp_path / "c"}"\nseeds = "0"\n' + FILE.lstrip())
    ran = CliRunner().invoke(app, ["compare", str(path), "--no-controls", "--rounds", "2"])
    assert ran.exit_code == 0, ran.output
    found = settings_in(tmp_path / "c")
    assert (found.seeds, found.plan.rounds, found.plan.local.lr) == ((0,), 2, 0.2)
    ct.compare(str(path), out=tmp_path / "d", rounds=2, controls=False)
    one, two = (digest(Evidence.open(next(iter((tmp_path / name).glob("*/settings.json"))).parent)) for name in ("c", "d"))
    assert one == two


def test_seeds_that_a_file_does_not_name_are_those_of_comparisons(tmp_path: Path) -> None:
    ct.compare(str(study_file(tmp_path)), out=tmp_path / "c", rounds=1, draws=2, controls=False)
    assert settings_in(tmp_path / "c").seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FILE + '[grid]\n"local.lr" = [0.1, 0.2]\n', "a grid of 2 studies"),
        (FILE.replace("rounds", "round"), "unknown key 'round'"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ct.UserError, match=told):
        ct.compare(str(study_file(tmp_path, text)), out=tmp_path / "c")


def test_code_that_a_file_names_needs_trust(tmp_path: Path) -> None:
    path = study_file(tmp_path, FILE.replace("mlp(4)", "os:system"))
    with pytest.raises(UntrustedCodeError):
        ct.compare(str(path), out=tmp_path / "c")


def test_it_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ct.UserError, match="give out="):
        ct.compare("fedavg")
    with pytest.raises(ct.UserError, match="not both"):
        ct.compare([str(study_file(tmp_path)), "fedavg"], out=tmp_path / "c")


def test_where_every_run_failed_it_raises_with_what_there_is(tmp_path: Path) -> None:
    settings = {**FEW, "draws": 2}
    with pytest.raises(ct.NothingFinishedError, match=r"None of 2 runs reached the end: fedprox\(mu=1e30\), ") as caught:
        ct.compare("fedprox(mu=1e30)", data="synthetic(0,0,clients=4)", rounds=9, out=tmp_path / "c", **settings)
    assert caught.value.comparison is not None
    assert len(caught.value.comparison.federations) == 1
    assert len(caught.value.result.problems) == 2
    words = ["compare", "fedprox(mu=1e30)", "--data", "synthetic(0,0,clients=4)", "--rounds", "9"]
    ran = CliRunner().invoke(app, [*words, "--draws", "2", "--seeds", "0", "--no-controls", "--out", str(tmp_path / "d")])
    assert ran.exit_code == 1
    assert "None of 2 runs reached the end" in ran.output
