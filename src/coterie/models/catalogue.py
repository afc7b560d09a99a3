"""Models by name, as a spec or as an object: building them and explaining their settings."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from coterie._util.errors import UserError
from coterie.core.layout import Inputs, InputShape
from coterie.core.model import MakeModule
from coterie.core.specs import Registry, Spec, parse
from coterie.models.cnn import cnn
from coterie.models.custom import build_custom, call_factory, wrap_inputs
from coterie.models.densenet import densenet121
from coterie.models.efficientnet import efficientnet_lite0
from coterie.models.fusion import fusion
from coterie.models.lm import lm
from coterie.models.lstm import lstm, rnn
from coterie.models.mlp import mclr, mlp
from coterie.models.resnet import resnet18, resnet50
from coterie.models.text import text_model

MAX_TENSORS = 2000  # of a model that a spec names: DenseNet-121 has 364
_BUILT_IN = (mclr, mlp, cnn, lstm, rnn, resnet18, resnet50, densenet121, efficientnet_lite0, lm, fusion)
models: Registry[nn.Module] = Registry("model", "coterie.models", text=text_model, **{build.__name__: build for build in _BUILT_IN})


def build_model(spec: str, input_shape: InputShape, outputs: int) -> nn.Module:
    """The module a spec names, for samples of this shape; its initial values come from torch's global generator."""
    if outputs < 1:
        raise UserError(f"Model {spec!r} needs at least one output, not {outputs}.")
    parsed = parse(spec)
    if ":" in parsed.name:
        return build_custom(parsed, input_shape, outputs)
    several = next(iter(inspect.signature(models[parsed.name]).parameters), "") == "_inputs"
    if isinstance(input_shape, Inputs) and not several:
        if any(input_shape.tokens):
            raise UserError(
                f"Model {spec!r} takes one input and the samples have {len(input_shape.shapes)}, words among them: give a model of your "
                "own whose forward takes them, as 'package.module:factory' or as an object."
            )
        input_shape = (input_shape.width,)
    if several and not isinstance(input_shape, Inputs):
        raise UserError(f"Model {spec!r} takes several inputs, and the samples are of one: choose another model.")
    _check_memory(spec, input_shape, outputs)
    return wrap_inputs(models.build(parsed, input_shape, outputs), input_shape)


@cache
def _check_memory(spec: str, input_shape: InputShape, outputs: int) -> None:
    """Refuse a model that this machine cannot hold, before it tries: a system that runs out of memory ends the program, not the attempt.

    On torch's device "meta" a module has shapes and no numbers, and nothing is drawn from the generator.
    """
    try:
        with torch.device("meta"), _limit_tensors(spec):
            numbers = sum(value.numel() for value in models.build(spec, input_shape, outputs).parameters())
    except (RuntimeError, OverflowError) as error:
        raise UserError(f"Model {spec!r} cannot be made: {str(error).splitlines()[0].rstrip('.')}; choose a smaller one.") from error
    if not hasattr(os, "sysconf"):  # not on Windows
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * numbers > there:
        size, room = 4 * numbers / (1 << 30), there / (1 << 30)
        raise UserError(f"Model {spec!r} would take {size:,.0f} GiB, and this machine has {room:,.0f}: choose a smaller one.")


@contextmanager
def _limit_tensors(spec: str) -> Iterator[None]:
    """Refuse a model of very many layers while it is made: a short spec may name any number, and each takes time."""
    here, made = get_ident(), 0

    def count(module: nn.Module, name: str, value: nn.Parameter) -> None:
        nonlocal made
        made += get_ident() == here  # the hook hears of every thread's modules
        if made > MAX_TENSORS and get_ident() == here:
            raise UserError(f"Model {spec[:60]!r} has more than {MAX_TENSORS:,} tensors of parameters: choose one of fewer layers.")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


class ModelEntry(NamedTuple):
    """One line of the listing of models."""

    name: str
    settings: str  # with their defaults, as a user writes them
    about: str


def list_models() -> list[ModelEntry]:
    """What there is to choose from, in alphabetical order."""
    return [ModelEntry(name, _format_settings(name), (inspect.getdoc(models[name]) or "").partition("\n")[0]) for name in models]


def _format_settings(name: str) -> str:
    """``hidden=100, layers=2`` for settings with a default, ``*hidden`` for any number of values."""
    made = []
    for parameter in models.settings(name).values():
        star, default = "*" if parameter.kind is parameter.VAR_POSITIONAL else "", _format_default(parameter)
        made.append(f"{star}{parameter.name}" + (f"={default}" if parameter.default is not parameter.empty else ""))
    return ", ".join(made)


def _format_default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    return "" if value is parameter.empty else str(value).lower() if value is None or isinstance(value, bool) else str(value)


