from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Floats
from coterie.core.states import Models, State, flatten, from_bytes, get_state_name, grow_rows, to_bytes


@dataclass(frozen=True)
class Everything(State):
    inner: Models
    groups: Any
    scalars: Any
    several: tuple[Any, ...]


def example() -> Everything:
    arrays = (
        np.array([True, False]),
        np.array([2**63], dtype=np.uint64),
        np.zeros((0, 3), np.float32),
        np.array(2.5),
        np.arange(6.0).reshape(2, 3).T,
    )
    return Everything(Models(np.ones((2, 3), np.float32)), np.array([0, 1, -1]), (1, 2.5, "x", None, True, float("inf")), arrays)


def test_round_trip() -> None:
    state = example()
    back = from_bytes(to_bytes(state))
    assert isinstance(back, Everything)
    assert isinstance(back.inner, Models)
    assert back.scalars == state.scalars
    assert [type(v) for v in back.scalars] == [type(v) for v in state.scalars]
    for old, new in zip([state.inner.models, state.groups, *state.several], [back.inner.models, back.groups, *back.several], strict=True):
        assert new.dtype == old.dtype
        assert new.shape == old.shape
        assert np.array_equal(new, old)
    assert to_bytes(back) == to_bytes(state)


def test_flatten_names_arrays_by_their_place() -> None:
    arrays, tree = flatten(example())
    assert list(arrays)[:3] == ["inner.models", "groups", "several.0"]
    assert tree["state"] == get_state_name(Everything)


def test_what_a_state_may_not_hold() -> None:
    state = Everything(Models(np.ones((1, 1), np.float32)), {"a": 1}, 0, ())
    with pytest.raises(TypeError, match=r"not dict \(at groups\)"):
        to_bytes(state)


def test_unknown_state() -> None:
    data = to_bytes(example())
    renamed = data.replace(b"Everything", b"Everywhere")
    with pytest.raises(UserError, match=r"Everywhere' that no known method has: import the method first"):
        from_bytes(renamed)


def test_unknown_field() -> None:
    data = to_bytes(Models(np.ones((1, 4), np.float32)))
    with pytest.raises(UserError, match="cannot be read"):
        from_bytes(data.replace(rb"{\"models\"", rb"{\"modelz\""))


@pytest.mark.parametrize("keep", [0, 4, 8, 60, -4, -1])
def test_truncated(keep: int) -> None:
    data = to_bytes(example())
    with pytest.raises(UserError, match="truncated or was changed"):
        from_bytes(data[:keep])


def test_with_models_keeps_the_rest() -> None:
    assert Models(np.zeros((1, 2), np.float32)).with_models(np.ones((1, 2), np.float32)).models.tolist() == [[1, 1]]


def test_rows_grow_with_the_roster_and_never_shrink() -> None:
    groups = np.array([2, 0])
    assert grow_rows(groups, 4, -1).tolist() == [2, 0, -1, -1]
    assert grow_rows(groups, 4, -1).dtype == groups.dtype
    assert grow_rows(groups, 2, -1) is groups
    assert grow_rows(groups, 1, -1) is groups
    rows = grow_rows(np.zeros((1, 2), np.float32), 3, np.array([[5.0, 6.0]]))
    assert rows.tolist() == [[0, 0], [5, 6], [5, 6]]
    assert rows.dtype == np.float32


def test_one_array_in_two_places_is_written_once() -> None:
    @dataclass(frozen=True)
    class Twice(State):
        one: Floats
        other: Floats
        equal: Floats

    rows = np.arange(1000, dtype=np.float32)
    twice = Twice(rows, rows, rows.copy())
    arrays, _ = flatten(twice)
    assert list(arrays) == ["one", "equal"]
    again = from_bytes(to_bytes(twice))
    assert again.one is again.other
    np.testing.assert_array_equal(again.equal, rows)
