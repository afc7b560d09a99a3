"""Studies of numbers, of labels and of survival times: grown, resumed, attacked, drifting, tuned, with a loss that is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.record_reader import read_records
from coterie.core.tasks import TaskName
from coterie.evidence import digest
from coterie.run.study import study

TASKS: tuple[TaskName, ...] = ("regression", "multilabel", "survival")


@pytest.mark.parametrize("task", TASKS)
def test_a_study_that_grows_has_the_digest_of_one_run_of_all(task: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": f"linear({task},clients=4,samples=20)", "evaluate_every": 2, "lr": 0.1}
    study("fedavg", rounds=1, seeds=[0], out=tmp_path / "grown", **options)
    grown = study(["fedavg", "local"], rounds=3, seeds=[0, 1], out=tmp_path / "grown", resume=True, **options)
    whole = study(["fedavg", "local"], rounds=3, seeds=[0, 1], **options)
    assert digest(grown.evidence) == digest(whole.evidence)
    assert grown.evidence.task == task
    one, two = (read_records(found.evidence) for found in (grown, whole))
    np.testing.assert_array_equal(one.accuracy, two.accuracy)
    assert one.answers is not None
    assert two.answers is not None
    assert one.answers[:, :, :, :4].tolist() == two.answers[:, :, :, :4].tolist()


def test_the_loss_can_be_said(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": "linear(clients=3,samples=20)", "rounds": 2, "lr": 0.1}
    plain, said = study("fedavg", **options), study("fedavg", loss="absolute", **options)
    own = study("fedavg", loss=lambda outputs, y: (outputs[:, 0] - y).abs(), **options)
    assert said.scores["final"].tolist() == pytest.approx(own.scores["final"].tolist(), abs=1e-6)
    assert said.scores["final"].tolist() != plain.scores["final"].tolist()
    with pytest.raises(UserError, match="loss=absolute is for a regression, and this is a classification"):
        study("fedavg", data="digits/iid(clients=3)", rounds=1, loss="absolute")
    with pytest.raises(UserError, match=r"The loss cannot take outputs of shape .* and targets of shape"):
        study("fedavg", loss=torch.nn.functional.cross_entropy, **options)
    with pytest.raises(UserError, match="The loss is given twice"):
        study("fedavg", plan=ct.Plan(loss="absolute"), loss=lambda outputs, y: (outputs[:, 0] - y).abs(), data=options["data"])


def test_hostile_clients_count_neither_in_errors_nor_in_the_variance() -> None:
    found = study("fedavg", data="linear(clients=5,samples=20)", rounds=1, seeds=[0], attack="labelflip(share=0.4)")
    records = read_records(found.evidence)
    assert records.malicious is not None
    honest = ~records.malicious[0]
    clients = found.clients.query("round == 1").sort_values("client")
    made = ct.load("linear(clients=5,samples=20)")
    true = np.concatenate([made.task.in_units(made.y[made.test[int(c)]]) for c in np.flatnonzero(honest)])
    expected = 1 - clients["squared_error"].to_numpy()[honest].sum() / ((true - true.mean()) ** 2).sum()
    assert records.accuracy[0, 0, -1] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(UserError, match=r"A backdoor aims at a class, and .* is a regression"):
        study("fedavg", data="linear(clients=5,samples=20)", rounds=1, attack="backdoor(share=0.4)")


@pytest.mark.parametrize("task", TASKS)
def test_worlds_that_drift_say_of_every_round_what_it_holds(task: str) -> None:
    spec = f"linear({task},clients=4,samples=20)/noise(groups=2,strength=1)"
    found, still = (study("fedavg", data=data, rounds=2) for data in (f"{spec}/drift(at=2,share=0.5)", spec))
    assert "samples" in found.evidence.columns("clients")
    assert "samples" not in still.evidence.columns("clients")
    drifting, plain = read_records(found.evidence), read_records(still.evidence)
    assert drifting.tested.tolist() == plain.tested.tolist()
    np.testing.assert_allclose(drifting.accuracy[..., :2], plain.accuracy[..., :2], atol=1e-6)  # targets stay: so does their variance
    assert drifting.accuracy[0, 0, 2] != plain.accuracy[0, 0, 2]


def test_rates_are_tuned_by_the_tasks_own_score(tmp_path: Path) -> None:
    found = ct.compare(
        ["fedprox"],
        data="linear(clients=4,samples=30,validation=0.2)",
        out=tmp_path / "c",
        rounds=2,
        seeds=range(2),
        controls=False,
        rates=(0.0001, 0.1),
    )
    assert all("0.1" in label for label in found.federations[0].records.settings.methods)


def test_combined_experts_on_the_servers_own_numbers() -> None:
    made = ct.load("linear(clients=6,samples=20)")
    found = study("fedex(groups=2,combiner=mean)", data=made.replace(central=(made.x[:9], made.y[:9])), rounds=2)
    models = set(found.evidence.frame("central").query("round == 2")["model"])
    assert "mean" in models
    assert not models & {"online", "confident"}  # which go by classes
