"""Training jobs: many local trainings, ragged, as plain arrays; how asks become a job and its results become replies.

Rows of a job may lie in several arrays (models of many lanes, linear terms that few lanes have). They are concatenated on the device:
a copy on the host costs time, and zero rows for clients without a term cost as much memory as all models.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from coterie.core import rng
from coterie.core.arrays import Array, Bools, Doubles, Floats, Ints, Words
from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.core.rng import fold_keys
from coterie.core.vectors import on_device
from coterie.engines.device import as_tensor, choose_storage_device, get_resident_memory
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.local_engine import Work


@dataclass(frozen=True)
class RowBlock:
    """Rows of one table, in this order: all of them where no order is given, zeros where there is no table."""

    count: int
    table: Floats | None = None
    order: Ints | None = None

    def to_tensor(self, device: torch.device, chosen: Ints | None = None) -> Tensor:
        """These rows, or some of them: where they are, or, those that are asked for more than once sent once, there. There is a table."""
        which = self.order if chosen is None else chosen if self.order is None else self.order[chosen]
        if isinstance(self.table, DeviceVectors) and on_device(self.table) is not None:
            return self.table.get_tensor(which)
        table = np.asarray(self.table, dtype=np.float32)
        if which is None:
            return as_tensor(table)
        used, places = np.unique(which, return_inverse=True)
        return as_tensor(table[used], device)[torch.as_tensor(places, device=device)]

    def host(self, width: int) -> Floats:
        """The same as an array."""
        if self.table is None:
            return np.zeros((self.count, width), dtype=np.float32)
        return np.asarray(self.table, dtype=np.float32)[slice(None) if self.order is None else self.order]


class ConcatRows:
    """(n, d) float32. To whoever knows no better it is an array, which is then made, once."""

    dtype, ndim = np.dtype(np.float32), 2

    def __init__(self, parts: Sequence[RowBlock], width: int) -> None:
        self.parts = parts
        self.shape = (sum(part.count for part in parts), width)
        self._whole: Floats | None = None
        self._there: dict[torch.device, Tensor] = {}

    def as_array(self) -> Floats:
        """Itself, where an array is expected."""
        return cast("Floats", self)

    def on(self, device: torch.device) -> Tensor:
        """All rows, on a device: for few models. They are sent once."""
        device = torch.empty(0, device=device).device  # "cuda" and "cuda:0" are one place under two names
        if device not in self._there:
            there = torch.zeros(self.shape, dtype=torch.float32, device=device)
            for first, part in zip(self._firsts(), self.parts, strict=True):
                if part.table is not None:
                    there[first : first + part.count] = part.to_tensor(device)
            self._there[device] = there
        return self._there[device]

    def send_some(self, device: torch.device, rows: Ints) -> Tensor:
        """(m, d) these rows, on a device: for what is too large to be there all at once."""
        found = torch.zeros((len(rows), self.shape[1]), dtype=torch.float32, device=device)
        for first, part in zip(self._firsts(), self.parts, strict=True):
            mine = np.flatnonzero((rows >= first) & (rows < first + part.count))
            if part.table is not None and len(mine):
                found[torch.as_tensor(mine, device=device)] = part.to_tensor(device, rows[mine] - first).to(device)
        return found

    def cut(self, begin: int, end: int) -> "ConcatRows":
        """Rows `begin` to ``end - 1``, as they lie."""
        found = list[RowBlock]()
        for first, part in zip(self._firsts(), self.parts, strict=True):
            rows = np.arange(max(begin - first, 0), min(end - first, part.count))
            if len(rows):
                found.append(RowBlock(len(rows), part.table, rows if part.order is None else part.order[rows]))
        return ConcatRows(found, self.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> Any:
        return self.__array__()[chosen]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._whole is None:
            self._whole = np.concatenate([part.host(self.shape[1]) for part in self.parts])
        return np.array(self._whole, dtype=dtype, copy=copy)

    def _firsts(self) -> Iterator[int]:
        first = 0
        for part in self.parts:
            yield first
            first += part.count


def send_rows(table: Floats, device: torch.device) -> Tensor:
    """(n, d) a job's rows on a device."""
    return table.on(device) if isinstance(table, ConcatRows) else as_tensor(np.asarray(table, dtype=np.float32), device)


def gather_starts(models: Tensor, start: Ints, device: torch.device) -> Tensor:
    """(n, d) of models on the device, what each training begins from, where the trained ones are to lie: on the host if they do not fit."""
    home = choose_storage_device((len(start), models.shape[1]), device, get_resident_memory)
    return models.to(home)[torch.as_tensor(start, device=home)]


