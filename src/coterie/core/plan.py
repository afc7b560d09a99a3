"""The plan of a study: rounds, cohorts, local training, and the conditions that a simulation may add (attacks, client speeds).

Attacks and speeds are keyed by (seed, client), as dropouts are: the same clients for every method of a seed. One unit of time is what a
client of average speed takes for a training as the plan describes it; half the epochs take half as long. In a file the unit is the file's
own. A real federation has neither.
"""

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, inf, pi
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Doubles, Ids
from coterie.core.local import Local
from coterie.core.rng import make_key, to_uniforms
from coterie.core.roster import Roster, check_sampler
from coterie.core.settings import check_settings, setting
from coterie.core.specs import Registry


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What all attacks have in common."""

    share: float = setting(0.2, "Share of the clients that are malicious.", above=0, below=1)
    collude: bool = setting(False, "Whether they act as one.")
    site: str | None = setting(None, "A site, all of whose clients are malicious, instead of a share of all clients.")

    on_data: ClassVar[bool] = False  # whether it changes what malicious clients train on, and not what they answer

    def __post_init__(self) -> None:
        check_settings(self, "An attack")

    def select_malicious(self, roster: Roster, seed: int) -> Ids:
        """The malicious clients, ascending: those of the site, or so many that the share is met as nearly as can be, and at least one."""
        if self.site is not None:
            return np.flatnonzero(np.array(roster.sites) == self.site).astype(np.int64)
        return roster.lowest(make_key(seed, "hostile"), roster.clients, max(round(self.share * len(roster)), 1))

    def falsify(self, updates: Doubles, rows: Ids, rng: np.random.Generator) -> Doubles:
        """(h, d) what malicious clients send in place of `updates[rows]`, given the updates (or gradients) of all that answered (n, d)."""
        return np.asarray(updates[rows])


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Sends its update (or gradient) with the opposite sign; those that collude, that of their mean update."""

    def falsify(self, updates: Doubles, rows: Ids, rng: np.random.Generator) -> Doubles:
        return -_unite(updates[rows], self.collude)


@dataclass(frozen=True, kw_only=True)
class Scale(Attack):
    """Sends its update (or gradient) times a factor; those that collude, their mean update times it."""

    factor: float = setting(-10.0, "Factor on the update.")

    def falsify(self, updates: Doubles, rows: Ids, rng: np.random.Generator) -> Doubles:
        return self.factor * _unite(updates[rows], self.collude)


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Adds Gaussian noise to what it sends; those that collude all add the same."""

    factor: float = setting(3.0, "Length of the noise, in lengths of the client's own update.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Mimic(Attack):
    """Sends an honest client's update as its own, so that this client counts many times; those that collude all copy the same."""


@dataclass(frozen=True, kw_only=True)
class Count(Attack):
    """Trains honestly and reports many times its samples; to collude changes nothing."""

    times: float = setting(100.0, "Factor on the number of samples it reports.", above=0)


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Trains on false labels: class c becomes c + s, each client with an s of its own; those that collude turn c into C - 1 - c."""

    on_data = True


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Trains half of its samples with a mark on them as if they were of the target class; to collude changes nothing."""

    on_data = True

    target: int = setting(0, "The class that marked samples shall be taken for.", minimum=0)


def _unite(updates: Doubles, collude: bool) -> Doubles:
    """(h, d) the updates, or their mean in every row where they act as one."""
    return np.asarray(np.broadcast_to(updates.mean(axis=0), updates.shape) if collude else updates)


attacks: Registry[Attack] = Registry(
    "attack",
    "coterie.attacks",
    signflip=SignFlip,
    scale=Scale,
    noise=Noise,
    labelflip=LabelFlip,
    backdoor=Backdoor,
    count=Count,
    mimic=Mimic,
)


def parse_attack(text: str | None) -> Attack | None:
    """The attack that a spec such as ``signflip(share=0.2)`` names; None for no attack."""
    return None if text is None else attacks.build(text)


SPEED_COLUMNS = ("client", "time")


@dataclass(frozen=True, kw_only=True)
class Speeds(ABC):
    """What all of them have in common."""

    by_samples: bool = setting(False, "Whether it takes as much longer as the client has more training samples than the mean.")

    def __post_init__(self) -> None:
        check_settings(self, "The setting speeds")

    def times(self, roster: Roster, seed: int) -> Doubles:
        """(clients,) how long each takes for a training."""
        times = self.usual(roster, seed)
        return times * roster.sizes / max(float(roster.sizes.mean()), 1.0) if self.by_samples else times

    @abstractmethod
    def usual(self, roster: Roster, seed: int) -> Doubles:
        """(clients,) how long, had all as many samples."""


@dataclass(frozen=True)
class Equal(Speeds):
    """Every client takes 1."""

    def usual(self, roster: Roster, seed: int) -> Doubles:
        return np.ones(len(roster))


