"""`bundle.json`: its fields, checked when they are read."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from coterie.core.counted import sized
from coterie.core.errors import UserError, first_repeated
from coterie.core.inputs import MOST_AXES, MOST_SIZE

FORMAT = 1
HEAD = "bundle.json"
MOST_HEAD = 1 << 26  # bytes
MOST_SPEC = 1 << 14  # letters of a model's spec
_Texts = Annotated[list[str], Field(min_length=1)]
_Size = Annotated[int, Field(gt=0, le=MOST_SIZE)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Scale(_Strict):
    mean: list[FiniteFloat]
    deviation: list[FiniteFloat]


class _Task(_Strict):
    name: Literal["regression", "multilabel", "next-token"]
    mean: FiniteFloat
    deviation: Annotated[FiniteFloat, Field(gt=0)]


class _Seat(_Strict):
    id: str
    row: int


class Head(_Strict):
    """The fields of `bundle.json`."""

    format: int
    coterie: str | None
    method: str
    data: str
    seed: int
    draw: int
    round: int
    model: Annotated[str, Field(max_length=MOST_SPEC)]
    input_shape: Annotated[list[_Size], Field(min_length=1, max_length=MOST_AXES)]
    tokens: bool
    classes: _Texts
    names: _Texts
    clients: list[_Seat]  # a list: a combiner knows clients by their order
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


def read_head(folder: Path) -> Head:
    """What a bundle says of itself."""
    path = folder / HEAD
    if not path.is_file():
        raise UserError(f"{folder} holds no bundle: name the folder that 'coterie export --out' made.")
    if path.stat().st_size > MOST_HEAD:
        raise UserError(f"{path} has {sized(path.stat().st_size)}, more than the {sized(MOST_HEAD)} of any bundle's: get the bundle again.")
    data = bundle_bytes(path)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}): get the bundle again.") from error
    if not isinstance(tree, dict) or "format" not in tree:
        raise UserError(f"{path} is no bundle's: name the folder that 'coterie export --out' made.")
    if tree["format"] != FORMAT:
        maker = f" (coterie {tree['coterie']})" if tree.get("coterie") else ""
        raise UserError(f"{folder} is of format {tree['format']!r}, this version reads {FORMAT}: use the version that made it{maker}.")
    try:
        _check_clients(tree, path)
        return Head.model_validate_json(data)  # as JSON, whose lists may be tuples here
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path} is wrong at {'.'.join(map(str, first['loc']))}: {first['msg']}; get the bundle again.") from error


def _check_clients(tree: dict[str, Any], path: Path) -> None:
    """Refuse clients that are there twice, and scalings of others: before every number of theirs is looked at."""
    clients, scaling = tree.get("clients"), tree.get("scaling")
    if not isinstance(clients, list) or not isinstance(scaling, dict):
        return  # which is refused field by field
    names = [seat["id"] for seat in clients if isinstance(seat, dict) and isinstance(seat.get("id"), str)]
    if (twice := first_repeated(names)) is not None:
        raise UserError(f"{path} names the client {twice[:100]!r} twice: get the bundle again.")
    if not scaling.keys() <= set(names):
        raise UserError(f"{path} has a scaling of a client that is not among its {len(names)}: get the bundle again.")


def bundle_bytes(path: Path) -> bytes:
    """A file of a bundle; one that cannot be read is named."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): get the bundle again.") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [""])[0]
