"""Break one important line at a time and check that a test fails: `make mutants`.

    python scripts/mutants.py [--only TEXT] [--skip TEXT] [--jobs N]

Each mutant of mutants.toml is a line of the source, the same line broken, and the tests that must fail then. A mutant that survives is a
fault of the tests. Each job works on its own copy of the source.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parent.parent
Mutant = dict[str, Any]
KILLED = "killed by "


def main() -> int:
    """Run the tests of each mutant; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or reason contains this text")
    parser.add_argument("--skip", help="no mutants whose file contains this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time (default: the number of cores)")
    chosen = parser.parse_args()
    known = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    mutants = [mutant for mutant in known if chosen.only in mutant["file"] or chosen.only in mutant["why"]]
    mutants = [mutant for mutant in mutants if chosen.skip is None or chosen.skip not in mutant["file"]]
    survived = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(chosen.jobs):
            copy = Path(folder) / str(job) / "src"
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            copies.put(copy)
        _check_copy(copy)
        for mutant, result in zip(mutants, pool.map(lambda mutant: _test_mutant(mutant, copies), mutants), strict=True):
            survived += not result.startswith(KILLED)
            print(f"{mutant['file']}: {mutant['why']}: {result}", flush=True)
    print(f"{len(mutants) - survived} of {len(mutants)} mutants killed")
    return 1 if survived else 0


def _test_mutant(mutant: Mutant, copies: "SimpleQueue[Path]") -> str:
    """What happened to a mutant: KILLED and the first test that failed, or that it survived, or why its tests did not run."""
    source = copies.get()
    try:
        text = (source / "coterie" / mutant["file"]).read_text(encoding="utf-8")
        if text.count(mutant["before"]) != 1:
            return f"NOT RUN: its line occurs {text.count(mutant['before'])} times in the source; fix scripts/mutants.toml"
        done = _run_tests(source, mutant["file"], text.replace(mutant["before"], mutant["after"]), mutant["tests"])
    finally:
        copies.put(source)
    if done.returncode == 0:
        return "SURVIVED"
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode != 1 or not failed:
        return f"NOT RUN: pytest ended with exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return KILLED + failed[0]


def _check_copy(source: Path) -> None:
    """Tests must import the copy, not the installed source: a copy that cannot be imported must fail."""
    if _run_tests(source, "_util/errors.py", "raise RuntimeError\n", ["core/test_specs.py"]).returncode == 0:
        sys.exit("The tests do not import the copy of the source: no mutant would be noticed.")


def _run_tests(source: Path, file: str, text: str, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest on these tests while a file of the copy has this text."""
    path = source / "coterie" / file
    before = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    options = ["-o", f"pythonpath={source} tests", "-p", "no:cacheprovider", *(f"tests/{name}" for name in tests)]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}  # for processes that tests start
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(before, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
