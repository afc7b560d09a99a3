"""A site's own data: what `coterie join` was given, loaded as the site describes them or as an agreed schema reads them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie._util.files import write_atomic
from coterie._util.json_io import format_json, read_json, read_json_object
from coterie.data.catalogue import load
from coterie.data.checks import check_before_use
from coterie.data.column_statistics import Scaling
from coterie.data.federation import Federation, Parts
from coterie.data.prepare import scale_federation
from coterie.data.readers.frames import RawTable, read_raw_table
from coterie.data.readers.table_files import ROWS, get_file_rows
from coterie.data.schema import Schema, conform_federation
from coterie.data.site_table import MAPPING_FILE, ColumnMapping, hash_clients, load_conformed, read_mapping
from coterie.data.wards import join_tables, join_wards, merge_clients, plan_merges
from coterie.deploy.site.policy import Policy

MOST_SHOWN = 8  # clients that a line names
T = TypeVar("T")


class TaskError(UserError):
    """About what is predicted, which the server may know."""


def load_site_data(
    spec: str, clients: Sequence[str] | None = None, *, data_seed: int = 0, data_dir: Path | None = None, site: str | None = None
) -> Federation:
    """The federation of a site with these clients, by default all; `site` names its client where the data name none."""
    whole = load(spec, data_seed, data_dir, client=site)
    if whole.inputs is not None:
        raise UserError(f"The samples of {spec!r} have several inputs, which real federations do not carry yet: give one array.")
    if not whole.task.counts_classes:
        remedy = "simulate it with 'coterie compare'."
        if whole.task.name == "survival":
            remedy = "agree on a schema with the other sites, 'coterie federation schema', whose grid they share."
        raise TaskError(f"The site's label makes it a {whole.task}, which sites do not train by their own description: {remedy}")
    return whole if clients is None else select_clients(whole, _check_clients(clients, whole))


def _check_clients(clients: Sequence[str], whole: Federation) -> Sequence[str]:
    for name in clients:
        if name not in whole.ids:
            raise UserError(f"The data {whole.name!r} have no client {name!r}: {suggest_names(name, whole.ids)}")
    return clients


def select_clients(federation: Federation, clients: Sequence[str]) -> Federation:
    """The same federation with these clients alone, and only their samples."""
    place = {name: row for row, name in enumerate(federation.ids)}
    rows = [place[name] for name in clients]
    parts = [part for part in (federation.train, federation.test, federation.validation) if part is not None]
    kept = np.unique(np.concatenate([part.joined(np.array(rows, dtype=np.int64)) for part in parts]))

    def cut(part: Parts) -> Parts:
        return Parts.from_lists([np.searchsorted(kept, part[row]).astype(np.int64) for row in rows])

    lines = get_file_rows(federation.provenance)
    return federation.replace(
        x=np.asarray(federation.x[kept]),
        raw=None if federation.raw is None else np.asarray(federation.raw[kept]),
        y=federation.y[kept],
        provenance={**federation.provenance, **({} if lines is None else {ROWS: lines.select(kept).to_list()})},
        ids=tuple(clients),
        train=cut(federation.train),
        test=cut(federation.test),
        validation=cut(federation.validation) if federation.validation is not None else None,
        central=None,
        groups=None,
        arrivals=None,
        later=(),
        unseen=0,
    )


SETTINGS_FILE = "site.json"


@dataclass(frozen=True)
class SiteSettings:
    """The settings of `coterie join`: the data of the site, which are only ever described here."""

    data: str  # the spec, or, of several sources, their names
    clients: tuple[str, ...] | None = None
    data_seed: int = 0
    data_dir: str | None = None
    engine: str = "auto"
    threads: int | None = None
    where: str | None = None  # the folder in which `coterie join` was run: file names and modules are looked for there
    wards: Mapping[str, str] = field(default_factory=dict)  # of several sources: by ward, its data

    @property
    def folder(self) -> Path | None:
        """Where data sets lie."""
        return Path(self.data_dir) if self.data_dir else None

    def write(self, kit: Path) -> None:
        """Keep it in the kit."""
        write_atomic(kit / SETTINGS_FILE, format_json(vars(self)), 0o600)

    @classmethod
    def read(cls, kit: Path) -> "SiteSettings":
        tree = read_json(kit / SETTINGS_FILE)
        return cls(**{**tree, "clients": tuple(tree["clients"]) if tree["clients"] is not None else None})

    def load(self, site: str | None) -> Federation:
        """The clients of the site, as its sources name them.

        Raises:
            UserError: A source cannot be read or does not fit the others; of several, the sentence names the ward.
        """
        options: dict[str, Any] = {"data_seed": self.data_seed, "data_dir": self.folder}
        if not self.wards:
            return load_site_data(self.data, self.clients, site=site, **options)
        name = site or "site"
        wards = {ward: _read_ward(ward, load_site_data, spec, site=f"{name}/{ward}", **options) for ward, spec in self.wards.items()}
        whole = join_wards(name, wards)
        return whole if self.clients is None else select_clients(whole, _check_clients(self.clients, whole))

    def read_table(self, site: str | None) -> RawTable:
        """The rows of all sources, as their files hold them.

        Raises:
            UserError: As of `load`.
        """
        if not self.wards:
            return read_raw_table(self.data, self.folder)
        return join_tables(site or "site", {ward: _read_ward(ward, read_raw_table, spec, self.folder) for ward, spec in self.wards.items()})


def _read_ward(ward: str, read: Callable[..., T], *given: Any, **options: Any) -> T:
    """Read a source; what is wrong with it is about its ward."""
    try:
        return read(*given, **options)
    except UserError as error:
        raise UserError(f"Ward {ward!r}: {error}") from error


def describe_site_data(settings: SiteSettings, site: str, policy: Policy, *, accept: bool = False) -> list[str]:
    """What a site joins with, in lines for its operator. A table that cannot be trained on as it is can still be described and checked.

    Raises:
        UserError: There are no data that can be read, or their checks fail.
    """
    try:
        held = settings.load(site)
    except UserError as error:
        try:
            table = settings.read_table(site)
        except UserError:
            raise error from None
        known = f"{site}: a table of {len(table.frame)} rows and {len(table.features)} columns."
        return [str(error), f"{known} Until that is fixed, or an agreed schema says how to read it, it is described and checked only."]
    lines = check_before_use(held, accept=accept)
    if policy.small_clients == "merge":
        held = merge_clients(held, plan_merges(_count_training(held), policy.minimum_samples))
    return [*lines, *_describe_clients(held, site, policy)]


def _describe_clients(held: Federation, site: str, policy: Policy) -> Iterator[str]:
    """The clients of a site, and what its policy makes of them."""
    counts = _count_training(held)
    yield f"{site}: {len(held)} client{'s' * (len(held) != 1)} with {sum(counts.values())} training samples."
    if held.ids != (site,):
        shown = [f"{name} ({size})" for name, size in counts.items()]
        yield f"{', '.join(shown[:MOST_SHOWN])}{', ...' if len(shown) > MOST_SHOWN else ''}"
    if small := [name for name, size in counts.items() if size < policy.minimum_samples]:
        remedy = "" if len(held) == 1 else ' (small_clients = "merge" in policy.toml merges them)'
        yield f"Silent, with fewer than {policy.minimum_samples} training samples: {', '.join(small[:MOST_SHOWN])}{remedy}."
    if policy.aggregate:
        yield f"One reply leaves for all of them, as client {site!r} (aggregate)."


def _count_training(federation: Federation) -> dict[str, int]:
    return {name: int(size) for name, size in zip(federation.ids, federation.train.sizes, strict=True)}


class DataError(UserError):
    """About the site's own files: the server does not see it."""


