"""What a bundle's language model says of texts: how likely it takes their tokens to be, text by text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.errors import UserError
from coterie.core.model import ModelSpec
from coterie.core.parameters import read
from coterie.core.tasks import LEAST_LIKELY
from coterie.models.stacking import LoraLinear

if TYPE_CHECKING:
    from coterie.deploy.bundle import Bundle


class TextScores(NamedTuple):
    """Of m texts, or blocks of tokens."""

    tokens: Ints  # (m,) how many of each were predicted
    log_likelihood: Doubles  # (m,) their mean, in nats
    model: int  # the row of the model that answered, or COMBINED

    @property
    def whole(self) -> float:
        """The mean over all tokens."""
        return float((self.log_likelihood * self.tokens).sum() / self.tokens.sum())


def log_likelihoods_of(chances: Doubles) -> Doubles:
    """(m, T) of the probabilities of tokens, none lower than what keeps a score."""
    return np.log(np.maximum(chances, np.exp(LEAST_LIKELY)))


def scores_of_texts(bundle: "Bundle", rows: Any, client: str | None = None) -> TextScores:
    """Of a table with the column of texts, of texts in a list, or of blocks of tokens in an array (m, T + 1)."""
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "iuf":
        found = bundle.answer(rows, client)
        return TextScores(np.full(len(rows), found.probabilities.shape[1]), found.classes, int(found.models[0]))
    if bundle.blocked is None:
        raise UserError(f"The bundle does not say how texts of {bundle.origin.data!r} become tokens: give blocks of tokens as an array.")
    texts = bundle.blocked.texts(rows, "The table") if hasattr(rows, "columns") else [str(text) for text in rows]
    if not texts:
        raise UserError("There are no texts to be scored.")
    blocks = bundle.blocked.each(texts)
    found = bundle.answer(blocks.tokens, client)
    counted = np.arange(found.probabilities.shape[1]) < blocks.counts[:, None]
    sums = np.where(counted, log_likelihoods_of(found.probabilities), 0.0).sum(axis=1)
    tokens = np.bincount(blocks.owners, weights=blocks.counts, minlength=len(texts)).astype(np.int64)
    means = np.bincount(blocks.owners, weights=sums, minlength=len(texts)) / tokens
    return TextScores(tokens, np.asarray(means), int(found.models[0]))


def texts_in(path: Path, bundle: "Bundle") -> Any:
    """The rows of a file: blocks of tokens of .npy and .npz, anything else is read as CSV."""
    from coterie.deploy.rows import read_rows, site_table  # which know bundles

    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    if path.suffix in (".npy", ".npz"):
        return read_rows(path, bundle).x
    if bundle.blocked is None:
        raise UserError(f"The bundle does not say how texts of {bundle.origin.data!r} become tokens: give their blocks as .npy or .npz.")
    texts = bundle.blocked.texts(site_table(path), str(path))
    if not texts:
        raise UserError(f"{path} holds no rows.")
    return texts


def before_training(bundle: "Bundle") -> Floats:
    """The model as it began, its adapters adding nothing."""
    module = ModelSpec(bundle.model, bundle.input_shape, len(bundle.classes), bundle.make).module()
    for part in module.modules():
        if isinstance(part, LoraLinear):
            part.up.detach().zero_()
    return read(module)


def scores_before(bundle: "Bundle", blocks: Array) -> Doubles:
    """(m,) the log-likelihoods of blocks by the model as it began."""
    from dataclasses import replace

    began = replace(bundle, models=before_training(bundle)[None], names=("before training",), clients={}, combiner=None)
    return np.asarray(began.answer(blocks).classes, dtype=np.float64)
