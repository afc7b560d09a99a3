"""What a plan may simulate: attacks by malicious clients, and how long clients take.

Both are keyed by (seed, client), as dropouts are: the same clients for every method of a seed. One unit of time is what a client of average
speed takes for a training as the plan describes it; half the epochs take half as long. In a file the unit is the file's own. Here are only
the settings: a real federation has neither.
"""

import csv
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Ids
from coterie.core.rng import make_key, to_uniforms
from coterie.core.roster import Roster
from coterie.core.settings import check_settings, setting
from coterie.core.specs import Registry


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What all attacks have in common."""

    share: float = setting(0.2, "Share of the clients that are hostile.", above=0, below=1)
    collude: bool = setting(False, "Whether they act as one.")
    site: str | None = setting(None, "A site, all of whose clients are hostile, instead of a share of all clients.")

    on_data: ClassVar[bool] = False  # whether it changes what hostile clients train on, and not what they answer

    def __post_init__(self) -> None:
        check_settings(self, "An attack")

    def hostile(self, roster: Roster, seed: int) -> Ids:
        """The hostile clients, ascending: those of the site, or so many that the share is met as nearly as can be, and at least one."""
        if self.site is not None:
            return np.flatnonzero(np.array(roster.sites) == self.site).astype(np.int64)
        return roster.lowest(make_key(seed, "hostile"), roster.clients, max(round(self.share * len(roster)), 1))


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Sends its update (or gradient) with the opposite sign; those who collude, that of their mean update."""


@dataclass(frozen=True, kw_only=True)
class Scale(Attack):
    """Sends its update (or gradient) times a factor; those who collude, their mean update times it."""

    factor: float = setting(-10.0, "Factor on the update.")


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Adds Gaussian noise to what it sends; those who collude all add the same."""

    factor: float = setting(3.0, "Length of the noise, in lengths of the client's own update.", least=0)


@dataclass(frozen=True, kw_only=True)
class Mimic(Attack):
    """Sends an honest client's update as its own, so that this client counts many times; those who collude all copy the same."""


@dataclass(frozen=True, kw_only=True)
class Count(Attack):
    """Trains honestly and says that it has many times its samples; to collude changes nothing."""

    times: float = setting(100.0, "Factor on the number of samples it says it has.", above=0)


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Trains on false labels: class c becomes c + s, each client with an s of its own; those who collude turn c into C - 1 - c."""

    on_data = True


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Trains half of its samples with a mark on them as if they were of the target class; to collude changes nothing."""

    on_data = True

    target: int = setting(0, "The class that marked samples shall be taken for.", least=0)


attacks: Registry[Attack] = Registry("attack")


attacks.add("signflip", SignFlip)


attacks.add("scale", Scale)


attacks.add("noise", Noise)


attacks.add("labelflip", LabelFlip)


attacks.add("backdoor", Backdoor)


attacks.add("count", Count)


attacks.add("mimic", Mimic)


def parse_attack(text: str | None) -> Attack | None:
    """The attack that a spec such as ``signflip(share=0.2)`` names; None for no attack."""
    return None if text is None else attacks.build(text)


def refuse_attack(text: str | None) -> None:
    """A real federation's clients are what they are."""
    if text is not None:
        raise UserError(f"The attack {text!r} is simulated, and a real federation has real clients: leave --attack away.")


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
    """Everybody takes 1."""

    def usual(self, roster: Roster, seed: int) -> Doubles:
        return np.ones(len(roster))


@dataclass(frozen=True)
class LogNormal(Speeds):
    """The logarithm of the time is normal: half of the clients take more than 1, a sixth more than e^sigma."""

    sigma: float = setting(1.0, "Standard deviation of the logarithm.", least=0)

    def usual(self, roster: Roster, seed: int) -> Doubles:
        shares = to_uniforms(roster.draws(make_key(seed, "speed"), roster.clients)) + 2.0**-54  # never 0, of which there is no quantile
        return np.exp([self.sigma * NormalDist().inv_cdf(share) for share in shares])


@dataclass(frozen=True)
class Slowed(Speeds):
    """A share of the clients takes `factor` times as long as the others, who take 1: as many as meet the share best, at least one."""

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
        """Read when a study begins or goes on, and not before: its settings can be read where the file is not."""
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


speeds: Registry[Speeds] = Registry("setting of speeds")


speeds.add("equal", Equal)


speeds.add("lognormal", LogNormal)


speeds.add("slowed", Slowed)


def parse_speeds(text: str | None) -> Speeds | None:
    """The speeds that a spec such as ``lognormal(1.0)`` or the name of a CSV file means; None where time is not simulated."""
    if text is None:
        return None
    return SpeedsFromFile(path=text) if text.lower().endswith(".csv") else speeds.build(text)


def refuse_speeds(text: str | None) -> None:
    """A real federation's clients take their own time."""
    if text is not None:
        raise UserError(f"The speeds {text!r} are simulated, and a real federation's clients take their own time: leave --speeds away.")