@contextmanager
def _reading_data() -> Iterator[None]:
    try:
        yield
    except TaskError:
        raise
    except UserError as error:
        raise DataError(str(error)) from error


class SiteData:
    """The data of a kit, read when they are first needed: a table that cannot be trained on can still be described."""

    def __init__(self, kit: Path, settings: SiteSettings, merge_below: int = 0) -> None:
        """Clients with fewer training samples than `merge_below` are merged."""
        self.kit, self.settings, self.merge_below = kit, settings, merge_below
        self.name = read_json_object(kit / "kit.json", site=str)["site"] if (kit / "kit.json").is_file() else None

    @property
    def site(self) -> str:
        return self.name or "site"

    @cached_property
    def _loaded(self) -> Federation:
        with _reading_data():
            return self.settings.load(self.name)

    @cached_property
    def _table(self) -> RawTable:
        with _reading_data():
            return self.settings.read_table(self.name)

    @cached_property
    def merges(self) -> dict[str, str]:
        """By client, the one that it becomes. The site's own files decide, not the schema of a server, which could otherwise have clients
        merged in ever new ways, each with a budget of its own."""
        if not self.merge_below:
            return {}
        try:
            counts = _count_training(self._loaded)
        except (DataError, TaskError):
            counts = dict(Counter(self._table.clients or ()))
        return plan_merges(counts, self.merge_below)

    @cached_property
    def federation(self) -> Federation:
        """The site's clients, as its data spec names them."""
        loaded = self._loaded
        with _reading_data():
            return merge_clients(loaded, self.merges)

    @cached_property
    def table(self) -> RawTable:
        """The site's table, as its files hold it."""
        found = self._table
        if not self.merges or found.clients is None:
            return found
        return found._replace(clients=tuple(self.merges.get(name, name) for name in found.clients))

    @property
    def mapping(self) -> dict[str, ColumnMapping]:
        """The site's own names, factors and words; read again each time, since it may have been edited."""
        with _reading_data():
            return read_mapping(self.kit / MAPPING_FILE)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """By client of the table, a hash of its rows."""
        return hash_clients(self.table, self.site)

    def load(self, schema: Schema | None) -> Federation:
        """The data in the form of a schema: in another order of columns, or read by what the sites agreed on."""
        if schema is None:
            return self.federation
        if (agreed := schema.agreed_schema) is None:
            return conform_federation(self.federation, schema, where="The site")
        times = schema.make_task() if agreed.is_survival else None
        made = load_conformed(self.table, agreed, self.mapping, self.site, self.settings.data_seed, times)
        if self.settings.clients is not None:
            made = select_clients(made, self.settings.clients)
        if schema.scaling is not None:
            made = scale_federation(made, Scaling.from_dict(schema.scaling))
        return conform_federation(made, schema, where="The site")

    def count_samples(self, *, by_table: bool) -> dict[str, int]:
        """Training samples by client; of a table that is not divided yet, its rows."""
        if by_table:
            return dict(Counter(self.table.clients or (self.site,) * len(self.table.frame)))
        return _count_training(self.federation)
