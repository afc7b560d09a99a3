"""What a progress bar says where there is no terminal, of several studies one after the other."""

import io
from typing import Any

import pytest
from rich.console import Console

from coterie.run import callbacks
from coterie.run.callbacks import ProgressBar, TimeLeft


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    now = {"seconds": 100.0}
    monkeypatch.setattr(callbacks, "monotonic", lambda: now["seconds"])
    return now


def test_a_second_study_tells_its_own_speed_and_scores(clock: dict[str, Any]) -> None:
    said = io.StringIO()
    bar = ProgressBar(Console(file=said, width=300))
    for label, steps in (("fedavg", 4000), ("fedsim", 500)):
        bar.begin(total_rounds=4, done_rounds=0)
        for round_ in (1, 2):
            clock["seconds"] += 20
            bar.advance(label, seed=0, round_=round_, steps=steps, score=0.5)
        bar.on_end()
    lines = said.getvalue().splitlines()
    speeds = [line.split(", ")[-2] for line in lines]
    assert speeds == ["200 steps/s", "200 steps/s", "25 steps/s", "25 steps/s"]  # 4000 or 500 steps in 20 seconds each
    assert "fedavg 50.0%" in lines[1]
    assert "fedavg" not in lines[3]
    assert lines[3].endswith("about 40 s left")
    assert "2 of 4 rounds" in lines[3]


@pytest.mark.parametrize("lanes", [1, 40])
def test_ten_seconds_in_the_time_left_is_right_within_a_factor_of_two(lanes: int) -> None:
    """Eight seconds of loading and compiling, then rounds of so many lanes at once, 47 s in all."""
    rounds, startup, whole = 100, 8.0, 47.0
    left, done = TimeLeft(rounds * lanes), 0
    for round_ in range(rounds):
        now = startup + (whole - startup) * round_ / (rounds - 1)
        for lane in range(lanes):
            done += 1
            left.note(done, now + 1e-4 * lane)
        if now >= 10:
            assert left.seconds is not None
            truth = whole - now
            assert truth / 2 - 1 <= left.seconds <= 2 * truth + 1


def test_a_pace_that_changes_is_followed() -> None:
    left = TimeLeft(1000)
    for second in range(60):
        left.note(second + 1, float(second))  # one round a second
    for second in range(60, 120):
        left.note(60 + 10 * (second - 59), float(second))  # then ten
    assert left.seconds == pytest.approx((1000 - 660) / 10, rel=0.2)
