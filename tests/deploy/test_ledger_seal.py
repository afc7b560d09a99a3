"""The ledger is sealed in the audit chain: one that is missing, older or changed answers nothing."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Gradient, Losses, Reply, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.core.vectors import Sketch
from coterie.deploy.messages import Denial
from coterie.deploy.site.audit import Audit, verify_audit
from coterie.deploy.site.ledger import SEAL, Book, Charge, Ledger
from coterie.deploy.site.policy import DpSgd, NoPrivacy, Policy
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.testing.worlds import make_federation, make_world

W = make_world()
MODEL = W.model.initial(0)(0)
TRAIN = Train(np.arange(6), MODEL, Local(batch_size=4))
DP = DpSgd(mechanism="dp-sgd", noise_multiplier=2.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=6.0)


def open_worker(folder: Path, w: Any = W, run: str = "one", **response: Any) -> SiteWorker:
    audit = Audit(folder / "audit.jsonl")
    policy = Policy(**{"minimum_samples": 1, **response})
    return SiteWorker(w, LoopEngine(w), policy, audit, Ledger(folder / "privacy.json", audit), run=run)


def ask(worker: SiteWorker, *asks: Any) -> list[Any]:
    return cast(list[Any], worker.answer([StampedAsk(each, 0, 1) for each in asks or (TRAIN,)]))


def test_a_ledger_that_is_missing_or_changed_answers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    worker = open_worker(tmp_path, privacy=DP)
    assert isinstance(ask(worker)[0], Reply)
    kept = path.read_text()
    path.unlink()
    (denied,) = ask(worker)  # the process that goes on
    assert "ledger" in denied.reason
    with pytest.raises(UserError, match=r"is missing\. Nothing is answered"):  # and the next one
        open_worker(tmp_path, privacy=DP)
    assert not path.exists()  # nor is one made in its place
    path.write_text(kept.replace('"steps": ', '"steps": 1'))
    with pytest.raises(UserError, match="it was changed, or is an older copy"):
        open_worker(tmp_path, privacy=DP)
    path.write_text(kept)
    assert isinstance(ask(open_worker(tmp_path, privacy=DP))[0], Reply)


def test_an_older_copy_is_no_refund(tmp_path: Path) -> None:
    copies = []
    for _ in range(3):
        assert isinstance(ask(open_worker(tmp_path, privacy=DP))[0], Reply)
        copies.append((tmp_path / "privacy.json").read_text())
    for older in copies[:-1]:
        (tmp_path / "privacy.json").write_text(older)
        with pytest.raises(UserError, match="older copy"):
            open_worker(tmp_path, privacy=DP)
    (tmp_path / "privacy.json").write_text(copies[-1])
    open_worker(tmp_path, privacy=DP)


def test_a_ledger_without_its_log_is_refused(tmp_path: Path) -> None:
    ask(open_worker(tmp_path))
    shutil.move(tmp_path / "audit.jsonl", tmp_path / "elsewhere.jsonl")
    with pytest.raises(UserError, match="is not known to the audit log"):
        open_worker(tmp_path)


def test_seals_are_in_the_chain(tmp_path: Path) -> None:
    worker = open_worker(tmp_path)
    ask(worker, TRAIN, TRAIN, TRAIN)
    assert verify_audit(tmp_path / "audit.jsonl").faults == ()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [SEAL in line for line in lines] == [True, False, False, False]  # once for a batch, before anything is sent
    assert lines[0]["event"] == "ledger sealed"


@pytest.mark.parametrize("sealed", [True, False])
def test_a_machine_that_stops_while_the_ledger_is_written_loses_nothing(
    sealed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the seal the old ledger holds; after it the new one does, though it has not got its name yet."""
    worker = open_worker(tmp_path)
    ask(worker)
    before = Ledger(tmp_path / "privacy.json").charges()["client-0"]

    def stopped(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path if sealed else Audit, "replace" if sealed else "append", stopped)
    with pytest.raises(KeyboardInterrupt):
        ask(worker)
    monkeypatch.undo()
    after = open_worker(tmp_path).ledger.charges()["client-0"]
    assert after == [replace(before[0], steps=2 if sealed else 1)]
    assert isinstance(ask(open_worker(tmp_path))[0], Reply)


