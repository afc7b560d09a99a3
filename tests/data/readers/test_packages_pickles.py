"""Pickles of frames and arrays are read; whatever else a pickle asks for, it does not get."""

import io
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.data.readers.packages import ALLOWED, load_pickle


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> Any:
        return self.call


def named(module: str, name: str, given: str) -> bytes:
    """A pickle that calls a function by name, which need not exist here."""
    return f"c{module}\n{name}\n(V{given}\ntR.".encode()


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    raw = pickle.dumps(Calls(os.system, f"touch {trace}"), protocol=protocol)
    with pytest.raises(UserError, match=r"^here is a pickle that asks for posix.system, and only data frames and arrays are read"):
        load_pickle(raw, "here")
    assert not trace.exists()
    pickle.loads(raw)
    assert trace.exists()  # the pickle was a dangerous one


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("subprocess", "getoutput"),
        ("numpy.testing._private.utils", "runstring"),  # of NumPy, and runs what it is given
        ("pandas.core.computation.eval", "eval"),
        ("pandas.io.pickle", "read_pickle"),  # of pandas, and reads any pickle
        ("pandas", "read_csv"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "fromfile"),
        ("coterie._util.errors", "UserError"),
    ],
)
def test_being_of_pandas_or_numpy_is_not_enough(module: str, name: str) -> None:
    with pytest.raises(UserError, match="only data frames and arrays are read"):
        load_pickle(named(module, name, "1"), "here")


def test_what_is_allowed_is_hidden_in_nothing_that_is_allowed() -> None:
    """A frame that holds a call is refused like the call alone, however deep."""
    frame = pd.DataFrame({"a": np.array([Calls(os.getcwd)], dtype=object)})
    with pytest.raises(UserError, match=r"asks for posix.getcwd"):
        load_pickle(pickle.dumps(frame), "here")
    with pytest.raises(UserError, match=r"asks for posix.getcwd"):
        load_pickle(pickle.dumps(np.array([{"x": [Calls(os.getcwd)]}], dtype=object)), "here")


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_frames_and_arrays_come_back(protocol: int) -> None:
    frame = pd.DataFrame({"n": [1, 2, 3], "x": [0.5, np.nan, 2.0]}).assign(word=pd.Series(["a", None, "c"], dtype=object))
    frame.columns = pd.Index(list(frame.columns), dtype=object)
    assert load_pickle(pickle.dumps(frame, protocol=protocol), "here").equals(frame)
    held: dict[str, Any] = {"X": [np.arange(6.0).reshape(2, 3)], "y": np.array([1, 2])}
    found = load_pickle(pickle.dumps(np.array(held, dtype=object), protocol=protocol), "here").item()
    assert np.array_equal(found["X"][0], held["X"][0])
    assert np.array_equal(found["y"], held["y"])


def test_numpys_old_names_are_read_without_a_warning() -> None:
    raw = pickle.dumps(np.arange(3), protocol=2).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core" in raw
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_pickle(raw, "here").tolist() == [0, 1, 2]


@pytest.mark.parametrize("raw", [b"", b"\x80", b"no pickle", pickle.dumps([1, 2, 3])[:-3], b"\x80\x05\x95" + b"\xff" * 8])
def test_a_damaged_pickle_is_one_sentence(raw: bytes) -> None:
    with pytest.raises(UserError, match=r"^here is not a pickle that can be read \(.*\): it is cut short or damaged; get it again\.$"):
        load_pickle(raw, "here")


def test_every_name_that_is_allowed_exists() -> None:
    for module, name in ALLOWED:
        assert pickle.Unpickler(io.BytesIO()).find_class(module, name) is not None
