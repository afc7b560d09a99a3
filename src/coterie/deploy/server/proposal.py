"""A schema proposed from what sites report of their columns: names that mean the same, types, bounds, categories and marks of gaps."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from statistics import median

from coterie._util.errors import UserError
from coterie.data.agreed_schema import MOST_COLUMNS, MOST_WORDS, AgreedColumn, AgreedSchema, SchemaNotes
from coterie.data.labels import INTERVALS
from coterie.data.site_table import UNIT_RATIO
from coterie.deploy.table_answers import ColumnDescription, TableDescription

ALIKE = 0.8  # of two names: one is taken for a misspelling of the other
WIDER = 0.5  # by which share of the range bounds are wider than what most rows hold
HEAD = (
    "What the tables of all sites should hold. Edit it, then check it: coterie federation schema FED.",
    "Columns that are not here are not learned from. 'required = false': a site without the column has gaps in it.",
    "Bounds are wider than what sites report; values outside are impossible. 'typical' finds values in other units.",
)


@dataclass(frozen=True)
class _Found:
    """A column as sites have it, under one or several names."""

    name: str
    sites: Mapping[str, ColumnDescription]


def propose_schema(described: Mapping[str, TableDescription]) -> tuple[AgreedSchema, SchemaNotes]:
    """Propose what sites should agree on.

    Args:
        described: By site, its columns.

    Returns:
        The schema, and comments on where sites differ.

    Raises:
        UserError: The sites share no column, or no label with two classes or a time and an event.
    """
    label, head = _propose_label(described)
    groups = _group_columns({site: [c for c in own.columns if c.name not in (own.label, own.event)] for site, own in described.items()})
    columns, notes, left_out = list[AgreedColumn](), dict[str, list[str]](), list[str]()
    for group in groups:
        if 2 * len(group.sites) <= len(described) and len(described) > 1:
            left_out.append(f"Left out: {group.name!r}, only at {', '.join(sorted(group.sites))}.")
        elif (made := _propose_column(group, len(described))) is None:
            left_out.append(f"Left out: {group.name!r}, whose words are names or texts, or fewer rows than the sites report about.")
        else:
            columns.append(made[0])
            notes[group.name] = made[1]
    if not columns:
        raise UserError("No column is at more than half of the sites: write schema.toml by hand, with synonyms.")
    marks = sorted({mark for own in described.values() for column in own.columns for mark in column.marks})
    schema = replace(label, columns=tuple(columns[:MOST_COLUMNS]), missing=tuple(marks[:MOST_WORDS]))
    return AgreedSchema.from_dict(schema.to_dict(), "The proposal"), SchemaNotes((*HEAD, *head, *left_out), notes)


def _propose_label(described: Mapping[str, TableDescription]) -> tuple[AgreedSchema, list[str]]:
    """A schema without columns, and comments on its label."""
    named = {site: own.label for site, own in described.items() if own.label}
    if not named:
        raise UserError("No site names its label: join with a label, such as csv(FILE,label=COLUMN).")
    label = Counter(named.values()).most_common(1)[0][0]
    timed = {site: own for site, own in described.items() if own.event}
    if timed:
        if others := sorted(set(named) - set(timed)):
            raise UserError(
                f"{', '.join(sorted(timed))} have survival times, {', '.join(others)} another label: join there with time= and event=, too."
            )
        return _propose_times(label, timed)
    words = Counter[str]()
    for site, own in named.items():
        words.update({word for column in described[site].columns if column.name == own for word, _ in column.words})
    classes = _merge_words(words)
    if len(classes) < 2:
        raise UserError("The sites report fewer than two classes of their label with enough rows: write schema.toml by hand.")
    return AgreedSchema(label, classes, ()), []


def _propose_times(label: str, timed: Mapping[str, TableDescription]) -> tuple[AgreedSchema, list[str]]:
    columns = {site: column for site, own in timed.items() for column in own.columns if column.name == own.label}
    typical, _, notes = _find_typical(columns)
    names = {name for own in timed.values() for name in (own.label, own.event)}
    event = Counter(own.event for own in timed.values()).most_common(1)[0][0]
    if len(names) > 2:
        notes.append(f"Sites call the time and the event {', '.join(sorted(names))}; each reads its own columns.")
    notes.append("Survival times: state the ends of the intervals in 'grid' in place of 'intervals', and no event times leave the sites.")
    return AgreedSchema(label, (), (), event=event, intervals=INTERVALS, typical=typical), notes


def _find_typical(columns: Mapping[str, ColumnDescription]) -> tuple[float | None, list[str], list[str]]:
    """What is usual among the middle values of sites, the sites where it looks like other units, and a comment on each."""
    middles = {site: own.middle for site, own in columns.items() if own.middle is not None}
    if not middles:
        return None, [], []
    typical = median(middles.values()) if len(middles) != 2 else min(middles.values(), key=abs)
    odd = [site for site, own in middles.items() if typical and own / typical > 0 and not 1 / UNIT_RATIO < own / typical < UNIT_RATIO]
    return typical, odd, [f"At {site} the middle value is {middles[site]:g}, elsewhere about {typical:g}: other units?" for site in odd]


def _group_columns(columns: Mapping[str, Sequence[ColumnDescription]]) -> list[_Found]:
    """Columns by what they mean: names alike but for capitals, spaces and units, then misspelt ones of sites that lack the usual name."""
    groups: dict[str, dict[str, ColumnDescription]] = {}
    for site, own in columns.items():
        for column in own:
            groups.setdefault(_fold(column.name), {}).setdefault(site, column)
    for name in sorted(groups, key=lambda each: len(groups[each])):
        others = [other for other in groups if len(groups[other]) > len(groups[name]) and not set(groups[other]) & set(groups[name])]
        if near := get_close_matches(name, others, 1, ALIKE):
            groups[near[0]] |= groups.pop(name)
    usual = [(Counter(column.name for column in own.values()).most_common(1)[0][0], own) for own in groups.values()]
    return [_Found(name, own) for name, own in usual]


def _fold(name: str) -> str:
    return re.sub(r"[\W_]+", "", re.sub(r"[\[(][^\[\]()]*[\])]\s*$", "", name).casefold()) or name


def _propose_column(group: _Found, sites: int) -> tuple[AgreedColumn, list[str]] | None:
    kinds = Counter(column.kind for column in group.sites.values() if column.kind != "empty")
    kind = kinds.most_common(1)[0][0] if kinds else "empty"
    if kind not in ("number", "category"):
        return None
    notes = [f"At {site} a {own.kind}, not a {kind}: fix it there." for site, own in group.sites.items() if own.kind not in (kind, "empty")]
    same = {site: own for site, own in group.sites.items() if own.kind == kind}
    synonyms = tuple(sorted({own.name for own in group.sites.values()} - {group.name}))
    units = Counter(own.unit for own in same.values() if own.unit)
    if len(units) > 1:
        notes.append(f"Units differ: {', '.join(units)}.")
    common = {
        "required": len(group.sites) == sites,
        "unit": units.most_common(1)[0][0] if units else "",
        "synonyms": synonyms[:MOST_WORDS],
    }
    if kind == "category":
        words = Counter(word for own in same.values() for word, _ in own.words)
        notes += [f"Only at {site}: {word!r}." for site, own in same.items() for word, _ in own.words if words[word] == 1 and len(same) > 1]
        categories = _merge_words(words)
        return (AgreedColumn(group.name, "category", categories=categories, **common), notes) if categories else None  # type: ignore[arg-type]
    typical, odd, remarks = _find_typical(same)
    notes += remarks
    if typical is None:
        return AgreedColumn(group.name, **common), notes  # type: ignore[arg-type]
    kept = [own for site, own in same.items() if site not in odd and own.low is not None and own.high is not None]
    bounds = _widen(min(float(own.low or 0.0) for own in kept), max(float(own.high or 0.0) for own in kept)) if kept else None
    return AgreedColumn(group.name, bounds=bounds, typical=typical, **common), notes  # type: ignore[arg-type]


def _widen(low: float, high: float) -> tuple[float, float] | None:
    if not low <= high:
        return None
    more = WIDER * (high - low) or abs(high) or 1.0
    ends = float(f"{low - more:.3g}"), float(f"{high + more:.3g}")
    return (max(ends[0], 0.0) if low >= 0 else ends[0]), ends[1]


def _merge_words(words: Counter[str]) -> tuple[str, ...]:
    """Words of all sites, in the spelling that most have."""
    spelled: dict[str, Counter[str]] = {}
    for word, sites in words.items():
        spelled.setdefault(word.casefold(), Counter())[word] += sites
    return tuple(sorted(own.most_common(1)[0][0] for own in spelled.values()))[:MOST_WORDS]
