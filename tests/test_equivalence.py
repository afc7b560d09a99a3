"""The comparison of two trees notices a changed number, and no changed name."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "equivalence.py"))


def columns(**changes: Any) -> Any:
    frame = {"method": ["fedavg", "local"], "round": [1, 1], "client": [0, 1], "loss": [0.5, 0.25], "why": ["", "NORM 2.5"]}
    return SCRIPT["read_frame"]([pd.DataFrame(frame | changes)])


def test_equal_tables_have_no_difference() -> None:
    assert SCRIPT["compare"](columns(), columns()) == ([], [])
    assert SCRIPT["compare"](columns(loss=[np.nan, 1.0]), columns(loss=[np.nan, 1.0])) == ([], [])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"loss": [0.5, np.nextafter(0.25, 1)]}, "loss: 1 of 2 differ"),
        ({"loss": [0.5, np.nan]}, "loss: 1 of 2 differ"),
        ({"client": [0, 2]}, "most by 1 (1 became 2) at method local"),
        ({"why": ["", "NORM 2.6"]}, "numbers in why"),
        ({"why": ["a", "a"]}, "why: 1 of 2 differ"),
        ({"more": [1.5, 2.5]}, "more: only in this tree"),
    ],
)
def test_a_changed_number_is_found(change: dict[str, Any], part: str) -> None:
    differences, renamed = SCRIPT["compare"](columns(), columns(**change))
    assert any(part in text for text in differences)
    assert renamed == []


def test_the_sign_of_zero_counts() -> None:
    assert SCRIPT["difference"](np.array([0.0]), np.array([-0.0]), []) is not None


def test_a_renamed_column_is_matched_by_content() -> None:
    before, after = columns(old=[1.5, 2.5]), columns(new=[1.5, 2.5])
    assert SCRIPT["compare"](before, after) == ([], ["old is now new"])
    assert len(SCRIPT["compare"](before, columns(new=[1.5, 2.6]))[0]) == 2


def test_numbers_of_json_are_read_by_key_and_times_are_not() -> None:
    found = SCRIPT["read_json"]({"a": [1, {"b": 2.5, "seconds": 9}], "c": {"b": True, "d": "7"}})
    assert {name: array.tolist() for name, array in found.arrays.items()} == {"a": [1.0], "b": [2.5, 1.0]}
