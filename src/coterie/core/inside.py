"""Writing within a folder, and nowhere else: neither a name with dots in it nor a link that somebody planted leads out.

A folder of evidence, or a study beside it, may come from somebody else. What is written into it stays in it.
"""

import os
from pathlib import Path

from coterie.core.errors import UserError


def inside(root: Path, *names: str) -> Path:
    """The place of these names below a folder; refused where that is not in it."""
    place = root.joinpath(*names)
    try:
        found, home = place.resolve(), root.resolve()
        within = found != home and found.is_relative_to(home)
        circle = any(part.is_symlink() for part in (found, *found.parents))  # from Python 3.13 on, such links are not an error
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name that no folder can have
        raise UserError(f"{place} cannot be written to: {getattr(error, 'strerror', None) or error}.") from error
    if circle:
        raise UserError(f"{place} cannot be written to: there are links in a circle.")
    if not within:
        raise UserError(f"{place} lies outside {root} (by its name, or by a link in the folder): nothing is written there.")
    return place


def folder_inside(root: Path, name: str) -> Path:
    """A folder of this name in a folder, made if it is not there; never a link."""
    place = inside(root, name)
    if place.is_symlink():
        raise UserError(f"{place} is a link: nothing is written through it; remove the link.")
    place.mkdir(exist_ok=True)
    return place


def write_inside(folder: Path, name: str, content: str | bytes) -> Path:
    """A file in a folder, written beside its place, then named. A link of that name is replaced, not followed."""
    path = folder / name
    if path.parent != folder:
        raise UserError(f"A file cannot be called {name!r}: it would lie outside {folder}.")
    draft = path.with_name(f".draft-{os.getpid()}-{path.name}"[:255])
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:  # x: a link that was put here in between is not followed either
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
