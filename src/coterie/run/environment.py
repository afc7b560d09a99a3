"""The software and hardware a process runs on: recorded with a study, compared on resume and between workers.

Floating-point results may differ in their last bits with the linear-algebra kernel and the width of the vector units, so a change is
reported, and workers must agree.
"""

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info

from coterie._util.errors import UserError

PACKAGES = ("coterie", "torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pandas", "numba")


def describe_environment() -> dict[str, Any]:
    """Versions of packages, and the features of the processor that decide how it rounds."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "commit": get_source_commit(),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": cpu_count(),
        "packages": {name: _get_version(name) for name in PACKAGES},
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "blas": {
            _get_blas_owner(pool): f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', 'one kernel')})" for pool in pools
        },
    }


def _get_blas_owner(pool: Mapping[str, Any]) -> str:
    """The owner of a BLAS library: NumPy and SciPy bring one each, of one name."""
    folder = Path(pool["filepath"]).parent.name
    return folder if folder.endswith(".libs") else str(pool["prefix"])


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Changes between two environments that may change bits, in words; what is unknown in either is omitted."""
    kept = {"Python": (before.get("python"), now["python"]), "vector units": (before.get("vectors"), now["vectors"])}
    for group, names in (("packages", PACKAGES), ("blas", tuple(now["blas"]))):
        known = before.get(group) or {}
        kept |= {name: (known.get(name), now[group].get(name)) for name in names}
    return [f"{name} {new} (was {old})" for name, (old, new) in kept.items() if None not in (old, new) and old != new]


@cache
def get_source_commit() -> str | None:
    """The commit of the source tree, with a plus sign if files have been changed; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    commit, changes = _run_git(root, "rev-parse", "HEAD"), _run_git(root, "status", "--porcelain", "--untracked-files=no", "src")
    return None if commit is None else commit + ("+" if changes else "")


def _run_git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _get_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a source tree, or an optional package
        return None


@dataclass(frozen=True)
class WorkerHost:
    """A process on a machine, and the environment that decides how it rounds."""

    host: str
    process: int
    environment: Mapping[str, Any] = field(repr=False)

    @classmethod
    def current(cls) -> "WorkerHost":
        return cls(socket.gethostname(), os.getpid(), describe_environment() | {"compiled": _get_vector_units()})

    def check_same_as(self, driver: "WorkerHost") -> None:
        """Refuse a worker that rounds differently from the driver: the digest would depend on the assignment of waves."""
        other = find_changes(driver.environment, self.environment)
        before, now = driver.environment["compiled"], self.environment["compiled"]
        if before != now:
            other.append(f"kernels for {now} (was {before})")
        if other:
            raise UserError(
                f"The worker on {self.host} does not compute as the driver on {driver.host} does: {', '.join(other)}. Use machines of one "
                "kind with the same packages, or set OPENBLAS_CORETYPE, ATEN_CPU_CAPABILITY and NUMBA_CPU_FEATURES alike on all."
            )


def _get_vector_units() -> str:
    """The vector units that kernels are compiled for, of those that change how sums are rounded."""
    import numba
    from llvmlite.binding import get_host_cpu_features

    given: str | None = getattr(numba.config, "CPU_FEATURES", None)
    features = dict(get_host_cpu_features().items()) if given is None else {word[1:]: word[0] == "+" for word in given.split(",") if word}
    return next((name for name in ("avx512f", "avx2", "avx", "neon") if features.get(name)), "no vector units")
