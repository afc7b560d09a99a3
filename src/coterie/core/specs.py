"""Spec strings: how a user names a method, a model or a federation, with its settings.

``fedprox(mu=1)``, ``mlp(128, 64)``, ``digits/rotated(clients=40, groups=4)``, ``my.package:factory(width=8)``. A spec is a name with
an optional call of literal arguments; a bare word or path stands for a string (``weighting=uniform``, ``csv(ward/table.csv,label=class)``).
What is printed can be read again.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from keyword import iskeyword
from math import inf
from typing import Any, Generic, TypeVar

from coterie.core.errors import UserError, suggestion

T = TypeVar("T")
_SHAPE = re.compile(r"\s*([A-Za-z_][\w.]*(?::[A-Za-z_]\w*)?|[\w.+-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_SETTING = re.compile(r"(?:\s*([A-Za-z_]\w*)\s*=)?(.*)", re.DOTALL)
_BARE = re.compile(r"[^\s'\"()\[\]{},=*]+")  # a word or a path: what cannot be taken for more
_WINDOWS = re.compile(r"""(['"])([A-Za-z]:\\(?!\\)[^'"]*)\1""")  # C:\data\new.csv in quotes, in which \n is no new line
# the bare path of a table, a file or a pattern by its ending; then other steps
_TABLE = re.compile(r"""([^()'"]*\.(csv|tsv|parquet)(?:\.gz)?)(?:/(.+))?""", re.DOTALL)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None, "inf": inf}


@dataclass(frozen=True)
class Spec:
    """A parsed spec: the name and the arguments of its call."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        values = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"{self.name}({','.join(values)})" if values else self.name


def parse(text: str) -> Spec:
    """Parse one spec without slashes."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise UserError(f"Cannot read {text!r}: write a name with optional settings, such as 'fedprox(mu=1)'.")
    name, inside = match.groups()
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    try:
        pieces = split_at(inside or "", ",")
        for piece in pieces[:-1] if not pieces[-1].strip() else pieces:  # a comma may follow the last, as in Python
            setting, value = _SETTING.fullmatch(piece).groups()  # type: ignore[union-attr]
            if setting is None and not kwargs:
                args.append(_read(value))
            elif setting is None or setting in kwargs:
                raise ValueError
            else:
                kwargs[setting] = _read(value)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UserError(
            f"Cannot read the settings of {text!r}: write them as in '{name}(setting=1, other=word)', with quotes "
            "around a value that has spaces or signs in it: label='ill?'."
        ) from None
    return Spec(name, tuple(args), kwargs)


def split_at(text: str, mark: str) -> list[str]:
    """Cut at a mark, except inside brackets or quotes, where it belongs to a setting."""
    parts, depth, start, quote, escaped = [], 0, 0, "", False
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and not escaped else quote
            escaped = c == "\\" and not escaped
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == mark and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def parse_path(text: str) -> list[Spec]:
    """Parse ``source/partition/...``: specs joined by slashes. The source may be the bare path of a table: ``sites/site_01.csv``."""
    table = _TABLE.fullmatch(text.strip())
    if table is None:
        return [parse(part) for part in split_at(text, "/")]
    path, kind, rest = table.groups()
    return [Spec("parquet" if kind == "parquet" else "csv", (path,), {"client": "*"}), *(parse_path(rest) if rest else [])]


