"""Users' models, ``package.module:factory(width=8)``, and models whose forward takes several inputs."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from torch import Tensor, nn

from coterie._util.errors import UserError, summarize_error
from coterie.core.layout import Inputs, InputShape
from coterie.core.specs import Spec, import_object
from coterie.models.layers import FrozenBody


class SeveralInputs(nn.Module):
    """Takes rows apart and hands the inputs to the model: all that lies between one array of samples and a forward of several."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    @property
    def cache_key(self) -> str:
        """What distinguishes models of equal parameters, for the cache of features."""
        return str(getattr(self.model, "cache_key", ""))

    def forward(self, rows: Tensor) -> Tensor:
        found = []
        for piece, shape, whole in zip(self.inputs.pieces, self.inputs.shapes, self.inputs.tokens, strict=True):
            own = rows[..., piece].reshape(*rows.shape[:-1], *shape)
            found.append(own.long() if whole else own)
        named = self.inputs.names
        outputs: Tensor = self.model(**dict(zip(named, found, strict=True))) if named else self.model(*found)
        return outputs


def wrap_inputs(module: nn.Module, shape: InputShape) -> nn.Module:
    """The module for rows of samples, whether its forward takes one input or several."""
    if not isinstance(shape, Inputs):
        return module
    if isinstance(module, FrozenBody):  # the head takes features, whatever the body takes
        return FrozenBody(SeveralInputs(module.body, shape), module.head)
    return SeveralInputs(module, shape)


def find_factory(name: str) -> Callable[..., Any]:
    """What ``package.module:factory`` names: a subclass of nn.Module, or a function whose annotation is one.

    Anything else is not called: ``os:system`` is a name, too.
    """
    found = import_object("Model", name)
    if not _returns_module(found):
        raise UserError(
            f"Model {name!r} is of type {type(found).__name__}: name a subclass of torch.nn.Module, or a function annotated '-> nn.Module'."
        )
    factory: Callable[..., Any] = found
    return factory


def _returns_module(found: Any) -> bool:
    if inspect.isclass(found):
        return issubclass(found, nn.Module)
    if not inspect.isfunction(found):
        return False
    try:
        given = get_type_hints(found).get("return")
    except Exception:  # another annotation of the function may name what is not there
        given = found.__annotations__.get("return")
    return given in ("nn.Module", "torch.nn.Module") or (inspect.isclass(given) and issubclass(given, nn.Module))


def build_custom(spec: Spec, input_shape: InputShape, outputs: int) -> nn.Module:
    """Import the factory and call it."""
    return call_factory(spec, find_factory(spec.name), input_shape, outputs)


def call_factory(spec: Spec, factory: Callable[..., Any], input_shape: InputShape, outputs: int) -> nn.Module:
    """Call a factory with the user's settings, and with `input_shape` and `outputs` if it knows them."""
    known = {"input_shape": input_shape.shape if isinstance(input_shape, Inputs) else input_shape, "outputs": outputs}
    try:
        parameters = dict(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables written in C show no signature
        raise UserError(f"Model {spec.name!r} shows no signature: wrap it in a function of your own.") from None
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    # outputs that a user sets are not checked
    named = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = {k: v for k, v in known.items() if k not in spec.kwargs and (takes_any or k in named)}
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
    return wrap_inputs(module, input_shape)