@dataclass(frozen=True)
class LogNormal(Speeds):
    """The logarithm of the time is normal: half of the clients take more than 1, a sixth more than e^sigma."""

    sigma: float = setting(1.0, "Standard deviation of the logarithm.", minimum=0)

    def usual(self, roster: Roster, seed: int) -> Doubles:
        shares = to_uniforms(roster.draws(make_key(seed, "speed"), roster.clients)) + 2.0**-54  # never 0, of which there is no quantile
        return np.exp([self.sigma * NormalDist().inv_cdf(share) for share in shares])


@dataclass(frozen=True)
class Slowed(Speeds):
    """A share of the clients takes `factor` times as long as the others, which take 1: as many as meet the share best, at least one."""

    share: float = setting(0.1, "Share of the clients that are slow.", above=0, below=1)
    factor: float = setting(10.0, "How many times as long they take.", above=0)

    def usual(self, roster: Roster, seed: int) -> Doubles:
        times = np.ones(len(roster))
        times[roster.lowest(make_key(seed, "speed"), roster.clients, max(round(self.share * len(roster)), 1))] = self.factor
        return times


@dataclass(frozen=True)
class SpeedsFromFile(Speeds):
    """Each client's time as a CSV file gives it, in columns `client` and `time`."""

    path: str = ""

    def usual(self, roster: Roster, seed: int) -> Doubles:
        """Read when a study starts or resumes, and not before: its settings can be read where the file is not."""
        found = self._read()
        if missing := [name for name in roster.ids if name not in found]:
            raise UserError(
                f"{self.path} has no time for the client {missing[0]!r}: it needs a line for each client, such as '{missing[0]},1'."
            )
        return np.array([found[name] for name in roster.ids])

    def _read(self) -> dict[str, float]:
        try:
            with Path(self.path).open(encoding="utf-8-sig", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"The speeds in {self.path} cannot be read ({error}): give a CSV file with columns client and time.") from error
        found: dict[str, float] = {}
        for number, row in enumerate(rows, start=2):
            try:
                name, time = (row[column] for column in SPEED_COLUMNS)
                found[name] = float(time)
            except (KeyError, TypeError, ValueError):
                raise UserError(f"{self.path}, line {number}: write a client and its time, under a first line 'client,time'.") from None
            if not 0 < found[name] < inf:
                raise UserError(f"{self.path}, line {number}: the time of {name!r} is {time}: give a number above 0.")
        return found


speeds: Registry[Speeds] = Registry("setting of speeds", equal=Equal, lognormal=LogNormal, slowed=Slowed)


