"""What a method is: three generators over a state, the context in which they run, and the problem that it learns.

Beside its state a round writes notes: what the analysis reads is a field, anything else has a name. A method also declares how many models
it holds, from which memory and disk needs are estimated.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Words
from coterie.core.asks import Ask, Together, Trained
from coterie.core.layout import InitialModels, Layout, count_numbers
from coterie.core.local import Local
from coterie.core.mixing import Mixing, SiteBound, apply_mixing
from coterie.core.plan import Plan
from coterie.core.rng import make_generator, make_key
from coterie.core.roster import Roster, select_cohort
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import check_settings
from coterie.core.states import State
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.core.vectors import Sketch

if TYPE_CHECKING:
    from coterie.core.model import ModelSpec


@dataclass(frozen=True)
class Choice:
    """A number of groups, and what it was read from."""

    k: int
    how: str
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by name: a number for 1, 2, 3... groups (nan: not defined)
    p: float | None = None  # of the structure test: how likely one population would look as grouped


@dataclass
class Notes:
    """One round's notes."""

    mixing: Mixing | None = None  # how much each client counted
    clusters: tuple[Ids, Ids] | None = None  # groups that live for this round only: clients, and the label of each
    choice: Choice | None = None  # how the number of groups was chosen
    silhouette: float | None = None  # of the groups that were made
    named: dict[str, Any] = field(default_factory=dict)  # numbers, arrays, words: written as JSON


MAX_NEWCOMERS = 1 << 14  # newcomers that are asked at once, at most
MAX_PLACED_NUMBERS = 1 << 24  # numbers in all the models that newcomers send back at once, unless a round's own are more: 64 MiB


