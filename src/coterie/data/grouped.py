"""What all scenarios share: they change a federation whose clients are made, and can stand in place of a partition.

`digits/rotated(clients=40,groups=4)` shares samples out at random first, so that clients differ by their group alone;
`digits/dirichlet(0.1,clients=40)/rotated(groups=4)` turns the images of clients that differ already.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ids, Ints
from coterie.core.rng import make_key, shuffle
from coterie.data.assemble import check_count, check_enough, check_fractions
from coterie.data.federation import Federation, Samples
from coterie.data.partitions import natural, shared_out
from coterie.data.preparing.prepared import DONE
from coterie.data.preparing.worded import WORDED

MakeFederation = Callable[..., Federation]
CLIENTS, TEST = 40, 0.1  # of a scenario in place of a partition


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
            base = _clients(name, base, values.get("_data_seed", 0), **shares)
        elif chosen := [word for word, value in shares.items() if value is not None]:
            raise UserError(f"Scenario {name!r} comes after clients are made, so its {chosen[0]}= belongs to what stands before it.")
        return change(base, **values)

    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


def _clients(name: str, samples: Samples, data_seed: int, clients: int | None, test: float | None, validation: float | None) -> Federation:
    """The data's own clients where they have any and no number is asked for; otherwise random shares."""
    if samples.owners is not None and clients is None:
        return natural(samples, test, validation or 0.0, _data_seed=data_seed)
    who = f"Scenario {name!r}"
    count, share = CLIENTS if clients is None else clients, TEST if test is None else test
    check_enough(who, samples, count)
    check_fractions(who, share, validation or 0.0)
    return shared_out(samples, name, count, share, validation or 0.0, data_seed)


def drawn_groups(name: str, federation: Federation, groups: int, shares: Sequence[float] | None, data_seed: int, moved: float) -> Ids:
    """The group of each client: as equal in size as can be, or in these shares; a share `moved` of clients is in another group."""
    who, n = f"Scenario {name!r}", len(federation)
    check_count(who, "groups", groups)
    if groups > n:
        raise UserError(f"{who}: {groups} groups need at least {groups} clients, not {n}.")
    rank = shuffle(make_key(data_seed, name, "groups"), n)
    if shares is None:
        group = rank % groups
    else:
        if len(shares) != groups or min(shares) <= 0:
            raise UserError(f"{who}: shares={tuple(shares)} should be {groups} numbers above 0, one a group.")
        group = np.searchsorted(np.cumsum(shares)[:-1] / sum(shares), (rank + 0.5) / n, side="right")
    if moved > 0 and groups > 1:
        movers = shuffle(make_key(data_seed, name, "drift"), n)[: round(moved * n)]
        steps = 1 + shuffle(make_key(data_seed, name, "drift to"), n)[: len(movers)] % (groups - 1)
        group = group.copy()
        group[movers] = (group[movers] + steps) % groups
    return group.astype(np.int64)


def held_by(federation: Federation, clients: Ints | Sequence[int]) -> Ints:
    """The samples of these clients, all their parts, in ascending order."""
    parts = [federation.train, federation.test, *([federation.validation] if federation.validation is not None else [])]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(part[int(client)] for part in parts for client in clients)]))


def regrouped(federation: Federation, name: str, group: Ids, told: dict[str, Any], **changes: Any) -> Federation:
    """The federation changed, with its true groups: those of an earlier scenario and of this one together.

    A central test set shows the world of no group, or of one only, so it is left out.
    """
    before = federation.provenance.get("scenarios", [])
    if before and federation.groups is not None:
        group = federation.groups * (int(group.max()) + 1) + group
        told = {**told, "groups": f"{federation.provenance['groups']}; {told['groups']}; a group is a pair of the two"}
    central = (
        "left out: it shows the world of group 0 only" if federation.central is not None else federation.provenance.get("central", "none")
    )
    provenance = {**federation.provenance, "central": central, "scenarios": [*before, name], **told}
    if changes.get("x", federation.x) is not federation.x:
        for name in (DONE, WORDED):
            provenance.pop(name, None)
        provenance.pop("scaling", None)  # it no longer leads from a site's own rows to these features
    return federation.with_(groups=group, central=None, provenance=provenance, name=f"{federation.name}/{name}", **changes)
