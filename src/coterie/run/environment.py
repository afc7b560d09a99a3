"""On what a study is carried out: versions and hardware, for the record; no part of what defines it.

Floating-point numbers may differ in their last bits with the linear-algebra kernel and the width of the vector units, so a study that goes
on under others says so.
"""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from typing import Any

import torch
from threadpoolctl import threadpool_info

PACKAGES = ("coterie", "torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pandas", "numba")


def environment() -> dict[str, Any]:
    """Versions of what computes, and the features of the processor that decide how it rounds."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "blas": {pool["prefix"]: f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', 'one kernel')})" for pool in pools},
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed between two environments that may change bits, in words. What either does not know is left out."""
    kept = {"Python": (before.get("python"), now["python"]), "vector units": (before.get("vectors"), now["vectors"])}
    for group, names in (("packages", PACKAGES), ("blas", tuple(now["blas"]))):
        known = before.get(group) or {}
        kept |= {name: (known.get(name), now[group].get(name)) for name in names}
    return [f"{name} {new} (was {old})" for name, (old, new) in kept.items() if None not in (old, new) and old != new]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree, or an optional package that is not there
        return None
