"""Finding a model by its name: what is called must make a module."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from torch import nn

from coterie._util.errors import UserError
from coterie.core.specs import import_object


def find_factory(name: str) -> Callable[..., Any]:
    """What ``package.module:factory`` names: a subclass of nn.Module, or a function whose annotation says that it returns one.

    Anything else is not called: ``os:system`` is a name, too.
    """
    found = import_object("Model", name)
    if not _makes_module(found):
        raise UserError(
            f"Model {name!r} is of type {type(found).__name__}: name a subclass of torch.nn.Module, or a function annotated '-> nn.Module'."
        )
    factory: Callable[..., Any] = found
    return factory


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
