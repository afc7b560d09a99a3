"""The released weights of EfficientNet-lite0, read from a file of tensors, under the names that they have here. None of its code is run."""

import re
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie._util.errors import UserError

WHO = "Model 'efficientnet_lite0'"
TENSORS = 294  # without those of the thousand classes
THEIR_LOGITS = "_fc."
# in a block, and at the two ends, where batch norms are counted anew
IN_BLOCK = {
    "_expand_conv": "wide.0",
    "_bn0": "wide.1",
    "_depthwise_conv": "apart.0",
    "_bn1": "apart.1",
    "_project_conv": "narrow.0",
    "_bn2": "narrow.1",
}
OUTSIDE = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "last", "_bn1": "last_norm"}
_NAME = re.compile(r"(?:_blocks\.(?P<block>\d+)\.)?(?P<layer>_\w+)\.(?P<tensor>\w+)")


def loaded(network: nn.Module, file: str) -> None:
    """Give a network all its numbers but those of the logits, which are for classes of its own."""
    told = released(file)
    own = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("logits.")}
    wrong = sorted(own.keys() ^ told.keys()) or [name for name in own if own[name].shape != told[name].shape]
    if wrong or len(told) != TENSORS:
        raise UserError(
            f"{WHO}: {file!r} does not hold its {TENSORS} tensors ({wrong[0] if wrong else len(told)}): fetch the weights anew."
        )
    network.load_state_dict(told, strict=False)


@lru_cache(maxsize=1)
def released(file: str) -> dict[str, Tensor]:
    """By their names here, the tensors of a file."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"{WHO}: there is no file {file!r} of weights: studies/fetch_efficientnet.py fetches one.")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        return {_ours(name): tensor for name, tensor in held.items() if not name.startswith(THEIR_LOGITS)}
    except Exception as error:  # whatever reading a file that is none may raise
        raise UserError(f"{WHO}: {file!r} holds no weights that can be read: fetch them anew.") from error


def _ours(name: str) -> str:
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    block, layer, tensor = found["block"], found["layer"], found["tensor"]
    if block is None:
        return f"{OUTSIDE.get(layer, layer)}.{tensor}"
    return f"blocks.{block}.{IN_BLOCK.get(layer, layer)}.{tensor}"
