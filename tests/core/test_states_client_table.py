"""Rows of clients that have their own: whatever is done with them, a table with a row for everybody would have said the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core import states
from coterie.core.states import ClientTable

D = 3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from(["put", "grow", "grow filled"]), st.integers(0, 1000)), max_size=8))
def test_they_are_a_table_with_a_row_for_everybody(clients: int, steps: list[tuple[str, int]]) -> None:
    common = np.array([1, 2, 3], np.float32)
    sparse, dense = ClientTable.empty(clients, common), np.repeat(common[None], clients, axis=0)
    owners: set[int] = set()
    for what, seed in steps:
        rng = np.random.default_rng(seed)
        if what == "put":
            who = np.flatnonzero(rng.random(len(dense)) < 0.5)
            values = rng.standard_normal((len(who), D)).astype(np.float32)
            before, sparse = sparse, sparse.put(who, values)
            assert before.get_all_rows().tolist() == dense.tolist()  # what was there before is as it was
            dense = dense.copy()
            dense[who] = values
            owners |= set(who.tolist())
        else:
            fill = rng.standard_normal(D).astype(np.float32) if what == "grow filled" else None
            sparse = sparse.grow(len(dense) + 2, fill)
            owners |= {len(dense), len(dense) + 1} if fill is not None else set()
            dense = np.concatenate([dense, np.repeat((common if fill is None else fill)[None], 2, axis=0)])
    assert sparse.get_all_rows().tolist() == dense.tolist()
    assert set(np.flatnonzero(sparse.has_row).tolist()) == owners
    assert len(sparse.rows) == len(owners)
    assert sparse.grow(len(dense)) is sparse
    again = states.from_bytes(states.to_bytes(sparse))
    assert again.get_all_rows().tolist() == dense.tolist()
    serving = sparse.serving(np.arange(len(dense))[::-1], np.zeros((1, D), np.float32))
    served = [dense[client].tolist() if client in owners else [0, 0, 0] for client in serving.clients]
    assert serving.models[serving.rows].tolist() == served
    assert len(serving.models) == 1 + len(owners)


def test_whose_row_counts_can_be_said() -> None:
    rows = ClientTable.empty(3, np.zeros(1, np.float32)).put(np.array([0, 2]), np.array([[5], [7]], np.float32))
    serving = rows.serving(np.arange(3), np.array([[9]], np.float32), own=np.array([False, False, True]))
    assert serving.models[serving.rows].tolist() == [[9], [9], [7]]


def test_a_state_of_another_version_is_refused_in_a_sentence() -> None:
    arrays, tree = states.flatten(ClientTable.empty(2, np.zeros(1, np.float32)))
    tree["fields"]["seen"] = tree["fields"].pop("place")
    with pytest.raises(UserError, match=r"another version of 'coterie.core.states:ClientTable'"):
        states.unflatten(arrays, tree)
