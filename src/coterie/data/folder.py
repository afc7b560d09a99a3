"""Where data sets that do not come with the package are looked for, and where they are kept once decoded."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache: $XDG_CACHE_HOME/coterie, or ~/.cache/coterie."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named).expanduser() if named else Path.home() / ".cache") / "coterie"


def data_folders(given: Path | None = None) -> list[Path]:
    """Where to look, in order: the folder given, else the one COTERIE_DATA names; then the user's cache."""
    named = given or os.environ.get("COTERIE_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def find_path(path: str, given: Path | None = None) -> Path:
    """A user's own file or folder: as written, or below one of the data folders."""
    written = Path(path).expanduser()
    places = [written, *(folder / written for folder in data_folders(given))]
    return next((place for place in places if place.exists()), written)
