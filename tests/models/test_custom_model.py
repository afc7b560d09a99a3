"""A user's own model, from a module of theirs."""

from pathlib import Path

import pytest
import torch

from coterie.core.errors import UserError
from coterie.models import Mlp, build_model

MODULE = """
from math import prod
from torch import nn
from coterie.core.errors import UserError

number = 3

def plain(width=8):
    return nn.Linear(4, width)

def shaped(input_shape, outputs, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), width), nn.ReLU(), nn.Linear(width, outputs))

def keyword(width, *, outputs):
    return nn.Linear(width, outputs)

def anything(**settings):
    return nn.Linear(prod(settings["input_shape"]), settings["outputs"] + settings.get("more", 0))

class Own(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

def nothing():
    return "a model"

def picky(width=1):
    raise ValueError("width is odd.\\nmore")

def polite():
    raise UserError("Use another one.")

def broken():
    raise RuntimeError("a bug of the user")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODULE)
    (package / "lacking.py").write_text("import a_library_not_installed\n")
    (package / "renamed.py").write_text("from their_package import absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def outputs_of(spec: str, shape: tuple[int, ...] = (2, 3)) -> int:
    return int(build_model(f"their_package.nets:{spec}", shape, 5)(torch.rand(1, *shape)).shape[-1])


def test_factories() -> None:
    assert outputs_of("plain", (4,)) == 8
    assert outputs_of("plain(width=3)", (4,)) == 3
    assert outputs_of("plain(3)", (4,)) == 3
    assert outputs_of("shaped(width=2)") == 5
    assert outputs_of("shaped(outputs=9)") == 9
    assert outputs_of("keyword(3)", (3,)) == 5
    assert outputs_of("anything(more=2)", (6,)) == 7
    own = build_model("their_package.nets:Own", (2,), 5)
    assert own.outputs == 5
    assert isinstance(build_model("coterie.models:Mlp(sizes=(4, 3, 2))", (4,), 2), Mlp)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("their_package.nowhere:net", r"there is no module 'their_package.nowhere'"),
        ("nowhere.at_all:net", r"there is no module 'nowhere.at_all'"),
        ("their_package.lacking:net", r"'their_package.lacking' cannot be imported: No module named 'a_library_not_installed'"),
        ("their_package.renamed:net", r"'their_package.renamed' cannot be imported: cannot import name 'absent'"),
        ("their_package.nets:plane", r"has no 'plane': did you mean 'plain'"),
        ("their_package.nets:number", r"is of type int: name a function or class"),
        ("their_package.nets:plain(wdth=3)", r"cannot be made: got an unexpected keyword argument 'wdth'; its settings are width=8\."),
        ("their_package.nets:plain(1, 2)", r"cannot be made: too many positional arguments"),
        ("their_package.nets:keyword", r"cannot be made: missing a required argument: 'width'; its settings are width\."),
        ("their_package.nets:shaped(3)", r"cannot be made: multiple values for argument 'input_shape'; its settings are width=8\."),
        ("their_package.nets:plain(width=wide)", r"cannot be made: .*; its settings are width=8\."),
        ("their_package.nets:picky", r"cannot be made: width is odd; its settings are width=1\."),
        ("their_package.nets:polite", r"^Use another one\.$"),
        ("their_package.nets:nothing", r"gave a value of type str: its factory must return a torch.nn.Module"),
        ("builtins:type", r"shows no signature"),
    ],
)
def test_errors_are_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        build_model(spec, (4,), 2)
    assert "\n" not in str(caught.value)


def test_a_bug_in_the_factory_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug of the user"):
        build_model("their_package.nets:broken", (4,), 2)
