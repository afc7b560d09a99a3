"""Coterie: federated learning for clients that resemble each other.

The public names stand in `__init__.pyi`, once each. A name is loaded when it is first used, so that `import coterie` and
`coterie --help` do not wait for torch.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "1.0.0rc1"

_LINE = re.compile(r"^from (coterie[\w.]*) import (\w+) as \2$", re.MULTILINE)
_HOME = {name: module for module, name in _LINE.findall(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
