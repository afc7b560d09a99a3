"""A user's own model: ``package.module:factory(width=8)``."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from coterie.core.errors import UserError, suggestion
from coterie.core.specs import Spec


def build_custom(spec: Spec, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Import the factory and call it with the user's settings, and with `input_shape` and `outputs` if it knows them."""
    factory = _find(spec.name)
    known = {"input_shape": input_shape, "outputs": outputs}
    parameters = _parameters(spec, factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    # users who set outputs themselves are believed
    given = {k: v for k, v in known.items() if k not in spec.kwargs and (takes_any or _by_name(parameters.get(k)))}
    try:
        inspect.signature(factory).bind(*spec.args, **spec.kwargs, **given)
        module = factory(*spec.args, **spec.kwargs, **given)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        own = ", ".join(str(p.replace(annotation=p.empty)) for name, p in parameters.items() if name not in known)
        raise UserError(f"Model {str(spec)!r} cannot be made: {_first_line(error)}; its settings are {own or 'none'}.") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"Model {str(spec)!r} gave a value of type {type(module).__name__}: its factory must return a torch.nn.Module.")
    return module


def _find(name: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise UserError(f"Model {name!r}: module {path!r} cannot be imported: {_first_line(error)}.") from error
        raise UserError(f"Model {name!r}: there is no module {path!r}: check the name, and that its folder is on PYTHONPATH.") from None
    except ImportError as error:
        raise UserError(f"Model {name!r}: module {path!r} cannot be imported: {_first_line(error)}.") from error
    if not hasattr(module, attribute):
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"Model {name!r}: module {path!r} has no {attribute!r}: {suggestion(attribute, public)}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise UserError(f"Model {name!r} is of type {type(factory).__name__}: name a function or class that returns a torch.nn.Module.")
    found: Callable[..., Any] = factory
    return found


def _parameters(spec: Spec, factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables written in C show no signature
        raise UserError(f"Model {spec.name!r} shows no signature: wrap it in a function of your own.") from None


def _by_name(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
