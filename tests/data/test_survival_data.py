"""Survival times in files, frames and arrays: the grid comes from training samples alone, and what is wrong is named in one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.survival import compute_kaplan_meier, count_exits
from coterie.data.checks import check_data


def make_frame(rows: int = 40, **columns: Any) -> pd.DataFrame:
    days = np.arange(1, rows + 1) * 3.0
    made = {"site": ["a", "b"] * (rows // 2), "age": np.arange(rows) % 7, "days": days, "died": [1, 1, 1, 0] * (rows // 4)}
    return pd.DataFrame(made | columns)


def write_sites(folder: Path, frame: pd.DataFrame) -> str:
    for name, own in frame.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
    return str(folder)


def test_files_with_a_time_and_an_event(tmp_path: Path) -> None:
    made = ct.load(f"csv('{write_sites(tmp_path, make_frame())}',time=days,event=died,intervals=5)/natural(test=0.25)")
    assert (made.task.name, made.classes, made.ids) == ("survival", tuple(f"interval {j}" for j in range(1, 6)), ("a", "b"))
    raw = made.task.in_units(made.y)
    trained = np.sort(raw[made.train.indices][raw[made.train.indices, 1] > 0, 0])
    shares = [int(np.ceil(len(trained) * j / 5)) - 1 for j in range(1, 6)]
    np.testing.assert_allclose(made.task.grid, [0, *trained[shares]], rtol=1e-6)  # quantiles of the events that are trained on
    exits = count_exits(made.y[made.train.indices], 5)
    np.testing.assert_allclose(made.task.reference, compute_kaplan_meier(exits)[1:])
    assert sorted(np.round(raw[:, 0]).tolist()) == [3.0 * day for day in range(1, 41)]


def test_a_stated_grid_and_what_lies_beyond_it() -> None:
    made = ct.Federation.from_frame(make_frame(), client="site", time="days", event="died", grid=(30, 60))
    assert made.task.grid == (0.0, 30.0, 60.0)
    (beyond,) = [found for found in check_data(made) if found.kind == "beyond the grid"]
    assert "20 times lie beyond the end of the grid" in str(beyond)
    arrays = ct.Federation.from_arrays(
        make_frame()[["age"]].to_numpy(np.float32), make_frame()[["days", "died"]].to_numpy(), ["a", "b"] * 20, task="survival"
    )
    assert len(arrays.task.grid) == 11


def test_a_client_without_events_is_mentioned() -> None:
    frame = make_frame()
    frame.loc[frame["site"] == "b", "died"] = 0
    made = ct.Federation.from_frame(frame, client="site", time="days", event="died", intervals=3)
    assert any("1 of 2 clients (b) has no event." in str(found) for found in check_data(made))


@pytest.mark.parametrize(
    ("columns", "settings", "sentence"),
    [
        ({"days": [-1.0] * 40}, {}, r"row 0 has '-1.0' in the time 'days': times are numbers above 0\."),
        ({"days": [0.0] * 40}, {}, r"has '0.0' in the time 'days': times are numbers above 0\."),
        ({"days": ["soon"] * 40}, {}, r"has 'soon' in the time 'days': times are numbers above 0\."),
        ({"died": [2, 1] * 20}, {}, r"has '2' in the event 'died': write 1 where it was seen, else 0\."),
        ({"died": [None, 1] * 20}, {}, r"has no value in the event column 'died'\."),
        ({"died": [0] * 40}, {}, r"hold no event: all times are censored, and there is nothing to predict"),
        ({"died": [1, *[0] * 39]}, {"test": 0.0}, r"hold 1 events for 10 intervals: use intervals=1 or fewer, or state a grid\."),
        ({"days": [5.0, 7.0] * 20}, {}, r"of which many are at one time: use intervals=2 or fewer"),
        ({}, {"grid": (1,)}, r"hold no event before 1, the end of the grid: state a longer one\."),
        ({}, {"grid": (30, 20)}, r"should be the ends of intervals: numbers above 0, each above the one before\."),
        ({}, {"intervals": 0}, r"intervals=0 should lie between 1 and 1000\."),
        ({}, {"event": None}, r"time='days' needs event=COLUMN beside it\."),
        ({}, {"event": "dead"}, r"has no event column 'dead': did you mean 'died'"),
        ({}, {"label": "age"}, r"leave label= and task= out\."),
    ],
)
def test_one_sentence_for_each_fault(columns: dict[str, Any], settings: dict[str, Any], sentence: str) -> None:
    options: dict[str, Any] = {"time": "days", "event": "died", **settings}
    with pytest.raises(UserError, match=sentence) as caught:
        ct.Federation.from_frame(make_frame(**columns), client="site", **options)
    assert "\n" not in str(caught.value)
