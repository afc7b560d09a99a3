"""The cache: arrays come back as they were, and a folder is there whole or not at all."""

import os
from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data import store
from coterie.data.federation import Samples
from coterie.data.table import Table


def samples() -> Samples:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    y = np.array([0, 1, 0, 1, 0, 1])
    return Samples("small", x, y, ("a", "b"), (x[:2], y[:2]), {"licence": "none"}, y, ("u", "v"), np.zeros(6, np.int64))


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    store.save_samples(samples(), tmp_path / "kept" / "set")
    made = store.open_samples(tmp_path / "kept" / "set")
    plain = samples()
    assert np.array_equal(made.x, plain.x)
    assert made.central is not None
    assert plain.central is not None
    assert np.array_equal(made.central[0], plain.central[0])
    assert made.owners is not None
    assert made.owners.tolist() == plain.y.tolist()
    assert (made.name, made.classes, made.owner_names, made.provenance) == ("small", ("a", "b"), ("u", "v"), {"licence": "none"})
    with pytest.raises(ValueError, match="read-only"):
        made.x[0] = 1


def test_pixels_are_scaled_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK_ROWS", 3)
    x = np.arange(256, dtype=np.uint8).reshape(64, 2, 2)
    made = Samples("pixels", x, np.arange(64) % 2, ("a", "b"), provenance={"divided_by": 255})
    store.save_samples(made, tmp_path / "set")
    assert np.array_equal(store.open_samples(tmp_path / "set").x, x.astype(np.float32) / np.float32(255))


def test_tokens_stay_bytes(tmp_path: Path) -> None:
    store.save_samples(Samples("tokens", np.ones((4, 2), np.uint8), np.arange(4) % 2, ("a", "b")), tmp_path / "set")
    assert store.open_samples(tmp_path / "set").x.dtype == np.uint8


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    made = samples()
    object.__setattr__(made, "provenance", {"function": print})  # cannot be written as JSON: fails after all arrays are on disk
    with pytest.raises(TypeError):
        store.save_samples(made, tmp_path / "kept" / "set")
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_second_of_two_writers_gives_way(tmp_path: Path) -> None:
    with store.write_folder_atomically(tmp_path / "set") as slow:
        (slow / "mark").write_text("slow")
        with store.write_folder_atomically(tmp_path / "set") as fast:
            (fast / "mark").write_text("fast")
    assert (tmp_path / "set" / "mark").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_cache_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"Cannot write to the cache .* set XDG_CACHE_HOME"):
        store.save_samples(samples(), tmp_path / "file" / "set")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk(tmp_path: Path) -> None:
    def fill() -> None:
        with store.write_folder_atomically(tmp_path / "set") as work:
            (work / "x").symlink_to("/dev/full")
            (work / "x").write_bytes(b"0" * 100)

    with pytest.raises(UserError, match="No space left on device"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_tables_come_back_as_they_were(tmp_path: Path) -> None:
    table = Table(np.array([0, 1]), ("a", "b"), texts=["one", "zwei ä"], owners=np.array([0, 0]), owner_names=("u",), facts={"k": 1})
    store.save_table(table, tmp_path / "set")
    made = store.open_table(tmp_path / "set")
    assert (made.texts, made.classes, made.owner_names, made.facts) == (["one", "zwei ä"], ("a", "b"), ("u",), {"k": 1})
    assert made.values is None
    assert made.part is None
