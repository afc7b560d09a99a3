"""Models given as objects: modules, classes and functions."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie._util.errors import UserError
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.models.catalogue import resolve_model
from coterie.testing.worlds import make_federation
from run.run_own_models import Plain


def federation() -> ct.Federation:
    return make_federation((12, 7, 5, 9))


def test_a_class_a_function_and_a_spec_are_one_model() -> None:
    def made(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return Plain(input_shape[0], outputs)

    found = [ct.study("fedavg", data=federation(), rounds=2, model=model) for model in ("run.run_own_models:Plain", Plain, made)]
    assert found[0].evidence.settings.model == found[1].evidence.settings.model == "run.run_own_models:Plain"
    assert ct.digest(found[0].evidence) == ct.digest(found[1].evidence)
    assert found[2].rounds["loss"].tolist() == found[0].rounds["loss"].tolist()


def test_a_module_is_where_every_seed_begins_and_is_left_alone() -> None:
    module = Plain()
    before = module.layer.weight.detach().clone()
    found = ct.study("fedavg", data=federation(), rounds=1, seeds=(0, 1), model=module)
    first = found.rounds[found.rounds["round"] == 0]["loss"]
    assert first.iloc[0] == first.iloc[1]
    assert torch.equal(module.layer.weight, before)
    with torch.no_grad():
        x, y = (torch.as_tensor(value[np.concatenate(list(federation().test))]) for value in (federation().x, federation().y))
        expected = nn.functional.cross_entropy(module(x), y).item()
    assert first.iloc[0] == pytest.approx(expected, rel=1e-5)


def test_models_without_a_module_of_their_own_have_bundles_too(tmp_path: Path) -> None:
    class Local(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.layer = nn.Linear(5, outputs)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x)
            return found

    made = federation()
    found = ct.study("fedavg", data=made, rounds=1, model=Local)
    assert ct.get_bundle(found, "client-0").predict(made.x[:3]).shape == (3,)
    plain = ct.study("fedavg", data=made, rounds=1, model=Plain)
    write_bundle(ct.get_bundle(plain, "client-0"), tmp_path / "b")
    again = read_bundle(tmp_path / "b", trust=True)
    assert again.predict_proba(made.x[:3]).tobytes() == ct.get_bundle(plain, "client-0").predict_proba(made.x[:3]).tobytes()


def test_names_and_refusals() -> None:
    assert resolve_model(lambda outputs: Plain(5, outputs))[0] == f"{__name__}:lambda"
    assert resolve_model(partial(Plain, 5))[0] == "functools:partial"
    assert resolve_model("mclr")[0] == "mclr"
    with pytest.raises(UserError, match="not a value of type int"):
        resolve_model(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="its factory must return a torch"):
        ct.study("fedavg", data=federation(), rounds=1, model=lambda outputs: outputs)
    assert ct.inspect_data(make_federation((12, 9, 8, 9, 12)), model=Plain).model == "run.run_own_models:Plain"
