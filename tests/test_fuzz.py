"""Every reader is fed with damaged and made-up input: it reads it or refuses it, and raises nothing else."""

import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie._util.errors import UserError
from fuzzing import damaged
from readers import READERS, attempt

EXAMPLES = 25


@pytest.mark.parametrize("name", READERS)
def test_readers_read_or_refuse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.one_of(damaged(READERS[name][1]), st.binary(max_size=60)))
    def check(content: bytes) -> None:
        attempt(name, content, tmp_path)

    check()


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("npz", "npy", "bundle", "settings")])
def test_what_is_damaged_is_first_of_all_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer whose seed is refused at once would test nothing but that."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert READERS[name][0](READERS[name][1], tmp_path) is not None


@pytest.mark.parametrize("name", ["policy", "study file", "reproduction"])
def test_a_number_of_thousands_of_digits_is_refused(name: str, tmp_path: Path) -> None:
    """Found by fuzzing: TOML's reader raises another error for it than for anything else."""
    with pytest.raises(UserError, match="is not valid TOML"):
        READERS[name][0](b"x = " + b"9" * 5000 + b"\n", tmp_path)


def test_the_long_part_feeds_a_reader_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    feed = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "fuzz.py"))["feed"]
    feed("seeds", 1, tmp_path, examples=5)
    monkeypatch.setitem(READERS, "seeds", (lambda content, folder: 1 // 0, b"0-4,7"))
    with pytest.raises(ZeroDivisionError):
        feed("seeds", 1, tmp_path, examples=5)
