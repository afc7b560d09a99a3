"""A bundle: the models that some clients are served, with everything needed to predict; and the check that its parts fit.

Language models score texts by the log-likelihood of their tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.layout import Inputs
from coterie.core.model import MakeModule, ModelSpec, make_layout, read_vector, use_torch_seed, write_vector
from coterie.core.serving import COMBINED, Combiner, Mixture
from coterie.core.specs import parse
from coterie.core.tasks import CLASSIFICATION, MIN_LOG_LIKELIHOOD, Task
from coterie.data.column_statistics import Scaling
from coterie.data.prepare import Preparation
from coterie.data.schema import Schema
from coterie.data.text import TextColumn
from coterie.data.tokens import TextBlocker
from coterie.engines.evaluation.evaluate import THRESHOLD
from coterie.engines.loss import compute_scores
from coterie.engines.workspace import get_chunk_size
from coterie.methods.combiners import AccuracyGate, ByRow, Online, OwnExpert
from coterie.models.catalogue import build_model
from coterie.models.layers import LoraLinear


class TextScores(NamedTuple):
    """Of m texts, or blocks of tokens."""

    tokens: Ints  # (m,) how many of each were predicted
    log_likelihood: Doubles  # (m,) their mean, in nats
    model: int  # the row of the model that answered, or COMBINED

    @property
    def whole(self) -> float:
        """The mean over all tokens."""
        return float((self.log_likelihood * self.tokens).sum() / self.tokens.sum())


def compute_log_likelihoods(chances: Doubles) -> Doubles:
    """(m, T) of the probabilities of tokens, none lower than what keeps a score."""
    return np.log(np.maximum(chances, np.exp(MIN_LOG_LIKELIHOOD)))


def score_texts(bundle: "Bundle", rows: Any, client: str | None = None) -> TextScores:
    """Of a table with the column of texts, of texts in a list, or of blocks of tokens in an array (m, T + 1)."""
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "iuf":
        found = bundle.answer(rows, client)
        return TextScores(np.full(len(rows), found.probabilities.shape[1]), found.classes, int(found.models[0]))
    if bundle.blocked is None:
        raise UserError(f"The bundle does not state how texts of {bundle.origin.data!r} become tokens: give blocks of tokens as an array.")
    texts = bundle.blocked.texts(rows, "The table") if hasattr(rows, "columns") else [str(text) for text in rows]
    if not texts:
        raise UserError("There are no texts to be scored.")
    blocks = bundle.blocked.each(texts)
    found = bundle.answer(blocks.tokens, client)
    counted = np.arange(found.probabilities.shape[1]) < blocks.counts[:, None]
    sums = np.where(counted, compute_log_likelihoods(found.probabilities), 0.0).sum(axis=1)
    tokens = np.bincount(blocks.owners, weights=blocks.counts, minlength=len(texts)).astype(np.int64)
    means = np.bincount(blocks.owners, weights=sums, minlength=len(texts)) / tokens
    return TextScores(tokens, np.asarray(means), int(found.models[0]))


def read_texts(path: Path, bundle: "Bundle") -> Any:
    """The rows of a file: blocks of tokens of .npy and .npz, anything else is read as CSV."""
    from coterie.deploy.bundle.rows import read_rows, read_text_table  # which know bundles

    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    if path.suffix in (".npy", ".npz"):
        return read_rows(path, bundle).x
    if bundle.blocked is None:
        raise UserError(f"The bundle does not state how texts of {bundle.origin.data!r} become tokens: give their blocks as .npy or .npz.")
    texts = bundle.blocked.texts(read_text_table(path), str(path))
    if not texts:
        raise UserError(f"{path} holds no rows.")
    return texts


def reset_adapters(bundle: "Bundle") -> Floats:
    """The model as it began, its adapters adding nothing."""
    module = ModelSpec(bundle.model, bundle.input_shape, len(bundle.classes), bundle.make).module()
    for part in module.modules():
        if isinstance(part, LoraLinear):
            part.up.detach().zero_()
    return read_vector(module)


def score_untrained(bundle: "Bundle", blocks: Array) -> Doubles:
    """(m,) the log-likelihoods of blocks by the model as it began."""
    from dataclasses import replace

    began = replace(bundle, models=reset_adapters(bundle)[None], names=("before training",), clients={}, combiner=None)
    return np.asarray(began.answer(blocks).classes, dtype=np.float64)


if TYPE_CHECKING:
    import pandas as pd

    Rows = Array | pd.DataFrame | tuple[Array, ...] | Mapping[str, Array] | Sequence[str]


class Predictions(NamedTuple):
    """A bundle's predictions for m samples."""

    # (m,) class numbers; (m, L) labels of 0 and 1; (m,) numbers in the target's own units, or log-likelihoods of a token; (m, K) survival
    classes: Array
    probabilities: Doubles  # (m, C); of numbers (m, 0); of blocks of tokens (m, T), of each token
    models: Ints  # (m,) the row of the model that answered, or COMBINED


