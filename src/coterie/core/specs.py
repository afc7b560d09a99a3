"""Specs: how a user names a method, a model or a federation with its settings, and code that a spec names.

``fedprox(mu=1)``, ``digits/rotated(clients=40, groups=4)``, ``my.package:factory(width=8)``: a name with an optional call of literal
arguments; a bare word or path stands for a string. A spec that a user types is trusted; code that a file names is not imported until the
user allows it.
"""

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from keyword import iskeyword
from math import inf
from types import ModuleType
from typing import Any, Generic, TypeVar

from coterie._util.errors import UserError, suggest_names, summarize_error
from coterie.core.settings import check_value, get_parameters, parse_annotation

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
        values = [_format_value(a) for a in self.args] + [f"{k}={_format_value(v)}" for k, v in self.kwargs.items()]
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
                args.append(_parse_value(value))
            elif setting is None or setting in kwargs:
                raise ValueError
            else:
                kwargs[setting] = _parse_value(value)
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
    """Names that a spec may have, each with a callable whose signature is the list of settings: ``ct.samplers.add("mine", my_sampler)``."""

    def __init__(self, kind: str, group: str | None = None, **entries: Callable[..., T]) -> None:
        self.kind, self.group = kind, group  # the entry points by which installed packages add names
        self._entries = entries

    def add(self, name: str, build: Callable[..., T]) -> None:
        self._entries[name] = build

    @cached_property
    def installed(self) -> Mapping[str, EntryPoint]:
        """The entry points of installed packages, by name; our own names win."""
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
            raise UserError(f"Unknown {self.kind} {name!r}: {suggest_names(name, self)}")
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
            raise UserError(f"{self.kind.capitalize()} {str(spec)!r} cannot be made: {summarize_error(error)}.") from error

    def _check(self, spec: Spec, make: Callable[..., T], given: int, context: Mapping[str, Any]) -> None:
        """Refuse settings that the callable does not have, and values whose plain type cannot be meant."""
        owner = f"{self.kind.capitalize()} {spec.name!r}"
        parameters = [p for p in get_parameters(make)[given:] if p.name not in context and p.name[0] != "_"]
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
        if len(spec.args) > len(positional) and not rest:
            raise UserError(
                f"{owner} takes {len(positional)} settings without a name, not {len(spec.args)}; it knows {', '.join(named) or 'none'}."
            )
        for name in spec.kwargs:
            if name not in named:
                raise UserError(f"{owner} has no setting {name!r}: {suggest_names(name, named)}")
        spread = positional + rest * max(len(spec.args) - len(positional), 0)
        for p, value in [*zip(spread, spec.args, strict=False), *((named[k], v) for k, v in spec.kwargs.items())]:
            if (kind := parse_annotation(p.annotation)) is not None:
                check_value(owner, p.name, value, kind)


def _parse_value(text: str) -> Any:
    """A literal, or else a bare word: a name, a word of Python's, a path."""
    text = text.strip()
    if (path := _WINDOWS.fullmatch(text)) is not None:
        return path.group(2)
    try:
        return _evaluate_node(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        if _BARE.fullmatch(text) is None:
            raise ValueError from None
        return text


def _evaluate_node(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Name) and node.operand.id == "inf":
        return -inf
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_evaluate_node(item) for item in node.elts)
    return ast.literal_eval(node)


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        # Python reads some letters as others (º as o), so only what is plain letters may stand without quotes
        bare = value.isascii() and value.isidentifier() and value not in _WORDS and not iskeyword(value)
        return value if bare else repr(value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple):
        return f"({''.join(f'{_format_value(item)},' for item in value)})"
    return str(value)


def import_object(what: str, name: str) -> Any:
    """The object that ``package.module:name`` names; `what` (a model, a method) begins the sentence of an error."""
    path, _, attribute = name.partition(":")
    module = _import_user_module(what, path, name)
    if not hasattr(module, attribute):
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"{what} {name!r}: module {path!r} has no {attribute!r}: {suggest_names(attribute, public)}")
    return getattr(module, attribute)


def _import_user_module(what: str, path: str, name: str) -> ModuleType:
    try:
        with _append_current_folder():
            return import_module(path)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{path}.".startswith(f"{error.name}."):
            raise UserError(
                f"{what} {name!r}: there is no module {path!r}: check the name, and that its folder is on PYTHONPATH."
            ) from None
        raise UserError(f"{what} {name!r}: module {path!r} cannot be imported: {summarize_error(error)}.") from error
    except (Exception, SystemExit) as error:  # whatever a module may raise while it is imported
        raise UserError(f"{what} {name!r}: module {path!r} ended with {type(error).__name__}: {summarize_error(error)}.") from error


@contextmanager
def _append_current_folder() -> Iterator[None]:
    """A user's own module beside the study is found, and nothing in that folder can stand in for an installed package."""
    here = os.getcwd()
    sys.path.append(here)
    invalidate_caches()  # the module may have been written a moment ago
    try:
        yield
    finally:
        last = len(sys.path) - 1 - sys.path[::-1].index(here) if here in sys.path else None  # the module may have changed the path, too
        if last is not None:
            del sys.path[last]


class UntrustedCodeError(UserError):
    """A file names code that the user has not allowed to run."""


def is_external_code(spec: str) -> bool:
    """Whether a spec names code outside Coterie's catalogues: ``package.module:factory``; of a method, what its wrappers go around."""
    return ":" in parse(split_at(spec, "+")[0]).name


def check_trust(specs: Iterable[str], where: str, trust: bool, kind: str = "model") -> None:
    """Refuse, before anything is imported, the first model (or method) of `where` that is external code, unless it is trusted."""
    for spec in specs:
        if not trust and is_external_code(spec):
            raise UntrustedCodeError(f"{where} needs code that is not Coterie's, the {kind} {spec!r}: if you trust it, add --trust-code.")


def check_cluster(addresses: Iterable[str | None], where: str, trust: bool) -> None:
    """Refuse, before anything is connected, the first address of a Ray cluster that `where` names, unless it is trusted.

    A cluster runs code here, because its answers are unpickled. "auto" is the cluster that the user has started.
    """
    for address in addresses:
        if not trust and address not in (None, "auto"):
            raise UntrustedCodeError(
                f"{where} sends the study to the Ray cluster {address!r}, which may run code here: if you trust it, add --trust-code, "
                "or name a cluster with --ray."
            )
