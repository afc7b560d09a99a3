"""What a method is: three generators over a state, and the context in which they run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Words
from coterie.core.asks import Ask, Trained
from coterie.core.holdings import NOTHING, Holdings
from coterie.core.layout import InitialModels, Layout
from coterie.core.local import Local
from coterie.core.mixing import Mixing, mixed_plainly
from coterie.core.notes import Notes
from coterie.core.plan import Plan
from coterie.core.rng import generator, key
from coterie.core.roster import Roster
from coterie.core.samplers import sampled
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import check_settings
from coterie.core.site_shares import SiteBound
from coterie.core.sketches import Sketch
from coterie.core.states import State
from coterie.core.tasks import CLASSIFICATION, Task

S = TypeVar("S", bound=State)
T = TypeVar("T")
Round = Generator[Ask[Any], Any, T]
LIMITED_SITES = "limited_sites"  # the note that names the sites whose weight the plan's bound has cut
Aggregate = Callable[[Mixing, Floats, Floats], tuple[Floats, Mixing]]


@dataclass(frozen=True)
class Context:
    """What a method may know in one round: the roster, the layout, the plan, and randomness by purpose."""

    roster: Roster
    layout: Layout
    plan: Plan
    seed: int
    round_: int  # 0 for the start
    notes: Notes = field(default_factory=Notes)
    outputs: int = 0  # classes, labels, or one number
    validation: bool = False  # whether clients have validation parts
    task: Task = CLASSIFICATION
    aggregate: Aggregate = mixed_plainly  # how models are made from replies by a matrix: a guard has another way
    truth: Ids | None = None  # (clients,) a scenario's true groups: given to methods under the oracle control, and to no other

    @property
    def local(self) -> Local:
        """Local training in this round, the learning rate decayed."""
        factor = self.plan.rate_factor(self.round_)
        return self.plan.local if factor == 1.0 else self.plan.local.but(lr=self.plan.local.lr * factor)

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator for one named purpose of this round."""
        return generator(key(self.seed, purpose, self.round_))

    def draws(self, purpose: str, clients: Ids, *, lasting: bool = False) -> Words:
        """(n,) each client's own draw for a purpose: of this round, or, lasting, the same in every round."""
        return self.roster.draws(key(self.seed, purpose) if lasting else key(self.seed, purpose, self.round_), clients)

    def cohort(self, purpose: str = "cohort") -> Ids:
        """The clients of this round, ascending, as the plan selects them."""
        return sampled(self.plan.selection, self, self.plan.cohort, purpose)

    def sample(self, clients: Ids, size: int, purpose: str) -> Ids:
        """`size` of these clients, ascending, drawn as a cohort is drawn from everybody."""
        return self.roster.lowest(key(self.seed, purpose, self.round_), clients, size, self.plan.most_share or 1.0)

    def sketch(self, size: int | None, clip: float | None = None, noise: float = 0.0) -> Sketch | None:
        """The run's one projection to so many numbers; None where nothing is said, or all that may be compared is no more than that."""
        most = int(self.layout.compared.sum())
        if size is None or (clip is None and size >= most):
            return None
        return Sketch(min(size, most), key(self.seed, "sketch"), clip, noise)

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
    """A generator that asks nothing: for starts and servings that need no client."""
    return value
    yield  # unreachable; makes this function a generator


def changed(script: Round[T], change: Callable[[Ask[Any]], Ask[Any]]) -> Round[T]:
    """The same script with something done to each of its asks on their way: a script within a script."""
    try:
        ask = next(script)
        while True:
            ask = script.send((yield change(ask)))
    except StopIteration as end:
        value: T = end.value
        return value


@dataclass(frozen=True, kw_only=True)
class Method(ABC, Generic[S]):
    """An algorithm: hyper-parameters, and three generators that ask clients and wait.

    A method sees a roster and replies, never data. Subclasses are frozen dataclasses whose constructors only store.
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
        """The models to judge on the server's own test set; None when no model is meant for everybody."""
        return None

    def members(self, state: S) -> Ids | None:
        """(clients,) the group of each client, -1 for one not yet in a group; None when the method keeps no groups."""
        return None

    @property
    def sees_truth(self) -> bool:
        """Whether it is an oracle control, which alone is shown a scenario's true groups."""
        return getattr(self, "assign", None) == "oracle"

    @property
    def holdings(self) -> Holdings:
        """What it holds for each client: nothing, unless it says so."""
        return NOTHING

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
        return False

    @property
    def groups_cohort(self) -> bool:
        """Whether its groups are made of one round's cohort, and not of all clients: their number is then bounded by the cohort."""
        return False

    @property
    def trains_once(self) -> bool:
        """Whether a round is one `Train` of the one shared model, and nothing is remembered of single clients: answers to the question of
        an earlier round can then count in it, which is what asynchronous rounds need."""
        return False
