"""The site's part of a job: its trainer may die, and nothing is lost by it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.data.catalogue import load
from coterie.deploy.flare.jobs import BODY, KIT, CoterieExecutor
from coterie.deploy.messages import PROTOCOL, AskBatch, ReplyBatch, SiteCard, from_message, to_message
from coterie.deploy.site.process import SiteSettings
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World
from deploy.ordering import APPROVING_POLICY, make_hello, make_terms


def said(executor: CoterieExecutor, message: object) -> bytes:
    asked = Shareable()
    asked[BODY] = to_message(message)
    reply = executor.execute("coterie", asked, FLContext(), Signal())
    assert reply.get_return_code() == ReturnCode.OK
    found: bytes = reply[BODY]
    return found


def test_a_trainer_that_dies_is_replaced_and_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KIT, str(tmp_path))
    (tmp_path / "policy.toml").write_text(APPROVING_POLICY)
    SiteSettings(data="heart", clients=("va",), engine="loop", threads=1).write(tmp_path)
    executor, terms = CoterieExecutor(), make_terms()
    try:
        card = from_message(said(executor, make_hello(terms)), SiteCard)
        assert card.ids == ("va",)
        models, first = np.zeros((1, World.of(load("heart"), "mclr").model.layout.size), dtype=np.float32), np.zeros(1, dtype=np.int64)
        parcel = AskBatch(PROTOCOL, "r", "2", ("va",), (StampedAsk(Train(first, models, Local(), start=first), 0, 1),), terms.hash)
        before = from_message(said(executor, parcel), ReplyBatch)
        os.kill(executor.child.pid, signal.SIGKILL)
        after = from_message(said(executor, parcel), ReplyBatch)
        assert (before.answers[0].vectors == after.answers[0].vectors).all()
    finally:
        executor._end()


def test_the_job_process_does_not_load_what_trains() -> None:
    loaded = "import sys, coterie.deploy.flare.jobs; print([name for name in ('torch', 'pyarrow', 'pandas') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.strip() == "[]"
