"""Bundles for a model hub: they load as before, others can read tensors and card, and damage is one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import coterie as ct
from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.deploy.bundle.hub import check_card

METHOD = "fedgroup(groups=2)"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "study"
    ct.study(["fedavg", METHOD], data="heart", rounds=2, epochs=2, lr=0.1, out=folder)
    return folder


def export(study: Path, out: Path, *options: str) -> str:
    made = CliRunner().invoke(app, ["export", str(study), "--method", METHOD, "--out", str(out), *options])
    assert made.exit_code == 0, made.output
    return made.output


@pytest.fixture(scope="module")
def exported(study: Path) -> Path:
    folder = study.with_name("exported")
    assert "before you upload" in export(study, folder, "--client", "va", "--hub")
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(exported, tmp_path / "hub"))


def test_the_folder_answers_as_the_bundle_without_it(study: Path, folder: Path, tmp_path: Path) -> None:
    export(study, tmp_path / "plain", "--client", "va")
    data = ct.load("heart")
    rows = data.x[data.test[list(data.ids).index("va")]]
    plain, hub = (ct.read_bundle(place).answer(rows, "va") for place in (tmp_path / "plain", folder))
    for one, other in zip(plain, hub, strict=True):
        assert np.array_equal(one, other)
    [weight, bias] = sorted(load_file(folder / "model.safetensors").values(), key=torch.Tensor.dim, reverse=True)
    outputs = torch.softmax(torch.from_numpy(rows) @ weight.T + bias, dim=1)
    assert np.allclose(outputs.numpy(), hub[1], atol=1e-6)
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "absent", "1": "present"}
    assert set(config["sha256"]) == {"bundle.json", "models.safetensors", "model.safetensors"}


def test_several_models_are_told_apart_by_number(study: Path, tmp_path: Path) -> None:
    options = [word for client in ct.load("heart").ids for word in ("--client", client)]
    export(study, tmp_path / "hub", "--hub", *options)
    bundle = ct.read_bundle(tmp_path / "hub")
    assert len(bundle.models) == 2
    tensors = load_file(tmp_path / "hub" / "model.safetensors")
    for row, model in enumerate(bundle.models):
        own = [tensor.numpy().ravel() for name, tensor in tensors.items() if name.startswith(f"{row}.")]
        assert sorted(np.concatenate(own).tolist()) == sorted(model.tolist())


def test_the_hub_reads_the_card(folder: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "coterie"
    [result] = card.data.eval_results
    assert (result.dataset_name, result.metric_type) == ("heart", "accuracy")
    assert 0 < result.metric_value < 1
    with pytest.raises(UserError, match="would not accept the front matter"):
        check_card("---\nlibrary_name: coterie\nmodel-index: 3\n---\n")


def flip(name: str) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[-2] ^= 1
        (folder / name).write_bytes(data)

    return change


def rename_hashed(name: str) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["sha256"][name] = config["sha256"].pop("model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))

    return change


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "tensors missing": (lambda folder: (folder / "model.safetensors").unlink(), "is missing, and config.json names it"),
    "models missing": (lambda folder: (folder / "models.safetensors").unlink(), "is missing, and config.json names it"),
    "tensors changed": (flip("model.safetensors"), "is not what config.json was written with"),
    "models changed": (flip("models.safetensors"), "is not what config.json was written with"),
    "another's configuration": (lambda folder: (folder / "config.json").write_text('{"sha256": {}}'), "export --hub"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "export --hub"),
    "no hashes": (lambda folder: (folder / "config.json").write_text('{"library_name": "coterie", "sha256": [1]}'), "export --hub"),
    "a file elsewhere": (rename_hashed("../study/manifest.json"), "outside of the folder"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence(name: str, folder: Path) -> None:
    damage, sentence = DAMAGE[name]
    damage(folder)
    with pytest.raises(UserError, match=sentence) as error:
        ct.read_bundle(folder)
    assert "\n" not in str(error.value)


def test_the_card_may_be_edited(folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA model.\n")
    assert ct.read_bundle(folder).names
