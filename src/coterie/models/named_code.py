"""Finding code by its name: imported with the current folder last on the path, and called only if it makes a module."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from types import ModuleType
from typing import Any, get_type_hints

from torch import nn

from coterie.core.errors import UserError, suggestion


def find_factory(name: str) -> Callable[..., Any]:
    """What ``package.module:factory`` names: a subclass of nn.Module, or a function whose annotation says that it returns one.

    Anything else is not called: ``os:system`` is a name, too.
    """
    path, _, attribute = name.partition(":")
    module = _imported(path, name)
    if not hasattr(module, attribute):
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"Model {name!r}: module {path!r} has no {attribute!r}: {suggestion(attribute, public)}")
    found = getattr(module, attribute)
    if not _makes_module(found):
        raise UserError(
            f"Model {name!r} is of type {type(found).__name__}: name a subclass of torch.nn.Module, or a function annotated '-> nn.Module'."
        )
    factory: Callable[..., Any] = found
    return factory


def first_line_of(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


def _imported(path: str, name: str) -> ModuleType:
    try:
        with _current_folder_last():
            return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise UserError(f"Model {name!r}: module {path!r} cannot be imported: {first_line_of(error)}.") from error
        raise UserError(f"Model {name!r}: there is no module {path!r}: check the name, and that its folder is on PYTHONPATH.") from None
    except ImportError as error:
        raise UserError(f"Model {name!r}: module {path!r} cannot be imported: {first_line_of(error)}.") from error
    except (Exception, SystemExit) as error:  # whatever a module may raise while it is imported
        raise UserError(f"Model {name!r}: module {path!r} ended with {type(error).__name__}: {first_line_of(error)}.") from error


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


def _makes_module(found: Any) -> bool:
    if inspect.isclass(found):
        return issubclass(found, nn.Module)
    if not inspect.isfunction(found):
        return False
    try:
        given = get_type_hints(found).get("return")
    except Exception:  # another annotation of the function may name what is not there
        given = found.__annotations__.get("return")
    return given in ("nn.Module", "torch.nn.Module") or (inspect.isclass(given) and issubclass(given, nn.Module))
