"""Break one important line at a time, and see whether a test notices: `make mutants`.

    python scripts/mutants.py [--only TEXT]

Each mutant of mutants.toml is a line of the source as it should be, the same line broken, and the tests that have to fail then. A mutant
that survives is a fault of the tests. The source is copied; nothing here is changed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Try the mutants one after the other; 1 where one survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or reason holds this text")
    wanted = parser.parse_args().only
    known = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    mutants = [mutant for mutant in known if wanted in mutant["file"] or wanted in mutant["why"]]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        _check_copy(source)
        for mutant in mutants:
            killer = _killer(mutant, source)
            survived += killer is None
            told = f"killed by {killer}" if killer is not None else "SURVIVED"
            print(f"{mutant['file']}: {mutant['why']}: {told}", flush=True)
    print(f"{len(mutants) - survived} of {len(mutants)} mutants killed")
    return 1 if survived else 0


def _killer(mutant: dict[str, Any], source: Path) -> str | None:
    """The first test that fails with the mutant; None where none does."""
    text = (source / "coterie" / mutant["file"]).read_text(encoding="utf-8")
    if text.count(mutant["before"]) != 1:
        sys.exit(f"{mutant['file']} holds {mutant['before']!r} {text.count(mutant['before'])} times: mend scripts/mutants.toml.")
    done = _tested_with(source, mutant["file"], text.replace(mutant["before"], mutant["after"]), mutant["tests"])
    if done.returncode == 0:
        return None
    if done.returncode != 1:
        sys.exit(f"The tests of {mutant['file']} ({mutant['why']}) did not run:\n{done.stdout}{done.stderr}")
    return next(line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))


def _check_copy(source: Path) -> None:
    """Tests must read the copy, not the source that is installed: a copy that cannot be imported must fail."""
    if _tested_with(source, "_util/errors.py", "raise RuntimeError\n", ["core/test_specs.py"]).returncode == 0:
        sys.exit("The tests do not read the copy of the source: nothing can be said of them.")


def _tested_with(source: Path, file: str, text: str, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """What pytest says of these tests while a file of the copy reads so."""
    path = source / "coterie" / file
    before = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    places = ["-o", f"pythonpath={source} tests", "-p", "no:cacheprovider", *(f"tests/{name}" for name in tests)]
    apart = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}  # for processes that tests start
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", *places], cwd=ROOT, env=apart, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(before, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
