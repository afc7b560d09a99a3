"""Write tests/slow.txt, the test functions that `make quick` leaves out, from the times of a whole run:

    .venv/bin/python -m pytest -n 2 --dist worksteal --junitxml=times.xml && .venv/bin/python scripts/slow_tests.py times.xml

A function is slow if one case takes LONG_CASE seconds or all its cases together LONG_SUM.
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).resolve().parents[1] / "tests" / "slow.txt"
HEAD = "# Test functions that `make quick` leaves out. Written by scripts/slow_tests.py.\n"
LONG_CASE, LONG_SUM = 0.25, 0.6  # seconds


def find_slow(times: list[tuple[str, float]]) -> list[str]:
    """The slow functions, by name, from the seconds of each of their cases."""
    cases = defaultdict[str, list[float]](list)
    for name, seconds in times:
        cases[name.partition("[")[0]].append(seconds)
    return sorted(name for name, each in cases.items() if max(each) >= LONG_CASE or sum(each) >= LONG_SUM)


def main() -> None:
    """Read the report of a run and write the list."""
    found = ElementTree.parse(sys.argv[1]).iter("testcase")
    slow = find_slow([(case.attrib["name"], float(case.attrib["time"])) for case in found])
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in slow), encoding="utf-8")
    print(f"{len(slow)} test functions are slow.")


if __name__ == "__main__":
    main()
