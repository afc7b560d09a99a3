"""Names in tables: no formula in CSV, no markup in Markdown, and every name comes back as it was."""

import csv
import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._util.formatting import escape_csv, escape_markdown, format_code_span, format_csv, format_markdown_table, unescape_csv

FORMULAS = ("=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x")', "-cmd|' /C calc'!A0", "＝1+1", "'=1", "''-a")


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_begins_a_formula(name: str) -> None:
    assert escape_csv(name) == f"'{name}"
    assert unescape_csv(escape_csv(name)) == name


@pytest.mark.parametrize(
    "value", ["fedavg", "", "'quoted'", "a=b", "-1.5", "+3", "-1e-05", "-.5", "-inf", "nan", -1.5, -3, None, float("nan")]
)
def test_names_and_numbers_stay(value: object) -> None:
    assert escape_csv(value) is value
    assert unescape_csv(value) is value


@given(st.text(alphabet="'=+-@\t\r1.a", max_size=6))
def test_every_name_comes_back(name: str) -> None:
    assert unescape_csv(escape_csv(name)) == name


def test_a_frame_is_escaped_in_cells_and_headings() -> None:
    frame = pd.DataFrame({"=a": ["=x", "y"], "kind": pd.Categorical(["-p", "q"]), "n": [-1.5, 2.0], "mixed": [-1, "@z"]})
    head, first, second = csv.reader(io.StringIO(format_csv(frame)))
    assert head == ["'=a", "kind", "n", "mixed"]
    assert first == ["'=x", "'-p", "-1.5", "-1"]
    assert second == ["y", "q", "2.0", "'@z"]
    assert frame.columns[0] == "=a"  # the frame is as it was
    twice = pd.DataFrame([["=x", "=y"]], columns=["a", "a"])
    assert format_csv(twice).splitlines() == ["a,a", "'=x,'=y"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a|b", r"a\|b"),
        ("`x`", r"\`x\`"),
        ("[click](http://x)", r"[click\](http\://x)"),
        ("[click][1] and [64]", r"[click\][1] and [64]"),
        ("<img src=x onerror=y>", r"\<img src=x onerror=y>"),
        ("&lt;b&gt;", r"\&lt;b\&gt;"),
        ("*bold* _it_ ~~no~~", r"\*bold\* \_it\_ \~\~no\~\~"),
        ("two\nlines", "two lines"),
        ("www.x.org a@b.c", r"www\.x.org a\@b.c"),
        ("\\", "\\\\"),
        ("fedgroup(groups=2)+finetune", "fedgroup(groups=2)+finetune"),
        ("simprox_cifar, p < 0.001 & x > 3", "simprox_cifar, p < 0.001 & x > 3"),
    ],
)
def test_markdown_shows_a_name_as_it_is(name: str, shown: str) -> None:
    assert escape_markdown(name) == shown


def test_code_ends_where_the_name_ends() -> None:
    assert format_code_span("fedavg") == "`fedavg`"
    assert format_code_span("a`b``c") == "``` a`b``c ```"
    lines = list(format_markdown_table(["a|b", "n"], [[format_code_span("x|y"), "1|2"]], ["---", "---:"]))
    assert lines == ["| a\\|b | n |", "| --- | ---: |", "| `x\\|y` | 1\\|2 |"]
