"""A user's own model, from a module of theirs."""

import sys
from pathlib import Path

import pytest
import torch

from coterie._util.errors import UserError
from coterie.models import Mlp, build_model

MODULE = """
from math import prod
from torch import nn
from coterie._util.errors import UserError

number = 3

def unsaid():
    raise SystemError("called")

def another() -> int:
    raise SystemError("called")

def in_words() -> "nn.Module":
    return nn.Linear(4, 2)

def of_a_kind(outputs, other: "NotThere" = None) -> "nn.Module":
    return nn.Linear(4, outputs)

def plain(width=8) -> nn.Module:
    return nn.Linear(4, width)

def shaped(input_shape, outputs, width=8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), width), nn.ReLU(), nn.Linear(width, outputs))

def keyword(width, *, outputs) -> nn.Module:
    return nn.Linear(width, outputs)

def anything(**settings) -> nn.Module:
    return nn.Linear(prod(settings["input_shape"]), settings["outputs"] + settings.get("more", 0))

class Own(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

def nothing() -> nn.Module:
    return "a model"

def picky(width=1) -> nn.Module:
    raise ValueError("width is odd.\\nmore")

def polite() -> nn.Module:
    raise UserError("Use another one.")

def broken() -> nn.Module:
    raise RuntimeError("a bug of the user")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODULE)
    (package / "lacking.py").write_text("import a_library_not_installed\n")
    (package / "raising.py").write_text("1 / 0\n")
    (package / "leaving.py").write_text("raise SystemExit(3)\n")
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
    assert outputs_of("in_words", (4,)) == 2
    assert outputs_of("of_a_kind", (4,)) == 5
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
        ("their_package.nets:number", r"is of type int: name a subclass of torch.nn.Module, or a function annotated '-> nn.Module'"),
        ("their_package.nets:unsaid", r"is of type function: name a subclass"),
        ("their_package.nets:another", r"is of type function: name a subclass"),
        ("os:system('false')", r"is of type builtin_function_or_method: name a subclass"),
        ("os:popen('false')", r"is of type function: name a subclass"),
        ("builtins:type", r"is of type type: name a subclass"),
        ("subprocess:Popen('false')", r"is of type type: name a subclass"),
        ("their_package.raising:net", r"'their_package.raising' ended with ZeroDivisionError: division by zero\."),
        ("their_package.leaving:net", r"'their_package.leaving' ended with SystemExit: 3\."),
        ("their_package.nets:plain(wdth=3)", r"cannot be made: got an unexpected keyword argument 'wdth'; its settings are width=8\."),
        ("their_package.nets:plain(1, 2)", r"cannot be made: too many positional arguments"),
        ("their_package.nets:keyword", r"cannot be made: missing a required argument: 'width'; its settings are width\."),
        ("their_package.nets:shaped(3)", r"cannot be made: multiple values for argument 'input_shape'; its settings are width=8\."),
        ("their_package.nets:plain(width=wide)", r"cannot be made: .*; its settings are width=8\."),
        ("their_package.nets:picky", r"cannot be made: width is odd; its settings are width=1\."),
        ("their_package.nets:polite", r"^Use another one\.$"),
        ("their_package.nets:nothing", r"gave a value of type str: its factory must return a torch.nn.Module"),
    ],
)
def test_errors_are_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        build_model(spec, (4,), 2)
    assert "\n" not in str(caught.value)


def test_a_bug_in_the_factory_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug of the user"):
        build_model("their_package.nets:broken", (4,), 2)


def test_the_current_folder_is_last_on_the_path_and_only_for_that_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "beside_the_study.py").write_text("import json, sys\nfrom torch import nn\nseen = list(sys.path)\nNet = nn.Identity\n")
    (here / "colorsys.py").write_text("raise SystemError('a planted module')\n")
    (here / "reaching.py").write_text("import colorsys\nfrom torch import nn\nNet = nn.Identity\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.chdir(here)
    before = list(sys.path)
    build_model("beside_the_study:Net", (2,), 2)
    build_model("reaching:Net", (2,), 2)  # the standard library's colorsys wins over the planted one
    assert sys.modules["beside_the_study"].seen == [*before, str(here)]
    assert sys.path == before
