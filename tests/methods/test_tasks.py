"""Methods see vectors and losses: what they promise holds whatever is predicted."""

import json

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.tasks import Task, TaskName
from coterie.data.catalogue import load
from coterie.methods.catalogue import build, methods, wrappers
from coterie.methods.group_number import choose_fewest_groups
from coterie.run.study import study
from coterie.testing import worlds
from coterie.testing.contracts import list_models
from coterie.testing.play import AlteredEngine, drop_replies, play, reverse_clients

TASKS: tuple[TaskName, ...] = ("regression", "multilabel", "survival")
OTHERWISE = {"fedex": "fedex(groups=2,combiner=mean)", "local": "local(until=validation)", "private": "private(layers=bias)"}
CLASSES_ONLY = {"fedrc": "use fedem", "flux": "use labels=false", "feroma": "use labels=false"}  # and what they say
METHODS = [OTHERWISE.get(name, name) for name in methods if name not in CLASSES_ONLY]
METHODS += ["flux(warmup=0,labels=false)", "feroma(warmup=0,labels=false)"]
EVERYTHING = [*METHODS, *(f"fedavg+{OTHERWISE.get(name, name)}" for name in wrappers)]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", EVERYTHING)
def test_every_method_trains_on_every_task(spec: str, task: TaskName) -> None:
    """Two rounds change finite models, whatever the order of arrival; and who does not answer is as if not picked."""
    world = worlds.make_task_world(task)
    history = play(build(spec), world=world, rounds=2)
    assert history.data[2] != history.data[0]
    assert all(np.isfinite(array).all() for array in list_models(history.states[-1]))
    assert play(build(spec), world=world, rounds=2, engine=AlteredEngine(reverse_clients, world)).data == history.data
    gone = np.array([4])
    silent = play(build(spec), world=world, rounds=1, engine=AlteredEngine(drop_replies(gone, (1,)), world))
    assert silent.data == play(build(spec), world=world, rounds=1, missing=(gone, (1,))).data


@pytest.mark.parametrize("task", TASKS)
def test_identities_hold_for_every_task(task: TaskName) -> None:
    world = worlds.make_task_world(task)
    avg = play(build("fedavg"), world=world, rounds=2)
    assert play(build("fedsim(clusters=1)"), world=world, rounds=2).states[-1].models.tobytes() == avg.states[-1].models.tobytes()  # type: ignore[attr-defined]
    assert play(build("fedprox(mu=0)"), world=world, rounds=2).data == avg.data


def test_what_follows_confidence_in_classes_says_so() -> None:
    with pytest.raises(UserError, match=r"FedEx's combiner 'online' goes by classes, and this is a regression: use combiner=mean or own\."):
        play(build("fedex"), world=worlds.make_task_world("regression"))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("spec", "advice"), CLASSES_ONLY.items())
def test_what_needs_classes_says_so_before_anything_is_trained(spec: str, advice: str, task: TaskName) -> None:
    world = worlds.make_task_world(task)
    engine = AlteredEngine(reverse_clients, world)
    with pytest.raises(UserError, match=f"goes by classes, and this is a {task}.*{advice}"):
        play(build(spec), world=world, engine=engine)
    assert engine.asked == []


@pytest.mark.parametrize("task", TASKS)
def test_groups_of_numbers_and_of_labels_are_found(task: str) -> None:
    found = study(
        ["fedavg", "ifca(groups=2)", "fedgroup(groups=2)"],
        data=f"linear({task},clients=8,samples=40,noise=0.1)",
        rounds=6,
        lr=0.3,
        epochs=3,
    )
    table = found.table()
    final = table["final"].to_dict()
    assert table["ari"].to_dict()["fedgroup(groups=2)"] == 1.0
    assert final["fedgroup(groups=2)"] > final["fedavg"] + (0.05 if task == "survival" else 0.1)
    own = {"regression": ("r2", "rmse"), "multilabel": ("labels", "f1"), "survival": ("ipa", "concordance")}[task]
    assert (found.metric.name, [name for name in ("rmse", "f1", "concordance") if name in found.rounds]) == (own[0], [own[1]])


def test_the_number_of_groups_needs_no_classes() -> None:
    made = load("linear(clients=24,groups=2,samples=200,noise=0.1)", 2)
    found = study("fedgroup(groups=auto,choice=structure)", data=made, rounds=1)
    choice = found.evidence.frame("notes").query("name == 'choice'")["value"].iloc[0]
    assert json.loads(choice)["k"] == 2
    history = play(build("fesem(groups=auto,choice=trial,most=2)"), world=worlds.make_task_world("regression"), rounds=1)  # by validated R2
    assert all(np.isfinite(array).all() for array in list_models(history.states[-1]))


def test_the_error_of_a_validated_r2_by_hand() -> None:
    """R2 of 0.5 with 100 samples has an error of 2 sqrt(.5) (.5) / 10 = 0.0707: 0.44 is within it, 0.42 is not; a share's is 0.05."""
    regression = Task("regression")
    assert choose_fewest_groups(np.array([0.44, 0.5]), 100, regression) == 1
    assert choose_fewest_groups(np.array([0.42, 0.5]), 100, regression) == 2
    assert choose_fewest_groups(np.array([0.44, 0.5]), 100) == 2
    assert choose_fewest_groups(np.array([-7.0, -0.5]), 100, regression) == 2  # worse than the mean, and still the better
