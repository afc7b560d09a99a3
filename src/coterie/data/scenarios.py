"""Scenarios.

Federations whose true groups are known, because Coterie makes them: other inputs, other labels, other classes, other data sets.

A scenario changes a federation. Given samples, it first divides them among clients.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids, Ints
from coterie.core.rng import make_generator, make_key, shuffle
from coterie.data.federation import SITES, Federation, Parts, Samples
from coterie.data.joining import join_federations
from coterie.data.partitions import check_count, check_enough, check_positive, divide_randomly, fill_empty_clients, natural
from coterie.data.prepare import DONE
from coterie.data.text import TEXT_COLUMN

MakeFederation = Callable[..., Federation]
DEFAULT_CLIENTS, DEFAULT_TEST = 40, 0.1  # of a scenario in place of a partition


def scenario(change: MakeFederation) -> MakeFederation:
    """Let a change of a federation also begin from samples: it then has the settings clients, test and validation as well."""
    name = change.__name__
    first, *own = inspect.signature(change).parameters.values()
    plain, hidden = ([p for p in own if p.name.startswith("_") is under] for under in (False, True))
    extra = {
        word: inspect.Parameter(word, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for word, kind in (("clients", int | None), ("test", float | None), ("validation", float | None))
    }
    signature = inspect.Signature([first.replace(name="samples"), *plain, *extra.values(), *hidden], return_annotation=Federation)

    @wraps(change)
    def made(*given: Any, **named: Any) -> Federation:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        base = values.pop("samples")
        shares = {word: values.pop(word) for word in extra}
        if isinstance(base, Samples):
            base = _divide_samples(name, base, values.get("_data_seed", 0), **shares)
        elif chosen := [word for word, value in shares.items() if value is not None]:
            raise UserError(f"Scenario {name!r} comes after clients are made, so its {chosen[0]}= belongs to what stands before it.")
        return change(base, **values)

    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


def _divide_samples(
    name: str, samples: Samples, data_seed: int, clients: int | None, test: float | None, validation: float | None
) -> Federation:
    """The data's own clients where they have any and no number is asked for; otherwise random shares."""
    if samples.owners is not None and clients is None:
        return natural(samples, test, validation or 0.0, _data_seed=data_seed)
    title = f"Scenario {name!r}"
    count, share = DEFAULT_CLIENTS if clients is None else clients, DEFAULT_TEST if test is None else test
    check_enough(title, samples, count, share, validation or 0.0)
    return divide_randomly(samples, name, count, share, validation or 0.0, data_seed)


def draw_groups(name: str, federation: Federation, groups: int, shares: Sequence[float] | None, data_seed: int, moved: float) -> Ids:
    """The group of each client: as equal in size as can be, or in these shares; a share `moved` of clients is in another group."""
    title, n = f"Scenario {name!r}", len(federation)
    check_count(title, "groups", groups)
    if groups > n:
        raise UserError(f"{title}: {groups} groups need at least {groups} clients, not {n}.")
    rank = shuffle(make_key(data_seed, name, "groups"), n)
    if shares is None:
        group = rank % groups
    else:
        if len(shares) != groups or min(shares) <= 0:
            raise UserError(f"{title}: shares={tuple(shares)} should be {groups} numbers above 0, one a group.")
        group = np.searchsorted(np.cumsum(shares)[:-1] / sum(shares), (rank + 0.5) / n, side="right")
    if moved > 0 and groups > 1:
        movers = shuffle(make_key(data_seed, name, "drift"), n)[: round(moved * n)]
        steps = 1 + shuffle(make_key(data_seed, name, "drift to"), n)[: len(movers)] % (groups - 1)
        group = group.copy()
        group[movers] = (group[movers] + steps) % groups
    return group.astype(np.int64)


def find_held_samples(federation: Federation, clients: Ints | Sequence[int]) -> Ints:
    """The samples of these clients, all their parts, in ascending order."""
    held = [part[int(client)] for part in federation.parts.values() for client in clients]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *held]))


def apply_groups(federation: Federation, name: str, group: Ids, stored: dict[str, Any], **changes: Any) -> Federation:
    """The federation changed, with its true groups: those of an earlier scenario and of this one together.

    A central test set shows the world of no group, or of one only, so it is left out.
    """
    before = federation.provenance.get("scenarios", [])
    if before and federation.groups is not None:
        group = federation.groups * (int(group.max()) + 1) + group
        stored = {**stored, "groups": f"{federation.provenance['groups']}; {stored['groups']}; a group is a pair of the two"}
    central = (
        "left out: it shows the world of group 0 only" if federation.central is not None else federation.provenance.get("central", "none")
    )
    provenance = {**federation.provenance, "central": central, "scenarios": [*before, name], **stored}
    if changes.get("x", federation.x) is not federation.x:
        for name in (DONE, TEXT_COLUMN):
            provenance.pop(name, None)
        provenance.pop("scaling", None)  # it no longer leads from a site's own rows to these features
    return federation.replace(groups=group, central=None, provenance=provenance, name=f"{federation.name}/{name}", **changes)


