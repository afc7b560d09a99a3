"""Settings that know themselves: a field's default, what it means and what it may be are written once, at the field.

Constructors check by them, study files and command-line options are made of them, and listings explain them.
"""

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from math import inf, isnan
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from coterie._util.errors import UserError, suggest_names

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


@dataclass(frozen=True)
class Bounds:
    """The numbers that a setting may be."""

    least: float = -inf
    above: float = -inf
    most: float = inf
    below: float = inf
    infinite: bool = False  # whether it may be infinite, which no bound says

    def allow(self, value: float) -> bool:
        if isnan(value) or (abs(value) == inf and not self.infinite):
            return False
        return self.least <= value <= self.most and (self.above < value or self.above == -inf) and (value < self.below or self.below == inf)

    def __str__(self) -> str:
        low = f"above {self.above:g}" if self.above > -inf else f"{self.least:g} or more" if self.least > -inf else ""
        high = f"below {self.below:g}" if self.below < inf else f"at most {self.most:g}" if self.most < inf else ""
        bounds = " and ".join(filter(None, [low, high])) or "any"
        return f"a number {bounds}, or inf" if self.infinite else f"a number {bounds}" if low.startswith("above") else bounds


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    below: float = inf,
    infinite: bool = False,
    flag: str = "",
    zero_is_none: bool = False,
) -> Any:
    """A field of a settings dataclass.

    `help` is one sentence for listings; the bounds are those of `Bounds`; `flag` is its name on the command line where the field's own
    will not do; `zero_is_none` lets 0 stand for none where a user cannot write none (a batch size of 0 is the full batch).
    """
    bounds = Bounds(least, above, most, below, infinite)
    return field(default=default, metadata={"help": help, "bounds": bounds, "flag": flag, "zero_is_none": zero_is_none})


def get_help(f: Field[Any]) -> str:
    """What a setting means; empty for a field that was not made by `setting`."""
    return str(f.metadata.get("help", ""))


def check_settings(made: Any, who: str = "") -> None:
    """Refuse the first value that its setting cannot have: of the wrong type, no choice, or out of bounds."""
    kind: Any = type(made)
    for f in fields(made):
        if f.name in get_setting_types(kind):
            _check_value(who or kind.__name__, f.name, getattr(made, f.name), get_setting_types(kind)[f.name], f.metadata.get("bounds"))


@dataclass(frozen=True)
class SettingType:
    """What a setting's annotation allows."""

    types: tuple[type, ...]  # of int, float, bool, str
    choices: tuple[Any, ...]  # words of a Literal
    none: bool

    @property
    def words(self) -> list[str]:
        """What may be given beside numbers within bounds."""
        return [*map(str, self.choices), *(["none"] if self.none else [])]


def parse_annotation(annotation: Any) -> SettingType | None:
    """What an annotation allows; None for one that is no plain setting (another dataclass, a tuple)."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    types: list[type] = []
    choices: list[Any] = []
    none = False
    for part in parts:
        if get_origin(part) is Literal:
            choices += get_args(part)
        elif part is NoneType:
            none = True
        elif part in _WORDS:
            types.append(part)
        else:
            return None
    return SettingType(tuple(types), tuple(choices), none)


def get_setting_types(settings: type) -> Mapping[str, SettingType]:
    """The plain settings of a dataclass, by name."""
    return _get_setting_types(cast(Hashable, settings))


@cache
def _get_setting_types(settings: Any) -> Mapping[str, SettingType]:
    found = {name: parse_annotation(annotation) for name, annotation in get_type_hints(settings).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _check_value(who: str, name: str, value: Any, kind: SettingType, bounds: Bounds | None) -> None:
    if (value is None and kind.none) or (kind.choices and isinstance(value, str) and value in kind.choices):
        return
    if isinstance(value, str) and kind.choices and str not in kind.types:
        raise UserError(f"{who} cannot use {name}={value!r}: {suggest_names(value, map(str, kind.choices))}")
    fits = any(_is_of_type(value, each) for each in kind.types)
    if fits and (isinstance(value, (bool, str)) or bounds is None or bounds.allow(value)):
        return
    if fits:
        raise UserError(f"{who} cannot use {name}={value!r}: give {' or '.join([str(bounds), *kind.words])}.")
    wanted = " or ".join([*(_WORDS[each] for each in kind.types), *kind.words])
    raise UserError(f"{who} cannot use {name}={value!r}: give {wanted}.")


def _is_of_type(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; true and false are no numbers, and a whole number is a number too."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
