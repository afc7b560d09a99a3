"""Coterie is imported, and a study runs, where modules and calls of POSIX systems are missing, as on Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie._util.files import sync_to_disk, write_atomic

# Modules are hidden from Coterie alone: those of other packages look for Windows by themselves.
HIDDEN = """
import builtins, os, signal, sys
import filelock, numba, pandas, platformdirs, pyarrow.parquet, rich.console, scipy.stats, sklearn, torch, typer
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CALLS = {"fork", "getpgrp", "getuid", "geteuid", "killpg", "pread", "pwrite", "register_at_fork", "sched_getaffinity", "setsid", "sysconf"}
real = builtins.__import__
def without_posix(name, globals=None, locals=None, fromlist=(), level=0):
    if (globals or {}).get("__name__", "").startswith("coterie") and name.partition(".")[0] in MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = without_posix
for name in CALLS:
    delattr(os, name)
del signal.SIGHUP
"""
IMPORTS = """
import coterie, importlib, pkgutil
for found in pkgutil.walk_packages(coterie.__path__, "coterie."):
    if not found.name.startswith("coterie.deploy.flare") and not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ImportError as error:  # an extra that is not installed
            if error.name in MODULES:
                raise
"""
RUN = """
from coterie.cli import main
sys.argv = ["coterie", "run", "fedavg", "--data", "heart", "--rounds", "1", "--seeds", "0", "--out", sys.argv[1]]
main()
"""


def run_without_posix(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", HIDDEN + program, *words], capture_output=True, text=True, check=False)


def test_every_module_is_imported() -> None:
    done = run_without_posix(IMPORTS)
    assert done.returncode == 0, done.stderr


def test_a_study_runs_into_a_folder(tmp_path: Path) -> None:
    done = run_without_posix(RUN, str(tmp_path / "study"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "study" / "settings.json").is_file()


def test_windows_flushes_files_that_are_open_for_writing_and_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def noted(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append((path.name, flags & os.O_ACCMODE))
        return real(path, flags, mode)

    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(os, "name", "nt")
    sync_to_disk(tmp_path / "file")
    sync_to_disk(tmp_path)
    monkeypatch.undo()
    assert opened == [("file", os.O_RDWR)]


def test_lines_end_alike_on_every_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "linesep", "\r\n")
    write_atomic(tmp_path / "file", "a\nb\n")
    assert (tmp_path / "file").read_bytes() == b"a\nb\n"
