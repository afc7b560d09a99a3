"""LEAF's JSON files: ``users``, ``num_samples`` and ``user_data`` with the x and y of each user (Caldas et al., 2018)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie._util.errors import UserError, find_duplicate
from coterie.core.arrays import Array, Ints
from coterie.data.readers.files import read_json_data
from coterie.data.table import PARTS, Table, make_class_names

PART_NAMES = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


def find_leaf_files(path: Path) -> dict[str, list[Path]]:
    """The JSON files of each part: one file, ``train.json`` and ``test.json``, or LEAF's folders ``train/`` and ``test/``."""
    if path.is_file():
        return {"train": [path]}
    forms = ("{}.json", "{}.json.gz", "{}/*.json", "{}/*.json.gz")
    parts = {
        part: [file for word in words for form in forms for file in sorted(path.glob(form.format(word)))]
        for part, words in PART_NAMES.items()
    }
    found = {part: files for part, files in parts.items() if files} or {"train": sorted(path.glob("*.json*"))}
    if not found.get("train"):
        raise UserError(f"{path} holds no LEAF data: give a JSON file, or a folder with train.json and test.json, gzipped or not.")
    return found


def read_leaf(files: Mapping[str, Sequence[Path]], field: int | None = None, classes: tuple[str, ...] | None = None) -> Table:
    """All users of these files; the parts they are in become the set's own split where there is more than one.

    `field` picks one entry of each x where that is a list of fields (LEAF's Sent140 keeps the text in field 4).
    """
    x: list[Any] = []
    y: list[Any] = []
    part: list[int] = []
    owners: list[str] = []
    for name, paths in files.items():
        for path in paths:
            for user, features, labels in _read_users(path):
                x += features if field is None else _select_field(features, field, path)
                y += labels
                part += [PARTS[name]] * len(labels)
                owners += [user] * len(labels)
    where = ", ".join(str(path) for paths in files.values() for path in paths)
    names = {user: number for number, user in enumerate(dict.fromkeys(owners))}
    numbers, found = _encode_labels(y, where)
    texts = bool(x) and all(isinstance(entry, str) for entry in x)
    return Table(
        y=numbers,
        classes=classes or found,
        values=None if texts else _parse_numbers(x, where),
        texts=x if texts else None,
        part=np.array(part) if len(files) > 1 else None,
        owners=np.array([names[user] for user in owners], dtype=np.int64),
        owner_names=tuple(names),
    )


def _read_users(path: Path) -> list[tuple[str, list[Any], list[Any]]]:
    content = read_json_data(path)
    if not isinstance(content, dict) or not {"users", "num_samples", "user_data"} <= content.keys():
        raise UserError(f"{path} is not in LEAF's form: it should be an object with users, num_samples and user_data.")
    users, sizes, held = content["users"], content["num_samples"], content["user_data"]
    if not (
        isinstance(users, list) and isinstance(sizes, list) and isinstance(held, dict) and all(isinstance(user, str) for user in users)
    ):
        raise UserError(f"{path} is not in LEAF's form: users should be a list of names, num_samples a list, user_data an object.")
    if (twice := find_duplicate(users)) is not None:
        raise UserError(f"{path} names the user {twice!r} twice: its samples would count twice.")
    found = []
    for user, n in zip(users, sizes, strict=False):
        data = held.get(user)
        if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in ("x", "y")):
            raise UserError(f"{path}: user {user!r} has no x and y in user_data.")
        if not len(data["x"]) == len(data["y"]) == n:
            raise UserError(f"{path}: user {user!r} has {len(data['x'])} x and {len(data['y'])} y where num_samples is {n}.")
        if n == 0:
            raise UserError(f"{path}: client {user!r} has no samples; leave it out.")
        found.append((user, data["x"], data["y"]))
    if len(users) != len(sizes):
        raise UserError(f"{path} names {len(users)} users and {len(sizes)} sizes.")
    return found


def _select_field(features: list[Any], field: int, path: Path) -> list[Any]:
    try:
        return [entry[field] for entry in features]
    except (TypeError, IndexError, KeyError):
        raise UserError(f"{path} has samples without a field {field}: give a field that every x has, or omit field.") from None


def _encode_labels(y: list[Any], where: str) -> tuple[Ints, tuple[str, ...]]:
    """Whole numbers are class numbers; words are classes in sorted order."""
    if all(isinstance(label, int) or (isinstance(label, float) and label.is_integer()) for label in y):
        if wrong := [label for label in y if abs(label) >= 1 << 62]:
            raise UserError(f"{where} holds a label of {str(wrong[0])[:20]}: labels are numbered 0, 1, 2, ...")
        numbers = np.array(y, dtype=np.int64)
        return numbers, make_class_names(numbers, where)
    if not all(isinstance(label, str) for label in y):
        raise UserError(f"{where} holds labels that are neither whole numbers nor words.")
    classes = sorted(set(y))
    place = {label: number for number, label in enumerate(classes)}
    return np.array([place[label] for label in y], dtype=np.int64), tuple(classes)


def _parse_numbers(x: list[Any], where: str) -> Array:
    try:
        return np.array(x, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where} holds features that are neither texts nor lists of numbers of one length.") from None