class Registry(Generic[T]):
    """Names a user may write, each with the callable that builds the thing; the callable's signature is the grammar."""

    def __init__(self, kind: str, group: str | None = None) -> None:
        self.kind, self.group = kind, group  # the entry points by which installed packages add names
        self._entries: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        def add(build: Callable[..., T]) -> Callable[..., T]:
            self._entries[name] = build
            return build

        return add

    def add(self, name: str, build: Callable[..., T]) -> None:
        self._entries[name] = build

    @cached_property
    def installed(self) -> Mapping[str, EntryPoint]:
        """What installed packages add, by name; our own names win."""
        found = entry_points(group=self.group) if self.group is not None else ()
        return {each.name: each for each in found}

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.installed

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._entries, *self.installed}))

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name in self._entries:
            return self._entries[name]
        if name not in self.installed:
            raise UserError(f"Unknown {self.kind} {name!r}: {suggestion(name, self)}")
        try:
            made: Callable[..., T] = self.installed[name].load()
        except Exception as error:  # whatever another package may raise while it is imported
            raise UserError(
                f"The {self.kind} {name!r} of an installed package cannot be loaded: {type(error).__name__}: {error}."
            ) from error
        self._entries[name] = made
        return made

    def settings(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters a user may set (those given by the caller, such as data_seed, are marked by a leading underscore)."""
        parameters = inspect.signature(self[name]).parameters
        return {k: p for k, p in parameters.items() if not k.startswith("_")}

    def build(self, spec: Spec | str, *given: Any, **context: Any) -> T:
        """Build what the spec names; `given` and `context` come from the caller, before and beside the user's settings."""
        spec = parse(spec) if isinstance(spec, str) else spec
        make = self[spec.name]
        self._check(spec, make, len(given), context)
        try:
            return make(*given, *spec.args, **spec.kwargs, **context)
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(f"{self.kind.capitalize()} {str(spec)!r} cannot be made: {reason}.") from error

    def _check(self, spec: Spec, make: Callable[..., T], given: int, context: Mapping[str, Any]) -> None:
        parameters = [p for p in list(inspect.signature(make).parameters.values())[given:] if p.name not in context]
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name[0] != "_"}
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name[0] != "_"]
        if len(spec.args) > len(positional) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            raise UserError(
                f"{self.kind.capitalize()} {spec.name!r} takes {len(positional)} settings without a name, not {len(spec.args)}; "
                f"it knows {', '.join(named) or 'none'}."
            )
        for name in spec.kwargs:
            if name not in named:
                raise UserError(f"{self.kind.capitalize()} {spec.name!r} has no setting {name!r}: {suggestion(name, named)}")
        rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
        spread = positional + rest * max(len(spec.args) - len(positional), 0)
        for p, value in [*zip(spread, spec.args, strict=False), *((named[k], v) for k, v in spec.kwargs.items())]:
            _check_type(self.kind, spec.name, p, value)


def _check_type(kind: str, name: str, parameter: inspect.Parameter, value: Any) -> None:
    """Refuse a value whose plain type cannot be meant: a word for a number, a fraction for a count, a word that is no choice."""
    allowed = str(parameter.annotation if isinstance(parameter.annotation, str) else inspect.formatannotation(parameter.annotation))
    choices = re.findall(r"'([^']*)'", allowed) if "Literal" in allowed else []
    kinds = set(re.findall(r"\b(int|float|bool|str|None)\b", re.sub(r"'[^']*'", "", allowed.replace("Optional", "None"))))
    if not (kinds or choices) or "Any" in allowed or isinstance(value, (tuple, list)):
        return
    actual = {type(None): "None"}.get(type(value), type(value).__name__)
    if actual in kinds or (actual == "int" and "float" in kinds) or value in choices:
        return
    if choices and actual == "str":
        raise UserError(f"{kind.capitalize()} {name!r}: {parameter.name}={value!r} is not known: {suggestion(value, choices)}")
    names = {"int": "a whole number", "float": "a number", "str": "a word", "bool": "true or false", "None": "none"}
    wanted = " or ".join([*(text for word, text in names.items() if word in kinds), *choices])
    raise UserError(f"{kind.capitalize()} {name!r}: {parameter.name}={value!r} should be {wanted}.")


def _read(text: str) -> Any:
    """A literal, or else a bare word: a name, a word of Python's, a path."""
    text = text.strip()
    if (path := _WINDOWS.fullmatch(text)) is not None:
        return path.group(2)
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        if _BARE.fullmatch(text) is None:
            raise ValueError from None
        return text


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Name) and node.operand.id == "inf":
        return -inf
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_value(item) for item in node.elts)
    return ast.literal_eval(node)


def _show(value: Any) -> str:
    if isinstance(value, str):
        # Python reads some letters as others (º as o), so only what is plain letters may stand without quotes
        bare = value.isascii() and value.isidentifier() and value not in _WORDS and not iskeyword(value)
        return value if bare else repr(value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple):
        return f"({''.join(f'{_show(item)},' for item in value)})"
    return str(value)
