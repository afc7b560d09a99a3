"""Bundles on disk: `models.safetensors` and, written last, `bundle.json`.

No pickle; damaged or foreign files are refused. A delivery from the server becomes a bundle at the site.
"""

import hashlib
import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie._util.errors import UserError, find_duplicate
from coterie._util.files import lock_file, sync_to_disk, write_atomic
from coterie._util.formatting import format_bytes
from coterie._util.json_io import format_json
from coterie.core import states
from coterie.core.arrays import Array
from coterie.core.layout import MAX_AXES, MAX_AXIS_SIZE, Inputs
from coterie.core.serving import COMBINED
from coterie.core.specs import check_trust
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.data.column_statistics import Scaling
from coterie.data.prepare import Preparation
from coterie.data.schema import Schema
from coterie.data.text import TextColumn
from coterie.data.tokens import TextBlocker
from coterie.deploy.bundle.bundle import Bundle, Origin, find_contradiction
from coterie.deploy.bundle.hub import check_hub_files
from coterie.deploy.bundle.rows import describe_samples
from coterie.deploy.files import is_name, make_folder_name
from coterie.deploy.messages import COMBINERS, Delivery, MessageError, get_combiner_name
from coterie.engines.world import World

FORMAT = 1
HEAD_FILE = "bundle.json"
MOST_HEAD = 1 << 26  # bytes
MOST_SPEC = 1 << 14  # letters of a model's spec
_Texts = Annotated[list[str], Field(min_length=1)]
_Size = Annotated[int, Field(gt=0, le=MAX_AXIS_SIZE)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Scale(_Strict):
    mean: list[FiniteFloat]
    deviation: list[FiniteFloat]


class _Task(_Strict):
    name: Literal["regression", "multilabel", "next-token", "survival"]
    mean: FiniteFloat
    deviation: Annotated[FiniteFloat, Field(gt=0)]
    grid: list[FiniteFloat] = []
    censoring: list[FiniteFloat] = []
    reference: list[FiniteFloat] = []


class _ClientRow(_Strict):
    id: str
    row: int


class BundleHead(_Strict):
    """The fields of `bundle.json`."""

    format: int
    coterie: str | None
    method: str
    data: str
    seed: int
    draw: int
    round: int
    model: Annotated[str, Field(max_length=MOST_SPEC)]
    input_shape: Annotated[list[_Size], Field(min_length=1, max_length=MAX_AXES)]
    tokens: bool
    classes: _Texts
    names: _Texts
    clients: list[_ClientRow]  # a list: a combiner knows clients by their order
    combiner: dict[str, Any] | None
    features: _Texts | None
    scaling: dict[str, _Scale]
    preparation: dict[str, Any] | None = None
    worded: dict[str, Any] | None = None
    blocked: dict[str, Any] | None = None
    inputs: dict[str, Any] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    task: _Task | None = None  # none of a classification
    sha256: str


def read_head(folder: Path) -> BundleHead:
    """The head of a bundle, checked."""
    path = folder / HEAD_FILE
    if not path.is_file():
        raise UserError(f"{folder} holds no bundle: name the folder that 'coterie export --out' made.")
    if path.stat().st_size > MOST_HEAD:
        raise UserError(
            f"{path} has {format_bytes(path.stat().st_size)}, more than any bundle's ({format_bytes(MOST_HEAD)}): get the bundle again."
        )
    data = read_bundle_bytes(path)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({get_first_line(error)}): get the bundle again.") from error
    if not isinstance(tree, dict) or "format" not in tree:
        raise UserError(f"{path} is no bundle's: name the folder that 'coterie export --out' made.")
    if tree["format"] != FORMAT:
        maker = f" (coterie {tree['coterie']})" if tree.get("coterie") else ""
        raise UserError(f"{folder} is of format {tree['format']!r}, this version reads {FORMAT}: use the version that made it{maker}.")
    try:
        _check_clients(tree, path)
        return BundleHead.model_validate_json(data)  # as JSON, whose lists may be tuples here
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path} is wrong at {'.'.join(map(str, first['loc']))}: {first['msg']}; get the bundle again.") from error


