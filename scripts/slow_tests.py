"""Write tests/slow.txt, the test functions that `make quick` leaves out, from the times of a whole run:

    .venv/bin/python -m pytest -n 2 --dist worksteal --junitxml=times.xml && .venv/bin/python scripts/slow_tests.py times.xml

A function is slow if one case takes LONG_CASE seconds or all its cases together LONG_SUM. All functions of a file are slow if one of them
takes LONG_FILE: such files share a federation of real processes, whose start is part of the first test alone.
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).resolve().parents[1] / "tests" / "slow.txt"
HEAD = "# Test functions that `make quick` leaves out. Written by scripts/slow_tests.py.\n"
LONG_CASE, LONG_SUM, LONG_FILE = 0.2, 0.5, 5.0  # seconds


def find_slow(times: list[tuple[str, str, float]]) -> list[str]:
    """The names of the slow functions, from file, name and seconds of each case."""
    cases = defaultdict[tuple[str, str], list[float]](list)
    for file, name, seconds in times:
        cases[file, name.partition("[")[0]].append(seconds)
    long_files = {file for (file, _), each in cases.items() if max(each) >= LONG_FILE}
    return sorted({name for (file, name), each in cases.items() if file in long_files or max(each) >= LONG_CASE or sum(each) >= LONG_SUM})


def main() -> None:
    """Read the report of a run and write the list."""
    found = ElementTree.parse(sys.argv[1]).iter("testcase")
    slow = find_slow([(case.attrib["classname"], case.attrib["name"], float(case.attrib["time"])) for case in found])
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in slow), encoding="utf-8")
    print(f"{len(slow)} test functions are slow.")


if __name__ == "__main__":
    main()
