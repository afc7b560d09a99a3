"""Late fusion: a text and an image read by networks of their own, their features side by side, one classifier (SimProx, Section 4)."""

from typing import Self

import torch
from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie.core.layout import Inputs
from coterie.core.specs import parse
from coterie.models.densenet import densenet121
from coterie.models.efficientnet import efficientnet_lite0
from coterie.models.layers import FrozenBody, StackedLinear, check_counts, remove_logits
from coterie.models.mlp import Mlp
from coterie.models.resnet import resnet18, resnet50
from coterie.models.text import ENCODER_ATTENTION_LAYERS, Trained, add_adapters, check_length, load_encoder

NETWORKS = {"resnet18": resnet18, "resnet50": resnet50, "densenet121": densenet121, "efficientnet_lite0": efficientnet_lite0}


class ConcatFeatures(nn.Module):
    """``[text features | image features]``; it takes its inputs in the order of the samples, of which one is the text."""

    def __init__(self, text: nn.Module, image: nn.Module, *, text_first: bool) -> None:
        super().__init__()
        self.text, self.image, self.text_first = text, image, text_first

    def features(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        first, second = [*inputs, *named.values()]
        words, picture = (first, second) if self.text_first else (second, first)
        return torch.cat([self.text(words), self.image(picture)], dim=-1)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.features(*inputs, **named)

    @property
    def cache_key(self) -> str:
        """What distinguishes models of equal parameters, for the cache of features."""
        return f"{self.text_first} {getattr(self.text, 'pool', '')} {getattr(self.image, 'cache_key', '')}"


class Fusion(ConcatFeatures):
    """``logits([text features | image features])``, of which the image's network may be frozen: not trained, nor sent."""

    def __init__(
        self, text: nn.Module, image: nn.Module, widths: tuple[int, int], outputs: int, *, text_first: bool, by_adapters: bool = False
    ) -> None:
        super().__init__(text, image, text_first=text_first)
        self.logits = (StackedLinear if by_adapters else nn.Linear)(sum(widths), outputs)
        self.fixed_parts = ("image",) if by_adapters else ()
        if by_adapters:
            self.image.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name in self.fixed_parts:
            getattr(self, name).eval()
        return self

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.features(*inputs, **named))
        return logits


def fusion(
    _inputs: Inputs,
    _outputs: int,
    text: str | int = 128,
    image: str = "resnet18",
    train: Trained = "all",
    head: int = 0,
    rank: int = 8,
    alpha: float = 16.0,
    layers: str = "",
) -> nn.Module:
    """Late fusion of a text (the features of a dense layer so wide, or a pretrained encoder for its tokens) and an image network."""
    shapes = _inputs.shapes
    pictures = [place for place, shape in enumerate(shapes) if len(shape) in (2, 3)]
    if len(shapes) != 2 or len(pictures) != 1 or len(shapes[1 - pictures[0]]) != 1:
        raise UserError(f"Model 'fusion' takes a text (one row of numbers or tokens) and an image, not samples of shapes {shapes}.")
    place = pictures[0]
    reader, width = _build_text_network(text, shapes[1 - place], tokens=_inputs.tokens[1 - place])
    network, wide = _build_image_network(image, shapes[place])
    if head:
        check_counts("fusion", head=head)
        if train != "head":
            raise UserError("Model 'fusion': a hidden layer in the head goes with train=head; omit head.")
    if train != "all" and not (isinstance(text, str) and parse(image).kwargs.get("weights")):
        raise UserError(
            f"Model 'fusion': train={train} freezes what was trained before: give an encoder, text=FOLDER, and an image network with "
            "weights, image='efficientnet_lite0(weights=FILE)'."
        )
    if train == "head":
        body = ConcatFeatures(reader, network, text_first=place == 1)
        return FrozenBody(body, Mlp((width + wide, *([head] if head else []), _outputs)))
    if train == "lora":
        check_counts("fusion", rank=rank)
        add_adapters("fusion", reader, rank, alpha, tuple(layers.split("+")) if layers else ENCODER_ATTENTION_LAYERS)
    return Fusion(reader, network, (width, wide), _outputs, text_first=place == 1, by_adapters=train == "lora")


def _build_text_network(text: str | int, shape: tuple[int, ...], *, tokens: bool) -> tuple[nn.Module, int]:
    if isinstance(text, str) and tokens:
        check_length(text, shape[0])
        encoder = load_encoder(text, "mean", 0.0)
        return encoder, encoder.width
    if isinstance(text, str) or tokens:
        raise UserError("Model 'fusion': an encoder, text=FOLDER, is for tokens, and text=128 for a row of numbers such as hashed words.")
    check_counts("fusion", text=text)
    return nn.Sequential(nn.Linear(shape[0], text), nn.ReLU()), text


def _build_image_network(image: str, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    spec = parse(image)
    if spec.name not in NETWORKS:
        raise UserError(f"Model 'fusion': image={image!r} is not known: choose from {', '.join(NETWORKS)}.")
    if "train" in spec.kwargs:
        raise UserError("Model 'fusion': what is trained is set for the whole, as fusion(...,train=head), and not of the image network.")
    network: nn.Module = NETWORKS[spec.name](shape, 1, *spec.args, **spec.kwargs)  # type: ignore[operator]
    wide = int(network.logits.in_features)  # type: ignore[union-attr, arg-type]
    return remove_logits(network), wide
