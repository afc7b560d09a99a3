"""Feed every reader with damaged and made-up input for some minutes: `python scripts/fuzz.py 5`. The short part is tests/test_fuzz.py.

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


def main(minutes: float) -> None:
    """Reader after reader, with other draws each time."""
    from fuzzing import damaged
    from readers import READERS, attempt

    ends, turn, tried = monotonic() + 60 * minutes, 0, 0
    with TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        while monotonic() < ends:
            for name, (_, right) in READERS.items():

                @seed(turn)
                @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
                @given(st.one_of(damaged(right), st.binary(max_size=200)))
                def check(content: bytes, name: str = name) -> None:
                    attempt(name, content, Path(place))

                check()
                tried += EXAMPLES
            turn += 1
            print(f"{tried} inputs, nothing raised but refusals", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
