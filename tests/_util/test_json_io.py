"""Values as JSON knows them, and files that are whole or not there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie._util.json_io import read_json, to_json_line, to_json_value, write_json


@dataclass(frozen=True)
class Thing:
    name: str
    sizes: Any


def test_anything_becomes_lists_dictionaries_numbers_and_words() -> None:
    value = {1: Thing("a", np.array([[1, 2], [3, 4]])), "x": (np.float32(0.5), np.int64(3), np.bool_(True), None, "w")}
    made = to_json_value(value)
    assert made == {"1": {"name": "a", "sizes": [[1, 2], [3, 4]]}, "x": [0.5, 3, True, None, "w"]}
    assert [type(item) for item in made["x"]] == [float, int, bool, type(None), str]
    assert json.loads(to_json_line(value)) == made


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), np.float32("-inf")])
def test_what_is_no_finite_number_is_null(value: Any) -> None:
    assert to_json_value([value, np.array([value, 1.0])]) == [None, [None, 1.0]]


def test_one_line_of_json_does_not_depend_on_the_order_of_names() -> None:
    assert to_json_line({"b": 1, "a": 2}) == to_json_line({"a": 2, "b": 1}) == '{"a": 2, "b": 1}'


def test_a_file_that_cannot_be_written_leaves_the_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    write_json(path, {"seeds": np.arange(2)})
    assert read_json(path) == {"seeds": [0, 1]}
    with pytest.raises(TypeError):
        write_json(path, {"seeds": object()})
    assert read_json(path) == {"seeds": [0, 1]}
    assert [found.name for found in tmp_path.iterdir()] == ["settings.json"]


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there\.json cannot be read"):
        read_json(tmp_path / "there.json")
    (tmp_path / "there.json").write_text('{"a": ')
    with pytest.raises(UserError, match=r"there\.json cannot be read"):
        read_json(tmp_path / "there.json")
