"""Bundles on disk: `models.safetensors` and, written last, `bundle.json`. No pickle; what is damaged or foreign is refused."""

import hashlib
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie.core import trees
from coterie.core.arrays import Array
from coterie.core.disk import write_whole
from coterie.core.errors import UserError
from coterie.core.inputs import Inputs
from coterie.core.plain import json_text
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.core.trust import check_trust
from coterie.data.blocked import BlockedTexts
from coterie.data.preparing.preparation import Preparation
from coterie.data.preparing.worded import WordedColumn
from coterie.data.scaling import Scaling
from coterie.data.schema import Schema
from coterie.deploy.bundle import Bundle, Origin
from coterie.deploy.bundle_checks import contradiction
from coterie.deploy.bundle_head import FORMAT, HEAD, bundle_bytes, first_line, read_head
from coterie.deploy.combining import COMBINERS, combiner_name

MODELS = "models.safetensors"
MOST_LISTED = 1 << 22  # bytes of the file's list of arrays: about 40,000 of them
COMBINER = "combiner."  # before the names of a combiner's arrays


def write_bundle(bundle: Bundle, folder: Path) -> None:
    """Write a bundle into a folder of its own, which must be empty or not there."""
    arrays: dict[str, Array] = {"models": np.ascontiguousarray(bundle.models, dtype=np.float32)}
    tree = None
    if bundle.combiner is not None:
        try:
            own, tree = trees.to_tree(bundle.combiner, combiner_name)
        except TypeError as error:
            raise UserError(f"A bundle cannot carry the combiner of {bundle.origin.method!r}: {error}.") from error
        arrays |= {COMBINER + name: array for name, array in own.items()}
    data = save(arrays)
    origin = bundle.origin._asdict()
    head = {
        "format": FORMAT,
        "coterie": _version(),
        **{("round" if name == "round_" else name): value for name, value in origin.items()},
        "model": bundle.model,
        "input_shape": bundle.input_shape,
        "tokens": bundle.tokens,
        "classes": bundle.classes,
        "names": bundle.names,
        "clients": [{"id": name, "row": row} for name, row in bundle.clients.items()],
        "combiner": tree,
        "features": bundle.features,
        "scaling": {name: scaling.told() for name, scaling in bundle.scaling.items()},
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    if bundle.preparation is not None:  # others are as they have always been
        head["preparation"] = bundle.preparation.told()
    if bundle.worded is not None:
        head["worded"] = bundle.worded.told()
    if bundle.blocked is not None:
        head["blocked"] = bundle.blocked.told()
    if bundle.several is not None:
        head["inputs"] = bundle.several.told()
    if bundle.schema is not None:
        head["schema"] = bundle.schema.told()
    if not bundle.task.counts_classes:
        head["task"] = asdict(bundle.task)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose another --out.")
        (folder / MODELS).touch(mode=0o600)  # a model tells of those it was trained on: its owner alone may read it
        (folder / MODELS).write_bytes(data)
        write_whole(folder / HEAD, json_text(head), 0o600)
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror or error}): choose another --out.") from error


def read_bundle(folder: Path | str, model: str | None = None, *, trust: bool = False) -> Bundle:
    """A bundle from its folder. One whose model is the user's own code is read only with `trust`, or if `model` names that very spec:
    otherwise whoever wrote the bundle could have any module imported."""
    folder = Path(folder)
    head = read_head(folder)
    check_trust([head.model], str(folder), trust or model == head.model)
    data = bundle_bytes(folder / MODELS)
    if hashlib.sha256(data).hexdigest() != head.sha256:
        raise UserError(f"{folder / MODELS} is not what {HEAD} was written with: it is damaged or was changed; get the bundle again.")
    if int.from_bytes(data[:8], "little") > MOST_LISTED:  # the list of arrays at the beginning of the file
        raise UserError(f"{folder / MODELS} lists more arrays than any bundle's: get the bundle again.")
    try:
        arrays = load(data)
        own = {name.removeprefix(COMBINER): array for name, array in arrays.items() if name.startswith(COMBINER)}
        bundle = Bundle(
            origin=Origin(head.method, head.data, head.seed, head.draw, head.round),
            model=head.model,
            input_shape=tuple(head.input_shape),
            classes=tuple(head.classes),
            models=arrays["models"],
            names=tuple(head.names),
            clients={seat.id: seat.row for seat in head.clients},
            combiner=None if head.combiner is None else trees.from_tree(own, head.combiner, COMBINERS),
            tokens=head.tokens,
            features=None if head.features is None else tuple(head.features),
            scaling={name: Scaling.read(vars(scale)) for name, scale in head.scaling.items()},
            preparation=None if head.preparation is None else Preparation.read(head.preparation),
            worded=None if head.worded is None else WordedColumn.read(head.worded),
            blocked=None if head.blocked is None else BlockedTexts.read(head.blocked),
            several=None if head.inputs is None else Inputs.read(head.inputs),
            task=CLASSIFICATION if head.task is None else Task(**head.task.model_dump()),
            schema=None if head.schema_ is None else Schema.read(head.schema_),
        )
        wrong = contradiction(bundle)
    except trees.UnknownKindError as error:
        raise UserError(f"{folder} has a combiner of kind {str(error)!r}, which this version does not know: use a later one.") from error
    except UserError:
        raise
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError, ArithmeticError) as error:
        raise UserError(f"{folder} cannot be read ({type(error).__name__}: {first_line(error)}): get the bundle again.") from error
    if wrong:
        raise UserError(f"{folder} contradicts itself ({wrong}): get the bundle again.")
    return bundle


def _version() -> str | None:
    try:
        return version("coterie")
    except PackageNotFoundError:  # run from a source tree
        return None
