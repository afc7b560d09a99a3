"""The speed of two trees: the same studies by turns, one process each, and the ratio of their medians.

usage: python -m benchmarks.against BASE [--repeats 7] [--data-dir DIR]

BASE is a commit, or a folder that holds another tree. Each tree runs the studies through the public API, so that only
`coterie.study` must be the same in both.
Without MNIST in --data-dir the studies use embedded data.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
LIMIT = 1.05  # of the median: slower than that is reported
IMAGES, SMALL = "mnist/powerlaw(clients=1000)", "synthetic(iid,clients=1000)"
STUDIES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "mclr": (["fedavg"], {"rounds": 30, "cohort": 20, "epochs": 20, "lr": 0.03, "seeds": [0], "evaluate_every": 30}),
    "mclr, evaluated": (["fedavg"], {"rounds": 30, "cohort": 20, "epochs": 20, "lr": 0.03, "seeds": [0]}),
    "lanes": (["fedavg", "fedprox(mu=1)"], {"rounds": 2, "cohort": 20, "epochs": 5, "lr": 0.03, "seeds": list(range(35))}),
    "server": (
        ["fedsim(clusters=5)", "fedgroup(groups=4)", "fesem(groups=4)", "simprox", "flhc(groups=4)"],
        {"rounds": 4, "cohort": 300, "epochs": 1, "lr": 0.03, "seeds": [0], "evaluate_every": 4},
    ),
}


def serve(data_dir: str | None) -> None:
    """Time a study whenever a line names one."""
    import coterie as ct

    data = IMAGES if data_dir else SMALL
    loaded = ct.load(data, data_dir=Path(data_dir) if data_dir else None)
    for line in sys.stdin:
        methods, settings = STUDIES[line.strip()]
        begin = perf_counter()
        ct.study(methods, data=loaded, **settings)
        print(perf_counter() - begin, flush=True)


def main() -> int:
    """Run both trees by turns; 1 where this one is slower than LIMIT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data-dir", type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.data_dir)
        return 0
    if options.base is None:
        parser.error("BASE, a commit or a folder, is missing")
    slower = 0
    with _open_tree(options.base) as base:
        sides = {name: _start(tree, options.data_dir) for name, tree in (("base", base), ("this", ROOT))}
        for study in STUDIES:
            slower += _compare(study, sides, options.repeats) > LIMIT
        for process in sides.values():
            process.terminate()
    return 1 if slower else 0


@contextmanager
def _open_tree(base: str) -> Iterator[Path]:
    """The other tree: a folder as it is, a commit in a worktree of its own."""
    if Path(base).is_dir():
        yield Path(base).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), base], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def _start(tree: Path, data_dir: str | None) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", *(["--data-dir", data_dir] if data_dir else [])]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    return subprocess.Popen(command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _compare(study: str, sides: "dict[str, subprocess.Popen[str]]", repeats: int) -> float:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name in sorted(sides, reverse=bool(turn % 2)):
            process = sides[name]
            assert process.stdin is not None
            assert process.stdout is not None
            print(study, file=process.stdin, flush=True)
            took = float(process.stdout.readline())
            if turn:  # the first turn compiles
                seconds[name].append(took)
    base, this = (float(np.median(seconds[name])) for name in ("base", "this"))
    print(
        f"{study:18s} base {base:7.3f} s   this {this:7.3f} s   this / base {this / base:5.3f}   load {os.getloadavg()[0]:.1f}", flush=True
    )
    return this / base


if __name__ == "__main__":
    sys.exit(main())
