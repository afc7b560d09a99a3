"""Data sets of the Hugging Face hub (the extra `hub`): their columns are checked by name and type before anything is decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie._util.progress import track
from coterie.core.arrays import Ints
from coterie.data.readers.files import make_missing_package_error
from coterie.data.readers.images import extract_pixels, stack_images
from coterie.data.table import PARTS, Table, encode_names, make_class_names

DEFAULT_SPLITS = {"train": "train", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where a set lies on the hub, and its schema as we know it."""

    repo: str
    label: str
    image: str | None = None
    text: str | None = None
    numbers: tuple[str, ...] = ()  # columns of a table; where none of the three is named, `infer_inputs` finds them
    client: str | None = None
    config: str | None = None
    revision: str | None = None  # "refs/convert/parquet" for sets that are still a loading script
    splits: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_SPLITS))  # our word for a part -> theirs
    counts: Mapping[str, int] = field(default_factory=dict)  # samples by part; not checked where not given
    labels: Mapping[Any, str] | None = None  # the class of each value, where the hub does not name the classes itself
    side: int | None = None  # images are kept at this size
    grey: bool = False

    def table(self, title: str) -> Table:
        """Fetch the set and lay it out as a table."""
        parts = {part: self._load(title, split) for part, split in track(list(self.splits.items()), f"downloading {title}")}
        if not (self.image or self.text or self.numbers):
            return replace(self, **self.infer_inputs(next(iter(parts.values())).features))._lay_out(parts)
        return self._lay_out(parts)

    def infer_inputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """What to learn from, where the set leaves no doubt: its one image, its one text, or all its numbers."""
        others = {name: kind for name, kind in features.items() if name not in (self.label, self.client)}
        images = [name for name, kind in others.items() if self._fits("image", kind)]
        texts = [name for name, kind in others.items() if self._fits("text", kind)]
        numbers = tuple(name for name, kind in others.items() if self._fits("number", kind))
        if len(images) == 1:
            return {"image": images[0]}
        if not images and len(texts) == 1 and not numbers:
            return {"text": texts[0]}
        if not images and not texts and numbers:
            return {"numbers": numbers}
        found = ", ".join(others) or "no columns beside label and client"
        raise UserError(f"{self.repo}: name the column to learn from, image=COLUMN or text=COLUMN: it has {found}.")

    def _lay_out(self, parts: Mapping[str, Any]) -> Table:
        for rows in parts.values():
            self._check(rows.features)
        texts = [text for rows in parts.values() for text in rows[self.text]] if self.text else None
        total = sum(len(rows) for rows in parts.values())
        images = (extract_pixels(one, self.side, self.grey) for rows in parts.values() for one in rows[self.image]) if self.image else ()
        y, classes = self._labels(list(parts.values()))
        names = [str(name) for rows in parts.values() for name in rows[self.client]] if self.client else None
        owners, owner_names = encode_names(names) if names is not None else (None, ())
        values = stack_images(images, total, self.repo) if self.image else None
        if self.numbers:
            blocks = [np.column_stack([np.asarray(rows[name], dtype=np.float32) for name in self.numbers]) for rows in parts.values()]
            values = np.concatenate(blocks)
        return Table(
            y=y,
            classes=classes,
            values=values,
            texts=texts,
            part=np.concatenate([np.full(len(rows), PARTS[part]) for part, rows in parts.items()]) if len(parts) > 1 else None,
            owners=owners,
            owner_names=owner_names,
            facts={"fetched": f"{self.repo} on the Hugging Face hub"},
        )

    def _load(self, title: str, split: str) -> Any:
        try:
            datasets: Any = import_module("datasets")  # it has no types
        except ImportError:
            make_missing_package_error("datasets", f"Fetching {title}")
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset(self.repo, self.config, split=split, revision=self.revision)
        except Exception as error:  # the library raises a great many kinds, all of which mean that there is nothing to read
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{title}: cannot read split {split!r} of {self.repo} from the Hugging Face hub: {reason}") from error

    def _check(self, features: Mapping[str, Any]) -> None:
        """Refuse a set whose columns are not those we know: the hub's sets change, and a wrong column must not be learned from."""
        wanted = {self.image: "image", self.text: "text", self.label: "label", self.client: "client"}
        wanted |= dict.fromkeys(self.numbers, "number")
        for column, role in wanted.items():
            if column is None:
                continue
            if column not in features:
                raise UserError(f"{self.repo} has no column {column!r} for the {role}: it has {', '.join(features)}.")
            kind, name = features[column], type(features[column]).__name__
            if not self._fits(role, kind):
                found = getattr(kind, "dtype", name) if name == "Value" else name
                raise UserError(f"{self.repo}: column {column!r} should hold the {role} but is of type {found}.")

    def _fits(self, role: str, kind: Any) -> bool:
        name, dtype = type(kind).__name__, getattr(kind, "dtype", "")
        whole = dtype.startswith(("int", "uint")) or dtype == "bool"
        words = dtype in ("string", "large_string")
        if role == "image":
            return name == "Image"
        if role == "text":
            return words
        if role == "number":
            return name == "Value" and (whole or dtype.startswith("float"))
        if role == "client":
            return whole or words
        return name == "ClassLabel" or whole or words

    def _labels(self, parts: Sequence[Any]) -> tuple[Ints, tuple[str, ...]]:
        values = [value for rows in parts for value in rows[self.label]]
        kind = parts[0].features[self.label]
        if type(kind).__name__ == "ClassLabel":
            return np.array(values, dtype=np.int64), tuple(kind.names)
        if self.labels is not None:
            classes = tuple(dict.fromkeys(self.labels.values()))
            numbers = {value: classes.index(name) for value, name in self.labels.items()}
            if unknown := [value for value in values if value not in numbers]:
                raise UserError(f"{self.repo} holds a label of {unknown[0]!r} where {', '.join(map(repr, numbers))} are expected.")
            return np.array([numbers[value] for value in values], dtype=np.int64), classes
        if isinstance(values[0], str):
            return encode_names(values)
        y = np.array(values, dtype=np.int64)
        return y, make_class_names(y, self.repo)
