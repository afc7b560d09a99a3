"""Bundles made to keep a reader busy: refused before the work that they ask for is done."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch.nn.modules.module import register_module_parameter_registration_hook

from coterie._util.errors import UserError
from coterie.core.layout import Inputs
from coterie.core.serving import COMBINED
from coterie.deploy.bundle import files
from coterie.deploy.bundle.bundle import Bundle, Origin
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.messages import COMBINERS
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, OwnExpert
from coterie.models.catalogue import MAX_TENSORS, build_model

Change = Callable[[dict[str, Any]], None]


def bundle(clients: int = 1, **changes: Any) -> Bundle:
    """Two models of three numbers and two classes, combined forevery client."""
    reported: dict[str, Any] = {
        "origin": Origin("fedex", "data", 0, 0, 1),
        "model": "mclr",
        "input_shape": (3,),
        "classes": ("no", "yes"),
        "models": np.zeros((2, 8), np.float32),
        "names": ("group 0", "group 1"),
        "clients": {f"client-{i}": COMBINED for i in range(clients)},
        "combiner": Mean(),
    }
    return Bundle(**{**reported, **changes})


def crafted(folder: Path, change: Change, arrays: dict[str, Any] | None = None, **made: Any) -> Path:
    write_bundle(bundle(**made), folder)
    head = json.loads((folder / "bundle.json").read_text())
    if arrays is not None:
        data = save({**arrays, "models": np.zeros((2, 8), np.float32)})
        (folder / "models.safetensors").write_bytes(data)
        head["sha256"] = hashlib.sha256(data).hexdigest()
    change(head)
    (folder / "bundle.json").write_text(json.dumps(head))
    return folder


def nothing(head: dict[str, Any]) -> None:
    """No change."""


def test_shapes_are_not_multiplied_before_they_are_checked(tmp_path: Path) -> None:
    """The product of 100,000 sizes is a number of two million digits, which takes minutes."""
    with pytest.raises(UserError, match="is wrong at input_shape: List should have at most 16 items"):
        read_bundle(crafted(tmp_path / "long", lambda head: head.update(input_shape=[10**18] * 100_000)))
    with pytest.raises(UserError, match=r"is wrong at input_shape\.0"):
        read_bundle(crafted(tmp_path / "large", lambda head: head.update(input_shape=[10**18])))
    with pytest.raises(ValueError, match="a shape that no sample has"):
        Inputs.from_dict({"shapes": [[10**18] * 100_000], "tokens": [False], "names": []})


def test_a_model_of_very_many_layers_is_not_made(tmp_path: Path) -> None:
    made = 0

    def count(*_: object) -> None:
        nonlocal made
        made += 1

    hook = register_module_parameter_registration_hook(count)
    try:
        with pytest.raises(UserError, match="more than 2,000 tensors"):
            read_bundle(crafted(tmp_path / "deep", lambda head: head.update(model=f"mlp({','.join(['1'] * 5000)})")))
        with pytest.raises(UserError, match="more than 2,000 tensors"):
            build_model("lstm(vocabulary=10,layers=100000)", (5,), 2)
    finally:
        hook.remove()
    assert made <= 2 * (MAX_TENSORS + 2)
    with pytest.raises(UserError, match="is wrong at model: String should have at most"):
        read_bundle(crafted(tmp_path / "longer", lambda head: head.update(model=f"mlp({','.join(['1'] * 50_000)})")))
    assert sum(value.numel() for value in build_model("mlp(4,4)", (3,), 2).parameters()) == 46
    assert torch.nn.Linear(2, 2).bias is not None  # the hook is gone


def test_a_combiner_is_not_asked_for_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counting(Mean):
        def combine(self, probabilities: Any, client: int) -> Any:
            asked.append(client)
            return super().combine(probabilities, client)

    folder = crafted(tmp_path / "many", nothing, clients=3000)
    monkeypatch.setitem(COMBINERS, "Mean", Counting)
    assert len(read_bundle(folder).clients) == 3000
    assert len(asked) <= 1


@pytest.mark.parametrize(
    "combiner",
    [
        OwnExpert(np.array([0, 1, 2])),  # there are two experts
        OwnExpert(np.array([0, 1])),  # and three clients
        ByRow((Mean(), Mean(), None)),
        ByRow((Mean(), Mean(), AccuracyGate(np.ones((2, 3))))),
        ByRow((Mean(),)),
    ],
)
def test_a_combiner_that_does_not_know_all_clients_is_refused(tmp_path: Path, combiner: Any) -> None:
    with pytest.raises(UserError, match="does not answer for all of its 3 clients"):
        read_bundle(crafted(tmp_path / "bundle", nothing, clients=3, combiner=combiner))


def test_clients_and_scalings_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.BundleHead, "model_validate_json", None)  # which looks at every number
    with pytest.raises(UserError, match="names the client 'a' twice"):
        read_bundle(crafted(tmp_path / "twice", lambda head: head.update(clients=[{"id": "a", "row": -1}] * 2)))
    scaling = {f"c{i}": {"mean": [0.0] * 3, "deviation": [1.0] * 3} for i in range(100)}
    with pytest.raises(UserError, match="a scaling of a client that is not among its 1"):
        read_bundle(crafted(tmp_path / "scaling", lambda head: head.update(scaling=scaling)))


def test_a_long_list_of_arrays_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = crafted(tmp_path / "arrays", nothing, {f"combiner.{'x' * 4000}{i}": np.zeros(0, np.float32) for i in range(1100)})
    monkeypatch.setattr(files, "load", None)
    with pytest.raises(UserError, match="lists more arrays than any bundle's"):
        read_bundle(folder)


def test_a_head_of_any_length_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = crafted(tmp_path / "head", nothing)
    monkeypatch.setattr(files, "MOST_HEAD", 100)
    with pytest.raises(UserError, match=r"more than any bundle's \(100 bytes\)"):
        read_bundle(folder)
