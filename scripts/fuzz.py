"""Feed every reader with damaged and made-up input for some minutes: `python scripts/fuzz.py 5 [SEED]`. The short part: tests/test_fuzz.py.

The first input that a reader neither reads nor refuses ends it, made as small as hypothesis can make it.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
EXAMPLES = 300  # of one reader before it is the next one's turn


def main(minutes: float, turn: int = 0) -> None:
    """Reader after reader, with other draws each time, from those of a turn."""
    from readers import READERS

    ends, tried = monotonic() + 60 * minutes, 0
    with TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        while monotonic() < ends:
            for name in READERS:
                feed(name, turn, Path(place))
                tried += EXAMPLES
            turn += 1
            print(f"{tried} inputs, nothing raised but refusals", flush=True)


def feed(name: str, turn: int, place: Path, examples: int = EXAMPLES) -> None:
    """Give one reader so much damaged and made-up input, drawn by the turn."""
    from fuzzing import damaged
    from readers import READERS, attempt

    @seed(turn)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(damaged(READERS[name][1]), st.binary(max_size=200)))
    def check(content: bytes) -> None:
        attempt(name, content, place)

    check()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
