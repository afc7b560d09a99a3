"""Which methods compose: what each gives where a site answers for all of its clients as one (`aggregate` in its policy).

A site's reply is the mean of its clients' replies, weighted by samples. A method that only averages replies with such weights gives the
model of the flat federation. One that compares clients, or keeps something of each, sees the site as a client. Replies of local rules and
subspaces have no mean. `tests/deploy/test_composition.py` compares every method of the catalogue with the flat federation.
"""

from dataclasses import dataclass
from typing import Literal

from coterie.core.specs import is_external_code, parse, split_at
from coterie.methods.catalogue import PRESETS

Kind = Literal["same", "site", "refused"]
SAME, SITE, REFUSED = Kind.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Composition:
    """What a method gives with aggregated replies, and in words why."""

    kind: Kind
    reason: str = ""


WEIGHS_ALIKE = Composition(SITE, "weighs clients alike: a site counts as one of them")
COMPARES = Composition(SITE, "compares or groups clients: a site is one of them, and its own are not distinguished")
KEEPS = Composition(SITE, "trains, corrects or serves each client by itself: a site is one of them")
RULE = Composition(REFUSED, "trains by a local rule, which is each client's own")
SUBSPACES = Composition(REFUSED, "asks for directions of each client's samples, which have no mean")
COMPOSES = Composition(SAME, "averages replies, weighted by samples")

# By method and wrapper, with their default settings and all clients in every round.
COMPOSITIONS: dict[str, Composition] = {
    **dict.fromkeys(("fedavg", "fedprox", "fedsgd", "feddws", "rate", "restarts", "server"), COMPOSES),
    **dict.fromkeys(("feddist", "cflgp"), WEIGHS_ALIKE),
    **dict.fromkeys(
        ("fedatt", "fedsim", "neighbourprox", "simagg", "simprox", "guard", "robust", "auto", "continuum", "structured"), COMPARES
    ),
    **dict.fromkeys(("cfl", "clove", "fedclust", "feddrift", "fedex", "fedgroup", "fedgrouprox", "rac", "rcc"), COMPARES),
    **dict.fromkeys(("feroma", "fesem", "fesem_ma", "flhc", "flux", "hypocluster", "ifca", "watch"), COMPARES),
    **dict.fromkeys(("feddane", "scaffold", "local", "finetune", "fedbn", "knn", "private"), KEEPS),
    **dict.fromkeys(("apfl", "ditto", "fedala", "fedem", "fedfew", "fedgwc", "fedrc", "moon", "pfedgraph"), RULE),
    "pacfl": SUBSPACES,
}


def find_composition(spec: str) -> Composition:
    """What a method gives with aggregated replies; of a method with wrappers, the part that composes least.

    A method that is not Coterie's own is taken for one that compares clients.
    """
    order = (SAME, SITE, REFUSED)
    return max((_find_part(part) for part in _list_parts(spec)), key=lambda found: order.index(found.kind))


def _list_parts(spec: str) -> list[str]:
    first, *rest = split_at(spec, "+")
    expanded = PRESETS.get(first)
    return [*(split_at(expanded, "+") if expanded is not None else [first]), *rest]


def _find_part(part: str) -> Composition:
    if is_external_code(part):
        return COMPARES
    parsed = parse(part)
    found = COMPOSITIONS.get(parsed.name, COMPARES)
    if parsed.name == "private" and "train" in parsed.kwargs:
        return RULE
    uniform = "uniform" in (parsed.kwargs.get("weighting"), *parsed.args)
    return WEIGHS_ALIKE if found.kind == SAME and uniform else found