class Origin(NamedTuple):
    """Where a bundle's models come from."""

    method: str
    data: str
    seed: int
    draw: int
    round_: int


@dataclass(frozen=True, eq=False)
class Bundle:
    """Models for some clients, usable without study or server. It holds no data.

    `get_bundle`, `read_bundle` and `place` make bundles; `predict` and `predict_proba` answer rows.

    Example:
        >>> classes = ct.read_bundle("bundles/site-1").predict(rows)  # doctest: +SKIP
    """

    origin: Origin
    model: str  # the spec of the module that the vectors belong to
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]  # or the names of the labels, or of the target
    models: Floats  # (k, d)
    names: tuple[str, ...]  # (k,) "group 2", "global", "own of hospital-3"
    clients: Mapping[str, int]  # the row that answers for each, or COMBINED; a combiner knows them by their order here
    combiner: Combiner | None = None
    tokens: bool = False  # samples are whole numbers
    features: tuple[str, ...] | None = None
    scaling: Mapping[str, Scaling] = field(default_factory=dict)  # by client
    preparation: Preparation | None = None  # of the table that it was trained on
    worded: TextColumn | None = None  # of a table of texts
    blocked: TextBlocker | None = None  # of texts whose next tokens are predicted
    task: Task = CLASSIFICATION
    make: MakeModule = build_model  # another where the model was given as an object
    several: Inputs | None = None  # what a row holds, where samples have several inputs
    schema: Schema | None = None  # of the table that it was trained on

    def __repr__(self) -> str:
        some = ", ".join([*list(self.clients)[:3], *["..."] * (len(self.clients) > 3)])
        return f"<Bundle of {self.origin.method} for {some}: {', '.join(self.names)} ({self.model}, {len(self.classes)} classes)>"

    @property
    def classes_(self) -> Array:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return np.array(self.classes, dtype=object)

    def predict(self, rows: "Rows", client: str | None = None) -> Array:
        """Predict the class of each row, the number of a regression, the labels, the mean log-likelihood of a text's tokens in nats, or the
        probability of no event by the end of each interval (`task.grid`).

        Args:
            rows: A table in the client's own units; an array in those of training; for several inputs a tuple or a dictionary of arrays;
                for a language model a list or a table of texts.
            client: The client whose model answers. Default: the bundle's only one.

        Returns:
            Classes by name (m,), numbers in the target's own units (m,), labels of 0 and 1 (m, L), log-likelihoods (m,), or survival
            probabilities (m, K).
        """
        if self.task.name == "next-token":
            return score_texts(self, rows, client).log_likelihood
        found = self._answered(rows, client).classes
        return np.asarray(self.classes_[found]) if self.task.counts_classes else found

    def predict_proba(self, rows: "Rows", client: str | None = None) -> Doubles:
        """(m, C) the probability of each class, or of each label."""
        if self.task.name in ("regression", "next-token"):
            raise UserError(f"A {'regression' if self.task.name == 'regression' else 'language model'} has no probabilities: use predict.")
        return self._answered(rows, client).probabilities

    def _answered(self, rows: "Rows", client: str | None) -> Predictions:
        from coterie.deploy.bundle.rows import prepare_inputs  # which knows bundles

        return self.answer(prepare_inputs(self, rows, client), client)

    def answer(self, x: Array, client: str | None = None) -> Predictions:
        """Classes, probabilities and the models that answered, for samples in the units of training (see `scaled`)."""
        row, place = self._seat(client)
        inputs = self._inputs(x)
        if row != COMBINED:
            response = self._answers(row, inputs)
        else:
            assert self.combiner is not None
            stacked = np.stack([self._answers(each, inputs) for each in range(len(self.models))])
            response = self.combiner.combine(stacked, place)
        models = np.full(len(inputs), row, dtype=np.int64)
        if self.task.name == "regression":
            return Predictions(self.task.in_units(response[:, 0]), response[:, :0], models)
        if self.task.name == "next-token":
            return Predictions(compute_log_likelihoods(response).mean(axis=1), response, models)
        if self.task.name == "survival":
            return Predictions(response, response, models)
        if self.task.name == "multilabel":
            return Predictions((response >= THRESHOLD).astype(np.int64), response, models)
        sums = response.sum(axis=1, keepdims=True)  # of one where a model answers; a combiner's scores need not be
        shares = np.divide(response, sums, out=np.full_like(response, 1 / len(self.classes)), where=sums > 0)
        return Predictions(response.argmax(axis=1), shares, models)

    def scaled(self, x: Array, client: str | None = None) -> Floats:
        """A client's own rows in the units that its model was trained in: standardised as its training part was."""
        if not self.scaling:
            raise UserError(f"The bundle has no scaling for {self.origin.data!r}: give rows in the units that the model was trained in.")
        name = self.resolve_client(client)
        if name is None or name not in self.scaling:
            fault = "Name the client of these rows" if name is None else f"The bundle does not know how client {name!r} scales its rows"
            raise UserError(f"{fault}: it has the scaling of {_list_some(self.scaling)}; rows that are scaled already need none.")
        rows = self._shaped(x)
        return self.scaling[name].apply(rows.reshape(len(rows), prod(self.input_shape)).astype(np.float64)).reshape(rows.shape)

    def answered(self, row: int) -> str:
        """The model that answers, in words."""
        return self.names[row] if row != COMBINED else f"{', '.join(self.names)} combined"

    @cached_property
    def module(self) -> nn.Module:
        """The module that every model of the bundle is written into, in turn."""
        return ModelSpec(self.model, self.several or self.input_shape, len(self.classes), self.make).module().eval()

    def load(self, row: int) -> nn.Module:
        """The module as this row of the models."""
        write_vector(self.module, torch.from_numpy(self.models[row]))
        return self.module

    def resolve_client(self, client: str | None) -> str | None:
        """The client: the only one of the bundle where none is named."""
        return next(iter(self.clients)) if client is None and len(self.clients) == 1 else client

    def _seat(self, client: str | None) -> tuple[int, int]:
        """The row that answers for a client, and the place by which a combiner knows it. An unknown client gets the only model, if it is
        one."""
        names = list(self.clients)
        client = self.resolve_client(client)
        if client is not None and client in self.clients:
            return self.clients[client], names.index(client)
        if len(self.models) == 1:
            return 0, 0
        fault = "Name the client" if client is None else f"The bundle does not know client {client!r}"
        raise UserError(f"{fault}: it has {len(self.models)} models for {_list_some(self.clients)}.")

    def _shaped(self, x: Array) -> Array:
        """Numbers in the shape that the module takes; flat rows are put into shape."""
        x = np.asarray(x)
        if x.ndim == 0 or x.dtype.kind not in "fiub" or x.shape[1:] not in (self.input_shape, (prod(self.input_shape),)):
            found = f"shape {x.shape[1:]}" if x.ndim and x.dtype.kind in "fiub" else f"type {x.dtype}"
            raise UserError(f"The samples have {found}: the model takes numbers of shape {self.input_shape}, a row a sample.")
        return x.reshape(len(x), *self.input_shape)

    def _inputs(self, x: Array) -> Array:
        """Samples as the module takes them."""
        x = self._shaped(x)
        bad = ~np.isfinite(x.reshape(len(x), prod(self.input_shape))).all(axis=1)
        if bad.any():
            raise UserError(f"Sample {int(bad.argmax())} holds a value that is no finite number: fill it in or drop it.")
        if not self.tokens:
            return x.astype(np.float32)
        if x.dtype.kind == "f" and (x != np.round(x)).any():
            raise UserError("The model reads tokens: the samples should be whole numbers.")
        return x.astype(np.int64)

    @torch.no_grad()
    def _answers(self, row: int, inputs: Array) -> Doubles:
        """(m, C) probabilities, or numbers, of one model."""
        module = self.load(row)
        try:
            outputs = torch.cat([module(piece) for piece in torch.split(torch.from_numpy(inputs), get_chunk_size(module))])
        except IndexError as error:
            raise UserError(f"The samples hold a token that the model {self.model!r} does not know ({error}).") from error
        found: Doubles = compute_scores(outputs, self.task).double().numpy()
        return found


