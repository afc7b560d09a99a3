"""A user's own model: ``package.module:factory(width=8)``."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from coterie._util.errors import UserError
from coterie.core.layout import InputShape
from coterie.core.specs import Spec, summarize_error
from coterie.models.named_code import find_factory
from coterie.models.several import taking, told_shape


def build_custom(spec: Spec, input_shape: InputShape, outputs: int) -> nn.Module:
    """Import the factory and call it."""
    return called(spec, find_factory(spec.name), input_shape, outputs)


def called(spec: Spec, factory: Callable[..., Any], input_shape: InputShape, outputs: int) -> nn.Module:
    """Call a factory with the user's settings, and with `input_shape` and `outputs` if it knows them."""
    known = {"input_shape": told_shape(input_shape), "outputs": outputs}
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
        raise UserError(f"Model {str(spec)!r} cannot be made: {summarize_error(error)}; its settings are {own or 'none'}.") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"Model {str(spec)!r} gave a value of type {type(module).__name__}: its factory must return a torch.nn.Module.")
    return taking(module, input_shape)


def _parameters(spec: Spec, factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables written in C show no signature
        raise UserError(f"Model {spec.name!r} shows no signature: wrap it in a function of your own.") from None


def _by_name(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
