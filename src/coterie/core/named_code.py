"""Finding code by its name, ``package.module:name``: imported with the current folder last on the path."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from types import ModuleType
from typing import Any

from coterie.core.errors import UserError, suggestion


def named_object(what: str, name: str) -> Any:
    """What ``package.module:name`` names; `what` is a model or a method, for the sentence where there is none."""
    path, _, attribute = name.partition(":")
    module = _imported(what, path, name)
    if not hasattr(module, attribute):
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"{what} {name!r}: module {path!r} has no {attribute!r}: {suggestion(attribute, public)}")
    return getattr(module, attribute)


def first_line_of(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


def _imported(what: str, path: str, name: str) -> ModuleType:
    try:
        with _current_folder_last():
            return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise UserError(f"{what} {name!r}: module {path!r} cannot be imported: {first_line_of(error)}.") from error
        raise UserError(f"{what} {name!r}: there is no module {path!r}: check the name, and that its folder is on PYTHONPATH.") from None
    except ImportError as error:
        raise UserError(f"{what} {name!r}: module {path!r} cannot be imported: {first_line_of(error)}.") from error
    except (Exception, SystemExit) as error:  # whatever a module may raise while it is imported
        raise UserError(f"{what} {name!r}: module {path!r} ended with {type(error).__name__}: {first_line_of(error)}.") from error


@contextmanager
def _current_folder_last() -> Iterator[None]:
    """A user's own module beside the study is found, and nothing in that folder can stand in for an installed package."""
    here = os.getcwd()
    sys.path.append(here)
    invalidate_caches()  # the module may have been written a moment ago
    try:
        yield
    finally:
        last = len(sys.path) - 1 - sys.path[::-1].index(here) if here in sys.path else None  # the module may have changed the path, too
        if last is not None:
            del sys.path[last]
