"""Where data sets that do not come with the package are looked for."""

import os
from pathlib import Path


def data_folder(given: Path | None = None) -> Path:
    """The folder given, else the one COTERIE_DATA names, else the user's cache."""
    if given is not None:
        return Path(given).expanduser()
    named = os.environ.get("COTERIE_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "coterie"
