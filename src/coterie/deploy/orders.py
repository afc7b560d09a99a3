"""Orders: what a run asks of the sites, as a site reads it before it answers.

The server sends the order as canonical JSON. Its hash identifies the order and is in every message of the run. A site answers nothing
until it has approved the order, and denies every ask outside of it. The kinds of asks are found by reading a method's code.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.asks import Ask
from coterie.deploy.files import escape_text, is_name
from coterie.deploy.messages import Denial

if TYPE_CHECKING:
    from coterie.engines.engine import StampedAsk


AskName = Literal[
    "Train",
    "Gradient",
    "Losses",
    "AskErrors",
    "Evaluate",
    "Describe",
    "AskSubspaces",
    "SketchedTrain",
    "SketchedGradient",
    "DescribeTable",
    "CheckTable",
    "SummarizeTable",
    "CountTimes",
]

LARGEST_ORDER = 1 << 18  # bytes of its JSON
LONGEST_NOTE = 500  # characters of the operator's name and of what the run is for
LARGEST_COUNT = 10**9  # rounds, clients, epochs, samples of a batch
SHORT_HASH = 12  # characters of a hash that people read and type
# a sketch counts as what it is made of
ASKS: tuple[AskName, ...] = ("Train", "Gradient", "Losses", "AskErrors", "Evaluate", "Describe", "AskSubspaces")


STUDY_QUESTIONS: tuple[AskName, ...] = ("SummarizeTable", "CountTimes")  # by whose answers the sites of a study are prepared
TABLE_ASKS: tuple[AskName, ...] = ("DescribeTable", "CheckTable", *STUDY_QUESTIONS)  # about a site's table, whatever the model


@dataclass(frozen=True)
class OrderKind:
    """What orders of a kind may ask, and what their plans hold. How the server runs them is in `server.runner.RUNNERS`."""

    asks: tuple[AskName, ...]  # of which an order names those that it makes
    rounds: str = ""  # in words, where the plan has no rounds and no local training of its own
    trains: bool = True  # whether the plan states local training
    has_model: bool = True  # whether the asks are about a model, which a site builds before it answers

    @property
    def has_rounds(self) -> bool:
        return not self.rounds


KINDS_OF_ORDER: Mapping[str, OrderKind] = {
    "study": OrderKind((*ASKS, *STUDY_QUESTIONS)),
    "inspect": OrderKind(ASKS, "none: an inspection"),
    "evaluate": OrderKind(("Evaluate",), trains=False),  # a round is a look
    "schema": OrderKind(("DescribeTable", "CheckTable"), "none: columns of the site's table", has_model=False),
    "statistics": OrderKind(("SummarizeTable",), "none: statistics of the site's table", has_model=False),
}


class OrderError(ValueError):
    """A text that is no order."""


@dataclass(frozen=True, kw_only=True)
class OrderTerms:
    """What is asked for. Everything here is in the hash; how many sites are waited for, and for how long, is not."""

    kind: str  # one of KINDS_OF_ORDER
    run: str
    operator: str  # the operator's name, as the server states it
    purpose: str  # what for, in the operator's words
    data: str  # what the record calls the data
    methods: tuple[str, ...]
    model: str
    seeds: tuple[int, ...]  # that key the asks
    asks: tuple[str, ...]  # the kinds of asks that the methods make
    plan: Mapping[str, Any]  # of a study: rounds, cohort, local training and all else; of an inspection: its own

    def as_text(self) -> str:
        """The order as canonical JSON."""
        return _to_canonical(asdict(self))

    @property
    def hash(self) -> str:
        return hash_order(self.as_text())

    @property
    def facts(self) -> OrderKind:
        """What orders of its kind may ask."""
        return KINDS_OF_ORDER[self.kind]

    @property
    def rounds(self) -> int:
        """The last round that may be asked about; an order without rounds asks before the first."""
        return int(self.plan["rounds"]) if self.facts.has_rounds else 0

    @property
    def local(self) -> Mapping[str, Any]:
        """Local training: of an inspection, its pilot's; empty without one."""
        found = self.plan if self.facts.has_rounds else self.plan.get("pilot") or {}
        return dict(found.get("local") or {})

    @classmethod
    def read(cls, text: object) -> "OrderTerms":
        """Read an order that came from elsewhere.

        Raises:
            OrderError: Where the text is too long, not canonical, or lacks something.
        """
        if not isinstance(text, str) or not text:
            raise OrderError("the server sent no order")
        if len(text.encode("utf-8", "replace")) > LARGEST_ORDER:
            raise OrderError(f"the order has {len(text):,} characters, over the limit of {LARGEST_ORDER:,}")
        try:
            tree = json.loads(text)
            made = cls(**{**tree, **{name: tuple(tree[name]) for name in ("methods", "seeds", "asks")}})
            if _to_canonical(tree) != text:
                raise OrderError("the order is not in canonical form")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise error if isinstance(error, OrderError) else OrderError("the order cannot be read") from error
        if (fault := next(_find_faults(made), None)) is not None:
            raise OrderError(f"the order has {fault}")
        return made

    def find_denial(self, stamped: "StampedAsk") -> Denial | None:
        """Return why an ask is outside of the order; None where it is within."""
        kind = type(stamped.ask).__name__
        if kind not in self.asks:
            return Denial(f"{kind} is not in the approved order, which names {', '.join(self.asks)}.")
        if type(stamped.round_) is not int or not 0 <= stamped.round_ <= self.rounds:
            return Denial(
                f"Round {escape_text(repr(stamped.round_), 40)} is not in the approved order, which ends with round {self.rounds}."
            )
        if type(stamped.seed) is not int or stamped.seed not in self.seeds:
            return Denial(f"Seed {escape_text(repr(stamped.seed), 40)} is not in the approved order.")
        return None


