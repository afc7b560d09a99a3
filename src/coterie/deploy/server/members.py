"""The clients of a run, in an order that only grows, and the columns that their sites share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie._util.errors import UserError
from coterie._util.json_io import read_json_object, write_json
from coterie.core.arrays import Ints
from coterie.core.roster import Roster
from coterie.core.tasks import CLASSIFICATION
from coterie.core.tasks import Task as LearnedTask
from coterie.data.checks import TINY
from coterie.data.schema import Schema, SchemaColumn, check_schema
from coterie.deploy.messages import MessageError, SiteCard, read_schema
from coterie.deploy.server.federation import Claim
from coterie.deploy.server.validation import clean_text
from coterie.evidence.tables import add_class_names, add_grid, make_exit_columns

MOST_NAMED = 5  # sites or classes that a sentence names
Task = tuple[tuple[int, ...], tuple[str, ...], bool]  # the shape of a sample, the classes, whether there are validation parts


@dataclass(frozen=True)
class Member:
    """A client of a site."""

    id: str
    site: str
    train: int
    actual: tuple[int, ...]  # test samples by class; zeros where the site does not disclose them


@dataclass(frozen=True)
class Members:
    """All clients that ever took part, and what their samples have in common."""

    members: tuple[Member, ...]
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    validation: bool
    here: frozenset[str]  # the sites that are there now
    claims: Mapping[str, Claim] = field(default_factory=dict)  # by site, the clients and samples that it first claimed
    schema: str = ""  # the columns of all sites, as JSON; empty where samples have no named columns
    versions: Mapping[str, str] = field(default_factory=dict)  # by site, the version of Coterie that it last stated
    exits: Mapping[str, Ints] = field(default_factory=dict)  # of survival times, by client: (2, K + 1) training samples by interval

    @property
    def learned(self) -> LearnedTask:
        """What is predicted."""
        return read_schema(self.schema).make_task() if self.schema else CLASSIFICATION

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
        found = Roster.from_sizes([member.id for member in self.members], np.array([member.train for member in self.members]))
        return replace(found, reachable=np.array([member.site in self.here for member in self.members], dtype=np.bool_))

    def table(self) -> pa.Table:
        """As evidence holds a roster. What of survival times models do not change is in every round: here it is not known."""
        counts = np.array([member.actual for member in self.members], dtype=np.int32)
        common = {
            "id": pa.array([member.id for member in self.members], pa.string()),
            "train": np.array([member.train for member in self.members], dtype=np.int32),
            "group": np.full(len(self.members), -1, dtype=np.int32),
        }
        task = self.learned
        if task.counts_classes:
            return add_class_names(pa.table(common | {f"actual_{c}": counts[:, c] for c in range(len(self.classes))}), self.classes)
        nothing = np.zeros((2, len(task.grid)), dtype=np.int64)
        exits = np.array([self.exits.get(member.id, nothing) for member in self.members])
        fixed = {name: np.zeros(len(counts)) for name in task.sums if name.startswith("target_")}
        roster = pa.table(common | {"samples": counts.sum(axis=1).astype(np.int32)} | fixed | make_exit_columns(exits))
        return add_grid(roster, task.grid)

    def write(self, path: Path) -> None:
        """Keep it for the next part of the run."""
        tree: dict[str, Any] = {
            "members": [[m.id, m.site, m.train, list(m.actual)] for m in self.members],
            "input_shape": list(self.input_shape),
            "classes": list(self.classes),
            "validation": self.validation,
            "claims": {site: [claim.clients, claim.samples] for site, claim in self.claims.items()},
            "schema": self.schema,
            "versions": dict(self.versions),
            "exits": {client: own.tolist() for client, own in self.exits.items()},
        }
        write_json(path, tree)

    @classmethod
    def read(cls, path: Path) -> "Members":
        tree = read_json_object(path, members=list, input_shape=list, classes=list, validation=bool)
        members = tuple(Member(name, site, train, tuple(actual)) for name, site, train, actual in tree["members"])
        claims = {site: Claim(clients, samples) for site, (clients, samples) in tree.get("claims", {}).items()}
        task = tuple(tree["input_shape"]), tuple(tree["classes"]), tree["validation"]
        versions = {str(site): str(version) for site, version in tree.get("versions", {}).items()}
        exits = {str(client): np.array(own, dtype=np.int64) for client, own in tree.get("exits", {}).items()}
        return cls(members, *task, frozenset(), claims, _parse_stored(tree.get("schema", ""), path), versions, exits)


def read_stored_schema(path: Path) -> str:
    """The schema that a federation keeps of its last run, as JSON; empty where there is none."""
    return _parse_stored(read_json_object(path, schema=str)["schema"], path) if path.exists() else ""


def _parse_stored(text: Any, path: Path) -> str:
    if text == "":
        return ""
    try:
        return read_schema(text).to_json()
    except MessageError as error:
        raise UserError(f"{path} holds {error}: restore the file, or delete it.") from error


def choose_schema(texts: Sequence[str], stored: str = "") -> str:
    """The schema that the sites of a run should share, as JSON.

    The columns are those that most sites have, by their names. Of the schemas with these columns the one is chosen that most sites fit:
    neither a site with a misspelt word nor one that lacks a class becomes the measure of the others. One candidate more has the words and
    classes that at least two sites have. A `stored` schema of an earlier run is kept if at least half of the sites fit it. The result is
    empty where most sites have no named columns.
    """
    details = [Schema() if not text else read_schema(text) for text in texts]
    kinds: dict[Any, tuple[Schema, int]] = {}  # schemas that differ by more than an order are looked at once
    for schema in details:
        first, count = kinds.get(_sort_columns(schema), (schema, 0))
        kinds[_sort_columns(schema)] = first, count + 1

    def count_fitting(candidate: Schema) -> int:
        return sum(count for schema, count in kinds.values() if _is_compatible(schema, candidate))

    if stored and 2 * count_fitting(read_schema(stored)) >= len(details):
        return stored
    names = Counter(frozenset(column.name for column in schema.columns) for schema in details)
    usual = names.most_common(1)[0][0] if names else frozenset()
    if not usual:
        return ""
    own = [schema for schema, _ in kinds.values() if {column.name for column in schema.columns} == usual]
    common = _merge_schemas([schema for schema in details if {column.name for column in schema.columns} == usual])
    return max([*own, *([common] if common.classes else [])], key=count_fitting).to_json()


def _sort_columns(schema: Schema) -> Any:
    columns = frozenset((column.name, column.kind, frozenset(column.categories)) for column in schema.columns)
    return columns, frozenset(schema.classes), schema.shape, schema.task, schema.scale, schema.impute, schema.statistics, str(schema.text)


def _is_compatible(own: Schema, schema: Schema) -> bool:
    try:
        check_schema(own, schema, "")
    except UserError:
        return False
    return True


def _merge_schemas(schemas: Sequence[Schema]) -> Schema:
    """The words and classes that at least two of the schemas have, in columns of the kind that most have."""

    def shared(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
        counts = Counter(word for words in lists for word in words)
        return tuple(word for word, count in counts.items() if count > 1)

    columns = []
    for column in schemas[0].columns:
        same = [each for schema in schemas for each in schema.columns if each.name == column.name]
        kind = Counter(each.kind for each in same).most_common(1)[0][0]
        columns.append(SchemaColumn(column.name, kind, shared([each.categories for each in same]) if kind == "category" else ()))
    made = replace(schemas[0], columns=tuple(columns), classes=shared([schema.classes for schema in schemas]))
    return made if any(column.kind == "text" for column in columns) else replace(made, shape=(len(made.features),))


def describe_thin_sites(members: Members, cards: Mapping[str, SiteCard]) -> list[str]:
    """What the first cards of a run show that results may suffer from: clients with few samples, and sites that lack a class.

    The cards are those before the sites agreed on a schema. Numbers that a policy hides are not mentioned.
    """
    sentences = []
    tiny = [f"{member.id} ({member.train})" for member in members.members if 1 < member.train < TINY]
    if tiny:
        sentences.append(f"Fewer than {TINY} training samples: {_join_names(tiny)}. Their own scores are uncertain.")
    own = {site: read_schema(card.schema).classes for site, card in cards.items() if card.schema and site in members.here}
    lacking = [
        f"{clean_text(name)} at {_join_names(sites)}"
        for name in members.classes
        if (sites := [site for site in sorted(own) if name not in own[site]])
    ]
    return [*sentences, *([f"No samples of a class: {_join_names(lacking, '; ')}."] if lacking else [])]


def _join_names(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return between.join(map(clean_text, names[:MOST_NAMED])) + more


def admit_sites(
    cards: Mapping[str, SiteCard], order: Sequence[str], before: Members | None = None, roster: Mapping[str, Claim] | None = None
) -> tuple[Members | None, dict[str, str]]:
    """The members from the sites' cards, those of `before` in their places, and why sites take no part. None where no site is left.

    What the members of an earlier job stated then counts. A site that is not in the operator's roster may claim what it first stated.
    """
    allowed = roster or {}
    ranked = sorted(cards, key=lambda name: (order.index(name) if name in order else len(order), name))
    refused: dict[str, str] = {}
    described: list[Task] = [(tuple(card.input_shape), tuple(card.classes), card.validation) for card in (cards[site] for site in ranked)]
    usual = Counter(described).most_common(1)[0][0] if described else ((), (), False)  # of two that are as usual, the first
    task = before.task if before is not None else usual
    for site in ranked:
        fault = _describe_difference(cards[site], task) or _find_excess_claim(cards[site], site, before, allowed)
        if fault:
            refused[site] = fault
    refused |= _find_disputes({site: cards[site] for site in ranked if site not in refused}, before, allowed)
    taken = [site for site in ranked if site not in refused]
    if before is None and not taken:
        return None, refused
    known = {member.id: member for member in before.members} if before is not None else {}
    claims = dict(before.claims) if before is not None else {}
    for site in taken:
        card = cards[site]
        rows = zip(card.ids, card.sizes.tolist(), card.actual.tolist(), strict=True)
        known |= {name: Member(name, site, train, tuple(actual)) for name, train, actual in rows}
        claims.setdefault(site, Claim(len(card.ids), int(card.sizes.sum())))
    return Members(tuple(known.values()), *task, frozenset(taken), claims), refused


def _describe_difference(card: SiteCard, task: Task) -> str:
    """How a card describes another task; empty where it does not."""
    shape, classes, validation = task
    if tuple(card.input_shape) != shape:
        return f"it has samples of shape {tuple(card.input_shape)}, the others {shape}: describe the same task at every site"
    if tuple(card.classes) != classes:
        return f"it has the classes {clean_text(card.classes)}, the others {clean_text(classes)}: describe the same task at every site"
    if card.validation != validation:
        return f"it {'has' if card.validation else 'lacks'} validation parts, unlike the others: agree on it"
    return ""


def _find_excess_claim(card: SiteCard, site: str, before: Members | None, roster: Mapping[str, Claim]) -> str:
    """How a card claims more than its site may: by the operator's roster, or else by what it first claimed in the run."""
    own = roster.get(site)
    most, source = own, "the operator's roster lets it have"
    if own is None:
        most, source = before.claims.get(site) if before is not None else None, "it had when the run began"
    if most is None:
        return ""
    way = f"the operator may change it with 'coterie federation roster FED {site}'"
    if most.ids is not None and (strange := [name for name in card.ids if name not in set(most.ids)]):
        return f"it has a client {clean_text(strange[0])!r} that the operator's roster does not list: {way}"
    for what, response, limit in (("clients", len(card.ids), most.clients), ("training samples", int(card.sizes.sum()), most.samples)):
        if limit is not None and response > limit:
            return f"it claims {response:,} {what}, and {source} {limit:,}: {way}"
    return ""


def _find_disputes(cards: Mapping[str, SiteCard], before: Members | None, roster: Mapping[str, Claim]) -> dict[str, str]:
    """Which sites claim a client of another. It belongs to the site that had it before, or that the roster lists it for; where neither
    decides, the site that disputes with most others is refused, and of two the later one."""
    owner = before.sites if before is not None else {}
    owner = {name: site for site, claim in roster.items() for name in claim.ids or ()} | owner
    refused: dict[str, str] = {}
    for site, card in cards.items():
        taken = next((name for name in card.ids if owner.get(name, site) != site), None)
        if taken is not None:
            refused[site] = _describe_dispute(taken, owner[taken])
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
        refused[worst] = _describe_dispute(name, next(site for site in sites if site != worst))
        left.remove(worst)
        disputed = {name: rest for name, sites in disputed.items() if len(rest := [site for site in sites if site != worst]) > 1}
    return refused


def _describe_dispute(name: str, site: str) -> str:
    return f"it has a client {clean_text(name)!r}, which is a client of site {site!r}: give it another id"
