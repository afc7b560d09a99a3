"""A model given as an object: a module, a class or a function that makes one."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import nn

from coterie.core.errors import UserError
from coterie.core.model import MakeModule
from coterie.core.specs import Spec
from coterie.models.catalogue import build_model
from coterie.models.custom import called
from coterie.models.several import taking

GivenModel = str | nn.Module | Callable[..., nn.Module]  # a class is a callable, too


def given_model(model: GivenModel) -> tuple[str, MakeModule]:
    """The name of a model in the evidence, and what makes it.

    A class or a function is called anew for every initial model, with `input_shape` and `outputs` if it knows them. A module is copied, so
    that every seed begins with its numbers.
    """
    if isinstance(model, str):
        return model, build_model
    if isinstance(model, nn.Module):
        kept = deepcopy(model)
        return _name(type(model)), lambda text, shape, outputs: taking(deepcopy(kept), shape)
    if not callable(model):
        raise UserError(f"A model is a spec, a module, or a class or function that makes one, not a value of type {type(model).__name__}.")
    factory: Callable[..., Any] = model
    return _name(factory), lambda text, shape, outputs: called(Spec(text), factory, shape, outputs)


def _name(made: Any) -> str:
    """``module:Name``, by which it can be found again where it stands in a module of its own."""
    inner = made if hasattr(made, "__name__") else type(made)  # such as a partial
    name = "".join(c for c in inner.__name__ if c.isalnum() or c == "_") or "function"  # <lambda>
    home = getattr(inspect.getmodule(inner), "__name__", "__main__")
    return f"{home}:{name}"