def hash_order(text: str) -> str:
    """Hash an order's canonical JSON: its identity."""
    return sha256(text.encode()).hexdigest()


def _to_canonical(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _find_faults(terms: OrderTerms) -> Iterator[str]:
    """What is wrong with an order's fields: it was made of whatever the JSON held."""
    if not isinstance(terms.kind, str) or terms.kind not in KINDS_OF_ORDER:
        yield "an unknown kind"
        return
    if not is_name(terms.run):
        yield "a run that is no name"
    for name in ("operator", "purpose", "data", "model"):
        value = getattr(terms, name)
        if not isinstance(value, str) or len(value) > LONGEST_NOTE:
            yield f"a {name} that is no text of at most {LONGEST_NOTE} characters"
    if not terms.methods or not all(isinstance(spec, str) and 0 < len(spec) <= LONGEST_NOTE for spec in terms.methods):
        yield "methods that are no specs"
    if not terms.seeds or not all(type(seed) is int for seed in terms.seeds):
        yield "seeds that are no whole numbers"
    if not terms.asks or not set(terms.asks) <= set(terms.facts.asks):
        yield "asks that are unknown"
    if not isinstance(terms.plan, Mapping):
        yield "no plan"
    elif not terms.facts.has_model:
        if len(terms.asks) != 1 or {*terms.plan} != {"schema"} or (terms.plan["schema"] is None) != (terms.asks == ("DescribeTable",)):
            yield "more than one question about a table, or none, or a plan that is no schema to go by"
    elif terms.facts.has_rounds and not (_is_count(terms.plan.get("rounds")) and _is_count(terms.plan.get("cohort") or 1)):
        yield "no number of rounds or clients that can be read"
    elif not _has_local(terms):
        yield "no local training that can be read"


def _has_local(terms: OrderTerms) -> bool:
    """Whether an order states how clients train; one that does not train need not, and an inspection may."""
    if not terms.facts.trains:
        return "local" not in terms.plan
    found = terms.plan if terms.facts.has_rounds else terms.plan.get("pilot") or {}
    local = found.get("local", {}) if isinstance(found, Mapping) else None
    if not isinstance(local, Mapping):
        return False
    counts = [local.get("batch_size") or 1, local.get("max_steps") or 1, local.get("epochs", None if terms.facts.has_rounds else 1)]
    return all(map(_is_count, counts))


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


OWN_PACKAGE = "coterie"


def find_asks(starts: Iterable[Any], *always: str) -> tuple[str, ...]:
    """Find the kinds of asks that methods, classes or functions can make, in the order of `ASKS`; all of them where none is found.

    `always` are kinds that are asked in any case, such as the evaluations of a study.
    """
    found, seen, left = set(always), set[int](), list[Any]()
    packages = {OWN_PACKAGE}
    for start in starts:
        parts = list(_list_parts(start))
        packages |= {str(getattr(part, "__module__", OWN_PACKAGE)).partition(".")[0] for part in parts}
        left += parts
    plain = bool(left)
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, type) and issubclass(one, Ask):
            found.add(one.__name__)
        elif str(getattr(one, "__module__", "") or "").partition(".")[0] in packages:
            left += _list_functions(one) if isinstance(one, type) else _list_references(one)
    kinds = tuple(kind for kind in ASKS if kind in found)
    return kinds if plain and kinds != tuple(kind for kind in ASKS if kind in always) else ASKS


def _list_parts(start: Any) -> Iterator[Any]:
    """A function as it is; of an object its class, and those of the objects that it holds (a wrapper's method)."""
    if isinstance(start, (type, FunctionType)):
        yield start
        return
    yield type(start)
    if is_dataclass(start):
        for f in fields(start):
            value = getattr(start, f.name, None)
            if is_dataclass(value) or hasattr(value, "round"):
                yield from _list_parts(value)


def _list_functions(kind: type) -> list[Any]:
    """The functions of a class and of those that it inherits from; the core's classes only declare what others ask."""
    found = []
    for base in kind.__mro__:
        if not base.__module__.startswith(f"{OWN_PACKAGE}.core"):
            for value in vars(base).values():
                inner = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", None) or value
                found += [inner] if isinstance(inner, FunctionType) else []
    return found


def _list_references(function: Any) -> Iterator[Any]:
    """The functions and classes that a function's code names, and those that it names within a module."""
    function = getattr(function, "__wrapped__", function)
    codes = [function.__code__] if isinstance(function, FunctionType) else []
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        values = [function.__globals__.get(name) for name in code.co_names]
        values += [getattr(value, name, None) for value in values if isinstance(value, ModuleType) for name in code.co_names]
        yield from (value for value in values if isinstance(value, (type, FunctionType)))
