"""Attacks that a plan may simulate: what hostile clients do, how many they are, and who they are.

Who is hostile is keyed by (seed, client), as dropouts are: the same clients for every method of a seed. Here are only the settings. What
hostile clients answer is made in `run.hostile_replies`, what they train on in `data.poisoning`; a real federation has neither.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.errors import UserError
from coterie.core.rng import key
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
        return roster.lowest(key(seed, "hostile"), roster.clients, max(round(self.share * len(roster)), 1))


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


def attack_of(text: str | None) -> Attack | None:
    """The attack that a spec such as ``signflip(share=0.2)`` names; None for no attack."""
    return None if text is None else attacks.build(text)


def refuse_attack(text: str | None) -> None:
    """A real federation's clients are what they are."""
    if text is not None:
        raise UserError(f"The attack {text!r} is simulated, and a real federation has real clients: leave --attack away.")
