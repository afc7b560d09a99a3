"""A bundle: the models that some clients are served, and all that is needed to ask them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.errors import UserError
from coterie.core.inputs import Inputs
from coterie.core.model import MakeModule, ModelSpec
from coterie.core.parameters import write
from coterie.core.serving import COMBINED, Combiner
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.data.blocked import BlockedTexts
from coterie.data.preparing.preparation import Preparation
from coterie.data.preparing.worded import WordedColumn
from coterie.data.scaling import Scaling
from coterie.data.schema import Schema
from coterie.deploy.text_scores import log_likelihoods_of, scores_of_texts
from coterie.engines.loss import scores
from coterie.engines.tallies import THRESHOLD
from coterie.engines.workspace import chunk_for
from coterie.models.catalogue import build_model

if TYPE_CHECKING:
    import pandas as pd

    Rows = Array | pd.DataFrame | tuple[Array, ...] | Mapping[str, Array] | Sequence[str]


class Predictions(NamedTuple):
    """What a bundle says of m samples."""

    classes: Array  # (m,) class numbers; (m, L) labels of 0 and 1; (m,) numbers in the target's own units, or log-likelihoods of a token
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
    """Models for some clients. It holds no data and asks nobody."""

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
    worded: WordedColumn | None = None  # of a table of texts
    blocked: BlockedTexts | None = None  # of texts whose next tokens are predicted
    task: Task = CLASSIFICATION
    make: MakeModule = build_model  # another where the model was given as an object
    several: Inputs | None = None  # what a row holds, where samples have several inputs
    schema: Schema | None = None  # of the table that it was trained on

    def __repr__(self) -> str:
        who = ", ".join([*list(self.clients)[:3], *["..."] * (len(self.clients) > 3)])
        return f"<Bundle of {self.origin.method} for {who}: {', '.join(self.names)} ({self.model}, {len(self.classes)} classes)>"

    @property
    def classes_(self) -> Array:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return np.array(self.classes, dtype=object)

    def predict(self, rows: "Rows", client: str | None = None) -> Array:
        """(m,) the class of each row, by name; of a regression the number, in the target's own units; of several labels (m, L) whether each
        is set; of a language model the mean log-likelihood of each text's tokens, in nats. A table is in the client's own units; an array
        in those that the models were trained in; samples of several inputs are a tuple or a dictionary of arrays, as they were in training;
        texts to be continued are a list or a table.
        """
        if self.task.name == "next-token":
            return scores_of_texts(self, rows, client).log_likelihood
        found = self._answered(rows, client).classes
        return np.asarray(self.classes_[found]) if self.task.counts_classes else found

    def predict_proba(self, rows: "Rows", client: str | None = None) -> Doubles:
        """(m, C) the probability of each class, or of each label."""
        if self.task.name in ("regression", "next-token"):
            raise UserError(f"A {'regression' if self.task.name == 'regression' else 'language model'} has no probabilities: use predict.")
        return self._answered(rows, client).probabilities

    def _answered(self, rows: "Rows", client: str | None) -> Predictions:
        from coterie.deploy.rows import inputs_of  # which knows bundles

        return self.answer(inputs_of(self, rows, client), client)

    def answer(self, x: Array, client: str | None = None) -> Predictions:
        """Classes, probabilities and who answered, for samples in the units that the models were trained in (see `scaled`)."""
        row, place = self._seat(client)
        inputs = self._inputs(x)
        if row != COMBINED:
            said = self._answers(row, inputs)
        else:
            assert self.combiner is not None
            stacked = np.stack([self._answers(each, inputs) for each in range(len(self.models))])
            said = self.combiner.combine(stacked, place)
        models = np.full(len(inputs), row, dtype=np.int64)
        if self.task.name == "regression":
            return Predictions(self.task.in_units(said[:, 0]), said[:, :0], models)
        if self.task.name == "next-token":
            return Predictions(log_likelihoods_of(said).mean(axis=1), said, models)
        if self.task.name == "multilabel":
            return Predictions((said >= THRESHOLD).astype(np.int64), said, models)
        sums = said.sum(axis=1, keepdims=True)  # of one where a model answers; a combiner's scores need not be
        shares = np.divide(said, sums, out=np.full_like(said, 1 / len(self.classes)), where=sums > 0)
        return Predictions(said.argmax(axis=1), shares, models)

    def scaled(self, x: Array, client: str | None = None) -> Floats:
        """A client's own rows in the units that its model was trained in: standardised as its training part was."""
        if not self.scaling:
            raise UserError(f"The bundle has no scaling for {self.origin.data!r}: give rows in the units that the model was trained in.")
        name = self.asking(client)
        if name is None or name not in self.scaling:
            whom = "Say whose rows these are" if name is None else f"The bundle does not know how client {name!r} scales its rows"
            raise UserError(f"{whom}: it has the scaling of {_some(self.scaling)}; rows that are scaled already need none.")
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
        write(self.module, torch.from_numpy(self.models[row]))
        return self.module

    def asking(self, client: str | None) -> str | None:
        """Who asks: the only client of the bundle where nobody is named."""
        return next(iter(self.clients)) if client is None and len(self.clients) == 1 else client

    def _seat(self, client: str | None) -> tuple[int, int]:
        """The row that answers for a client, and the place by which a combiner knows it. Who is not known gets the only model, if it is
        one."""
        names = list(self.clients)
        client = self.asking(client)
        if client is not None and client in self.clients:
            return self.clients[client], names.index(client)
        if len(self.models) == 1:
            return 0, 0
        who = "Say for whom" if client is None else f"The bundle does not know client {client!r}"
        raise UserError(f"{who}: it has {len(self.models)} models for {_some(self.clients)}.")

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
            raise UserError(f"Sample {int(bad.argmax())} holds a value that is no finite number: fill it in or leave it out.")
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
            outputs = torch.cat([module(piece) for piece in torch.split(torch.from_numpy(inputs), chunk_for(module))])
        except IndexError as error:
            raise UserError(f"The samples hold a token that the model {self.model!r} does not know ({error}).") from error
        found: Doubles = scores(outputs, self.task).double().numpy()
        return found


def _some(names: Mapping[str, object], most: int = 5) -> str:
    told = list(names)[:most]
    return ", ".join(told) + (f" and {len(names) - most} more" if len(names) > most else "")