@dataclass(frozen=True)
class MemoryNeeds:
    """Models at a time, beside those of the round's cohort and the few that are shared. A lower bound, not a promise."""

    kept: float = 0.0  # for each client that has taken part, in the state, from round to round and in every checkpoint
    all_train: bool = False  # whether some round has all clients train at once
    gathered: int = 0  # clients that some round has train at once, where its cohort is smaller
    placing: bool = False  # whether newcomers train to be placed, some at a time
    served: float = 0.0  # for each client that is evaluated: a model of its own

    def times(self, states: int) -> "MemoryNeeds":
        """Of a method that runs so many states side by side, one after the other asking."""
        return replace(self, kept=self.kept * states)

    def count_newcomers_at_once(self, size: int, cohort: int) -> int:
        """Newcomers that are asked at once, of a model of so many numbers: never fewer than a round has train together, which are compared,
        guarded and waited for together."""
        return min(MAX_NEWCOMERS, max(MAX_PLACED_NUMBERS // size, cohort, self.gathered, 1)) if self.placing else MAX_NEWCOMERS

    def serving(self, models: float) -> "MemoryNeeds":
        """With so many models more for each client that is evaluated."""
        return replace(self, served=self.served + models)


NO_MEMORY_NEEDS = MemoryNeeds()
ALL_CLIENTS_TRAIN = MemoryNeeds(all_train=True)
S = TypeVar("S", bound=State)
T = TypeVar("T")
Round = Generator[Ask[Any], Any, T]
LIMITED_SITES = "limited_sites"  # the note that names the sites whose weight the plan's bound has cut
Aggregate = Callable[[Mixing, Floats, Floats], tuple[Floats, Mixing]]


@dataclass(frozen=True)
class Context:
    """What a method may know in one round: the roster, the layout, the plan, and randomness by purpose.

    Example: ``cohort = ctx.cohort()`` draws the clients of the round, and ``ctx.mix(mixing, replies, before)`` makes the new models.
    """

    roster: Roster
    layout: Layout
    plan: Plan
    seed: int
    round_: int  # 0 for the start
    notes: Notes = field(default_factory=Notes)
    outputs: int = 0  # classes, labels, or one number
    features: int = 0  # numbers of a sample
    validation: bool = False  # whether clients have validation parts
    task: Task = CLASSIFICATION
    aggregate: Aggregate = apply_mixing  # how models are made from replies by a matrix: a guard has another way
    truth: Ids | None = None  # (clients,) a scenario's true groups: given to methods under the oracle control, and to no other

    @property
    def local(self) -> Local:
        """Local training in this round, the learning rate decayed."""
        factor = self.plan.rate_factor(self.round_)
        return self.plan.local if factor == 1.0 else self.plan.local.replace(lr=self.plan.local.lr * factor)

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator for one named purpose of this round."""
        return make_generator(make_key(self.seed, purpose, self.round_))

    def draws(self, purpose: str, clients: Ids, *, lasting: bool = False) -> Words:
        """(n,) each client's own draw for a purpose: of this round, or, lasting, the same in every round."""
        return self.roster.draws(make_key(self.seed, purpose) if lasting else make_key(self.seed, purpose, self.round_), clients)

    def cohort(self, purpose: str = "cohort") -> Ids:
        """The clients of this round, ascending, as the plan selects them."""
        return select_cohort(self.plan.selection, self, self.plan.cohort, purpose)

    def sample(self, clients: Ids, size: int, purpose: str) -> Ids:
        """`size` of these clients, ascending, drawn as a cohort is drawn from all clients."""
        return self.roster.lowest(make_key(self.seed, purpose, self.round_), clients, size, self.plan.most_share or 1.0)

    def sketch(self, size: int | None, clip: float | None = None, noise: float = 0.0) -> Sketch | None:
        """The run's one projection to so many numbers; None where no size is given, or all that may be compared is no more than that."""
        most = int(self.layout.compared.sum())
        if size is None or (clip is None and size >= most):
            return None
        return Sketch(min(size, most), make_key(self.seed, "sketch"), clip, noise)

    def note(self, name: str, value: Array | float | str | None) -> None:
        """Write something of this round down as evidence."""
        self.notes.named[name] = value

    def mix(self, mixing: Mixing, replies: Trained, before: Floats) -> Floats:
        """Aggregate, and keep the matrix as evidence: the way every method makes its new models. Of no replies nothing is made."""
        if not np.array_equal(mixing.clients, replies.clients):
            raise ValueError("the matrix and the replies are of different clients: cut one with `replies.of(clients)`")
        if not len(replies):
            return before
        models, self.notes.mixing = self.aggregate(self.bound_mixing(mixing), replies.vectors, before)
        return models

    @property
    def site_bound(self) -> SiteBound | None:
        """The bound on a site's share, where the plan has one and the sites are known."""
        most, sites = self.plan.most_share, self.roster.site_numbers
        return None if most is None or most >= 1 or sites is None else SiteBound(sites, most)

    def bound_mixing(self, mixing: Mixing) -> Mixing:
        """The matrix with every site within its share, as `mix` applies it; the sites that it limits are noted."""
        bound = self.site_bound
        if bound is None or (bounded := bound.mixing(mixing)) is mixing:
            return mixing
        names = self.roster.site_names
        self.note(LIMITED_SITES, ", ".join(names[number] for number in bound.above(mixing)))
        return bounded

    def bound_weights(self, clients: Ids, weights: Doubles) -> Doubles:
        """(n,) weights of replies, with every site within its share: for what a method averages without `mix`."""
        bound = self.site_bound
        return weights if bound is None else bound.weights(clients, weights)

    def votes(self, clients: Ids) -> Doubles | None:
        """(n,) how much the vote of each client counts in a median or a trimmed mean, summing to one; None where all count alike."""
        bound = self.site_bound
        return None if bound is None else bound.votes(clients)


def done(value: T) -> Round[T]:
    """A round that asks nothing: for starts and servings that need no client.

    Args:
        value: What the round returns.

    Returns:
        A generator, for a method's `start` or `serve`.

    Example: ``return ct.done(state)``.
    """
    return value
    yield  # unreachable; makes this function a generator


def _keep_ask(ask: Ask[Any]) -> Ask[Any]:
    return ask


def _keep_reply(ask: Ask[Any], reply: Any) -> Any:
    return reply


def map_asks(
    script: Round[T],
    change: Callable[[Ask[Any]], Ask[Any]] = _keep_ask,
    receive: Callable[[Ask[Any], Any], Any] = _keep_reply,
) -> Round[T]:
    """The same script with something done to each of its asks before it leaves, and to each reply before the script has it: a script
    within a script. `receive` gets the ask as the script made it; of a `Together` each ask counts by itself."""
    reply: Any = None
    while True:
        try:
            ask = script.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        sent = ask.map(change)
        answer = yield sent
        singles = zip(ask.unpack(), _flatten(sent, answer), strict=True)
        reply = ask.pack(receive(single, own) for single, own in singles)


def _flatten(ask: Ask[Any], answer: Any) -> list[Any]:
    """The replies to the single asks, in their order: the inverse of `Ask.pack`."""
    if not isinstance(ask, Together):
        return [answer]
    return [single for own, part in zip(ask.asks, answer, strict=True) for single in _flatten(own, part)]


def run_together(scripts: Sequence[Round[T]]) -> Round[list[T]]:
    """Run several scripts side by side, such as one round of several methods: ``states = yield from ct.run_together(rounds)``.

    As the driver does with lanes, it asks what is cheap first, and has clients train when every script waits for it. No script sees the
    others; each gets the replies that it would get alone.

    Args:
        scripts: Generators of asks.

    Returns:
        What each script returns, in their order.
    """
    waiting: dict[int, Ask[Any]] = {}
    results: dict[int, T] = {}

    def advance(number: int, reply: Any) -> None:
        try:
            waiting[number] = scripts[number].send(reply)
        except StopIteration as end:
            waiting.pop(number, None)
            results[number] = end.value

    for number in range(len(scripts)):
        advance(number, None)
    while waiting:
        now = [number for number, ask in waiting.items() if not ask.is_training] or list(waiting)
        replies = yield from Together(*(waiting[number] for number in now))
        for number, reply in zip(now, replies, strict=True):
            advance(number, reply)
    return [results[number] for number in range(len(scripts))]


@dataclass(frozen=True, kw_only=True)
class Method(ABC, Generic[S]):
    """An algorithm: hyper-parameters, and three generators that ask clients and wait.

    A method sees a roster and replies, never data. Subclasses are frozen dataclasses whose constructors only store.

    Example: ``class Mine(ct.OneModelMethod)`` with a method ``round(self, state, ctx)``; a tutorial writes one.
    """

    def __post_init__(self) -> None:
        """Refuse settings that are out of bounds or no choice; subclasses add what only they can know after calling this."""
        check_settings(self)

    @abstractmethod
    def start(self, init: InitialModels, ctx: Context) -> Round[S]:
        """The first state; may ask (cold starts, warm-ups)."""

    @abstractmethod
    def round(self, state: S, ctx: Context) -> Round[S]:
        """One round: the next state."""

    @abstractmethod
    def serve(self, state: S, clients: Ids, ctx: Context) -> Round[Serving]:
        """Which model each of these clients gets, new ones too; may ask."""

    def admit(self, state: S, clients: Ids, ctx: Context) -> Round[S]:
        """The state with what these newcomers need before they are served for good (a bundle, a placement); may ask.

        Methods that serve newcomers from what they have need nothing.
        """
        return done(state)

    def central(self, state: S) -> NamedModels | None:
        """The models to judge on the server's own test set; None when no model is meant for all clients."""
        return None

    def members(self, state: S) -> Ids | None:
        """(clients,) the group of each client, -1 for one not yet in a group; None when the method keeps no groups."""
        return None

    @property
    def sees_truth(self) -> bool:
        """Whether it is an oracle control, which alone is shown a scenario's true groups."""
        return getattr(self, "assign", None) == "oracle"

    @property
    def memory_needs(self) -> MemoryNeeds:
        """What it holds for each client; default: nothing."""
        return NO_MEMORY_NEEDS

    @property
    def is_local(self) -> bool:
        """Whether clients train alone: one that never trained has nothing but the common start."""
        return False

    @property
    def proximal(self) -> float:
        """The weight mu of the proximal term that its clients train with; 0 without one."""
        return 0.0

    @property
    def weighs_alike(self) -> bool:
        """Whether it counts clients (or clusters of them) alike where FedAvg counts samples."""
        return getattr(self, "weighting", None) == "uniform"

    @property
    def groups_cohort(self) -> bool:
        """Whether its groups are made of one round's cohort, and not of all clients: their number is then bounded by the cohort."""
        return False

    @property
    def combines_models(self) -> bool:
        """Whether several models together answer for a client: there is then no one model that the client could train further."""
        return False

    @property
    def trains_once(self) -> bool:
        """Whether a round is one `Train` of the one shared model, and nothing is remembered of single clients: answers to the question of
        an earlier round can then count in it, which is what asynchronous rounds need."""
        return False


def _no_truth(round_: int) -> Ids | None:
    """Of a federation whose true groups are unknown. It has a name, so that a problem can be sent to another process."""
    return None


@dataclass(frozen=True, eq=False)
class Problem:
    """A roster, a model and what evaluation can be asked for.

    In a simulation, `roster_at` and `truth_at` follow the world as it changes; `truth_at` gives the true groups of a scenario, which only
    the oracle control is ever shown.
    """

    model: "ModelSpec"
    roster_at: Callable[[int], Roster]  # the roster as a round finds it; clients are only ever added
    truth_at: Callable[[int], Ids | None] = _no_truth
    validation: bool = False  # whether clients have validation parts
    central: bool = False  # whether the server has a test set of its own
    task: Task = CLASSIFICATION
    with_unseen: "Problem | None" = None  # the same with the unseen clients, last: they take no part and are served
    unlabelled: bool = False  # whether these have no labels, and so answer no question when they are served

    @property
    def roster(self) -> Roster:
        """All clients, reachable or not."""
        return self.roster_at(0)

    @property
    def layout(self) -> Layout:
        return self.model.layout

    def context(self, plan: Plan, seed: int, round_: int) -> Context:
        """What a method, or any script of asks, may know in one round."""
        return Context(
            self.roster_at(round_),
            self.layout,
            plan,
            seed,
            round_,
            outputs=self.model.outputs,
            features=count_numbers(self.model.input_shape),
            validation=self.validation,
            task=self.task,
        )

    def initial(self, seed: int) -> InitialModels:
        """The keyed factory of initial models of one seed."""
        return self.model.initial(seed)
