"""`bundle.json`: its fields, checked when they are read."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, ValidationError

from coterie.core.errors import UserError

FORMAT = 1
HEAD = "bundle.json"
_Texts = Annotated[list[str], Field(min_length=1)]


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
    model: str
    input_shape: Annotated[list[PositiveInt], Field(min_length=1)]
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
    task: _Task | None = None  # none of a classification
    sha256: str


def read_head(folder: Path) -> Head:
    """What a bundle says of itself."""
    path = folder / HEAD
    if not path.is_file():
        raise UserError(f"{folder} holds no bundle: name the folder that 'coterie export --out' made.")
    try:
        tree = json.loads(bundle_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}): get the bundle again.") from error
    if not isinstance(tree, dict) or "format" not in tree:
        raise UserError(f"{path} is no bundle's: name the folder that 'coterie export --out' made.")
    if tree["format"] != FORMAT:
        maker = f" (coterie {tree['coterie']})" if tree.get("coterie") else ""
        raise UserError(f"{folder} is of format {tree['format']!r}, this version reads {FORMAT}: use the version that made it{maker}.")
    try:
        return Head.model_validate_json(json.dumps(tree))  # as JSON, whose lists may be tuples here
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path} is wrong at {'.'.join(map(str, first['loc']))}: {first['msg']}; get the bundle again.") from error


def bundle_bytes(path: Path) -> bytes:
    """A file of a bundle; one that cannot be read is named."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): get the bundle again.") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [""])[0]
