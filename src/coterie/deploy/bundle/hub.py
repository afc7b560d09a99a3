"""A bundle as a folder that `huggingface_hub` uploads: the model card, tensors by name, and a configuration with the hash of every file.

`README.md` is the model card of `dossier`, whose front matter the hub reads. `model.safetensors` has the tensors by the names of the
module, for people without Coterie. `config.json` says what they are and has the SHA-256 of each file but the card, which people edit.
`read_bundle` reads such a folder as any other and checks these hashes first.
"""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from coterie._util.errors import UserError
from coterie._util.files import write_atomic
from coterie._util.json_io import format_json
from coterie.core.model import get_sent_tensors
from coterie.deploy.bundle.bundle import Bundle

CARD_FILE, CONFIG_FILE, WEIGHTS_FILE = "README.md", "config.json", "model.safetensors"
LIBRARY = "coterie"


def write_hub_files(bundle: Bundle, folder: Path, card: str) -> None:
    """Add the card, the tensors and the configuration to the folder of a bundle, which is whole before.

    Args:
        bundle: The bundle that the folder holds.
        folder: Where 'coterie export' wrote it, with all its other files.
        card: The model card as Markdown, after its front matter: one that `check_card` accepts.
    """
    tensors: dict[str, Tensor] = {}
    for row in range(len(bundle.models)):
        begin = f"{row}." if len(bundle.models) > 1 else ""
        tensors |= {begin + name: tensor.detach().clone() for name, tensor in get_sent_tensors(bundle.load(row))}
    (folder / WEIGHTS_FILE).touch(mode=0o600)  # as every file of a bundle
    (folder / WEIGHTS_FILE).write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    config = {
        "library_name": LIBRARY,
        "model_type": bundle.model,
        "method": bundle.origin.method,
        "task": bundle.task.name,
        "input_shape": bundle.input_shape,
        "features": bundle.features,
        "id2label": {str(number): name for number, name in enumerate(bundle.classes)},
        "models": bundle.names,
        "sha256": {str(path.relative_to(folder)): _hash(path) for path in _list_files(folder)},
    }
    write_atomic(folder / CONFIG_FILE, format_json(config), 0o600)


def check_card(text: str) -> None:
    """Refuse a card whose front matter `huggingface_hub` does not accept, where that package is installed."""
    if find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import ModelCard

    try:
        ModelCard(text)
    except ValueError as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"The hub would not accept the front matter of the model card ({reason}): omit --hub.") from error


def check_hub_files(folder: Path) -> None:
    """Refuse a folder of the hub in which a file is missing or is not what the configuration was written with."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return
    hashes = _read_hashes(path)
    for name, expected in hashes.items():
        own = folder / name
        if not own.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path} names {name!r}, a file outside of the folder: get the bundle again.")
        if not own.is_file():
            raise UserError(f"{own} is missing, and {CONFIG_FILE} names it: get the bundle again.")
        if _hash(own) != expected:
            raise UserError(f"{own} is not what {CONFIG_FILE} was written with: it is damaged or was changed; get the bundle again.")


def _read_hashes(path: Path) -> dict[str, str]:
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
        hashes = config["sha256"]
        if config["library_name"] == LIBRARY and all(isinstance(value, str) for value in hashes.values()):
            return dict(hashes)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{path} is not what 'coterie export --hub' wrote: get the bundle again.")


def _list_files(folder: Path) -> list[Path]:
    """What is hashed: all files but the card and the configuration."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.relative_to(folder).name not in (CARD_FILE, CONFIG_FILE)]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
