"""Users' files other than tables: LEAF json, folders of images, NumPy files, torch data sets and data sets of the hub.

Tables are in `frames`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.data.dataset import open_decoded
from coterie.data.federation import INPUTS, Samples
from coterie.data.readers.files import find_path, read_npz
from coterie.data.readers.hub import Hub
from coterie.data.readers.images import SUFFIXES, decode_image, stack_images
from coterie.data.readers.leaf import find_leaf_files, read_leaf
from coterie.data.store import mark_pixels
from coterie.data.table import (
    Table,
    check_mapped_table,
    check_table,
    encode_names,
    make_class_names,
    pack_samples,
    parse_split,
    samples_from_table,
)
from coterie.data.text import Features, TextFeatures

VERSION = 3
USER_PROVENANCE = {"licence": "the user's own", "citation": "none"}


def leaf(
    path: str,
    field: int | None = None,
    features: Features = "bag",
    width: int = 1024,
    vocabulary: int = 4096,
    length: int = 32,
    words: str | None = None,
    tokenizer: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your LEAF json: a file, or a folder with train and test files; texts become features as in the text sets."""
    where = find_path(path, _data_dir)
    files = find_leaf_files(where)
    wording = TextFeatures(features, width, vocabulary, length, words, tokenizer)
    wording.check("Data set 'leaf'")

    def read() -> Table:
        table = read_leaf(files, field)
        return table if table.texts is None else wording.table(table)

    return load_user_files("leaf", where, [file for each in files.values() for file in each], read, field=field, **wording.settings())


def images(path: str, side: int = 32, grey: bool = False, clients: bool = True, *, _data_dir: Path | None = None) -> Samples:
    """Your folder of images: CLIENT/CLASS/file, or CLASS/file with clients=false."""
    where = find_path(path, _data_dir)
    files = sorted(file for file in where.rglob("*") if file.suffix.lower() in SUFFIXES)
    depth = 3 if clients else 2
    if not files:
        raise UserError(f"Data set 'images': {where} holds no images ({', '.join(SUFFIXES)}).")
    if wrong := [file for file in files if len(file.relative_to(where).parts) != depth]:
        form = "CLIENT/CLASS/file" if clients else "CLASS/file"
        raise UserError(f"Data set 'images': {wrong[0]} should lie at {form} below {where}.")

    def read() -> Table:
        y, classes = encode_names([file.parent.name for file in files])
        owners, names = encode_names([file.parent.parent.name for file in files]) if clients else (None, ())
        values = stack_images((decode_image(file.read_bytes(), str(file), side, grey) for file in files), len(files), str(where))
        return mark_pixels(Table(y, classes, values, owners=owners, owner_names=names))

    return load_user_files("images", where, files, read, side=side, grey=grey, clients=clients)


