"""Parts: index lists of clients, stored flat."""

import numpy as np

from coterie.data.federation import Parts


def test_parts_are_joined_client_after_client() -> None:
    draw = np.random.default_rng(0)
    lists = [draw.integers(0, 99, size) for size in (3, 0, 5, 1, 0, 4, 2)]
    parts = Parts.from_lists(lists)
    for chosen in ([], [0], [1], [0, 1, 2, 3, 4, 5, 6], [2, 3, 4], [6, 0, 0, 3], [4, 1], [1, 2], [5, 2, 6]):
        expected = [index for client in chosen for index in lists[client].tolist()]
        assert parts.joined(np.array(chosen, dtype=np.int64)).tolist() == expected