Shares = Sequence[float] | None


@scenario
def rotated(federation: Federation, groups: int = 4, shares: Shares = None, *, _data_seed: int = 0, _moved: float = 0.0) -> Federation:
    """Group g sees its images turned by 360 g / groups degrees: the same labels, other inputs (Ghosh et al., 2020).

    Turns by multiples of 90 degrees move pixels exactly; others interpolate linearly, with black corners. The turn is counter-clockwise.
    """
    shape = federation.input_shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UserError(f"Scenario 'rotated': the samples of {federation.name!r} have shape {shape}, and only square images can be turned.")
    group = draw_groups("rotated", federation, groups, shares, _data_seed, _moved)
    x = _change_features(federation, group, lambda images, g: rotate_images(images, 360 * g, groups))
    return apply_groups(federation, "rotated", group, {"groups": f"group g is turned by {360 / groups:g} g degrees"}, x=x)


@scenario
def labelswap(
    federation: Federation, groups: int = 4, pairs: int = 1, shares: Shares = None, *, _data_seed: int = 0, _moved: float = 0.0
) -> Federation:
    """Group g swaps the labels of class pairs of its own: the same inputs, other labels (Sattler et al., 2020).

    Group 0 keeps all labels. Each other group swaps `pairs` pairs of classes, drawn by key so that no class is in two pairs, within or
    across groups. Hence any two groups contradict each other on known classes, and no model can serve both.
    """
    group = draw_groups("labelswap", federation, groups, shares, _data_seed, _moved)
    drawn = draw_swaps("labelswap", federation, groups, pairs, _data_seed)
    y = federation.y.copy()
    for g in range(1, groups):
        own = find_held_samples(federation, np.flatnonzero(group == g))
        y[own] = swap_labels(federation.y[own], drawn[g - 1], len(federation.classes))
    swapped = {g: [(federation.classes[a], federation.classes[b]) for a, b in drawn[g - 1]] for g in range(1, groups)}
    return apply_groups(federation, "labelswap", group, {"groups": "group g swaps the labels of its pairs", "swapped": swapped}, y=y)


def draw_swaps(name: str, federation: Federation, groups: int, pairs: int, data_seed: int) -> Ints:
    """(groups - 1, pairs, 2) the classes that groups 1, 2, ... swap, drawn by key; no class is in two pairs."""
    title, classes = f"Scenario {name!r}", len(federation.classes)
    check_count(title, "pairs", pairs)
    check_count(title, "groups", groups)
    if 2 * pairs * (groups - 1) > classes:
        raise UserError(
            f"{title}: {groups} groups with pairs={pairs} swap {2 * pairs * (groups - 1)} classes and {federation.name!r} has {classes}; "
            f"use at most {1 + classes // (2 * pairs)} groups."
        )
    order = shuffle(make_key(data_seed, name, "pairs"), classes)[: 2 * pairs * (groups - 1)]
    return order.astype(np.int64).reshape(groups - 1, pairs, 2)


def swap_labels(y: Array, pairs: Ints, classes: int) -> Array:
    """The labels with both classes of each pair exchanged."""
    names = np.arange(classes)
    names[pairs] = pairs[:, ::-1]
    return names[y].astype(y.dtype)


@scenario
def labelsubset(federation: Federation, groups: int = 2, shares: Shares = None, *, _data_seed: int = 0, _moved: float = 0.0) -> Federation:
    """Group g holds a subset of the classes of its own: the classes are divided among the groups, and clients drop the others.

    What is dropped is counted in left_over. A client that would be left with nothing to train on gets one sample of the client of its group
    that has most, as with `dirichlet`; ``provenance["moved"]`` counts these.
    """
    classes = len(federation.classes)
    if groups > classes:
        raise UserError(f"Scenario 'labelsubset': {groups} groups cannot share the {classes} classes of {federation.name!r}.")
    group = draw_groups("labelsubset", federation, groups, shares, _data_seed, _moved)
    owner = np.empty(classes, np.int64)  # the group that holds a class
    owner[shuffle(make_key(_data_seed, "labelsubset", "classes"), classes)] = np.arange(classes) % groups
    parts = {name: _select_classes(federation, part, group, owner) for name, part in federation.parts.items()}
    dropped = sum(len(federation.parts[name].indices) - len(part.indices) for name, part in parts.items())
    held = {g: [federation.classes[c] for c in np.flatnonzero(owner == g)] for g in range(groups)}
    stored = {"groups": "group g holds its classes", "held": held, "left_over": federation.provenance["left_over"] + dropped}
    parts["train"], moved = _fill_empty_parts(parts["train"], group)
    if moved:
        stored["moved"] = federation.provenance.get("moved", 0) + moved
    return apply_groups(federation, "labelsubset", group, stored, **parts)


