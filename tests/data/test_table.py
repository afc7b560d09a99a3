"""Several inputs in one row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie._util.errors import UserError
from coterie.core.layout import Inputs
from coterie.data.table import MAX_TOKEN, has_several_inputs, infer_inputs, pack_inputs

SHAPES = st.lists(st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple), min_size=1, max_size=4)


@given(st.data(), SHAPES, st.integers(1, 5), st.booleans())
def test_what_is_packed_can_be_unpacked(data: st.DataObject, shapes: list[tuple[int, ...]], rows: int, named: bool) -> None:
    arrays = []
    for shape in shapes:
        kind = data.draw(st.sampled_from([np.float32, np.int64]))
        values = st.integers(0, MAX_TOKEN) if kind is np.int64 else st.floats(-1e6, 1e6, width=32)
        arrays.append(data.draw(hnp.arrays(kind, (rows, *shape), elements=values)))
    given_ = {f"input {i}": array for i, array in enumerate(arrays)} if named else tuple(arrays)
    inputs = infer_inputs(given_, "here")
    packed = pack_inputs(inputs, given_, "here")
    assert packed.shape == (rows, inputs.width)
    assert Inputs.from_dict(inputs.to_dict()) == inputs
    again = inputs.unpack(packed)
    found = list(again.values()) if isinstance(again, dict) else list(again)
    for one, two in zip(arrays, found, strict=True):
        assert (one.reshape(rows, -1) == two.reshape(rows, -1)).all()
        assert (one.dtype.kind == "i") == (two.dtype.kind == "i")


def test_names_are_taken_in_their_own_order() -> None:
    inputs = infer_inputs({"a": np.zeros((2, 1)), "b": np.ones((2, 2))}, "here")
    assert pack_inputs(inputs, {"b": np.ones((2, 2)), "a": np.zeros((2, 1))}, "here").tolist() == [[0, 1, 1]] * 2
    assert inputs.shape == {"a": (1,), "b": (2,)}


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ((np.zeros((2, 1)), np.zeros((3, 1))), "2, 3 rows"),
        ((np.array(["a"]), np.zeros((1, 1))), "should be numbers"),
        ((np.array([[MAX_TOKEN + 1]]), np.zeros((1, 1))), "between 0 and"),
        ((np.array([[-1]]), np.zeros((1, 1))), "between 0 and"),
    ],
)
def test_what_cannot_be_is_refused(given_: tuple[np.ndarray, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        pack_inputs(infer_inputs(given_, "here"), given_, "here")


def test_other_inputs_than_the_models_are_refused() -> None:
    inputs = infer_inputs({"a": np.zeros((2, 1)), "b": np.zeros((2, 2))}, "here")
    with pytest.raises(UserError, match="a dictionary of a, b"):
        pack_inputs(inputs, {"a": np.zeros((2, 1))}, "here")
    with pytest.raises(UserError, match="a dictionary of a, b"):
        pack_inputs(inputs, (np.zeros((2, 1)), np.zeros((2, 2))), "here")
    with pytest.raises(UserError, match=r"b: \(3,\)"):
        pack_inputs(inputs, {"a": np.zeros((2, 1)), "b": np.zeros((2, 3))}, "here")


def test_a_list_of_rows_is_one_input() -> None:
    assert not has_several_inputs([[1.0, 2.0], [3.0, 4.0]])
    assert not has_several_inputs(np.zeros((2, 2)))
    assert not has_several_inputs(((1.0, 2.0), (3.0, 4.0)))
    assert has_several_inputs((np.zeros((2, 2)), np.zeros((2, 1))))
