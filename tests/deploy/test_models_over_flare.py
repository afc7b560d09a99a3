"""A model trained by real sites ends as in simulation. The drill does it with an MLP and a CNN on eight sites (`make drill`)."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings
from deploy.models_over_flare import MODELS, difference, digit_sites, digits
from deploy.running import Running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("models") / "a federation", digit_sites(2)) as made:  # a path with a space
        yield made


def test_an_mlp_ends_as_in_simulation(running: Running) -> None:
    # of FedSim's gradients 16 projections each, by the run's one key: the same clusters at the server
    assert difference(running, MODELS["mlp"], "mlp", "fedavg", "fedsim(clusters=2,sketch=16)") < 1e-5
    folder: Path = running.federation.folder
    held = [json.loads(line) for line in next(folder.rglob("site-0/**/audit.jsonl")).read_text().splitlines()]
    assert {"SketchedGradient", "Train"} <= {entry.get("ask") for entry in held}
    assert "Gradient" not in {entry.get("ask") for entry in held}


def test_a_slow_site_holds_nobody_up_and_counts_when_it_comes(running: Running) -> None:
    """One of two sites stands still for the first rounds, and the other goes on alone; then the other stands still, and the slow one's
    answer to an early question comes."""
    plan = Plan(rounds=8, buffer_size=1, evaluate_every=8, local=Local(epochs=1))
    steps = [(0, signal.SIGSTOP, "site-1"), (3, signal.SIGCONT, "site-1"), (3, signal.SIGSTOP, "site-0"), (6, signal.SIGCONT, "site-0")]
    signalled = []

    def disturb(lines: list[dict[str, Any]]) -> None:
        reached = max((line["round"] for line in lines if line["what"] == "round"), default=-1)
        while steps and steps[0][0] <= reached:
            _, number, site = steps.pop(0)
            signalled.append(len(running.signal(number, "trainer", site)))

    running.study(Settings(methods=("fedavg",), data=digits(2), plan=plan), "own-time", minimum=2, disturb=disturb)
    assert signalled == [1] * 4
    evidence = Evidence.open(running.study_folder("own-time"))
    notes = evidence.frame("notes").pivot_table(index="round", columns="name", values="value", aggfunc="first")
    came = {round_: dict(zip(json.loads(row["arrived"]), json.loads(row["staleness"]), strict=True)) for round_, row in notes.iterrows()}
    assert list(came) == list(range(1, 9))
    assert all(len(each) == 1 for each in came.values())  # each round goes on with one answer
    assert max(each.get(1, 0) for each in came.values()) >= 2
    assert not len(evidence.table("absences"))
    clients = evidence.frame("clients")
    assert sorted(clients[clients["round"] == 8]["client"]) == [0, 1]  # in the end everybody is waited for
    assert (evidence.frame("rounds")["clock"].diff()[1:] > 0).all()
