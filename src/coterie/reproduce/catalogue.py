"""Where study files are, by name."""

import sysconfig
from pathlib import Path

from coterie.core.errors import UserError, suggestion


def folders(extra: Path | None = None) -> list[Path]:
    """Where studies are looked for: the folder given, else `studies` here, that of the source tree, and what was installed."""
    installed = Path(sysconfig.get_path("data")) / "share" / "coterie" / "studies"
    places = [extra] if extra is not None else [Path("studies"), Path(__file__).parents[3] / "studies", installed]
    return [place for place in places if place.is_dir()]


def catalogue(extra: Path | None = None) -> dict[str, Path]:
    """The studies by name."""
    return {path.stem: path for place in reversed(folders(extra)) for path in sorted(place.glob("*.toml"))}


def find(name: str, extra: Path | None = None) -> Path:
    """The file of a study, by name or by path."""
    if name.endswith(".toml"):
        return Path(name)
    known = catalogue(extra)
    if name not in known:
        raise UserError(f"There is no study {name!r}: {suggestion(name, known)}")
    return known[name]
