"""Comparisons and reproductions on several workers: the digests of one process, of every study that they hold."""

from pathlib import Path

import pytest

import coterie as ct
from coterie.evidence.verify import compute_digests
from coterie.reproduce import read_reproduction
from coterie.reproduce.rejudge import reproduce
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.run.workers import scheduler
from run.executor_here import ExecutorHere

REPRODUCTION = Path(__file__).parent.parent / "reproduce" / "small.toml"


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> list[ExecutorHere]:
    """The executors that were hired, each of this process: what is sent, cut and put together is as on any other."""
    hired: list[ExecutorHere] = []

    def make(study: Study, size: int) -> ExecutorHere:
        hired.append(ExecutorHere(study, size))
        return hired[-1]

    monkeypatch.setattr(scheduler, "ProcessExecutor", make)
    return hired


def test_a_comparison(executors: list[ExecutorHere], tmp_path: Path) -> None:
    found = {}
    for name, execution in (("alone", Execution(threads=1)), ("spread", Execution(threads=1, workers=2))):
        settings = {"rounds": 1, "cohort": 3, "epochs": 1, "seeds": [0, 1], "draws": 1, "controls": False}
        data = ["digits/iid(clients=6)", "digits/rotated(clients=6,groups=2)"]
        compared = ct.compare(["fedsim(clusters=2)"], data=data, out=tmp_path / name, execution=execution, **settings)  # type: ignore[arg-type]
        found[name] = compute_digests(tmp_path / name), compared.federations[0].methods["fedsim(clusters=2)"].gap
    assert len(executors) == 2  # one for each federation
    assert all(executor.most == 2 for executor in executors)
    assert len(found["alone"][0]) == 2
    assert str(found["alone"]) == str(found["spread"])


def test_a_reproduction(executors: list[ExecutorHere], tmp_path: Path) -> None:
    study = read_reproduction(REPRODUCTION)
    for name, workers in (("alone", None), ("spread", 3)):
        reproduce(study, out=tmp_path / name, data_dir=tmp_path, rounds=1, seeds="0-1", only=["fixed", "redrawn"], workers=workers)
    digests = compute_digests(tmp_path / "alone")
    assert len(executors) == len(digests) >= 2  # a part with redrawn data is a study of its own
    assert compute_digests(tmp_path / "spread") == digests