@scenario
def noise(
    federation: Federation,
    groups: int = 2,
    kind: Literal["gaussian", "blank"] = "gaussian",
    strength: float = 0.5,
    shares: Shares = None,
    *,
    _data_seed: int = 0,
    _moved: float = 0.0,
) -> Federation:
    """Group g's features are disturbed, the more the higher g: gaussian noise is added, or features are blanked.

    Group g has the share g / (groups - 1) of `strength`: the deviation of the noise, or the chance that a feature becomes 0. Every client
    draws by its own key. Values that lay between 0 and 1 stay there.
    """
    title = "Scenario 'noise'"
    check_positive(title, "strength", strength, most=1.0 if kind == "blank" else np.inf)
    _check_numbers(title, federation)
    group = draw_groups("noise", federation, groups, shares, _data_seed, _moved)
    x, pixels = np.array(federation.x), "divided_by" in federation.provenance
    for client in np.flatnonzero(group > 0).tolist():
        own = find_held_samples(federation, [client])
        level = strength * group[client] / max(groups - 1, 1)
        rng = make_generator(make_key(_data_seed, "noise", federation.ids[client]))
        made = x[own] + level * rng.normal(size=x[own].shape) if kind == "gaussian" else x[own] * (rng.random(x[own].shape) >= level)
        x[own] = np.clip(made, 0, 1) if pixels else made
    return apply_groups(federation, "noise", group, {"groups": f"{kind} noise of {strength:g} g / {max(groups - 1, 1)}"}, x=x)


@scenario
def contrast(
    federation: Federation, groups: int = 2, lowest: float = -1.0, shares: Shares = None, *, _data_seed: int = 0, _moved: float = 0.0
) -> Federation:
    """Group g's images have another contrast, from 1 down to `lowest`: below 0 they are negatives."""
    title = "Scenario 'contrast'"
    _check_numbers(title, federation)
    if not -1 <= lowest < 1:
        raise UserError(f"{title}: lowest={lowest:g} should be from -1 up to, but not including, 1.")
    group = draw_groups("contrast", federation, groups, shares, _data_seed, _moved)
    levels = np.linspace(1, lowest, max(groups, 1)).astype(np.float32)
    x = _change_features(federation, group, lambda images, g: np.float32(0.5) + levels[g] * (images - np.float32(0.5)))
    return apply_groups(federation, "contrast", group, {"groups": f"contrast of {', '.join(f'{v:g}' for v in levels)}"}, x=x)


@scenario
def style(
    federation: Federation, groups: int = 4, strength: float = 1.0, shares: Shares = None, *, _data_seed: int = 0, _moved: float = 0.0
) -> Federation:
    """Group g's images are drawn in another hand: as they are, bold, thin or blurred, by so much of the way as `strength` gives.

    Bold is the largest of the 3 x 3 pixels around each, thin the smallest, blurred a normal filter of one pixel. Labels stay.
    """
    title = "Scenario 'style'"
    _check_numbers(title, federation)
    check_positive(title, "strength", strength, most=1.0)
    if len(federation.input_shape) < 2:
        raise UserError(f"{title}: the samples of {federation.name!r} have shape {federation.input_shape}, and only images have a style.")
    if groups > len(STYLES):
        raise UserError(f"{title}: there are {len(STYLES)} styles ({', '.join(STYLES)}), so groups={groups} is too many.")
    group = draw_groups("style", federation, groups, shares, _data_seed, _moved)
    share = np.float32(strength)
    x = _change_features(federation, group, lambda images, g: images + share * (_draw_in_style(images, STYLES[g]) - images))
    return apply_groups(federation, "style", group, {"groups": f"styles: {', '.join(STYLES[:groups])}"}, x=x)


STYLES = ("plain", "bold", "thin", "blurred")


def _draw_in_style(images: Array, name: str) -> Array:
    from scipy import ndimage  # slow to import, and only styles need it

    square = (*(1,) * (images.ndim - 2), 3, 3)
    if name == "blurred":
        return np.asarray(ndimage.gaussian_filter(images, (*(0,) * (images.ndim - 2), 1, 1), mode="constant"))
    return np.asarray((ndimage.maximum_filter if name == "bold" else ndimage.minimum_filter)(images, square, mode="nearest"))


