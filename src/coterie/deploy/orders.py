"""An order: all that a server wants of a run, as a site reads it before it answers anything.

The server sends the order in full, as canonical JSON; its hash is the order's identity and is in every message of the run. A site shows
the order in words, answers nothing until it has approved it, and holds every ask to it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from coterie.core.specs import split_at
from coterie.deploy.denied import Denied
from coterie.deploy.mechanisms import ClipNoise, DpSgd, NoPrivacy, PolicyTable
from coterie.deploy.names import escape_text, is_name

if TYPE_CHECKING:
    from coterie.deploy.accountant import Charge
    from coterie.deploy.policy import AskName, Policy
    from coterie.engines.engine import Stamped

LARGEST_ORDER = 1 << 18  # bytes of its JSON
LONGEST_NOTE = 500  # characters of the operator's name and of what the run is for
LARGEST_COUNT = 10**9  # rounds, clients, epochs, samples of a batch
SHORT_HASH = 12  # characters of a hash that people read and type
KINDS_OF_ORDER = ("study", "inspect")
ORDERED_ASKS = ("Train", "Gradient", "Losses", "Error", "Evaluate")  # a sketch counts as the ask that it is made of


class OrderError(ValueError):
    """A text that is no order."""


class Approve(PolicyTable):
    """The policy's table of orders that are approved without asking the site's operator."""

    any: bool = False
    methods: Annotated[tuple[str, ...], Field(strict=False)] = ()  # by name or whole spec; "inspect" is an inspection
    models: Annotated[tuple[str, ...], Field(strict=False)] = ()  # likewise; empty: those that the policy lets run
    maximum_rounds: Annotated[int, Field(ge=1)] | None = None
    maximum_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # of any client, with all that it has spent before

    def find_objection(self, terms: "OrderTerms", epsilon: float | None) -> str | None:
        """Return why an order is not approved by this table; None where it is.

        Args:
            terms: The order.
            epsilon: What the largest epsilon of a client would be after it; None without a privacy mechanism.
        """
        if self.any:
            return None
        if foreign := [spec for spec in terms.methods if not _is_listed(spec, self.methods)]:
            return f"the policy's [approve] does not list the method {escape_text(foreign[0])!r}"
        if self.models and not _is_listed(terms.model, self.models):
            return f"the policy's [approve] does not list the model {escape_text(terms.model)!r}"
        if self.maximum_rounds is not None and terms.rounds > self.maximum_rounds:
            return f"it has {terms.rounds} rounds, the policy's [approve] allows {self.maximum_rounds}"
        if self.maximum_epsilon is not None and (epsilon is None or epsilon > self.maximum_epsilon):
            told = "no privacy mechanism limits it" if epsilon is None else f"epsilon could reach {epsilon:.3g}"
            return f"{told}, the policy's [approve] allows {self.maximum_epsilon:g}"
        return None


def _is_listed(spec: str, names: Iterable[str]) -> bool:
    """Whether a spec is in a list: as it is, or each of its parts (``fedavg+guard``) by name."""
    parts = [part.partition("(")[0].strip() for part in split_at(spec, "+")]
    return spec in names or all(part in names for part in parts)


@dataclass(frozen=True, kw_only=True)
class OrderTerms:
    """What is asked for. Everything here is in the hash; how many sites are waited for, and for how long, is not."""

    kind: str  # "study" or "inspect"
    run: str
    operator: str  # who asks, as the server says
    purpose: str  # what for, in the operator's words
    data: str  # what the record calls the data
    methods: tuple[str, ...]
    model: str
    seeds: tuple[int, ...]  # that key the asks
    asks: tuple[str, ...]  # the kinds of asks that the methods make
    plan: Mapping[str, Any]  # of a study: rounds, cohort, local training and all else; of an inspection: its own

    def as_text(self) -> str:
        """The order as canonical JSON."""
        return _canonical(asdict(self))

    @property
    def hash(self) -> str:
        return hash_order(self.as_text())

    @property
    def rounds(self) -> int:
        """The last round that may be asked about; an inspection has none, and asks before the first."""
        return int(self.plan["rounds"]) if self.kind == "study" else 0

    @property
    def local(self) -> Mapping[str, Any]:
        """Local training: of an inspection, its pilot's; empty without one."""
        found = self.plan if self.kind == "study" else self.plan.get("pilot") or {}
        return dict(found.get("local") or {})

    @classmethod
    def read(cls, text: object) -> "OrderTerms":
        """Read an order that came from elsewhere.

        Raises:
            OrderError: Where the text is too long, not canonical, or lacks something.
        """
        if not isinstance(text, str) or not text:
            raise OrderError("the server did not say what it orders")
        if len(text.encode("utf-8", "replace")) > LARGEST_ORDER:
            raise OrderError(f"the order has {len(text):,} characters, over the limit of {LARGEST_ORDER:,}")
        try:
            tree = json.loads(text)
            made = cls(**{**tree, **{name: tuple(tree[name]) for name in ("methods", "seeds", "asks")}})
            if _canonical(tree) != text:
                raise OrderError("the order is not in canonical form")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise error if isinstance(error, OrderError) else OrderError("the order cannot be read") from error
        if (fault := next(_find_faults(made), None)) is not None:
            raise OrderError(f"the order has {fault}")
        return made

    def find_denial(self, stamped: "Stamped") -> Denied | None:
        """Return why an ask is outside of the order; None where it is within."""
        kind = type(stamped.ask).__name__
        if kind not in self.asks:
            return Denied(f"{kind} is not in the approved order, which names {', '.join(self.asks)}.")
        if type(stamped.round_) is not int or not 0 <= stamped.round_ <= self.rounds:
            return Denied(
                f"Round {escape_text(repr(stamped.round_), 40)} is not in the approved order, which ends with round {self.rounds}."
            )
        if type(stamped.seed) is not int or stamped.seed not in self.seeds:
            return Denied(f"Seed {escape_text(repr(stamped.seed), 40)} is not in the approved order.")
        return None


