"""Who takes part in a run: the clients that sites told of, in an order that only grows.

A client keeps its number for the whole run, whatever happens to its site, so the list is kept on disk beside the evidence. A site whose
card contradicts what is known takes no part in the job; the others do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.json_object import read_object
from coterie.core.plain import write_json
from coterie.core.roster import Roster
from coterie.deploy.checks import shown
from coterie.deploy.federation import Claim
from coterie.deploy.messages import SiteCard
from coterie.evidence.class_names import with_class_names

Task = tuple[tuple[int, ...], tuple[str, ...], bool]  # the shape of a sample, the classes, whether there are validation parts


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
    claims: Mapping[str, Claim] = field(default_factory=dict)  # by site, the clients and samples that it first said to have

    @property
    def sites(self) -> dict[str, str]:
        """By client, its site."""
        return {member.id: member.site for member in self.members}

    @property
    def task(self) -> Task:
        """What all sites must agree on."""
        return self.input_shape, self.classes, self.validation

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
            "claims": {site: [claim.clients, claim.samples] for site, claim in self.claims.items()},
        }
        write_json(path, tree)

    @classmethod
    def read(cls, path: Path) -> "Members":
        tree = read_object(path, members=list, input_shape=list, classes=list, validation=bool)
        members = tuple(Member(name, site, train, tuple(actual)) for name, site, train, actual in tree["members"])
        claims = {site: Claim(clients, samples) for site, (clients, samples) in tree.get("claims", {}).items()}
        return cls(members, tuple(tree["input_shape"]), tuple(tree["classes"]), tree["validation"], frozenset(), claims)


def admit_sites(
    cards: Mapping[str, SiteCard], order: Sequence[str], before: Members | None = None, roster: Mapping[str, Claim] | None = None
) -> tuple[Members | None, dict[str, str]]:
    """The members from what sites told, those of `before` in their places, and why sites take no part. None where no site is left.

    Args:
        cards: By site, what it told; each checked by itself.
        order: The sites as the federation lists them.
        before: The members of an earlier job of the run: what they said then counts.
        roster: By site, what the operator lets it claim. A site that is not listed may claim what it first said in the run.
    """
    allowed = roster or {}
    ranked = sorted(cards, key=lambda name: (order.index(name) if name in order else len(order), name))
    refused: dict[str, str] = {}
    task = before.task if before is not None else _usual_task([cards[site] for site in ranked])
    for site in ranked:
        fault = _differs(cards[site], task) or _claims_too_much(cards[site], site, before, allowed)
        if fault:
            refused[site] = fault
    refused |= _disputes({site: cards[site] for site in ranked if site not in refused}, before, allowed)
    taken = [site for site in ranked if site not in refused]
    if before is None and not taken:
        return None, refused
    known = {member.id: member for member in before.members} if before is not None else {}
    claims = dict(before.claims) if before is not None else {}
    for site in taken:
        card = cards[site]
        rows = zip(card.ids, card.sizes.tolist(), card.actual.tolist(), strict=True)
        known |= {name: Member(name, site, train, tuple(actual)) for name, train, actual in rows}
        claims.setdefault(site, _claim(card))
    return Members(tuple(known.values()), *task, frozenset(taken), claims), refused


def _task(card: SiteCard) -> Task:
    return tuple(card.input_shape), tuple(card.classes), card.validation


def _usual_task(cards: Sequence[SiteCard]) -> Task:
    """What most sites describe; of two that are as usual, the one that comes first."""
    return Counter(_task(card) for card in cards).most_common(1)[0][0] if cards else ((), (), False)


def _differs(card: SiteCard, task: Task) -> str:
    """How a card describes another task; empty where it does not."""
    shape, classes, validation = task
    if tuple(card.input_shape) != shape:
        return f"it has samples of shape {tuple(card.input_shape)}, the others {shape}: describe the same task at every site"
    if tuple(card.classes) != classes:
        return f"it has the classes {shown(card.classes)}, the others {shown(classes)}: describe the same task at every site"
    if card.validation != validation:
        return f"it {'has' if card.validation else 'lacks'} validation parts, unlike the others: agree on it"
    return ""


def _claim(card: SiteCard) -> Claim:
    return Claim(len(card.ids), int(card.sizes.sum()))


def _claims_too_much(card: SiteCard, site: str, before: Members | None, roster: Mapping[str, Claim]) -> str:
    """How a card says more than its site may: by the operator's roster, or else by what it first said in the run."""
    own = roster.get(site)
    most, whose = (own, "the operator's roster lets it have") if own is not None else (None, "it had when the run began")
    if most is None and before is not None:
        most = before.claims.get(site)
    if most is None:
        return ""
    way = f"the operator may change it with 'coterie federation roster FED {site}'"
    if most.ids is not None and (strange := [name for name in card.ids if name not in set(most.ids)]):
        return f"it has a client {shown(strange[0])!r} that the operator's roster does not list: {way}"
    for what, said, limit in (("clients", len(card.ids), most.clients), ("training samples", int(card.sizes.sum()), most.samples)):
        if limit is not None and said > limit:
            return f"it says it has {said:,} {what}, and {whose} {limit:,}: {way}"
    return ""


def _disputes(cards: Mapping[str, SiteCard], before: Members | None, roster: Mapping[str, Claim]) -> dict[str, str]:
    """Which sites claim a client of another. It belongs to the site that had it before, or that the roster lists it for; where neither
    says, the site that disputes with most others is refused, and of two the later one."""
    owner = before.sites if before is not None else {}
    owner = {name: site for site, claim in roster.items() for name in claim.ids or ()} | owner
    refused: dict[str, str] = {}
    for site, card in cards.items():
        taken = next((name for name in card.ids if owner.get(name, site) != site), None)
        if taken is not None:
            refused[site] = _not_yours(taken, owner[taken])
    left = [site for site in cards if site not in refused]
    claimants: dict[str, list[str]] = {}
    for site in left:
        for name in cards[site].ids:
            claimants.setdefault(name, []).append(site)
    disputed = {name: sites for name, sites in claimants.items() if len(sites) > 1}
    while disputed:
        against = {site: {each for sites in disputed.values() if site in sites for each in sites} for site in left}
        worst = max(left, key=lambda site: (len(against[site]), left.index(site)))
        name, sites = next((name, sites) for name, sites in disputed.items() if worst in sites)
        refused[worst] = _not_yours(name, next(site for site in sites if site != worst))
        left.remove(worst)
        disputed = {name: rest for name, sites in disputed.items() if len(rest := [site for site in sites if site != worst]) > 1}
    return refused


def _not_yours(name: str, site: str) -> str:
    return f"it has a client {shown(name)!r}, which is a client of site {site!r}: give it another id"