def test_a_new_name_for_the_same_data_has_the_same_budget(tmp_path: Path) -> None:
    while isinstance(ask(worker := open_worker(tmp_path, privacy=DP))[0], Reply):
        spent = worker.ledger.spent(DP)
    renamed = make_world()
    renamed = replace(renamed, federation=renamed.federation.replace(ids=tuple(f"new-{i}" for i in range(6))))
    (denied,) = ask(open_worker(tmp_path, renamed, privacy=DP))
    assert denied.cause == "budget"
    other = replace(W, federation=make_federation((12, 8, 5, 7, 16, 2)).replace(x=W.federation.x + np.float32(1)))
    (still,) = ask(open_worker(tmp_path, other, privacy=DP))  # nor do other data under the same name
    assert still.cause == "budget"
    assert max(spent.values()) <= DP.epsilon_limit


CHARGE_OFTEN = """
import sys
from pathlib import Path
from coterie.deploy.site.ledger import Charge
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import NoPrivacy

folder = Path(sys.argv[1])
ledger = Ledger(folder / "privacy.json", Audit(folder / "audit.jsonl"))
for _ in range(20):
    ledger.charge({"a": Charge("exact", 0.0, 1.0, 1)}, NoPrivacy())
"""


def test_two_processes_count_together(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", CHARGE_OFTEN, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert Ledger(tmp_path / "privacy.json", Audit(tmp_path / "audit.jsonl")).charges()["a"] == [Charge("exact", 0.0, 1.0, 40)]
    assert verify_audit(tmp_path / "audit.jsonl").faults == ()


def test_a_charge_only_ever_adds(tmp_path: Path) -> None:
    book = Book()
    for steps in (0, -5):
        with pytest.raises(ValueError, match="a charge of"):
            book.charge({"a": Charge("dp-sgd", 1.0, 1.0, steps)}, DP)
    ledger = Ledger(tmp_path / "privacy.json")
    ledger.charge({"a": Charge("exact", 0.0, 1.0, 1)}, NoPrivacy())
    tree = json.loads((tmp_path / "privacy.json").read_text())
    for wrong in (-1, 2.5, True, None):
        tree["charges"]["a"][0]["steps"] = wrong
        (tmp_path / "privacy.json").write_text(json.dumps(tree))
        with pytest.raises(UserError, match="what was spent is unknown"):
            Ledger(tmp_path / "privacy.json")


def test_asks_and_models_of_a_run_and_of_all_runs_are_bounded(tmp_path: Path) -> None:
    models = np.stack([MODEL + np.float32(i) for i in range(8)])
    worker = open_worker(tmp_path, models_per_run=5, models_in_all=8)
    assert isinstance(ask(worker, Losses(np.arange(6), models[:5]))[0], Reply)
    assert isinstance(ask(worker, Losses(np.arange(6), models[:5]))[0], Reply)  # the same answer again tells nothing new
    (denied,) = ask(worker, Losses(np.arange(6), models[5:6]))
    assert "6 models in this run: the site's policy allows 5 ('models_per_run')" in denied.reason
    assert isinstance(ask(worker)[0], Reply)  # training goes on
    other = open_worker(tmp_path, run="two", models_per_run=5, models_in_all=8)
    assert isinstance(ask(other, Losses(np.arange(6), models[5:8]))[0], Reply)
    (denied,) = ask(other, Evaluate(Serving.one(np.arange(6), models[0])))
    assert "9 models in all runs on these data" in denied.reason
    few = open_worker(tmp_path / "few", asks_per_run=2)
    assert [isinstance(reply, Reply) for reply in ask(few, TRAIN, Gradient(np.arange(6), MODEL), TRAIN)] == [True, True, False]
    (denied,) = ask(few)
    assert "'asks_per_run'" in denied.reason
    assert isinstance(ask(open_worker(tmp_path / "few", run="another", asks_per_run=2))[0], Reply)


def test_what_sketches_have_shown_is_sealed_too(tmp_path: Path) -> None:
    sketched = Gradient(np.arange(6), MODEL, sketch=Sketch(5, 7))
    assert isinstance(ask(open_worker(tmp_path, asks=("SketchedGradient",)), sketched)[0], Reply)
    tree = json.loads((tmp_path / "privacy.json").read_text())
    assert tree["sketches"] == {"7": 5}
    (tmp_path / "privacy.json").write_text(json.dumps({**tree, "sketches": {}}))
    with pytest.raises(UserError, match="it was changed"):
        open_worker(tmp_path, asks=("SketchedGradient",))


def test_the_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    ask(open_worker(tmp_path))
    assert os.stat(tmp_path / "privacy.json").st_mode & 0o777 == 0o600
    assert isinstance(ask(open_worker(tmp_path))[0], Reply | Denial)
