"""Kill a process at every operation with which it writes a checkpoint that rests on earlier ones, and go on with what it left.

One child is forked for each, so that the imports are paid for once. Prints what happened as JSON. With a number, at every so many.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import growing_states  # noqa: E402
from coterie.evidence.restore import restore  # noqa: E402
from coterie.evidence.verify import verify  # noqa: E402
from coterie.evidence.writer import Writer  # noqa: E402
from growing_states import at, key, segment  # noqa: E402
from killing import killed_at  # noqa: E402

BEFORE, AFTER = 9, 10  # rounds: the checkpoint before rests on several files, and the one after gives one of them up


def wrong(folder: Path) -> str:
    """Go on with what a kill left, to the last round; what is not as it should be, nothing if all is right."""
    lanes, told = restore(folder)
    reached = {restored.end.round_ for restored in lanes.values()}
    if told or len(reached) != 1 or reached <= {BEFORE - 1}:
        return f"{told}, lanes stand at {reached}"
    with Writer(folder) as writer:
        for round_ in range(reached.pop() + 1, AFTER + 1):
            segment(writer, round_)
    lanes, told = restore(folder)
    if told or not verify(folder).whole:
        return f"{told}, {verify(folder).damaged}"
    same = all(np.array_equal(lanes[key(method)].state.models, at(method, AFTER).models) for method in "ab")  # type: ignore[union-attr]
    return "" if same else "the states are others"


def main(every: int) -> None:
    """Until a child lives to its end."""
    stuck: list[str] = []
    with TemporaryDirectory() as root:
        base = Path(root) / "base"
        with growing_states.begin(base) as writer:
            for round_ in range(BEFORE + 1):
                segment(writer, round_)
        number = 1
        while killed_at(folder := shutil.copytree(base, Path(root) / str(number)), number, lambda: segment(Writer(folder), AFTER)):
            if found := wrong(folder):
                stuck.append(f"{number}: {found}")
            shutil.rmtree(folder)
            number += every
        dropped = sorted(growing_states.pieces(base).keys() - growing_states.pieces(folder).keys())
    print(json.dumps({"kills": number // every, "stuck": stuck, "dropped": dropped}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
