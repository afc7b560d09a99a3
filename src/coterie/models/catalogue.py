"""The models a user may name, and how a spec becomes a module."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from coterie._util.errors import UserError
from coterie.core.layout import Inputs, InputShape
from coterie.core.specs import Registry, parse
from coterie.models.cnn import cnn
from coterie.models.custom import build_custom
from coterie.models.densenet import densenet121
from coterie.models.efficientnet import efficientnet_lite0
from coterie.models.fusion import fusion
from coterie.models.lm import lm
from coterie.models.lstm import lstm, rnn
from coterie.models.mlp import mclr, mlp
from coterie.models.resnet import resnet18, resnet50
from coterie.models.several import taking
from coterie.models.text import text_model

MOST_TENSORS = 2000  # of a model that a spec names: DenseNet-121 has 364
models: Registry[nn.Module] = Registry("model", "coterie.models")
models.add("mclr", mclr)
models.add("mlp", mlp)
models.add("cnn", cnn)
models.add("lstm", lstm)
models.add("rnn", rnn)
models.add("resnet18", resnet18)
models.add("resnet50", resnet50)
models.add("densenet121", densenet121)
models.add("efficientnet_lite0", efficientnet_lite0)
models.add("text", text_model)
models.add("lm", lm)
models.add("fusion", fusion)


def build_model(spec: str, input_shape: InputShape, outputs: int) -> nn.Module:
    """The module a spec names, for samples of this shape; its initial values come from torch's global generator."""
    if outputs < 1:
        raise UserError(f"Model {spec!r} needs at least one output, not {outputs}.")
    parsed = parse(spec)
    if ":" in parsed.name:
        return build_custom(parsed, input_shape, outputs)
    several = next(iter(inspect.signature(models[parsed.name]).parameters), "") == "_inputs"
    if isinstance(input_shape, Inputs) and not several:
        input_shape = _as_one(spec, input_shape)
    if several and not isinstance(input_shape, Inputs):
        raise UserError(f"Model {spec!r} takes several inputs, and the samples are of one: choose another model.")
    _check_room(spec, input_shape, outputs)
    return taking(models.build(parsed, input_shape, outputs), input_shape)


def _as_one(spec: str, inputs: Inputs) -> tuple[int, ...]:
    """The shape of a sample whose inputs lie side by side, for a model that takes one."""
    if any(inputs.tokens):
        raise UserError(
            f"Model {spec!r} takes one input and the samples have {len(inputs.shapes)}, words among them: give a model of your own whose "
            "forward takes them, as 'package.module:factory' or as an object."
        )
    return (inputs.width,)


@cache
def _check_room(spec: str, input_shape: InputShape, outputs: int) -> None:
    """Refuse a model that this machine cannot hold, before it tries: a system that runs out of memory ends the program, not the attempt.

    On torch's device "meta" a module has shapes and no numbers, and nothing is drawn from the generator.
    """
    try:
        with torch.device("meta"), _few_tensors(spec):
            numbers = sum(value.numel() for value in models.build(spec, input_shape, outputs).parameters())
    except (RuntimeError, OverflowError) as error:
        raise UserError(f"Model {spec!r} cannot be made: {str(error).splitlines()[0].rstrip('.')}; choose a smaller one.") from error
    if not hasattr(os, "sysconf"):  # Windows does not say
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * numbers > there:
        size, room = 4 * numbers / (1 << 30), there / (1 << 30)
        raise UserError(f"Model {spec!r} would take {size:,.0f} GiB, and this machine has {room:,.0f}: choose a smaller one.")


@contextmanager
def _few_tensors(spec: str) -> Iterator[None]:
    """Refuse a model of very many layers while it is made: a short spec may name any number, and each takes time."""
    here, made = get_ident(), 0

    def count(module: nn.Module, name: str, value: nn.Parameter) -> None:
        nonlocal made
        made += get_ident() == here  # the hook hears of every thread's modules
        if made > MOST_TENSORS and get_ident() == here:
            raise UserError(f"Model {spec[:60]!r} has more than {MOST_TENSORS:,} tensors of parameters: choose one of fewer layers.")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


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
