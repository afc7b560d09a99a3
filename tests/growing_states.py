"""States of a model a client, of which a few change from checkpoint to checkpoint, and the segments that hold them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from coterie.core.states import Models
from coterie.evidence.checkpoint import CHUNKS, STATES_FILE
from coterie.evidence.records import LaneEnd, LaneKey, LaneProgress, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import make_tables
from coterie.evidence.writer import Writer

CLIENTS, SIZE = 6, 2048
ROW = 4 * SIZE  # bytes
ROSTER = pa.table({"id": ["a"], "train": [1], "group": [-1], "actual_0": [1]})
SETTINGS = Settings(methods=("a", "b"), data="tiny")


def key(method: str) -> LaneKey:
    return LaneKey(0, method, 0)


def begin(folder: Path) -> Writer:
    return Writer.create(folder, SETTINGS, {}, {0: ROSTER})


def at(method: str, round_: int) -> Models:
    """All models after a round, in each of which one client trains: 0, 1, 2 and so on, and again."""
    trained = [max((r for r in range(1, round_ + 1) if r % CLIENTS == client), default=0) for client in range(CLIENTS)]
    return Models(np.array([np.random.default_rng([ord(method), 0 if r == 0 else r]).random(SIZE) for r in trained], dtype=np.float32))


def write(writer: Writer, rounds: tuple[int, int], states: dict[str, Models]) -> None:
    """A segment of these lanes, with rounds from the first to the last."""
    first, last = rounds
    records = [RoundRecord(key(method), round_) for method in states for round_ in range(first, last + 1)]
    writer.segment(
        [LaneProgress(key(method), first, LaneEnd(last), state) for method, state in states.items()], make_tables(records, classes=1)
    )


def segment(writer: Writer, round_: int, methods: Sequence[str] = "ab") -> None:
    """The segment of one round of lanes as `at` has them."""
    write(writer, (round_, round_), {method: at(method, round_) for method in methods})


def sizes(folder: Path, name: str) -> dict[int, int]:
    """By segment that has it, the bytes of a file."""
    return {int(path.parent.name): path.stat().st_size for path in sorted(folder.glob(f"segments/[0-9]*/{name}"))}


def pieces(folder: Path) -> dict[int, int]:
    return sizes(folder, CHUNKS)


def states(folder: Path) -> dict[int, int]:
    return sizes(folder, STATES_FILE)
