"""Progress bars: the time left in a terminal of 80 columns, and plain lines elsewhere."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from coterie._util.progress import listen, track
from coterie.run import callbacks
from coterie.run.callbacks import ProgressBar, StepsBar, TimeLeft


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
            clock["seconds"] += 40
            bar.advance(label, seed=0, round_=round_, steps=steps, score=0.5)
        bar.on_end()
    lines = said.getvalue().splitlines()
    speeds = [line.split(", ")[-2] for line in lines]
    assert speeds == ["100 steps/s", "100 steps/s", "12 steps/s", "12 steps/s"]  # 4000 or 500 steps in 40 seconds each
    assert "fedavg 50.0%" in lines[1]
    assert "fedavg" not in lines[3]
    assert lines[3].endswith("about 80 s left")
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


@pytest.mark.parametrize(("stderr", "times"), [(False, [40.0, 80.0, 120.0]), (True, [])])
def test_without_a_terminal_there_is_a_line_every_thirty_seconds_and_none_beside_json(
    stderr: bool, times: list[float], clock: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 10 s: the first that is more than 30 s after the last line prints the next."""
    printed: list[float] = []
    with StepsBar(Console(stderr=stderr)):
        for step in track(range(13), "hashing"):
            if capsys.readouterr() != ("", ""):
                printed.append(10.0 * step)
            clock["seconds"] += 10
    assert printed == times


def test_a_line_of_steps_has_their_number_and_the_time_left(clock: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    with StepsBar(Console(width=200)):
        for _ in track(range(10), "hashing"):
            clock["seconds"] += 5
    assert capsys.readouterr().out == "hashing: 7 of 10, about 15 s left\n"


def test_a_terminal_of_eighty_columns_shows_the_time_left_and_cuts_the_scores(clock: dict[str, float]) -> None:
    shown = io.StringIO()
    bar = ProgressBar(Console(file=shown, width=80, force_terminal=True))
    bar.begin(total_rounds=100, done_rounds=0)
    for round_ in (1, 2, 3):
        clock["seconds"] += 2
        for number in range(6):
            bar.advance(f"a.long.name.of:Method(setting={number})", seed=0, round_=round_, steps=10, score=0.5)
    assert bar.bar is not None
    bar.bar.refresh()
    last = Text.from_ansi(shown.getvalue()).plain.rstrip().splitlines()[-1]
    assert len(last) <= 80
    assert "about 29 s left" in last  # 12 rounds in 4 seconds, and 87 left at the last mark
    assert last.endswith("…")
    bar.on_end()


def test_whoever_listens_hears_every_step_and_nobody_else_does() -> None:
    heard: list[tuple[int, int, str]] = []
    assert list(track("ab", "reading")) == ["a", "b"]
    with listen(lambda *step: heard.append(step)):
        assert list(track("ab", "reading")) == ["a", "b"]
    assert list(track("ab", "reading")) == ["a", "b"]
    assert heard == [(0, 2, "reading"), (1, 2, "reading"), (2, 2, "reading")]
