import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core.specs import Registry, Spec, parse, parse_path, split_at


@pytest.mark.parametrize(
    "text",
    [
        "fedavg",
        "fedprox(mu=1)",
        "mlp(128,64)",
        "synthetic(iid)",
        "synthetic(0.5,0.5,clients=30)",
        "my.package:factory(width=8)",
        "a(b=none,c=true,d=false)",
        "a(b='two words')",
        "a(b=(1,2,))",
        "a(b=-0.001)",
        "a(b=inf)",
        "a(b='inf')",
        "a(b='none')",
    ],
)
def test_round_trip(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


def test_values() -> None:
    spec = parse(" fedprox( mu = 1e-3, weighting=uniform, on='a b', n=None, yes=True, t=inf) ")
    assert spec == Spec("fedprox", (), {"mu": 0.001, "weighting": "uniform", "on": "a b", "n": None, "yes": True, "t": math.inf})


@pytest.mark.parametrize(
    "text", ["", "a(", "a)", "a b", "a(1", "a(b=)", "a(**b)", "a(f(1))", "(1)", "a(b=1,b=2)", "a(b=1,2)", "a(b=c=d)", "a(,)", "a(b c)"]
)
def test_what_cannot_be_read_is_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"Cannot read .*write"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("csv(ward/new-1/patients.csv,label=class)", Spec("csv", ("ward/new-1/patients.csv",), {"label": "class"})),
        (r"csv(C:\new\table.csv)", Spec("csv", (r"C:\new\table.csv",))),
        ("a(1/2,b=2026-01-02,c=01,)", Spec("a", ("1/2",), {"b": "2026-01-02", "c": "01"})),
        ("a('b,c=d)',e=\"f'\")", Spec("a", ("b,c=d)",), {"e": "f'"})),
    ],
)
def test_paths_and_words_of_pythons_own_need_no_quotes(text: str, spec: Spec) -> None:
    assert parse(text) == spec
    assert parse(str(spec)) == spec


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = LEAVES | st.lists(LEAVES, max_size=3).map(tuple)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(NAMES, st.lists(VALUES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_is_printed_can_be_read_again(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    spec = Spec(name, tuple(args), kwargs)
    assert parse(str(spec)) == spec


def test_split_leaves_brackets_and_quotes_alone() -> None:
    assert split_at("a(b='x/y',c=(1/2))/d(e)/f", "/") == ["a(b='x/y',c=(1/2))", "d(e)", "f"]
    assert [spec.name for spec in parse_path("digits/rotated(groups=4)")] == ["digits", "rotated"]


def make(
    _given: str, size: int = 1, rate: float = 0.5, how: Literal["fast", "slow"] = "fast", limit: int | None = None, *, _seed: int = 0
) -> tuple[Any, ...]:
    if size < 0:
        raise ValueError("size is below zero")
    return _given, size, rate, how, limit, _seed


@pytest.fixture
def registry() -> Registry[tuple[Any, ...]]:
    registry: Registry[tuple[Any, ...]] = Registry("thing")
    registry.add("maker", make)
    registry.add("other", lambda _given: (_given,))
    return registry


def test_builds(registry: Registry[tuple[Any, ...]]) -> None:
    assert registry.build("maker(3,how=slow,limit=none)", "x", _seed=9) == ("x", 3, 0.5, "slow", None, 9)
    assert registry.build("maker(rate=2)", "x") == ("x", 1, 2, "fast", None, 0)
    assert list(registry) == ["maker", "other"]
    assert list(registry.settings("maker")) == ["size", "rate", "how", "limit"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("makr", "Unknown thing 'makr': did you mean 'maker'?"),
        ("zzz", "Unknown thing 'zzz': choose from maker, other."),
        ("maker(sise=3)", "Thing 'maker' has no setting 'sise': did you mean 'size'?"),
        ("maker(_seed=3)", "has no setting '_seed'"),
        ("maker(1,2,fast,4,5)", "takes 4 settings without a name, not 5; it knows size, rate, how, limit."),
        ("maker(size=big)", "cannot use size='big': give a whole number."),
        ("maker(size=1.5)", "cannot use size=1.5: give a whole number."),
        ("maker(size=true)", "cannot use size=True: give a whole number."),
        ("maker(rate=high)", "cannot use rate='high': give a number."),
        ("maker(how=slwo)", "Thing 'maker' cannot use how='slwo': did you mean 'slow'?"),
        ("maker(how=3)", "cannot use how=3: give fast or slow."),
        ("maker(limit=x)", "cannot use limit='x': give a whole number or none."),
        ("maker(size=-1)", "Thing 'maker(size=-1)' cannot be made: size is below zero."),
    ],
)
def test_errors_name_what_is_right(registry: Registry[tuple[Any, ...]], text: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        registry.build(text, "x")
    assert sentence in str(error.value)


@pytest.mark.parametrize("path", [r"C:\data\new.csv", r"d:\table\x.csv", r"C:\new"])
def test_a_path_of_windows_is_taken_as_written(path: str) -> None:
    for text in (
        f"csv('{path}',label=ill)",
        f'csv("{path}",label=ill)',
        f"csv({path},label=ill)",
        str(Spec("csv", (path,), {"label": "ill"})),
    ):
        read = parse(text)
        assert (read.args, read.kwargs) == ((path,), {"label": "ill"})
        assert parse(str(read)) == read


def test_letters_that_python_reads_as_others_keep_their_quotes() -> None:
    assert str(parse("csv('º',label='ﬁ')")) == "csv('º',label='ﬁ')"
    assert parse("csv('º',label='ﬁ')").args == ("º",)
