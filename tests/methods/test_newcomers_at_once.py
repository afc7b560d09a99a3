"""Newcomers who train to be placed: how many are asked at once depends on the size of what they send."""

from collections.abc import Sequence
from typing import Any

import pytest

import coterie as ct
from coterie.core.asks import Train
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine

DATA, MODEL = "synthetic(0,0,clients=12)/labelswap(groups=2)", 610  # and the numbers of softmax regression on it


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each ask to train by itself, which is not of a round, went to."""
    found, run = list[int](), LoopEngine.run

    def counted(self: LoopEngine, asks: Sequence[StampedAsk]) -> list[Any]:
        found.extend(len(each.ask.clients) for each in asks if isinstance(each.ask, Train) and each.ask.purpose != "train")
        return run(self, asks)

    monkeypatch.setattr(LoopEngine, "run", counted)
    return found


@pytest.mark.parametrize("control", ["similar", "random", "matched", "oracle"])
@pytest.mark.parametrize("method", ["fedgroup(groups=2,alpha=2,", "rcc(groups=2,alpha=2,", "fesem(groups=2,warmup_by=cohort,"])
def test_large_models_of_newcomers_come_some_at_a_time(
    method: str, control: str, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,800 newcomers sent an LSTM of 21 MB each at once, for every lane: 128 GB were too few."""

    def run() -> ct.Result:
        trained.clear()
        return ct.study(f"{method}assign={control})", data=DATA, rounds=2, cohort=4, seeds=[0], execution=ct.Execution(engine="loop"))

    whole = run()
    assert max(trained) > 4
    monkeypatch.setattr("coterie.core.method.MAX_PLACED_NUMBERS", MODEL)  # a cohort is asked together whatever it sends
    pieces = run()
    assert max(trained) == 4
    assert whole.rounds["accuracy"].tolist() == pieces.rounds["accuracy"].tolist()
    assert whole.rounds["loss"].tolist() == pieces.rounds["loss"].tolist()
