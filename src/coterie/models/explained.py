"""What each setting of a model means, for `coterie models NAME`."""

from collections.abc import Mapping
from typing import NamedTuple

from coterie.models.catalogue import models

_WORDS = {
    "vocabulary": "How many numbers tokens may have: that of the data's features=tokens,vocabulary=...",
    "width": "Numbers that a word is embedded in, where no table of embeddings is named.",
    "embeddings": "A NumPy file with a row for each token, in place of random ones.",
    "train_embeddings": "Whether embeddings are trained along; frozen otherwise.",
}
_IMAGES = {
    "stem": "cifar begins with 3x3 and no pool, for images of some 32x32 pixels; imagenet halves the side before the first stage.",
    "norm": "batch, whose statistics are averaged and never compared, or group, which has none.",
}
_ADAPTERS = {
    "rank": "Rank of the adapters.",
    "alpha": "Their scale: alpha / rank times what they add.",
    "layers": "Names of the dense layers that get adapters, joined by +; those of queries and values unless given.",
}
HELP: Mapping[str, Mapping[str, str]] = {
    "mclr": {},
    "mlp": {"hidden": "Widths of the hidden layers in order, as in mlp(200, 100); one of 128 unless given."},
    "cnn": {"variant": "Whose network: mcmahan (5x5 kernels, 512 dense), fedsim (its code, 2048 dense) or fedsim_table (3x3, as printed)."},
    "lstm": {
        "hidden": "Cells of each layer.",
        "layers": "Recurrent layers, one upon the other.",
        "dense": "Width of the dense layer before the logits; 0 leaves it out.",
        "relu": "Whether that dense layer ends in a ReLU.",
        "one_logit": "Whether two classes are told apart by one trained logit beside a fixed zero.",
        **_WORDS,
    },
    "rnn": {"hidden": "Cells of each layer.", "layers": "Recurrent layers, one upon the other.", **_WORDS},
    "resnet18": _IMAGES,
    "resnet50": _IMAGES,
    "densenet121": _IMAGES,
    "efficientnet_lite0": {
        "stem": _IMAGES["stem"],
        "weights": "A file of the released weights, as studies/fetch_efficientnet.py fetches it; for colour images with pixels in 0 to 1.",
        "train": "What is trained, sent, compared and averaged: all, or head (the logits; the other layers stay as they are).",
    },
    "fusion": {
        "text": "Width of a dense layer for rows of numbers, or the folder or hub name of an encoder for tokens.",
        "image": "The image network: resnet18, resnet50, densenet121 or efficientnet_lite0, with settings in quotes.",
        "train": "What is trained and sent: all, head (both networks are frozen), or lora (adapters of the encoder, and the head).",
        "head": "Width of a hidden layer in the head; 0 leaves it out.",
        **_ADAPTERS,
    },
    "lm": {
        "folder": "A folder of a pretrained language model, a GGUF file or a folder of one, or a name on the Hugging Face hub.",
        "train": "What is trained, sent, compared and averaged: lora (adapters), head (the output layer) or all.",
        **_ADAPTERS,
        "spread": "Deviation of B in new adapters. With 0 all compute the same until trained, and IFCA cannot tell its models apart.",
        "dropout": "Share of signals left out while the model is trained; other than 0, clients train one by one.",
    },
    "text": {
        "encoder": "A folder of a pretrained encoder, or its name on the Hugging Face hub.",
        "head": "Width of a hidden layer in the head; 0 leaves it out.",
        "train": "What is trained, sent, compared and averaged: head (the encoder is frozen), lora (adapters and head) or all.",
        "pool": "A text's vector: the mean over its tokens, or that of its first.",
        **_ADAPTERS,
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
    explained = []
    for setting, parameter in models.settings(name).items():
        value = parameter.default
        default = "" if value is parameter.empty else str(value).lower() if value is None or isinstance(value, bool) else str(value)
        explained.append(ModelSetting(setting, default, HELP.get(name, {}).get(setting, "")))
    return explained
