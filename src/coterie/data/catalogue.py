"""The data a user may name: ``synthetic(0.5,0.5,clients=30)``, ``heart``, ``digits/rotated(clients=40,groups=4)``."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.data import partitions as divisions
from coterie.data import scenarios
from coterie.data.digits import digits
from coterie.data.federation import Federation, Samples
from coterie.data.heart import heart
from coterie.data.mnist import mnist
from coterie.data.synthetic import synthetic
from coterie.errors import UserError
from coterie.specs import Registry, parse_path

sources: Registry[Samples | Federation] = Registry("data set")
sources.add("digits", digits)
sources.add("heart", heart)
sources.add("mnist", mnist)
sources.add("synthetic", synthetic)

partitions: Registry[Federation] = Registry("partition")
partitions.add("dirichlet", divisions.dirichlet)
partitions.add("iid", divisions.iid)
partitions.add("powerlaw", divisions.powerlaw)
partitions.add("shards", divisions.shards)
partitions.add("labelswap", scenarios.labelswap)
partitions.add("rotated", scenarios.rotated)

Kind = Literal["federation", "samples", "partition", "scenario"]


def load(spec: str, data_seed: int = 0, data_dir: Path | None = None) -> Federation:
    """The federation a spec names; `data_dir` holds the data sets that do not come with the package."""
    source, *rest = parse_path(spec)
    context = {"_data_seed": data_seed, "_data_dir": data_dir}
    name = "/".join(map(str, [source, *rest]))
    # Whether the words fit is settled before any data are read.
    whole = _is_whole(sources[source.name])
    if whole and rest:
        raise UserError(f"Data set {source.name!r} has clients of its own, so {str(rest[0])!r} cannot divide it; write {str(source)!r}.")
    if not whole and len(rest) != 1:
        ways = f"'{source.name}/iid(clients=10)' or '{source.name}/rotated(clients=40,groups=4)'"
        if not rest:
            raise UserError(f"Data set {source.name!r} has to be divided among clients: write for example {ways}.")
        raise UserError(f"{name!r} divides {source.name!r} {len(rest)} times; name one partition, for example {ways}.")
    for partition in rest:
        partitions[partition.name]
    made = sources.build(source, **_wanted(sources[source.name], context))
    if isinstance(made, Samples):
        made = partitions.build(rest[0], made, **_wanted(partitions[rest[0].name], context))
    return made.with_(name=name)


@dataclass(frozen=True)
class Entry:
    """One line of a listing of what a spec may name."""

    name: str
    kind: Kind
    settings: Mapping[str, Any]  # with their defaults
    doc: str


def describe() -> list[Entry]:
    """All sources, then all partitions and scenarios, each with its settings and what it is."""
    return [_entry(name, sources) for name in sources] + [_entry(name, partitions) for name in partitions]


def _entry(name: str, registry: Registry[Any]) -> Entry:
    make = registry[name]
    doc = (inspect.getdoc(make) or "").partition("\n")[0]
    # A partition's samples are given by what stands before the slash: the only parameter without a default.
    settings = {k: p.default for k, p in registry.settings(name).items() if p.default is not p.empty}
    return Entry(name, _kind(make, registry), settings, doc)


def _kind(make: Callable[..., Any], registry: Registry[Any]) -> Kind:
    if registry is sources:
        return "federation" if _is_whole(make) else "samples"
    return "scenario" if make.__module__ == scenarios.__name__ else "partition"


def _is_whole(make: Callable[..., Any]) -> bool:
    """Whether a source is a federation already, by what it says it returns."""
    return inspect.signature(make).return_annotation in (Federation, "Federation")


def _wanted(make: Callable[..., Any], context: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(make).parameters
    return {k: v for k, v in context.items() if k in known}