def _list_some(names: Mapping[str, object], most: int = 5) -> str:
    details = list(names)[:most]
    return ", ".join(details) + (f" and {len(names) - most} more" if len(names) > most else "")


def find_contradiction(bundle: Bundle) -> str | None:
    """What does not fit together, if anything."""
    models, k, width = bundle.models, len(bundle.names), prod(bundle.input_shape)
    if models.ndim != 2 or models.dtype != np.float32 or len(models) != k:
        return f"{k} names and models of shape {models.shape} and type {models.dtype}"
    if models.shape[1] != (size := _count_parameters(bundle)):
        return f"models of {models.shape[1]:,} numbers where {bundle.model!r} has {size:,}"
    rows = list(bundle.clients.values())
    if not all(COMBINED <= row < k for row in rows) or (COMBINED in rows and bundle.combiner is None):
        return f"clients are served models that are not among its {k}"
    texts = bundle.task.name == "next-token"
    classes = bundle.input_shape[0] - 1 if texts else len(bundle.classes)  # of a block, tokens that are predicted
    combined = np.flatnonzero(np.array(rows, dtype=np.int64) == COMBINED)
    if len(combined):
        assert bundle.combiner is not None
        shape = np.shape(bundle.combiner.combine(np.full((k, 1, classes), 1 / classes), int(combined[0])))
        if shape != (1, classes):
            return f"its combiner gives scores of shape {shape} for {classes} {'tokens' if texts else 'classes'}"
        if not _is_valid_combiner(bundle.combiner, k, classes, combined):
            return f"its combiner does not answer for all of its {len(combined)} clients"
    if bundle.several is not None and bundle.input_shape != (bundle.several.width,):
        return f"inputs of {bundle.several.width} numbers where the model takes {bundle.input_shape}"
    if bundle.features is not None and len(bundle.features) != width:
        return f"{len(bundle.features)} features named where the model takes {width}"
    if bundle.preparation is not None and bundle.preparation.features != bundle.features:
        return "a preparation that makes other features than it names"
    if bundle.task.name == "survival" and len(bundle.task.grid) != classes + 1:
        return f"a grid of {len(bundle.task.grid) - 1} intervals where the model has {classes} outputs"
    if bundle.schema is not None and (wrong := _find_schema_contradiction(bundle)):
        return wrong
    if bundle.worded is not None and bundle.worded.wording.shape != bundle.input_shape:
        return "texts that become other features than the model takes"
    if bundle.blocked is not None and (not texts or bundle.input_shape != (bundle.blocked.length + 1,)):
        return "texts that are cut into other blocks than the model takes"
    if any(len(s.mean) != width or len(s.deviation) != width for s in bundle.scaling.values()):
        return f"a scaling that is not of {width} features"
    return None


