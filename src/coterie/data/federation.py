"""Federations: clients whose train, validation and test parts are indices into shared arrays.

Clients that take no part in training (unseen clients) are a share of the roster, drawn by key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids, Ints
from coterie.core.layout import Inputs
from coterie.core.rng import make_key
from coterie.core.roster import Roster
from coterie.core.tasks import CLASSIFICATION, Task


def draw_unseen_clients(ids: tuple[str, ...], share: float, data_seed: int) -> Ids:
    """The clients that take no part, ascending: a share of all, at least one of them."""
    check_unseen_share(share)
    count = max(round(share * len(ids)), 1)
    if count >= len(ids):
        raise UserError(f"unseen={share:g} would leave none of {len(ids)} clients to train: give a smaller share, or more clients.")
    clients = Roster.from_sizes(ids, np.ones(len(ids), dtype=np.int64))
    return clients.lowest(make_key(data_seed, "unseen"), clients.clients, count)


def check_unseen_share(share: float) -> None:
    """Refuse what is no share of clients."""
    if not 0 < share < 1:
        raise UserError(f"unseen={share:g} should be a share of the clients above 0 and below 1, such as 0.2.")


@dataclass(frozen=True)
class Parts:
    """One index list a client, stored flat: client k owns ``indices[offsets[k]:offsets[k + 1]]``.

    Example: ``ct.Parts.from_lists([[0, 1, 2], [3, 4]])`` gives three samples to the first client and two to the second.
    """

    offsets: Ints  # (n + 1,)
    indices: Ints  # (total,)

    @classmethod
    def from_lists(cls, lists: Sequence[Array]) -> "Parts":
        sizes = np.array([len(part) for part in lists], dtype=np.int64)
        flat = np.concatenate([np.asarray(part, dtype=np.int64) for part in lists]) if len(lists) else np.zeros(0, np.int64)
        return cls(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), flat.astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ints:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    def joined(self, clients: Ids) -> Ints:
        """The indices of these clients, client after client."""
        begins: Ints = self.offsets[clients]
        sizes: Ints = self.offsets[clients + 1] - begins
        ends = np.cumsum(sizes)
        if len(clients) and (begins[1:] == begins[:-1] + sizes[:-1]).all():  # neighbours, most often all clients: they lie in one piece
            return self.indices[int(begins[0]) : int(begins[0] + ends[-1])]
        places: Ints = np.repeat(begins - (ends - sizes), sizes) + np.arange(sizes.sum())
        return self.indices[places]

    @cached_property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)


INPUTS = "inputs"  # in the provenance of samples that have several
SITES = "sites"  # in the provenance of clients whose sites are known: the site of each, by its id
TOKENS = "tokens_of"  # in the provenance of texts whose next tokens are predicted: the tokenizer
# A set's own split: the value of `Samples.given` for each sample. What is in no part (-1) is left over.
TRAIN, VALIDATION, TEST, NOWHERE = 0, 1, 2, -1


@dataclass(frozen=True)
class Samples:
    """A data set before it is divided among clients, as ``coterie.data.partitions.iid(samples, clients=10)`` does it.

    `central` is a test set of the server.
    """

    name: str
    x: Array  # (N, ...) float32 features, or integer tokens
    y: Array  # (N,) class numbers; (N, L) labels of 0 and 1; (N,) targets; or zeros for texts, whose labels are their own tokens
    classes: tuple[str, ...]  # or the names of the labels, or of the target
    central: tuple[Array, Array] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    owners: Ints | None = None  # (N,) the client of each sample, where that is known: a row of `owner_names`
    owner_names: tuple[str, ...] = ()
    given: Ints | None = None  # (N,) the part each sample is in by the set's own split, where it has one
    task: Task = CLASSIFICATION
    unseen: float = 0.0  # the share of clients that will take no part: nothing may be fitted on what they hold


@dataclass(frozen=True)
class Federation:
    """The data of all simulated clients. Methods never see it: they see a roster and replies.

    Example: ``data = ct.Federation.from_arrays(x, y, clients, test=0.3)``.
    """

    name: str
    x: Array  # (N, ...) shared by all clients and all lanes
    y: Array  # (N,) class numbers; (N, L) labels of 0 and 1; (N,) targets, standardised; or zeros for texts
    classes: tuple[str, ...]  # or the names of the labels, or of the target
    ids: tuple[str, ...]  # a string a client: the key of its randomness
    train: Parts
    test: Parts
    validation: Parts | None = None
    central: tuple[Array, Array] | None = None  # the server's own test set
    groups: Ids | None = None  # (n,) the true group of each client, where known
    arrivals: Ints | None = None  # (n,) the first round in which each client can be reached; None: all from the start
    data_seed: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)  # source, licence, citation, how it was divided and scaled
    task: Task = CLASSIFICATION
    later: tuple[tuple[int, "Federation"], ...] = ()  # what the same clients hold from a round on, in ascending rounds
    unseen: int = 0  # the last so many clients take no part in training: they are served and scored, and nothing else
    unlabelled: bool = False  # whether unseen clients have no labels: they answer no question by which a method could place them
    redraw: Callable[[int], "Federation"] | None = field(default=None, repr=False, compare=False)  # the same with another data seed
    raw: Array | None = field(default=None, repr=False, compare=False)  # `x` before its preparation, with gaps: what `check_data` looks at

    def __post_init__(self) -> None:
        n = len(self.ids)
        lengths = {len(part) for part in self.parts.values()} | {len(v) for v in (self.groups, self.arrivals) if v is not None}
        if n == 0 or lengths != {n}:
            raise UserError(f"Federation {self.name!r} is inconsistent: its ids, parts and groups must name the same clients.")
        if len(set(self.ids)) != n:
            raise UserError(f"Federation {self.name!r} gives two clients the same id.")
        if int(self.train.sizes.min()) == 0:
            empty = self.ids[int(self.train.sizes.argmin())]
            raise UserError(f"Client {empty!r} of {self.name!r} has no training samples: leave it out or use fewer clients.")
        if not 0 <= self.unseen < n:
            raise UserError(f"Federation {self.name!r} has {n} clients, of which {self.unseen} cannot be unseen: at least one must train.")
        if any(world.ids != self.ids or (world.train.sizes != self.train.sizes).any() for _, world in self.later):
            raise UserError(
                f"Federation {self.name!r} changes its clients over time: a drift may change what they hold, not which they are."
            )

    @classmethod
    def from_frame(cls, frame: Any, *, client: str, label: str | Sequence[str] = (), **settings: Any) -> "Federation":
        """The clients of a data frame.

        Args:
            frame: One row a sample.
            client: The column of the clients.
            label: The column of the label, or several of 0 and 1; survival times have `time` and `event` instead.
            settings: Those of the spec ``csv(...)`` (task, scale, impute, categories, drop, text, split, ...), of the partition
                ``natural(...)`` (test, validation, clients, least, most), `unseen` (the share of clients that take no part in training),
                `groups` (the clients' known groups: a column, or a dictionary by client), `data_seed` and `name`.

        >>> import coterie as ct, pandas as pd
        >>> frame = pd.DataFrame({"site": list("aabb") * 5, "age": range(20), "ill": [0, 1, 1, 0] * 5})
        >>> ct.Federation.from_frame(frame, client="site", label="ill", scale="standard").ids
        ('a', 'b')
        """
        from coterie.data.readers.objects import federation_from_frame  # which knows this class

        return federation_from_frame(frame, client=client, label=label, **settings)

    @classmethod
    def from_arrays(cls, x: Any, y: Any, client: Sequence[Any] | Array, **settings: Any) -> "Federation":
        """The clients of arrays: samples, their classes, targets or rows of 0 and 1, and clients; `split` may name the part of each."""
        from coterie.data.readers.objects import federation_from_arrays

        return federation_from_arrays(x, y, client, **settings)

    @classmethod
    def from_datasets(cls, datasets: Mapping[str, Any], **settings: Any) -> "Federation":
        """A client for each site's data set: torch's (pairs of features and a label) or Hugging Face's (columns; `label` and `inputs` name
        them), or ``{"train": ..., "test": ...}`` of them."""
        from coterie.data.readers.objects import federation_from_datasets

        return federation_from_datasets(datasets, **settings)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """One line: the arrays would fill a notebook."""
        held = f"{len(self)} clients, {len(self.train.indices):,} training and {len(self.test.indices):,} test samples"
        what = f"{len(self.classes)} classes" if self.task.counts_classes else str(self.task)
        return f"<Federation {self.name!r}: {held} of shape {self.input_shape}, {what}>"

    @property
    def participants(self) -> int:
        """How many clients take part: the first so many."""
        return len(self.ids) - self.unseen

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @cached_property
    def inputs(self) -> Inputs | None:
        """What a row of `x` holds, where samples have several inputs."""
        stored = self.provenance.get(INPUTS)
        return None if stored is None else Inputs.from_dict(stored)

    @cached_property
    def sites(self) -> tuple[str, ...] | None:
        """(n,) the site of each client; None where the data do not name the sites of all."""
        stored: Mapping[str, str] = self.provenance.get(SITES, {})
        return tuple(stored[name] for name in self.ids) if all(name in stored for name in self.ids) else None

    @property
    def has_numeric_features(self) -> bool:
        """Whether features are amounts, which can be scaled and disturbed, and not words."""
        return self.x.dtype.kind == "f" and (self.inputs is None or not any(self.inputs.tokens))

    @property
    def parts(self) -> dict[str, Parts]:
        """By name, the train and test parts, and the validation parts where there are any."""
        return {"train": self.train, "test": self.test} | ({} if self.validation is None else {"validation": self.validation})

    def part(self, name: str) -> Parts:
        """The train, validation or test parts by name."""
        if name not in self.parts:
            raise UserError(f"Federation {self.name!r} has no {name} parts: ask for them with validation=0.1 in its spec.")
        return self.parts[name]

    def at_round(self, round_: int) -> "Federation":
        """The world as a round finds it."""
        found = self
        for begin, world in self.later:
            found = world if begin <= round_ else found
        return found

    def check_disjoint(self) -> None:
        """Refuse a client that would be judged on samples it has trained on."""
        for name, part in (("test", self.test), ("validation", self.validation)):
            if part is not None and (shared := _find_shared_client(self.train, part, len(self.y))) is not None:
                raise UserError(
                    f"Client {self.ids[shared]!r} of {self.name!r} has {name} samples among its training samples: its scores would be too "
                    "good; keep the parts apart."
                )
        for _, world in self.later:
            world.check_disjoint()

    def replace(self, **changes: Any) -> "Federation":
        """The same with these changes. Of what is changed in a way that depends on the draw (samples, parts) there is no other draw."""
        kept = partial(_redraw_changed, self, changes) if self.redraw is not None and set(changes) <= KEPT_FIELDS else None
        raw = {"raw": None} if "x" in changes else {}
        return replace(self, **{"redraw": kept, **raw, **changes})

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: it trains, and does not need the samples before preparation."""
        return {**self.__dict__, "raw": None}


KEPT_FIELDS = {"name", "groups"}  # what a client keeps whatever the draw


def _redraw_changed(before: Federation, changes: Mapping[str, Any], seed: int) -> Federation:
    assert before.redraw is not None
    drawn = before.redraw(seed)
    if drawn.ids != before.ids and "groups" in changes:
        raise UserError(f"Another draw of {before.name!r} has other clients than those whose groups are given: give data seeds one by one.")
    return drawn.replace(**changes)


def _find_shared_client(train: Parts, other: Parts, samples: int) -> int | None:
    """The first client that has a sample in both parts. Samples that clients share among each other are no matter."""
    trained = np.zeros(samples, dtype=bool)
    trained[train.indices] = True
    if not trained[other.indices].any():
        return None
    return next((k for k in range(len(train)) if np.isin(other[k], train[k]).any()), None)
