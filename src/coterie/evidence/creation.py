"""Beginning a folder so that a kill or a full disk at any moment leaves one that the same command begins anew.

Everything is made in a draft within the folder, flushed to the disk, then named; the file that makes it a study comes last. As long as that
is not there, the draft tells that whatever else is there came from it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from coterie.core.disk import flush
from coterie.core.errors import UserError
from coterie.core.locks import LOCK, Hold

DRAFT = ".draft"


def create_folder(folder: Path, last: str, fill: Callable[[Path], object], what: str = "study") -> Hold:
    """Begin a folder that `fill` fills, `last` being the file that makes it one; it is held for this process.

    One that holds anything else, or that another process writes to, is refused.
    """
    _check_free(folder, last, what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    hold = Hold(folder)
    draft = folder / DRAFT
    try:
        _check_free(folder, last, what)  # another process may have been faster
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        fill(draft)
        for path in (*draft.rglob("*"), draft):
            flush(path)
        for name in sorted(os.listdir(draft), key=lambda name: name == last):
            _name(draft / name, folder / name)
        draft.rmdir()
        flush(folder)
    except OSError as error:
        hold.close()
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    except BaseException:
        hold.close()
        raise
    return hold


def is_free(folder: Path, last: str) -> bool:
    """Whether there is nothing in a folder but perhaps a lock and what an unfinished creation left."""
    there = set(os.listdir(folder)) - {LOCK} if folder.is_dir() else set()
    unfinished = DRAFT in there and last not in there and not any((folder / "segments").glob("[!.]*"))
    return not folder.exists() or (folder.is_dir() and (not there or unfinished))


def _check_free(folder: Path, last: str, what: str) -> None:
    if not is_free(folder, last):
        raise UserError(f"{folder} is not empty: choose another --out, or continue the {what} in it with --resume.")


def _name(draft: Path, final: Path) -> None:
    """Move a file or folder to its place, where an unfinished creation may have left one."""
    if final.is_dir() and not final.is_symlink():
        shutil.rmtree(final)
    draft.replace(final)