def parse_speeds(text: str | None) -> Speeds | None:
    """The speeds that a spec such as ``lognormal(1.0)`` or the name of a CSV file means; None where time is not simulated."""
    if text is None:
        return None
    return SpeedsFromFile(path=text) if text.lower().endswith(".csv") else speeds.build(text)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings that all methods of a study share, as ``coterie run --help`` explains them.

    Example: ``ct.Plan(rounds=100, cohort=10, local=ct.Local(epochs=2, lr=0.1))``.
    """

    panel: ClassVar[str] = "Who takes part"  # of the command line's help

    rounds: int = setting(30, "Rounds.", minimum=1, panel="Training")
    cohort: int | None = setting(None, "Clients a round. Default: all that can be reached, or the window's share.", minimum=1)
    selection: str = setting(
        "uniform",
        "Which clients take part: uniform (a new sample each round), windows (over a random order) or 'package.module:function'.",
    )
    window: float = setting(0.3, "Share of the clients in a window; --cohort replaces it.", above=0, maximum=1)
    decay: float = setting(
        1.0, "Factor on the learning rate after each round (of schedule=step: after every step).", above=0, maximum=1, panel="Training"
    )
    schedule: Literal["exponential", "step", "cosine"] = setting(
        "exponential",
        "How the learning rate falls: exponential (by decay each round), step (by decay in steps) or cosine (to zero).",
        panel="Training",
    )
    step_every: int = setting(10, "Rounds between the steps of schedule=step.", minimum=1, panel="Training")
    dropout: float = setting(0.0, "Share of clients that do not answer in a round.", minimum=0, below=1)
    stragglers: float = setting(0.0, "Share of clients that finish only part of their epochs.", minimum=0, maximum=1)
    speeds: str | None = setting(
        None, "How long clients take in simulated time: equal, lognormal(1.0), slowed(share=0.1,factor=10), or a CSV file of client,time."
    )
    buffer_size: int | None = setting(
        None, "Aggregate after this many answers; later answers join later rounds (FedBuff). Default: wait for all.", minimum=1
    )
    concurrency: int | None = setting(None, "Clients at work at once in asynchronous rounds. Default: the cohort's size.", minimum=1)
    staleness: float = setting(
        0.5, "Exponent a of (1 + t)^-a, the weight of an update that started t asynchronous rounds earlier.", minimum=0
    )
    attack: str | None = setting(None, "What malicious clients do, such as 'signflip(share=0.2)'. Default: none is malicious.")
    counts: Literal["checked", "believed"] = setting("checked", "Sample counts: checked (against the roster) or believed.")
    norm_bound: float = setting(
        20.0, "How far a client may move from the model it is sent, in medians of the cohort; inf: no bound.", minimum=1, infinite=True
    )
    most_share: float | None = setting(
        None,
        "Largest share of one site's clients in the weights and votes of a model; 1: no bound. Default: no bound in a simulation, 1/3 in a "
        "real federation of at least four sites.",
        above=0,
        maximum=1,
    )
    loss: Literal["auto", "absolute"] = setting(
        "auto",
        "What clients minimise: auto (the task's cross-entropy or squared error) or absolute (of a regression).",
        panel="Training",
    )
    evaluate_every: int = setting(1, "Evaluate after every n-th round (and the last).", minimum=1, panel="Output")
    evaluate_clients: int | None = setting(
        None, "Clients that are evaluated, the same sample for all methods and seeds. Default: all.", minimum=2, panel="Output"
    )
    keep_clients: int | None = setting(
        None,
        "Clients whose rows are kept, a sample; of all evaluated clients, scores and quantiles are kept. Default: all.",
        minimum=2,
        panel="Output",
    )
    patience: int | None = setting(
        None, "Stop a run after this many evaluated rounds without a better validation score. Default: never.", minimum=1, panel="Training"
    )
    local: Local = field(default_factory=Local)

    def __post_init__(self) -> None:
        check_settings(self, "A study")
        parse_attack(self.attack)  # a wrong one is refused here
        parse_speeds(self.speeds)  # likewise
        if self.concurrency is not None and self.buffer_size is None:
            raise UserError("A study cannot use concurrency without buffer_size, the number of answers that a round waits for: give both.")
        check_sampler(self.selection)
        if self.schedule == "cosine" and self.decay != 1:
            raise UserError("A study cannot use decay with schedule=cosine, which sets how the rate falls: omit one of them.")
        if self.local.rule is not None:
            raise UserError("A local rule is part of a method, not of a study: give it within a method, by ctx.local.replace(rule=...).")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Plan":
        """The plan that a JSON file holds, in which an infinite bound is null."""
        rest = dict(tree)
        local = Local(**rest.pop("local"))
        if rest.get("norm_bound", 0) is None:
            rest["norm_bound"] = inf
        return cls(**rest, local=local)

    def check_real(self) -> None:
        """Refuse what a real federation does not do: its clients are what they are, and minimise the cross-entropy."""
        if self.attack is not None:
            raise UserError(f"The attack {self.attack!r} is simulated, and a real federation has real clients: omit --attack.")
        if self.speeds is not None:
            raise UserError(f"The speeds {self.speeds!r} are simulated; a real federation's clients take their own time: omit --speeds.")
        if self.loss != "auto":
            raise UserError(f"A real federation carries classifications, and loss={self.loss} is for a regression: omit --loss.")

    def check_sites(self, sites: Sequence[str] | None, data: str) -> None:
        """Refuse, at start-up, what needs to know the site of each client where the data name none."""
        attack = parse_attack(self.attack)
        wanted = attack.site if attack is not None else None
        if sites is None and (wanted is not None or self.most_share not in (None, 1)):
            what = f"most_share={self.most_share:g}" if wanted is None else f"the attack {self.attack!r}"
            raise UserError(
                f"{data!r} does not name the site of each client, which {what} needs: use csv(..., site=COLUMN) or .../sites(4)."
            )
        if sites is not None and wanted is not None and wanted not in sites:
            raise UserError(
                f"The attack {self.attack!r} names a site that {data!r} does not have: {suggest_names(wanted, sorted(set(sites)))}"
            )

    def check(self, clients: int) -> None:
        """Refuse, at start-up, a cohort that the roster cannot fill."""
        if self.cohort is not None and self.cohort > clients:
            raise UserError(f"The cohort is {self.cohort} clients but the federation has only {clients}: use --cohort {clients} or fewer.")
        size = self.cohort_size(clients)
        if self.buffer_size is not None and self.buffer_size > size:
            raise UserError(
                f"A buffer of {self.buffer_size} answers needs a cohort of as many clients, and it has {size}: "
                f"use --buffer-size {size} or fewer."
            )

    def cohort_size(self, clients: int) -> int:
        """How many clients are picked for a round, if all of so many can be reached."""
        window = max(round(self.window * clients), 1) if self.selection == "windows" else clients
        return self.cohort or window

    @property
    def sample_size(self) -> int | None:
        """How many clients rows are written of, where that is a sample; None: all clients."""
        return min((size for size in (self.evaluate_clients, self.keep_clients) if size is not None), default=None)

    def rate_factor(self, round_: int) -> float:
        """What the learning rate is multiplied by in a round; the first round, and the start before it, have the whole rate."""
        passed = max(round_ - 1, 0)
        if self.schedule == "cosine":
            return 0.5 * (1 + cos(pi * passed / self.rounds))
        return float(self.decay ** (passed // self.step_every if self.schedule == "step" else passed))

    def is_evaluated(self, round_: int) -> bool:
        """Whether a round ends with an evaluation."""
        return self.is_evaluated_anyway(round_) or round_ == self.rounds

    def is_evaluated_anyway(self, round_: int) -> bool:
        """Whether it would with more rounds to come."""
        return round_ % self.evaluate_every == 0