def send_some_rows(table: Floats, rows: Ints, device: torch.device) -> Tensor:
    """(m, d) some of them."""
    return table.send_some(device, rows) if isinstance(table, ConcatRows) else as_tensor(np.asarray(table[rows], dtype=np.float32), device)


def slice_rows(table: Floats, begin: int, end: int) -> Floats:
    """Rows `begin` to ``end - 1``."""
    return table.cut(begin, end).as_array() if isinstance(table, ConcatRows) else table[begin:end]


def find_nonzero_rows(table: Floats) -> Bools:
    """(n,) which rows have a number that is not zero."""
    return (
        np.concatenate([_find_nonzero_rows(part) for part in table.parts])
        if isinstance(table, ConcatRows)
        else np.asarray(np.any(table, axis=1))
    )


def _find_nonzero_rows(part: RowBlock) -> Bools:
    if part.table is None:
        return np.zeros(part.count, dtype=np.bool_)
    found = np.any(part.table, axis=1) if (away := on_device(part.table)) is None else away.norms() > 0
    return np.asarray(found if part.order is None else found[part.order])


_PER_TRAINING = ("keys", "epochs", "max_steps", "batch_size", "lr", "momentum", "weight_decay", "mu")


@dataclass(frozen=True)
class TrainingJob:
    """n local trainings of one softmax regression or ReLU network, each on its own samples from its own start.

    A step is torch.optim.SGD's: g = gradient of the batch's mean cross-entropy + mu * (w - anchor) + linear + weight_decay * w;
    buffer = momentum * buffer + g; w -= lr * buffer. Epoch e (from 0) of training i takes its samples in the order of
    ``shuffle(fold(keys[i], e), n_i)``, in batches of which the last may be short.
    """

    sizes: tuple[int, ...]  # inputs, hidden widths, classes
    x: Floats  # (N, inputs)
    y: Ints  # (N,)
    offsets: Ints  # (n + 1,): training i has the samples indices[offsets[i]:offsets[i + 1]]
    indices: Ints
    models: Floats  # (k, d): per layer the weight (out, in) by rows, then the bias (out)
    start: Ints  # (n,): the row of models that a training begins from
    keys: Words  # (n,)
    epochs: Ints  # (n,)
    max_steps: Ints  # (n,): -1 for no limit
    batch_size: Ints  # (n,): at least 1
    lr: Doubles  # (n,), as the three below
    momentum: Doubles
    weight_decay: Doubles
    mu: Doubles
    anchors: Floats | None = None  # (n, d); None: the start
    linear: Floats | None = None  # (n, d); None: zero
    sample_weights: Floats | None = None  # of each of the indices, by which its loss counts; None: one. The fused route on a CPU has them

    def check(self) -> None:
        """Stop at what would make a kernel read or write outside its arrays."""
        n, d, classes = len(self.start), self.parameters, self.sizes[-1]
        shapes = {
            "x": self.x.shape[1:] == self.sizes[:1] and len(self.x) == len(self.y),
            "offsets": self.offsets.shape == (n + 1,) and self.samples().min(initial=0) >= 0 and self.offsets[0] >= 0,
            "indices": (readable := self.offsets[-1] <= len(self.indices) and _is_within(self.indices, len(self.x))),
            "y": not readable or _is_within(self.y[self.indices], classes),  # only what is read: the job may be a small part of the data
            "models": self.models.shape[1:] == (d,),
            "start": _is_within(self.start, len(self.models)),
            "batch_size": (self.batch_size >= 1).all(),
            "anchors": self.anchors is None or self.anchors.shape == (n, d),
            "linear": self.linear is None or self.linear.shape == (n, d),
            "sample_weights": self.sample_weights is None or self.sample_weights.shape == self.indices.shape,
            **{name: getattr(self, name).shape == (n,) for name in _PER_TRAINING},
        }
        for name, fits in shapes.items():
            if not fits:
                raise ValueError(f"The job's {name} does not fit its other arrays: {n} trainings of {d} parameters, {classes} classes.")

    @property
    def parameters(self) -> int:
        """The length d of a flat model."""
        return sum(out * (inputs + 1) for inputs, out in pairwise(self.sizes))

    def samples(self) -> Ints:
        """How many samples each training has."""
        return self.offsets[1:] - self.offsets[:-1]

    def slice(self, begin: int, end: int) -> "TrainingJob":
        """Trainings `begin` to ``end - 1``, with their own samples' numbers alone; the models and the data are the whole job's."""
        first, last = int(self.offsets[begin]), int(self.offsets[end])
        rows: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in ("start", *_PER_TRAINING)}
        rows |= {name: slice_rows(value, begin, end) for name in ("anchors", "linear") if (value := getattr(self, name)) is not None}
        return replace(self, offsets=self.offsets[begin : end + 1] - first, indices=self.indices[first:last], **rows)

    @cached_property
    def shifted(self) -> Doubles:
        """(n,) one where a training has a linear term."""
        return np.zeros(len(self.start)) if self.linear is None else find_nonzero_rows(self.linear).astype(np.float64)

    def steps(self) -> Ints:
        """How many steps each training takes, known before it begins."""
        whole = self.epochs * -(-self.samples() // self.batch_size)
        return np.where(self.max_steps < 0, whole, np.minimum(whole, self.max_steps))


def _is_within(values: Ints, stop: int) -> bool:
    return values.size == 0 or bool(values.min() >= 0 and values.max() < stop)


def merge_asks(works: Sequence[Work], asks: Sequence[Train], sizes: tuple[int, ...], *, apart: bool = False) -> TrainingJob:
    """All the trainings of these asks, which share a world and an optimiser, one after the other.

    Kept `apart`, models and terms stay in the arrays that they are in, for routes that put them together on a device.
    """
    federation = works[0].world.federation
    held = [work.parts() for work in works]
    counts, width = [len(ask.clients) for ask in asks], asks[0].models.shape[1]
    clients = np.concatenate([ask.clients for ask in asks])
    if all(parts is held[0] for parts in held):  # of all asks at once
        samples, indices = held[0].sizes[clients], held[0].joined(clients)
    else:
        samples = np.concatenate([parts.sizes[ask.clients] for parts, ask in zip(held, asks, strict=True)])
        indices = np.concatenate([parts.joined(ask.clients) for parts, ask in zip(held, asks, strict=True)])
    epochs, max_steps, batch, lr, momentum, decay, mu = np.repeat(np.array([_get_settings(a.local) for a in asks]).T, counts, axis=1)
    keys = np.array([work.key(ask.purpose) for work, ask in zip(works, asks, strict=True)], np.uint64)
    return TrainingJob(
        sizes=sizes,
        x=federation.x.reshape(len(federation.x), -1),
        y=federation.y,
        offsets=np.concatenate([[0], np.cumsum(samples)]),
        indices=indices,
        models=_concat_rows([RowBlock(len(ask.models), ask.models) for ask in asks], width, apart=apart),
        start=np.concatenate([ask.start for ask in asks]) + np.repeat(_compute_offsets([len(ask.models) for ask in asks]), counts),
        keys=fold_keys(np.repeat(keys, counts), works[0].world.words[clients]),  # `Work.keys` of all asks
        epochs=_apply_client_values(epochs, [ask.epochs for ask in asks], counts).astype(np.int64),
        max_steps=max_steps.astype(np.int64),
        batch_size=np.where(batch > 0, batch, samples).astype(np.int64),
        lr=lr,
        momentum=momentum,
        weight_decay=decay,
        mu=_apply_client_values(mu, [ask.mus for ask in asks], counts),
        anchors=_concat_terms(
            asks, [ask.anchors for ask in asks], lambda ask: RowBlock(len(ask.clients), ask.models, ask.start), apart=apart
        ),
        linear=_concat_terms(asks, [ask.linear for ask in asks], lambda ask: RowBlock(len(ask.clients)), apart=apart),
    )


def concat_jobs(jobs: Sequence[TrainingJob], firsts: Sequence[int]) -> TrainingJob:
    """The trainings of several jobs of one model, one after the other; job j has the samples from ``firsts[j]`` on."""
    if len(jobs) == 1 and firsts[0] == 0:
        return jobs[0]
    begins, sampled = (_compute_offsets(counts) for counts in ([len(job.models) for job in jobs], [len(job.indices) for job in jobs]))
    given: dict[str, Any] = {name: np.concatenate([getattr(job, name) for job in jobs]) for name in ("models", *_PER_TRAINING)}
    if any(job.anchors is not None for job in jobs):
        given["anchors"] = np.concatenate([job.models[job.start] if job.anchors is None else job.anchors for job in jobs])
    if any(job.linear is not None for job in jobs):
        given["linear"] = np.concatenate([np.zeros_like(job.models[job.start]) if job.linear is None else job.linear for job in jobs])
    return replace(
        jobs[0],
        offsets=np.concatenate([[0], *(job.offsets[1:] + first for job, first in zip(jobs, sampled, strict=True))]),
        indices=np.concatenate([job.indices + first for job, first in zip(jobs, firsts, strict=True)]),
        start=np.concatenate([job.start + first for job, first in zip(jobs, begins, strict=True)]),
        **given,
    )


def split_replies(asks: Sequence[Train], samples: Ints, vectors: Floats, steps: Ints, *others: Array) -> list[Trained]:
    """The reply to each of the merged asks; `others` are the further columns, where there are any."""
    counts = [len(ask.clients) for ask in asks]
    spans = [slice(first, first + count) for first, count in zip(_compute_offsets(counts), counts, strict=True)]
    columns: tuple[Any, ...] = (vectors, samples, steps, *others)
    return [Trained(ask.clients, *(values[span] for values in columns)) for ask, span in zip(asks, spans, strict=True)]


def _get_settings(local: Local) -> tuple[float, ...]:
    """One ask's numbers for each of its trainings; -1 steps are no limit, a batch of 0 is the full one."""
    limit = -1 if local.max_steps is None else local.max_steps
    return local.epochs, limit, local.batch_size or 0, local.lr, local.momentum, local.weight_decay, local.mu


def _compute_offsets(counts: Sequence[int]) -> list[int]:
    """Where each of several runs of so many begins, when they are put one after the other."""
    return list(accumulate(counts, initial=0))[:-1]


def _apply_client_values(values: Doubles, given: Sequence[Ints | Doubles | None], counts: Sequence[int]) -> Doubles:
    """One number for each training: of its ask, unless the ask gives each client its own."""
    for own, first, count in zip(given, _compute_offsets(counts), counts, strict=True):
        if own is not None:
            values[first : first + count] = own
    return values


def _concat_terms(
    asks: Sequence[Train], given: Sequence[Floats | None], otherwise: Callable[[Train], RowBlock], *, apart: bool
) -> Floats | None:
    """One row for each training where any ask gives them; None where none does."""
    if all(rows is None for rows in given):
        return None
    parts = [otherwise(ask) if rows is None else RowBlock(len(rows), rows) for ask, rows in zip(asks, given, strict=True)]
    return _concat_rows(parts, asks[0].models.shape[1], apart=apart)


def _concat_rows(parts: Sequence[RowBlock], width: int, *, apart: bool) -> Floats:
    rows = ConcatRows(parts, width)
    return rows.as_array() if apart else np.asarray(rows)


_LOWEST = -(1 << 63)


def to_signed(word: int) -> int:
    """The 64 bits of a word as torch holds them; its products and sums wrap like those of words."""
    return word - (1 << 64) if word >> 63 else word


def shuffle_on_device(keys: Words, samples: Ints, first: Ints, last: Ints, device: torch.device) -> torch.Tensor:
    """One after the other, for training i and its epochs first[i] to last[i] - 1: ``shuffle(fold(keys[i], epoch), samples[i])``."""
    epochs = last - first
    owner = np.repeat(np.arange(len(keys)), epochs)
    epoch = np.arange(len(owner)) - np.repeat(np.cumsum(epochs) - epochs, epochs) + first[owner]
    lengths = samples[owner]
    total = int(lengths.sum())
    folded = torch.from_numpy(rng.fold_keys(keys[owner], epoch.astype(np.uint64)).view(np.int64)).to(device)
    begins = torch.from_numpy(np.cumsum(lengths) - lengths).to(device)
    segment = torch.repeat_interleave(torch.from_numpy(lengths).to(device), output_size=total)
    sample = torch.arange(total, device=device) - begins[segment]
    words = _scramble((sample + 1) * to_signed(rng.GOLDEN) + folded[segment])
    # Words compare without a sign, torch's integers with one: turning the top bit makes the orders agree. Then the words of a
    # segment are brought together by a second sort, which leaves equals where the first has put them.
    by_word = torch.sort(words ^ _LOWEST, stable=True).indices
    by_segment = torch.sort(segment[by_word].to(torch.int32), stable=True).indices
    return sample[by_word[by_segment]]


def _scramble(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift_right(z, 30)) * to_signed(rng.MIX_1)
    z = (z ^ _shift_right(z, 27)) * to_signed(rng.MIX_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, with zeros coming in; torch would copy the top bit."""
    return (z >> by) & ((1 << (64 - by)) - 1)
