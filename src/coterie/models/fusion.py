"""Late fusion: a text and an image read by networks of their own, their features side by side, one classifier (SimProx, Section 4)."""

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.inputs import Inputs
from coterie.core.specs import parse
from coterie.models.densenet import densenet121
from coterie.models.efficientnet import efficientnet_lite0
from coterie.models.encoder import check_length, encoder_at
from coterie.models.resnet import resnet18, resnet50
from coterie.models.settings import check_counts

NETWORKS = {"resnet18": resnet18, "resnet50": resnet50, "densenet121": densenet121, "efficientnet_lite0": efficientnet_lite0}


class Fusion(nn.Module):
    """``logits([text features | image features])``; it takes its inputs in the order of the samples, of which one is the text."""

    def __init__(self, text: nn.Module, image: nn.Module, widths: tuple[int, int], outputs: int, *, text_first: bool) -> None:
        super().__init__()
        self.text, self.image, self.text_first = text, image, text_first
        self.logits = nn.Linear(sum(widths), outputs)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        first, second = [*inputs, *named.values()]
        words, picture = (first, second) if self.text_first else (second, first)
        logits: Tensor = self.logits(torch.cat([self.text(words), self.image(picture)], dim=-1))
        return logits


def fusion(_inputs: Inputs, _outputs: int, text: str | int = 128, image: str = "resnet18") -> Fusion:
    """Late fusion of a text (the features of a dense layer so wide, or a pretrained encoder for its tokens) and an image network."""
    shapes = _inputs.shapes
    pictures = [place for place, shape in enumerate(shapes) if len(shape) in (2, 3)]
    if len(shapes) != 2 or len(pictures) != 1 or len(shapes[1 - pictures[0]]) != 1:
        raise UserError(f"Model 'fusion' takes a text (one row of numbers or tokens) and an image, not samples of shapes {shapes}.")
    place = pictures[0]
    reader, width = _text(text, shapes[1 - place], tokens=_inputs.tokens[1 - place])
    network, wide = _image(image, shapes[place])
    return Fusion(reader, network, (width, wide), _outputs, text_first=place == 1)


def _text(text: str | int, shape: tuple[int, ...], *, tokens: bool) -> tuple[nn.Module, int]:
    if isinstance(text, str) and tokens:
        check_length(text, shape[0])
        encoder = encoder_at(text, "mean", 0.0)
        return encoder, encoder.width
    if isinstance(text, str) or tokens:
        raise UserError("Model 'fusion': an encoder, text=FOLDER, is for tokens, and text=128 for a row of numbers such as hashed words.")
    check_counts("fusion", text=text)
    return nn.Sequential(nn.Linear(shape[0], text), nn.ReLU()), text


def _image(image: str, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """A network without its logits."""
    spec = parse(image)
    if spec.name not in NETWORKS:
        raise UserError(f"Model 'fusion': image={image!r} is not known: choose from {', '.join(NETWORKS)}.")
    network: nn.Module = NETWORKS[spec.name](shape, 1, *spec.args, **spec.kwargs)  # type: ignore[operator]
    wide = int(network.logits.in_features)  # type: ignore[union-attr, arg-type]
    network.logits = nn.Identity()
    return network, wide