def _find_schema_contradiction(bundle: Bundle) -> str | None:
    schema = bundle.schema
    assert schema is not None
    if (schema.classes, schema.shape, schema.task) != (bundle.classes, bundle.input_shape, bundle.task.name):
        return "a schema of other classes, samples or labels than it names"
    if not any(column.kind == "text" for column in schema.columns) and schema.features != bundle.features:
        return "a schema of other features than it names"
    return None


def _is_valid_combiner(combiner: Combiner | None, k: int, classes: int, places: Ints) -> bool:
    """Whether a combiner has what it needs for clients at these places, seen from its arrays: there may be any number of clients."""
    match combiner:
        case Mixture(weights):
            return weights.ndim == 2 and weights.shape[1] == k and bool((places < len(weights)).all())
        case OwnExpert(experts):
            known = experts.ndim == 1 and experts.dtype.kind in "iu" and bool((places < len(experts)).all())
            return known and bool(((experts[places] >= 0) & (experts[places] < k)).all())
        case AccuracyGate(weights):
            return weights.shape == (k, classes)
        case Online():
            return combiner.weights is None or combiner.weights.shape == (k, classes)
        case ByRow(combiners):
            inside = bool((places < len(combiners)).all())
            return inside and all(
                _is_valid_combiner(combiners[place], k, classes, places[at : at + 1]) for at, place in enumerate(places.tolist())
            )
    return combiner is not None


def _count_parameters(bundle: Bundle) -> int:
    """The length of the model's vector, found without making room for it: a wrong spec may be of any size."""
    own = ":" in parse(bundle.model).name
    with torch.device("cpu" if own else "meta"), use_torch_seed(0):
        return make_layout(build_model(bundle.model, bundle.several or bundle.input_shape, len(bundle.classes))).size
