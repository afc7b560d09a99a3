"""The models a user may name, and how a spec becomes a module."""

import inspect
from typing import NamedTuple

from torch import nn

from coterie.core.errors import UserError
from coterie.core.specs import Registry, parse
from coterie.models.cnn import cnn
from coterie.models.custom import build_custom
from coterie.models.lstm import lstm, rnn
from coterie.models.mlp import mclr, mlp

models: Registry[nn.Module] = Registry("model")
models.add("mclr", mclr)
models.add("mlp", mlp)
models.add("cnn", cnn)
models.add("lstm", lstm)
models.add("rnn", rnn)


def build_model(spec: str, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The module a spec names, for samples of this shape; its initial values come from torch's global generator."""
    if outputs < 1:
        raise UserError(f"Model {spec!r} needs at least one output, not {outputs}.")
    parsed = parse(spec)
    if ":" in parsed.name:
        return build_custom(parsed, input_shape, outputs)
    return models.build(parsed, input_shape, outputs)


class ModelListed(NamedTuple):
    """One line of the listing of models."""

    name: str
    settings: str  # with their defaults, as a user writes them
    about: str


def describe_model() -> list[ModelListed]:
    """What there is to choose from, in alphabetical order."""
    return [ModelListed(name, _settings(name), (inspect.getdoc(models[name]) or "").partition("\n")[0]) for name in models]


def _settings(name: str) -> str:
    """``hidden=100, layers=2`` for settings with a default, ``*hidden`` for any number of values."""
    return ", ".join(_setting(parameter) for parameter in models.settings(name).values())


def _setting(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    value = parameter.default
    return f"{parameter.name}={str(value).lower() if value is None or isinstance(value, bool) else value}"
