"""Study files: what they say, grids, and errors that name the key."""

from pathlib import Path

import pytest

from coterie._util.errors import UserError
from coterie.run.study_file import read_study_file

GOOD = """
methods = ["fedavg", "fedprox(mu=1)"]
data = "digits/iid(clients=4)"
seeds = "0-2"
rounds = 7
cohort = 3

[local]
epochs = 2
lr = 0.1
batch_size = 0

[execution]
engine = "loop"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_the_command_line_says(tmp_path: Path) -> None:
    (study,) = read_study_file(written(tmp_path, GOOD))
    assert study.settings.methods == ("fedavg", "fedprox(mu=1)")
    assert study.settings.seeds == (0, 1, 2)
    assert study.settings.plan.rounds == 7
    assert study.settings.plan.cohort == 3
    assert study.settings.plan.local.epochs == 2
    assert study.settings.plan.local.batch_size is None
    assert study.execution.engine == "loop"


def test_a_grid_is_a_study_for_each_point(tmp_path: Path) -> None:
    grid = '\n[grid]\n"local.lr" = [0.1, 0.01]\nmodel = ["mclr", "mlp(8)"]\n'
    studies = read_study_file(written(tmp_path, GOOD + grid))
    assert [(s.settings.plan.local.lr, s.settings.model) for s in studies] == [
        (0.1, "mclr"),
        (0.1, "mlp(8)"),
        (0.01, "mclr"),
        (0.01, "mlp(8)"),
    ]
    assert len({s.name for s in studies}) == 4
    assert all("/" not in s.name for s in studies)
    assert all(s.settings.plan.local.epochs == 2 for s in studies)  # the rest of the table stays


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("rounds = 7", "round = 7"), "unknown key 'round': did you mean 'rounds'"),
        (("lr = 0.1", "learning_rate = 0.1"), "unknown key 'local.learning_rate'"),
        (('data = "digits/iid(clients=4)"', ""), "lacks the key 'data'"),
        (("rounds = 7", 'rounds = "many"'), "cannot use rounds='many': give a whole number"),
        (("lr = 0.1", "lr = -0.1"), "lr=-0.1"),
        (("rounds = 7", "rounds = = 7"), "not valid TOML"),
        (('engine = "loop"', 'engine = "warp"'), "cannot use engine='warp': choose from auto, batched, loop"),
        (("[local]", '[grid]\n"local.rl" = [1.0]\n[local]'), "unknown key 'local.rl'"),
        (("[local]", "[grid]\nrounds = 3\n[local]"), "cannot use grid.rounds=3: give a list"),
    ],
)
def test_faults_name_the_key(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UserError, match="study") as caught:
        read_study_file(written(tmp_path, GOOD.replace(*change)))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no study file"):
        read_study_file(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="Cannot read the study file"):
        read_study_file(tmp_path / "binary.toml")
    with pytest.raises(UserError, match="Cannot read the study file"):
        read_study_file(tmp_path)
