"""On what a study is carried out: versions and hardware, for the record; no part of what defines it.

Floating-point numbers may differ in their last bits with the linear-algebra kernel and the width of the vector units, so a study that goes
on under others says so.
"""

import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info

PACKAGES = ("coterie", "torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pandas", "numba")


def environment() -> dict[str, Any]:
    """Versions of what computes, and the features of the processor that decide how it rounds."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "commit": source_commit(),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "blas": {_owner(pool): f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', 'one kernel')})" for pool in pools},
    }


def _owner(pool: Mapping[str, Any]) -> str:
    """Whose library it is: NumPy and SciPy bring one each, of one name."""
    folder = Path(pool["filepath"]).parent.name
    return folder if folder.endswith(".libs") else str(pool["prefix"])


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed between two environments that may change bits, in words. What either does not know is left out."""
    kept = {"Python": (before.get("python"), now["python"]), "vector units": (before.get("vectors"), now["vectors"])}
    for group, names in (("packages", PACKAGES), ("blas", tuple(now["blas"]))):
        known = before.get(group) or {}
        kept |= {name: (known.get(name), now[group].get(name)) for name in names}
    return [f"{name} {new} (was {old})" for name, (old, new) in kept.items() if None not in (old, new) and old != new]


@cache
def source_commit() -> str | None:
    """The commit of the source tree that runs, with a plus sign where files of it have been changed; none of an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    told = [_git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no", "src")]
    return None if told[0] is None else told[0] + ("+" if told[1] else "")


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree, or an optional package that is not there
        return None