_WORD_HELP = {
    "vocabulary": "How many numbers tokens may have: that of the data's features=tokens,vocabulary=...",
    "width": "Numbers that a word is embedded in, where no table of embeddings is named.",
    "embeddings": "A NumPy file with a row for each token, in place of random ones.",
    "train_embeddings": "Whether embeddings are trained along; frozen otherwise.",
}
_IMAGE_HELP = {
    "stem": "cifar begins with 3x3 and no pool, for images of some 32x32 pixels; imagenet halves the side before the first stage.",
    "norm": "batch, whose statistics are averaged and never compared, or group, which has none.",
}
_ADAPTER_HELP = {
    "rank": "Rank of the adapters.",
    "alpha": "Their scale: alpha / rank times what they add.",
    "layers": "Names of the dense layers that get adapters, joined by +; default: those of queries and values.",
}
HELP: Mapping[str, Mapping[str, str]] = {
    "mclr": {},
    "mlp": {"hidden": "Widths of the hidden layers in order, as in mlp(200, 100); default: one of 128."},
    "cnn": {"variant": "Whose network: mcmahan (5x5 kernels, 512 dense), fedsim (its code, 2048 dense) or fedsim_table (3x3, as printed)."},
    "lstm": {
        "hidden": "Cells of each layer.",
        "layers": "Recurrent layers, one upon the other.",
        "dense": "Width of the dense layer before the logits; 0 leaves it out.",
        "relu": "Whether that dense layer ends in a ReLU.",
        "one_logit": "Whether two classes have one trained logit beside a fixed zero.",
        **_WORD_HELP,
    },
    "rnn": {
        "hidden": "Cells of each layer.",
        "layers": "Recurrent layers, one upon the other.",
        "one_logit": "Whether two classes have one trained logit beside a fixed zero.",
        **_WORD_HELP,
    },
    "resnet18": _IMAGE_HELP,
    "resnet50": _IMAGE_HELP,
    "densenet121": _IMAGE_HELP,
    "efficientnet_lite0": {
        "stem": _IMAGE_HELP["stem"],
        "weights": "A file of the released weights, as studies/fetch_efficientnet.py fetches it; for colour images with pixels in 0 to 1.",
        "train": "What is trained, sent, compared and averaged: all, or head (the logits; the other layers stay as they are).",
    },
    "fusion": {
        "text": "Width of a dense layer for rows of numbers, or the folder or hub name of an encoder for tokens.",
        "image": "The image network: resnet18, resnet50, densenet121 or efficientnet_lite0, with settings in quotes.",
        "train": "What is trained and sent: all, head (both networks are frozen), or lora (adapters of the encoder, and the head).",
        "head": "Width of a hidden layer in the head; 0 leaves it out.",
        **_ADAPTER_HELP,
    },
    "lm": {
        "folder": "A folder of a pretrained language model, a GGUF file or a folder of one, or a name on the Hugging Face hub.",
        "train": "What is trained, sent, compared and averaged: lora (adapters), head (the output layer) or all.",
        **_ADAPTER_HELP,
        "spread": "Deviation of B in new adapters. With 0 all compute the same until trained, and IFCA cannot distinguish its models.",
        "dropout": "Share of signals left out while the model is trained; other than 0, clients train one by one.",
    },
    "text": {
        "encoder": "A folder of a pretrained encoder, or its name on the Hugging Face hub.",
        "head": "Width of a hidden layer in the head; 0 leaves it out.",
        "train": "What is trained, sent, compared and averaged: head (the encoder is frozen), lora (adapters and head) or all.",
        "pool": "A text's vector: the mean over its tokens, or that of its first.",
        **_ADAPTER_HELP,
        "dropout": "Share of signals left out while the encoder is trained; other than 0, clients train one by one.",
    },
}


class ModelSetting(NamedTuple):
    """A setting of a model."""

    name: str
    default: str  # as a user writes it; empty where there is none
    about: str


def explain_model(name: str) -> list[ModelSetting]:
    """The settings of a model, each explained."""
    known = HELP.get(name, {})
    return [ModelSetting(each.name, _format_default(each), known.get(each.name, "")) for each in models.settings(name).values()]


GivenModel = str | nn.Module | Callable[..., nn.Module]  # a class is a callable, too


def resolve_model(model: GivenModel) -> tuple[str, MakeModule]:
    """The name of a model in the evidence, and what makes it.

    A class or a function is called for every initial model, with `input_shape` and `outputs` if it knows them. A module is copied, so
    that every seed begins with its numbers.
    """
    if isinstance(model, str):
        return model, build_model
    if isinstance(model, nn.Module):
        kept = deepcopy(model)
        return _get_qualified_name(type(model)), _ModuleCopier(kept)
    if not callable(model):
        raise UserError(f"A model is a spec, a module, or a class or function that makes one, not a value of type {type(model).__name__}.")
    factory: Callable[..., Any] = model
    return _get_qualified_name(factory), _FactoryCaller(factory)


@dataclass(frozen=True, eq=False)
class _ModuleCopier:
    """Makes copies of a module. A class and no closure, so that a study can be sent to another process."""

    kept: nn.Module

    def __call__(self, text: str, shape: InputShape, outputs: int) -> nn.Module:
        return wrap_inputs(deepcopy(self.kept), shape)


@dataclass(frozen=True, eq=False)
class _FactoryCaller:
    factory: Callable[..., Any]

    def __call__(self, text: str, shape: InputShape, outputs: int) -> nn.Module:
        return call_factory(Spec(text), self.factory, shape, outputs)


def _get_qualified_name(made: Any) -> str:
    """``module:Name``, by which it can be found again where it stands in a module of its own."""
    inner = made if hasattr(made, "__name__") else type(made)  # such as a partial
    name = "".join(c for c in inner.__name__ if c.isalnum() or c == "_") or "function"  # <lambda>
    home = getattr(inspect.getmodule(inner), "__name__", "__main__")
    return f"{home}:{name}"
