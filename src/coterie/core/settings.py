"""Settings: the type, bounds, default and help of each are written once, at the field of a dataclass.

Constructors check values by them; specs, study files, command-line options and listings are derived from them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from inspect import Parameter, signature
from math import inf, isnan
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from coterie._util.errors import UserError, suggest_names

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


@dataclass(frozen=True)
class Bounds:
    """The numbers that a setting may have."""

    minimum: float = -inf
    above: float = -inf
    maximum: float = inf
    below: float = inf
    infinite: bool = False  # whether it may be infinite

    def allow(self, value: float) -> bool:
        if isnan(value) or (abs(value) == inf and not self.infinite):
            return False
        within = (self.above < value or self.above == -inf) and (value < self.below or self.below == inf)
        return within and self.minimum <= value <= self.maximum

    def __str__(self) -> str:
        low = f"above {self.above:g}" if self.above > -inf else f"{self.minimum:g} or more" if self.minimum > -inf else ""
        high = f"below {self.below:g}" if self.below < inf else f"at most {self.maximum:g}" if self.maximum < inf else ""
        bounds = " and ".join(filter(None, [low, high])) or "any"
        return f"a number {bounds}, or inf" if self.infinite else f"a number {bounds}" if low.startswith("above") else bounds


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    minimum: float = -inf,
    above: float = -inf,
    maximum: float = inf,
    below: float = inf,
    infinite: bool = False,
    flag: str = "",
    panel: str = "",
    zero_is_none: bool = False,
) -> Any:
    """Declare a field of a settings dataclass.

    Args:
        default: Its default; required if omitted.
        help: One sentence for listings and the command line.
        minimum, above, maximum, below, infinite: The numbers it may have; see `Bounds`.
        flag: Its name on the command line, if that is not the field's own.
        panel: The panel of the command line's help that it is in, if that is not its class's `panel`.
        zero_is_none: Whether 0 means none where none cannot be written (a batch size of 0 is the full batch).
    """
    bounds = Bounds(minimum, above, maximum, below, infinite)
    return field(default=default, metadata={"help": help, "bounds": bounds, "flag": flag, "panel": panel, "zero_is_none": zero_is_none})


def get_help(f: Field[Any]) -> str:
    """The help of a setting; empty for a field that was not made by `setting`."""
    return str(f.metadata.get("help", ""))


@dataclass(frozen=True)
class SettingType:
    """The values that an annotation allows."""

    types: tuple[type, ...] = ()  # of int, float, bool, str
    choices: tuple[Any, ...] = ()  # words of a Literal
    none: bool = False
    sequence: bool = False  # whether several values may be given, as a tuple or list

    def includes(self, value: Any) -> bool:
        if isinstance(value, (tuple, list)):
            return self.sequence
        if value is None:
            return self.none
        if isinstance(value, bool):  # true and false are no numbers
            return bool in self.types
        if isinstance(value, str) and value in self.choices:
            return True
        return any(isinstance(value, (int, float) if kind is float else kind) for kind in self.types)

    def describe(self, bounds: Bounds | None = None) -> str:
        numbers = [str(bounds)] if bounds is not None else [text for kind, text in _WORDS.items() if kind in self.types]
        return " or ".join([*numbers, *map(str, self.choices), *(["none"] if self.none else [])])


def parse_annotation(annotation: Any) -> SettingType | None:
    """The values that an annotation allows; None for one that is no plain setting, such as another dataclass."""
    types: list[type] = []
    choices: list[Any] = []
    none = sequence = False
    parts = [annotation]
    while parts:
        part = parts.pop(0)
        origin = get_origin(part)
        if origin in (Union, UnionType, tuple, list, Sequence):
            sequence |= origin not in (Union, UnionType)
            parts += [each for each in get_args(part) if each is not Ellipsis]
        elif origin is Literal:
            choices += get_args(part)
        elif part is NoneType:
            none = True
        elif part in _WORDS:
            types.append(part)
        else:
            return None
    return SettingType(tuple(types), tuple(choices), none, sequence)


def get_setting_types(settings: type) -> Mapping[str, SettingType]:
    """The plain settings of a dataclass, by name."""
    return _read_setting_types(cast(Hashable, settings))


@cache
def _read_setting_types(settings: Any) -> Mapping[str, SettingType]:
    found = {name: parse_annotation(annotation) for name, annotation in get_type_hints(settings).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def get_parameters(build: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a callable, their annotations evaluated where that is possible."""
    try:
        return list(signature(build, eval_str=True).parameters.values())
    except NameError:  # an annotation that only type checkers import
        return list(signature(build).parameters.values())


def check_settings(made: Any, owner: str = "") -> None:
    """Raise a `UserError` for the first value of a dataclass that its setting cannot have: a wrong type, no choice, or out of bounds."""
    kinds = get_setting_types(type(made))
    for f in fields(made):
        if f.name in kinds:
            check_value(owner or type(made).__name__, f.name, getattr(made, f.name), kinds[f.name], f.metadata.get("bounds"))


def check_value(owner: str, name: str, value: Any, kind: SettingType, bounds: Bounds | None = None) -> None:
    """Raise a `UserError` if a setting cannot have this value. `owner` begins the sentence."""
    if not kind.includes(value):
        meant = suggest_names(value, map(str, kind.choices)) if kind.choices and isinstance(value, str) else f"give {kind.describe()}."
        raise UserError(f"{owner} cannot use {name}={value!r}: {meant}")
    if bounds is not None and isinstance(value, (int, float)) and not isinstance(value, bool) and not bounds.allow(value):
        raise UserError(f"{owner} cannot use {name}={value!r}: give {kind.describe(bounds)}.")


def convert_values(settings: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are stored: 0 becomes none where it means that, and a whole number a float where the setting is one."""
    zeros = {f.name for f in fields(settings) if f.metadata.get("zero_is_none")}
    kinds = get_setting_types(settings)
    floats = {name for name, kind in kinds.items() if float in kind.types and int not in kind.types}
    found: dict[str, Any] = {}
    for name, value in given.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        found[name] = None if name in zeros and value == 0 else float(value) if name in floats and is_whole else value
    return found
