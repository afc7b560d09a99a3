"""How long clients take for a training, in simulated time: the settings that a plan names as ``--speeds``.

A client's time is keyed by (seed, client), as who is hostile is: the same for every method of a seed. One unit is what a client of the
usual speed takes for a training as the plan describes it; half the epochs take half as long. In a file the unit is the file's own.
"""

import csv
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import NormalDist

import numpy as np

from coterie.core.arrays import Doubles
from coterie.core.errors import UserError
from coterie.core.rng import key, uniforms
from coterie.core.roster import Roster
from coterie.core.settings import check_settings, setting
from coterie.core.specs import Registry

COLUMNS = ("client", "time")


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
        shares = uniforms(roster.draws(key(seed, "speed"), roster.clients)) + 2.0**-54  # never 0, of which there is no quantile
        return np.exp([self.sigma * NormalDist().inv_cdf(share) for share in shares])


@dataclass(frozen=True)
class Slowed(Speeds):
    """A share of the clients takes `factor` times as long as the others, who take 1: as many as meet the share best, at least one."""

    share: float = setting(0.1, "Share of the clients that are slow.", above=0, below=1)
    factor: float = setting(10.0, "How many times as long they take.", above=0)

    def usual(self, roster: Roster, seed: int) -> Doubles:
        times = np.ones(len(roster))
        times[roster.lowest(key(seed, "speed"), roster.clients, max(round(self.share * len(roster)), 1))] = self.factor
        return times


@dataclass(frozen=True)
class FromFile(Speeds):
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
                name, time = (row[column] for column in COLUMNS)
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


def speeds_of(text: str | None) -> Speeds | None:
    """The speeds that a spec such as ``lognormal(1.0)`` or the name of a CSV file means; None where time is not simulated."""
    if text is None:
        return None
    return FromFile(path=text) if text.lower().endswith(".csv") else speeds.build(text)


def refuse_speeds(text: str | None) -> None:
    """A real federation's clients take their own time."""
    if text is not None:
        raise UserError(f"The speeds {text!r} are simulated, and a real federation's clients take their own time: leave --speeds away.")