def hash_order(text: str) -> str:
    """Hash an order's canonical JSON: its identity."""
    return sha256(text.encode()).hexdigest()


def _canonical(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _find_faults(terms: OrderTerms) -> Iterator[str]:
    """What is wrong with an order's fields: it was made of whatever the JSON held."""
    if terms.kind not in KINDS_OF_ORDER:
        yield "an unknown kind"
    if not is_name(terms.run):
        yield "a run that is no name"
    for name, longest in (("operator", LONGEST_NOTE), ("purpose", LONGEST_NOTE), ("data", LONGEST_NOTE), ("model", LONGEST_NOTE)):
        value = getattr(terms, name)
        if not isinstance(value, str) or len(value) > longest:
            yield f"a {name} that is no text of at most {longest} characters"
    if not terms.methods or not all(isinstance(spec, str) and 0 < len(spec) <= LONGEST_NOTE for spec in terms.methods):
        yield "methods that are no specs"
    if not terms.seeds or not all(type(seed) is int for seed in terms.seeds):
        yield "seeds that are no whole numbers"
    if not terms.asks or not set(terms.asks) <= set(ORDERED_ASKS):
        yield "asks that are unknown"
    if not isinstance(terms.plan, Mapping):
        yield "no plan"
    elif terms.kind == "study" and not (_is_count(terms.plan.get("rounds")) and _is_count(terms.plan.get("cohort") or 1)):
        yield "no number of rounds or clients that can be read"
    elif not _has_local(terms):
        yield "no local training that can be read"


def _has_local(terms: OrderTerms) -> bool:
    """Whether an order says how clients train; an inspection need not."""
    found = terms.plan if terms.kind == "study" else terms.plan.get("pilot") or {}
    local = found.get("local", {}) if isinstance(found, Mapping) else None
    if not isinstance(local, Mapping):
        return False
    counts = [local.get("batch_size") or 1, local.get("max_steps") or 1, local.get("epochs", None if terms.kind == "study" else 1)]
    return all(map(_is_count, counts))


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


CHARGED = ("Train", "Gradient", "Losses", "Error", "Evaluate")  # under clip+noise every answer is a release


def estimate_epsilon(
    terms: OrderTerms, privacy: NoPrivacy | ClipNoise | DpSgd, sizes: Mapping[str, int], spent: "Mapping[str, list[Charge]]"
) -> float | None:
    """Estimate the largest epsilon of a client after an order, with all that it has spent before.

    Every method is taken to ask every client once in every round, with each seed, each kind of question that it asks at all. Under dp-sgd
    test samples have a budget of their own, which is not in it.
    What a method does before its first round is not in it, nor rounds in which a client is not picked.

    Args:
        terms: The order.
        privacy: The site's mechanism.
        sizes: By client id, its training samples.
        spent: By client id, what it has been charged so far.

    Returns:
        The epsilon; None without a mechanism.
    """
    from coterie.deploy.accountant import Charge, epsilon_of
    from coterie.engines.batches import count_steps

    if isinstance(privacy, NoPrivacy):
        return None
    passes = max(terms.rounds, 1) * len(terms.methods) * len(terms.seeds)

    def planned(samples: int) -> Charge:
        if isinstance(privacy, ClipNoise):
            return Charge("clip+noise", privacy.multiplier, 1.0, passes * sum(kind in terms.asks for kind in CHARGED))
        local = terms.local
        batch = min(local.get("batch_size") or samples, samples)
        steps = count_steps(samples, batch, local.get("epochs", 1), local.get("max_steps")) if "Train" in terms.asks else 0
        return Charge("dp-sgd", privacy.noise_multiplier, batch / samples, passes * steps)

    found = (
        epsilon_of([*spent.get(client, []), planned(samples)], privacy.delta, privacy.mechanism)
        for client, samples in sizes.items()
        if samples
    )
    return max(found, default=0.0)


def describe_order(terms: OrderTerms, policy: "Policy", epsilon: float | None) -> list[tuple[str, str]]:
    """Describe an order in words, for the person who approves it: pairs of a heading and a line.

    Args:
        terms: The order.
        policy: The site's policy, which says what leaves.
        epsilon: As `estimate_epsilon` found it.
    """
    from coterie.deploy.explain import leaves
    from coterie.deploy.policy import ASKS

    lines = [("who asks", escape_text(terms.operator) or "the server's operator, who gave no name")]
    if terms.purpose:
        lines.append(("purpose", escape_text(terms.purpose, LONGEST_NOTE)))
    lines += [("methods", escape_text(", ".join(terms.methods), LONGEST_NOTE)), ("model", escape_text(terms.model))]
    lines.append(("rounds", _describe_rounds(terms)))
    allowed = [name for name in ASKS if name in terms.asks and _answers(policy, name)]
    lines.append(("asks", ", ".join(terms.asks)))
    for name in allowed:
        lines.append(("leaves", f"{name}: {next(leaves(name, policy, 'as many numbers as the model has')).removeprefix('Leaves: ')}"))
    if refused := [name for name in terms.asks if name not in allowed]:
        lines.append(("refused", f"{', '.join(refused)}: the policy does not answer {'it' if len(refused) == 1 else 'them'}"))
    lines.append(("privacy", _describe_privacy(policy, epsilon)))
    return lines


def _answers(policy: "Policy", name: "AskName") -> bool:
    return name in policy.asks and (not isinstance(policy.privacy, DpSgd) or name in ("Train", "Evaluate"))


def _describe_rounds(terms: OrderTerms) -> str:
    if terms.kind == "inspect":
        return "none: an inspection" + (", with a pilot training" if terms.local else "")
    seeds = f"{len(terms.seeds)} seed{'s' * (len(terms.seeds) > 1)}"
    cohort = terms.plan.get("cohort")
    cohorts = f"{cohort} clients a round" if cohort else "all clients in every round"
    epochs, batch = terms.local["epochs"], terms.local.get("batch_size")
    return f"{terms.rounds}, with {seeds}; {cohorts}; {epochs} local epoch{'s' * (epochs > 1)}, batches of {batch or 'all samples'}"


def _describe_privacy(policy: "Policy", epsilon: float | None) -> str:
    privacy = policy.privacy
    if isinstance(privacy, NoPrivacy) or epsilon is None:
        return "no mechanism: answers leave as they are, and no epsilon bounds what they tell"
    limit = f"the policy's limit is {privacy.epsilon_limit:g}" if privacy.epsilon_limit is not None else "the policy sets no limit"
    return f"{privacy.mechanism}: epsilon of a client at most about {epsilon:.3g} after this order (delta {privacy.delta:g}); {limit}"