def npz(path: str, inputs: Sequence[str] | str = (), *, _data_dir: Path | None = None) -> Samples:
    """Your NumPy arrays x, y and, if there are, client, split and classes: an .npz file, or a folder of .npy files, mapped as they are.

    Of a file, `inputs` may name several arrays that stand in place of x: the model takes them by these names. The folder is never held
    whole: this is the way to train on more than memory holds. Of more than a GiB only some rows are checked.
    """
    where, names = find_path(path, _data_dir), (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if where.is_dir():
        if names:
            raise UserError(f"{where}: several inputs are read from an .npz file, not from a folder.")
        found = {name: _map_arrays(where / f"{name}.npy", name in ("x", "y")) for name in ("x", "y", "client", "split", "classes")}
        table = _table_from_arrays({name: array for name, array in found.items() if array is not None}, str(where))
        if found["x"] is not table.values or (table.part is not None and table.owners is None):
            raise UserError(
                f"{where}: to be mapped as it is, x.npy should be float32 or whole numbers, and split.npy have client.npy beside it."
            )
        check_mapped_table(table, str(where))
        return samples_from_table("npz", table, {"source": where.name, **USER_PROVENANCE})

    def read() -> Table:
        arrays = read_npz(where, (*(names or ("x",)), "y"))
        if not names:
            return _table_from_arrays(arrays, str(where))
        x, layout = pack_samples({name: arrays[name] for name in names}, str(where))
        return replace(_table_from_arrays({**arrays, "x": x}, str(where)), facts={INPUTS: layout.to_dict()})

    return load_user_files("npz", where, [where], read, **({"inputs": names} if names else {}))


def hub(
    name: str,
    label: str = "label",
    image: str | None = None,
    text: str | None = None,
    client: str | None = None,
    config: str | None = None,
    train: str = "train",
    test: str | None = None,
    side: int = 32,
    grey: bool = False,
    width: int = 1024,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Any set of the Hugging Face hub: name the columns of label and client, and that of the image or text where there is a choice."""
    if image is not None and text is not None:
        raise UserError("Data set 'hub': name the column to learn from: image=COLUMN or text=COLUMN, one of them.")
    splits = {"train": train, **({"test": test} if test else {})}
    source = Hub(repo=name, label=label, image=image, text=text, client=client, config=config, splits=splits, side=side, grey=grey)
    columns = {"label": label, "image": image, "text": text, "client": client, "config": config, "splits": splits}

    def read() -> Table:
        table = source.table(name)
        if table.texts is not None:
            return TextFeatures(width=width).table(table)
        return mark_pixels(table) if table.values is not None and table.values.ndim > 2 else table

    return load_user_files("hub", Path(name), [], read, repo=name, **columns, side=side, grey=grey, width=width)


def from_torch(dataset: Any, clients: Sequence[str], name: str = "torch", classes: Sequence[str] | None = None) -> Samples:
    """Make samples of a torch Dataset of (features, class number).

    Args:
        dataset: The data set; it is read once.
        clients: The id of the client that holds each sample.
        name: The name of the data in evidence.
        classes: The names of the classes. Default: their numbers.

    Returns:
        Samples to divide among clients.

    Example: ``coterie.data.partitions.natural(ct.from_torch(dataset, clients))``.
    """
    pairs = [dataset[i] for i in range(len(dataset))]
    x = np.stack([np.asarray(features) for features, _ in pairs])
    y = np.array([int(label) for _, label in pairs], dtype=np.int64)
    owners, names = encode_names(clients)
    named = tuple(classes) if classes is not None else make_class_names(y, f"Data set {name!r}")
    table = Table(y, named, x if x.dtype.kind in "iu" else x.astype(np.float32), owners=owners, owner_names=names)
    check_table(table, f"Data set {name!r}")
    return samples_from_table(name, table, {"source": "a torch Dataset", **USER_PROVENANCE})


def load_user_files(kind: str, where: Path, files: Sequence[Path], read: Callable[[], Table], **settings: Any) -> Samples:
    """A user's files: there, sound, decoded once."""
    if missing := [file for file in files if not file.is_file()]:
        raise UserError(f"Data set {kind!r}: there is no file {missing[0]}.")

    def checked() -> Table:
        table = read()
        check_table(table, str(where))
        return table

    return open_decoded(
        kind, files, checked, {"source": where.name, **USER_PROVENANCE}, version=VERSION, path=str(where.absolute()), **settings
    )


def _table_from_arrays(arrays: Mapping[str, Array], where: str) -> Table:
    x, y = arrays["x"], arrays["y"]
    if y.ndim != 1 or y.dtype.kind not in "iu" or x.ndim < 2 or x.dtype.kind not in "fiu":
        raise UserError(f"{where}: x should be numbers, a row a sample, and y one whole number a sample.")
    if not all(array.ndim == 1 for name, array in arrays.items() if name in ("client", "split")):
        raise UserError(f"{where}: client and split should hold one value a sample.")
    if len(x) != len(y):
        raise UserError(f"{where}: x has {len(x)} rows and y has {len(y)}.")
    owners, names = encode_names(arrays["client"]) if "client" in arrays else (None, ())
    classes = tuple(map(str, arrays["classes"].ravel())) if "classes" in arrays else make_class_names(y, where)
    return Table(
        y=y.astype(np.int64),
        classes=classes,
        values=x if x.dtype.kind != "f" or x.dtype == np.float32 else x.astype(np.float32),
        part=parse_split(arrays["split"].tolist(), where) if "split" in arrays else None,
        owners=owners,
        owner_names=names,
    )


def _map_arrays(path: Path, needed: bool) -> Array | None:
    if not path.is_file():
        if needed:
            raise UserError(f"There is no file {path}: a folder of arrays should hold x.npy and y.npy.")
        return None
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a NumPy array that can be read ({error}).") from error
    return array
