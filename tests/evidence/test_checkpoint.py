"""Checkpoints of which only what has changed is written: the same states, fewer bytes, and nothing that is needed is dropped."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import integrity
from coterie._util import threads
from coterie.core.states import Models, flatten
from coterie.evidence import checkpoint as cut
from coterie.evidence.checkpoint import (
    KEPT_STATES,
    MAX_CHUNKS,
    MIN_CHUNK_BYTES,
    STATES_FILE,
    CheckpointDraft,
    ChunkLayout,
    ChunkLocation,
    read_checkpoint,
)
from coterie.evidence.records import LaneEnd, LaneProgress
from coterie.evidence.restore import load_lanes, restore
from coterie.evidence.verify import verify
from coterie.evidence.writer import Writer
from growing_states import CLIENTS, ROW, SIZE, at, begin, key, pieces, segment, states, write

DTYPES = ("<f4", "<f8", "<i8", "<i4", "|b1")


@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(1, 400),
    rest=st.lists(st.integers(1, 12), max_size=2),
)
def test_an_array_is_what_its_pieces_make(dtype: str, rows: int, rest: list[int]) -> None:
    array = np.random.default_rng(rows).integers(0, 2, (rows, *rest)).astype(dtype)
    cut = ChunkLayout.from_array(array)
    if cut is None:
        assert array.nbytes < 2 * MIN_CHUNK_BYTES
        return
    apart = cut.split(array)
    assert [piece.nbytes for piece in apart] == cut.lengths
    assert all(piece.nbytes >= MIN_CHUNK_BYTES for piece in apart[:-1])
    assert all(length % (array.nbytes // rows) == 0 for length in cut.lengths)  # whole rows
    again = cut.join(apart)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(again, array)
    assert ChunkLayout.from_json(json.loads(json.dumps([cut.dtype, cut.shape, cut.rows]))) == cut


def test_pieces_are_rows_unless_these_are_small_or_many() -> None:
    assert ChunkLayout.from_array(np.zeros((10, 7850), np.float32)) == ChunkLayout("<f4", (10, 7850), 1)
    assert ChunkLayout.from_array(np.zeros((100, 10), np.float32)) is None  # in the file of small ones
    assert ChunkLayout.from_array(np.zeros((1000, 10), np.float32)) == ChunkLayout("<f4", (1000, 10), 103)
    assert ChunkLayout.from_array(np.zeros((4, 0), np.float32)) is None
    assert ChunkLayout.from_array(np.zeros((), np.float32)) is None
    many = np.broadcast_to(np.float32(0), (3 * MAX_CHUNKS, 2048))  # takes no memory
    cut = ChunkLayout.from_array(many)
    assert cut is not None
    assert cut.rows == 3


def test_only_the_models_of_clients_that_trained_are_written(tmp_path: Path) -> None:
    with begin(tmp_path / "s") as writer:
        segment(writer, 0)
        assert pieces(tmp_path / "s") == {1: 2 * ROW}  # everybody begins alike: one model for each lane
        for round_ in (1, 2, 3):
            segment(writer, round_)
            assert pieces(tmp_path / "s")[round_ + 1] == 2 * ROW  # one client of each lane
        write(writer, (4, 4), {"a": at("a", 3), "b": at("b", 3)})  # nothing has changed
        assert 5 not in pieces(tmp_path / "s")
        found = read_checkpoint(tmp_path / "s" / "segments" / "000005" / STATES_FILE)
        assert found.needed_segments == {1, 2, 3, 4}
    lanes, told = restore(tmp_path / "s")
    assert told == []
    for method in "ab":
        np.testing.assert_array_equal(lanes[key(method)].state.models, at(method, 3).models)  # type: ignore[union-attr]


def test_a_file_is_dropped_when_no_kept_checkpoint_rests_on_it(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with begin(folder) as writer:
        for round_ in range(15):
            segment(writer, round_)
            there, kept = pieces(folder).keys(), states(folder).keys()
            assert kept == set(range(max(1, round_ + 2 - KEPT_STATES), round_ + 2))
            assert there == {
                number for at in kept for number in read_checkpoint(folder / f"segments/{at:06d}" / STATES_FILE).needed_segments
            }
    assert min(pieces(folder)) > 5  # in six rounds everybody has trained
    assert verify(folder).whole


def test_who_goes_on_writes_no_more_than_who_never_stopped(tmp_path: Path) -> None:
    for name, stops in (("once", ()), ("often", range(8))):
        writer = begin(tmp_path / name)
        for round_ in range(8):
            segment(writer, round_)
            if round_ in stops:
                writer.__exit__(None, None, None)
                writer = Writer(tmp_path / name)
        writer.__exit__(None, None, None)
    assert pieces(tmp_path / "once") == pieces(tmp_path / "often")


@st.composite
def schedules(draw: st.DrawFn) -> list[dict[str, set[int]]]:
    """By segment: of the lanes that have a round in it, the clients whose models change. A lane that ends is in no later segment."""
    segments = []
    left = {"a", "b", "c"}
    for _ in range(draw(st.integers(2, 9))):
        if len(left) > 1 and draw(st.integers(0, 5)) == 0:
            left.discard(draw(st.sampled_from(sorted(left))))
        segments.append({method: draw(st.sets(st.integers(0, 5))) for method in sorted(left)})
    return segments


@given(schedule=schedules())
def test_states_are_whole_and_bytes_are_bounded(schedule: list[dict[str, set[int]]]) -> None:
    """The arithmetic of checkpoints without a disk: every one can be put together from its files, of which it needs at least half, and in
    all no more than twice what changes is written."""
    files: dict[int, np.ndarray] = {}
    now = {method: np.full((6, SIZE), ord(method), np.float32) for method in "abc"}
    known: dict[object, dict[bytes, ChunkLocation]] = {}
    changed = 3 * ROW
    for number, lanes in enumerate(schedule, start=1):
        for method, clients in lanes.items():
            now[method] = now[method].copy()
            for client in clients:
                now[method][client] = number * 100 + client + ord(method) / 1000
            changed += len(clients) * ROW
        progress = [LaneProgress(key(method), number, LaneEnd(number), Models(now[method])) for method in lanes]
        draft = CheckpointDraft.from_lanes(number, progress, known, {n: file.nbytes for n, file in files.items()})  # type: ignore[arg-type]
        if draft.fresh:
            files[number] = np.concatenate(draft.fresh)
        made = draft.checkpoint.arrays(files)
        for place, lane in enumerate(progress):
            ((name, array),) = flatten(lane.state)[0].items()  # type: ignore[arg-type]
            np.testing.assert_array_equal(made[f"{place}/{name}"], array)
            known[lane.key] = draft.checkpoint.known(place)
        whole = sum(dict.fromkeys(zip(draft.checkpoint.places, draft.checkpoint.digests, strict=True), ROW).values())
        assert sum(files[n].nbytes for n in draft.checkpoint.needed_segments) <= 2 * whole
        assert draft.new_bytes <= whole <= 6 * ROW * len(lanes)
    assert sum(file.nbytes for file in files.values()) <= 2 * changed


def test_lanes_do_not_rest_on_each_others_files(tmp_path: Path) -> None:
    """Or a segment that is set aside would take lanes along that are not in it."""
    same = Models(np.ones((CLIENTS, SIZE), np.float32))
    with begin(tmp_path / "s") as writer:
        write(writer, (0, 0), {"a": same})
        write(writer, (0, 0), {"b": same})
    assert pieces(tmp_path / "s") == {1: ROW, 2: ROW}
    assert read_checkpoint(tmp_path / "s" / "segments" / "000002" / STATES_FILE).needed_segments == {2}


DAMAGES = {"altered": "is not as it was written", "lost": "is missing"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", [6, 9])
def test_a_damaged_file_is_found_and_what_rests_on_it_made_again(tmp_path: Path, damage: str, place: int) -> None:
    folder = tmp_path / "s"
    with begin(folder) as writer:
        for round_ in range(9):  # the last, segment 9, rests on 4 to 9, the one before on 3 to 8
            segment(writer, round_)
    file = folder / "segments" / f"{place:06d}" / "pieces.bin"
    integrity.flip(file, 3) if damage == "altered" else file.unlink()
    assert any(str(file) in told and DAMAGES[damage] in told for told in verify(folder).damaged)
    looked = load_lanes(folder)
    assert f"The checkpoint {file} {DAMAGES[damage]}: its rounds are run again." in looked.notices
    reached = {lane.end.round_ for lane in looked.lanes.values()}
    assert reached == ({7} if place == 9 else set())  # on the sixth both kept checkpoints rest
    restore(folder)
    with Writer(folder) as writer:
        for round_ in range(8 if place == 9 else 0, 9):
            segment(writer, round_)
    lanes, told = restore(folder)
    assert told == []
    assert verify(folder).whole
    np.testing.assert_array_equal(lanes[key("a")].state.models, at("a", 8).models)  # type: ignore[union-attr]


def test_a_spare_file_that_is_damaged_is_set_aside_and_never_referred_to_again(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    once, again = (Models(np.full((CLIENTS, SIZE), value, np.float32)) for value in (1, 2))
    with begin(folder) as writer:
        write(writer, (0, 0), {"a": once})
        write(writer, (1, 1), {"a": again})
    integrity.flip(folder / "segments" / "000001" / "pieces.bin", 1)
    lanes, told = restore(folder)
    assert lanes[key("a")].end.round_ == 1
    path = folder / "segments" / "000001" / "pieces.bin"
    assert told == [f"The spare checkpoint {path} is not as it was written: it is moved to set-aside."]
    with Writer(folder) as writer:
        write(writer, (2, 2), {"a": once})
    np.testing.assert_array_equal(restore(folder)[0][key("a")].state.models, once.models)  # type: ignore[union-attr]
    assert verify(folder).whole


def test_a_checkpoint_of_an_earlier_version_has_all_arrays_in_one_file(tmp_path: Path) -> None:
    state = at("a", 4)
    arrays, tree = flatten(state)
    save_file({f"0/{name}": array for name, array in arrays.items()}, tmp_path / STATES_FILE, {"trees": json.dumps({"0": tree})})
    found = read_checkpoint(tmp_path / STATES_FILE)
    assert (found.cuts, found.needed_segments) == ({}, set())
    np.testing.assert_array_equal(found.arrays({})["0/models"], state.models)


def test_a_kill_at_any_moment_leaves_a_checkpoint_to_go_on_from() -> None:
    """In a process of its own: trials are forks of it, which must have no threads. `killed_at_checkpoints.py` by itself tries each."""
    script = Path(__file__).with_name("killed_at_checkpoints.py")
    done = subprocess.run([sys.executable, str(script), "6"], capture_output=True, text=True, check=True, env={**os.environ})
    found = json.loads(done.stdout)
    assert found["kills"] >= 7
    assert found["stuck"] == []
    assert found["dropped"]  # the moments of dropping were among them


@pytest.mark.parametrize(("count", "size", "workers"), [(0, 5, []), (3, 5, [1]), (9, 1 << 20, [4]), (3, 5 << 20, [4]), (1, 5 << 20, [1])])
def test_many_small_pieces_are_hashed_on_all_cores(count: int, size: int, workers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's model of half a megabyte is a piece: thousands of them were hashed by one core."""
    seen: list[int] = []

    def in_order(work: Any, some: Any, most: int) -> Any:
        seen.append(most)
        return threads.map_in_order(work, some, most)

    monkeypatch.setattr(cut, "count_cores", lambda: 4)
    monkeypatch.setattr(cut, "map_in_order", in_order)
    made = [np.full(size, i, np.uint8) for i in range(count)]
    assert cut.hash_chunks(made) == [sha256(piece.tobytes()).digest() for piece in made]
    assert seen == workers