@scenario
def coloured(federation: Federation, groups: int = 3, shares: Shares = None, *, _data_seed: int = 0, _moved: float = 0.0) -> Federation:
    """Group g's colour images have their red, green and blue in another order."""
    title, orders = "Scenario 'coloured'", ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2))
    if len(federation.input_shape) != 3 or federation.input_shape[0] != 3:
        raise UserError(f"{title}: the samples of {federation.name!r} have shape {federation.input_shape}, not (3, height, width).")
    if groups > len(orders):
        raise UserError(f"{title}: three colours have {len(orders)} orders, so groups={groups} is too many.")
    group = draw_groups("coloured", federation, groups, shares, _data_seed, _moved)
    x = _change_features(federation, group, lambda images, g: images[:, list(orders[g])])
    return apply_groups(federation, "coloured", group, {"groups": "group g has its colours in the order g"}, x=x)


@scenario
def mixed(
    federation: Federation, other: str, labels: Literal["shared", "apart"] = "shared", *, _load: Callable[[str], Federation] | None = None
) -> Federation:
    """Joins the clients of another federation, named by its spec: ``mixed('fashion_mnist/iid(clients=20)')``.

    Group 1 are the newcomers. Classes are shared by number, or `apart` keeps those of the second set by themselves.
    """
    assert _load is not None
    made = join_federations(federation, _load(other), "mixed", ("first", "second"), apart=labels == "apart")
    return made.replace(provenance={**made.provenance, "scenarios": [*federation.provenance.get("scenarios", []), "mixed"]})


def rotate_images(images: Array, degrees: int, over: int = 1) -> Array:
    """Images (..., side, side) turned counter-clockwise by degrees / over, the fraction kept whole so that right angles are exact."""
    if degrees % (90 * over) == 0:
        return np.rot90(images, degrees // (90 * over), axes=(-2, -1))
    from scipy.ndimage import rotate  # slow to import, and only odd angles need it

    made: Array = rotate(images, degrees / over, axes=(-2, -1), reshape=False, order=1, mode="constant", cval=0.0)
    return made


@scenario
def sites(federation: Federation, count: int = 4, first: int | None = None, *, _data_seed: int = 0) -> Federation:
    """Clients at so many sites, site-0, site-1, ..., drawn by key: as equal in number as can be, or with `first` clients at site-0.

    Nothing of the data changes: it is for bounds on a site's share and for attacks by a site.
    """
    title, n = "Scenario 'sites'", len(federation)
    check_count(title, "count", count)
    if count > n:
        raise UserError(f"{title}: {count} sites need at least {count} clients, not {n}.")
    if first is not None and not (count > 1 and 1 <= first <= n - count + 1):
        raise UserError(f"{title}: first={first} of {n} clients should leave at least one client for each of the other {count - 1} sites.")
    order = shuffle(make_key(_data_seed, "sites"), n)
    number = np.empty(n, dtype=np.int64)
    if first is None:
        number[order] = np.arange(n) % count
    else:
        number[order] = np.r_[np.zeros(first, np.int64), 1 + np.arange(n - first) % (count - 1)]
    stored = {name: f"site-{number[client]}" for client, name in enumerate(federation.ids)}
    return federation.replace(
        name=f"{federation.name}/sites",
        provenance={**federation.provenance, SITES: stored},
        later=tuple((begin, world.replace(provenance={**world.provenance, SITES: stored})) for begin, world in federation.later),
    )


def _change_features(federation: Federation, group: Ids, change: Callable[[Array, int], Array]) -> Array:
    """The features, with those of every group but 0 changed; a copy in memory, even of a memory map."""
    x = np.array(federation.x)
    for g in range(1, int(group.max()) + 1):
        own = find_held_samples(federation, np.flatnonzero(group == g))
        x[own] = change(federation.x[own], g)
    return x


def _select_classes(federation: Federation, part: Parts, group: Ids, owner: Array) -> Parts:
    client = np.repeat(np.arange(len(part)), part.sizes)
    kept = owner[federation.y[part.indices]] == group[client]
    return Parts(np.r_[0, np.cumsum(np.bincount(client[kept], minlength=len(part)))], part.indices[kept])


def _fill_empty_parts(part: Parts, group: Ids) -> tuple[Parts, int]:
    """No client stays empty if its group has a sample to spare; and how many samples were moved."""
    empty = np.flatnonzero(part.sizes == 0)
    if not len(empty):
        return part, 0
    lists, moved = list(part), 0
    for g in np.unique(group[empty]).tolist():
        members = np.flatnonzero(group == g).tolist()
        own = [lists[client] for client in members]
        moved += fill_empty_clients(own)
        for client, samples in zip(members, own, strict=True):
            lists[client] = samples
    return Parts.from_lists(lists), moved


def _check_numbers(title: str, federation: Federation) -> None:
    if not federation.has_numeric_features:
        raise UserError(f"{title}: the samples of {federation.name!r} are tokens, not amounts that could be changed.")
