"""Slips in a table that would change what is learned without a word."""

from typing import Any

import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError


def table(**changes: list[Any]) -> pd.DataFrame:
    n = 40
    made = {
        "site": ["a", "b"] * (n // 2),
        "age": list(range(n)),
        "job": ["cook", "judge"] * (n // 2),
        "ill": ["yes", "no", "no", "yes"] * (n // 4),
    }
    return pd.DataFrame(made | changes)


def federation(frame: pd.DataFrame, **more: Any) -> ct.Federation:
    return ct.Federation.from_frame(frame, client="site", label="ill", categories="onehot", **more)


def test_a_word_among_numbers_makes_no_words_of_them() -> None:
    stray = table(age=[*range(39), "about 40"])
    for categories in ("onehot", "none"):
        with pytest.raises(UserError, match="'about 40', which is no number, in row 39 of column 'age'"):
            ct.Federation.from_frame(stray, client="site", label="ill", categories=categories, drop="job")


def test_a_column_of_names_is_no_column_of_categories() -> None:
    named = table(who=[f"patient {i}" for i in range(40)])
    with pytest.raises(UserError, match="column 'who' holds 40 different words in 40 rows, as names do"):
        federation(named)
    assert federation(named, drop="who").input_shape == (3,)


def test_spaces_make_neither_clients_nor_classes() -> None:
    found = federation(table(site=["a ", "b", "a", " b"] * 10, ill=["yes", "no ", " no", "yes"] * 10))
    assert (found.ids, found.classes) == (("a", "b"), ("no", "yes"))


def test_capitals_are_asked_about() -> None:
    with pytest.raises(UserError, match="the label 'ill' holds both 'Yes' and 'yes'"):
        federation(table(ill=["yes", "no", "no", "Yes"] * 10))
