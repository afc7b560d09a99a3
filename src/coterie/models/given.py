"""A model given as an object: a module, a class or a function that makes one."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn

from coterie._util.errors import UserError
from coterie.core.layout import InputShape
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
        return _name(type(model)), _CopiesOf(kept)
    if not callable(model):
        raise UserError(f"A model is a spec, a module, or a class or function that makes one, not a value of type {type(model).__name__}.")
    factory: Callable[..., Any] = model
    return _name(factory), _MadeBy(factory)


@dataclass(frozen=True, eq=False)
class _CopiesOf:
    """Makes copies of a module. A class and no closure, so that a study can be sent to another process."""

    kept: nn.Module

    def __call__(self, text: str, shape: InputShape, outputs: int) -> nn.Module:
        return taking(deepcopy(self.kept), shape)


@dataclass(frozen=True, eq=False)
class _MadeBy:
    """Calls what makes modules."""

    factory: Callable[..., Any]

    def __call__(self, text: str, shape: InputShape, outputs: int) -> nn.Module:
        return called(Spec(text), self.factory, shape, outputs)


def _name(made: Any) -> str:
    """``module:Name``, by which it can be found again where it stands in a module of its own."""
    inner = made if hasattr(made, "__name__") else type(made)  # such as a partial
    name = "".join(c for c in inner.__name__ if c.isalnum() or c == "_") or "function"  # <lambda>
    home = getattr(inspect.getmodule(inner), "__name__", "__main__")
    return f"{home}:{name}"
