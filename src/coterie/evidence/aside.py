"""Damaged parts of a study are moved out of the way, never deleted."""

from itertools import count
from pathlib import Path

from coterie.core.disk import flush

ASIDE = "set-aside"


def set_aside(folder: Path, path: Path) -> Path:
    """Move a file or folder of a study into its folder of damaged parts; where it is now."""
    place = folder / ASIDE
    place.mkdir(exist_ok=True)
    name = "-".join(path.relative_to(folder).parts)
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    final = next(place / each for each in names if not (place / each).exists())
    path.rename(final)
    for changed in (place, path.parent):
        flush(changed)
    return final
