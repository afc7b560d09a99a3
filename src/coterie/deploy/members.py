"""Who takes part in a run: the clients that sites told of, in an order that only grows.

A client keeps its number for the whole run, whatever happens to its site, so the list is kept on disk beside the evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.core.plain import write_json
from coterie.core.roster import Roster
from coterie.deploy.messages import SiteCard
from coterie.evidence.class_names import with_class_names


@dataclass(frozen=True)
class Member:
    """A client of a site."""

    id: str
    site: str
    train: int
    actual: tuple[int, ...]  # test samples by class; zeros where the site does not tell


@dataclass(frozen=True)
class Members:
    """All clients that ever took part, and what their samples have in common."""

    members: tuple[Member, ...]
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    validation: bool
    here: frozenset[str]  # the sites that are there now

    @classmethod
    def of(cls, cards: Mapping[str, SiteCard], order: Sequence[str], before: "Members | None" = None) -> "Members":
        """The members from what sites told, sites in the given order; those of `before` keep their places."""
        known = {member.id: member for member in before.members} if before is not None else {}
        first = before
        for site in sorted(cards, key=lambda name: (order.index(name) if name in order else len(order), name)):
            card = cards[site]
            own = cls((), tuple(card.input_shape), tuple(card.classes), bool(card.validation), frozenset())
            first = first or own
            _check_alike(first, own, site)
            for i, name in enumerate(card.ids):
                if name in known and known[name].site != site:
                    raise UserError(f"Sites {known[name].site!r} and {site!r} both have a client {name!r}: give one of them another id.")
                known[name] = Member(name, site, int(card.sizes[i]), tuple(int(c) for c in card.actual[i]))
        if first is None:
            raise UserError("No site is there: start some with 'coterie join'.")
        return replace(first, members=tuple(known.values()), here=frozenset(cards))

    @property
    def sites(self) -> dict[str, str]:
        """By client, its site."""
        return {member.id: member.site for member in self.members}

    def roster(self) -> Roster:
        """All members; reachable are those whose site is there."""
        found = Roster.of([member.id for member in self.members], np.array([member.train for member in self.members]))
        return replace(found, reachable=np.array([member.site in self.here for member in self.members], dtype=np.bool_))

    def table(self) -> pa.Table:
        """As evidence holds a roster."""
        counts = np.array([member.actual for member in self.members], dtype=np.int32)
        roster = pa.table(
            {
                "id": pa.array([member.id for member in self.members], pa.string()),
                "train": np.array([member.train for member in self.members], dtype=np.int32),
                "group": np.full(len(self.members), -1, dtype=np.int32),
                **{f"actual_{c}": counts[:, c] for c in range(len(self.classes))},
            }
        )
        return with_class_names(roster, self.classes)

    def write(self, path: Path) -> None:
        """Keep it for the next part of the run."""
        tree: dict[str, Any] = {
            "members": [[m.id, m.site, m.train, list(m.actual)] for m in self.members],
            "input_shape": list(self.input_shape),
            "classes": list(self.classes),
            "validation": self.validation,
        }
        write_json(path, tree)

    @classmethod
    def read(cls, path: Path) -> "Members":
        tree = read_object(path, members=list, input_shape=list, classes=list, validation=bool)
        members = tuple(Member(name, site, train, tuple(actual)) for name, site, train, actual in tree["members"])
        return cls(members, tuple(tree["input_shape"]), tuple(tree["classes"]), tree["validation"], frozenset())


def _check_alike(first: Members, own: Members, site: str) -> None:
    for what, one, two in (("samples of shape", first.input_shape, own.input_shape), ("the classes", first.classes, own.classes)):
        if one != two:
            raise UserError(f"Site {site!r} has {what} {two}, the others {one}: describe the same task at every site.")
    if first.validation != own.validation:
        raise UserError(f"Site {site!r} {'has' if own.validation else 'lacks'} validation parts, unlike the others: agree on it.")