def _check_clients(tree: dict[str, Any], path: Path) -> None:
    """Refuse clients that are there twice, and scalings of others: before every number of theirs is looked at."""
    clients, scaling = tree.get("clients"), tree.get("scaling")
    if not isinstance(clients, list) or not isinstance(scaling, dict):
        return  # which is refused field by field
    names = [seat["id"] for seat in clients if isinstance(seat, dict) and isinstance(seat.get("id"), str)]
    if (twice := find_duplicate(names)) is not None:
        raise UserError(f"{path} names the client {twice[:100]!r} twice: get the bundle again.")
    if not scaling.keys() <= set(names):
        raise UserError(f"{path} has a scaling of a client that is not among its {len(names)}: get the bundle again.")


def read_bundle_bytes(path: Path) -> bytes:
    """A file of a bundle; one that cannot be read is named."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): get the bundle again.") from error


def get_first_line(error: BaseException) -> str:
    """The text of an error, in one line."""
    return (str(error).strip().splitlines() or [""])[0]


MODELS_FILE = "models.safetensors"
MOST_LISTED = 1 << 22  # bytes of the file's list of arrays: about 40,000 of them
COMBINER_PREFIX = "combiner."  # before the names of a combiner's arrays


def write_bundle(bundle: Bundle, folder: Path) -> None:
    """Write a bundle into a folder of its own, which must be empty or not there."""
    arrays: dict[str, Array] = {"models": np.ascontiguousarray(bundle.models, dtype=np.float32)}
    tree = None
    if bundle.combiner is not None:
        try:
            own, tree = states.to_tree(bundle.combiner, get_combiner_name)
        except TypeError as error:
            raise UserError(f"A bundle cannot carry the combiner of {bundle.origin.method!r}: {error}.") from error
        arrays |= {COMBINER_PREFIX + name: array for name, array in own.items()}
    data = save(arrays)
    origin = bundle.origin._asdict()
    head = {
        "format": FORMAT,
        "coterie": _get_version(),
        **{("round" if name == "round_" else name): value for name, value in origin.items()},
        "model": bundle.model,
        "input_shape": bundle.input_shape,
        "tokens": bundle.tokens,
        "classes": bundle.classes,
        "names": bundle.names,
        "clients": [{"id": name, "row": row} for name, row in bundle.clients.items()],
        "combiner": tree,
        "features": bundle.features,
        "scaling": {name: scaling.to_dict() for name, scaling in bundle.scaling.items()},
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    parts: dict[str, Any] = {"preparation": bundle.preparation, "worded": bundle.worded, "blocked": bundle.blocked}
    parts |= {"inputs": bundle.several, "schema": bundle.schema}
    head |= {name: part.to_dict() for name, part in parts.items() if part is not None}
    if not bundle.task.counts_classes:
        head["task"] = bundle.task.to_dict()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose another --out.")
        (folder / MODELS_FILE).touch(mode=0o600)  # a model discloses what it was trained on: its owner alone may read it
        (folder / MODELS_FILE).write_bytes(data)
        write_atomic(folder / HEAD_FILE, format_json(head), 0o600)
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror or error}): choose another --out.") from error


def read_bundle(folder: Path | str, model: str | None = None, *, trust: bool = False) -> Bundle:
    """Read a bundle from its folder.

    Args:
        folder: The folder that 'coterie export' or 'coterie place' wrote.
        model: The spec of the bundle's model, repeated: allows code of that spec only.
        trust: Whether code that the bundle names may be imported.

    Returns:
        The models, with what is needed to answer a client's rows.

    Example:
        >>> bundle = ct.read_bundle("bundles/site-1")  # doctest: +SKIP
    """
    folder = Path(folder)
    head = read_head(folder)
    check_hub_files(folder)
    check_trust([head.model], str(folder), trust or model == head.model)
    data = read_bundle_bytes(folder / MODELS_FILE)
    if hashlib.sha256(data).hexdigest() != head.sha256:
        raise UserError(
            f"{folder / MODELS_FILE} is not what {HEAD_FILE} was written with: it is damaged or was changed; get the bundle again."
        )
    if int.from_bytes(data[:8], "little") > MOST_LISTED:  # the list of arrays at the beginning of the file
        raise UserError(f"{folder / MODELS_FILE} lists more arrays than any bundle's: get the bundle again.")
    try:
        arrays = load(data)
        own = {name.removeprefix(COMBINER_PREFIX): array for name, array in arrays.items() if name.startswith(COMBINER_PREFIX)}
        bundle = Bundle(
            origin=Origin(head.method, head.data, head.seed, head.draw, head.round),
            model=head.model,
            input_shape=tuple(head.input_shape),
            classes=tuple(head.classes),
            models=arrays["models"],
            names=tuple(head.names),
            clients={seat.id: seat.row for seat in head.clients},
            combiner=None if head.combiner is None else states.from_tree(own, head.combiner, COMBINERS),
            tokens=head.tokens,
            features=None if head.features is None else tuple(head.features),
            scaling={name: Scaling.from_dict(vars(scale)) for name, scale in head.scaling.items()},
            preparation=None if head.preparation is None else Preparation.from_dict(head.preparation),
            worded=None if head.worded is None else TextColumn.from_dict(head.worded),
            blocked=None if head.blocked is None else TextBlocker.from_dict(head.blocked),
            several=None if head.inputs is None else Inputs.from_dict(head.inputs),
            task=CLASSIFICATION if head.task is None else Task.from_dict(head.task.model_dump()),
            schema=None if head.schema_ is None else Schema.from_dict(head.schema_),
        )
        wrong = find_contradiction(bundle)
    except states.UnknownKindError as error:
        raise UserError(f"{folder} has a combiner of kind {str(error)!r}, which this version does not know: use a later one.") from error
    except UserError:
        raise
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError, ArithmeticError) as error:
        raise UserError(f"{folder} cannot be read ({type(error).__name__}: {get_first_line(error)}): get the bundle again.") from error
    if wrong:
        raise UserError(f"{folder} contradicts itself ({wrong}): get the bundle again.")
    return bundle


def _get_version() -> str | None:
    try:
        return version("coterie")
    except PackageNotFoundError:  # run from a source tree
        return None


DRAFT, OLD = ".draft-", ".old-"


def write_delivery(delivery: Delivery, world: World, folder: Path) -> Path:
    """Write the bundle of one method into `folder`/RUN/METHOD, whole or not at all.

    What lies there already gives way: half a bundle, an equal one, or one of an earlier round or of another order of the same name. The
    delivery's names are checked again, because they become folders here.
    """
    if not is_name(delivery.run) or not isinstance(delivery.method, str) or not delivery.method:
        raise MessageError("a delivery whose run or method is no name")
    if not set(delivery.ids) <= set(world.federation.ids) or type(delivery.seed) is not int or type(delivery.round_) is not int:
        raise MessageError("a delivery of other clients, or without a seed and a round")
    federation, serving = world.federation, delivery.serving
    bundle = Bundle(
        origin=Origin(delivery.method, federation.name, delivery.seed, 0, delivery.round_),
        model=world.model.text,
        models=serving.models,
        names=delivery.names,
        clients={name: int(row) for name, row in zip(delivery.ids, serving.rows, strict=True)},
        combiner=serving.combiner if (serving.rows == COMBINED).any() else None,
        **describe_samples(federation, delivery.ids),
    )
    out = folder / delivery.run / make_folder_name(delivery.method)
    out.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(out.parent):  # jobs of one site run in processes of their own
        for left in (*out.parent.glob(f"{DRAFT}*"), *out.parent.glob(f"{OLD}*")):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        draft = Path(mkdtemp(prefix=DRAFT, dir=out.parent))
        try:
            if wrong := find_contradiction(bundle):  # what could not be used must not take the place of what can
                raise UserError(wrong)
            write_bundle(bundle, draft)
            _replace_folder(draft, out)
        except UserError as error:
            raise MessageError(f"a delivery that makes no bundle ({error})") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return out


def _replace_folder(draft: Path, out: Path) -> None:
    """Give the draft its name. A crash in between leaves the old folder, the new one, or (for a moment) none: never half of one."""
    old = out.with_name(f"{OLD}{draft.name.removeprefix(DRAFT)}")
    if out.exists():
        out.rename(old)
    draft.rename(out)
    sync_to_disk(out.parent)
    shutil.rmtree(old, ignore_errors=True)
