"""A site's own data: what `coterie join` was given, loaded as the site describes them or as an agreed schema reads them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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


def load_site_data(
    spec: str, clients: Sequence[str] | None = None, *, data_seed: int = 0, data_dir: Path | None = None, site: str | None = None
) -> Federation:
    """The federation of a site with these clients, by default all; `site` names its client where the data name none."""
    whole = load(spec, data_seed, data_dir, client=site)
    if whole.inputs is not None:
        raise UserError(f"The samples of {spec!r} have several inputs, which real federations do not carry yet: give one array.")
    if not whole.task.counts_classes:
        raise UserError(
            f"The data {spec!r} are a {whole.task}: real federations carry classifications so far, as no policy states yet what sites "
            "may disclose of other labels; simulate it with 'coterie compare'."
        )
    if clients is None:
        return whole
    for name in clients:
        if name not in whole.ids:
            raise UserError(f"The data {spec!r} have no client {name!r}: {suggest_names(name, whole.ids)}")
    return select_clients(whole, clients)


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

    data: str
    clients: tuple[str, ...] | None = None
    data_seed: int = 0
    data_dir: str | None = None
    engine: str = "auto"
    threads: int | None = None
    where: str | None = None  # the folder in which `coterie join` was run: file names and modules are looked for there

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


def describe_site_data(settings: SiteSettings, site: str, *, accept: bool = False) -> list[str]:
    """What a site joins with, in lines for its operator. A table that cannot be trained on as it is can still be described and checked.

    Raises:
        UserError: There are no data that can be read, or their checks fail.
    """
    try:
        held = load_site_data(settings.data, settings.clients, data_seed=settings.data_seed, data_dir=settings.folder, site=site)
    except UserError as error:
        try:
            table = read_raw_table(settings.data, settings.folder)
        except UserError:
            raise error from None
        known = f"{site}: a table of {len(table.frame)} rows and {len(table.features)} columns."
        return [str(error), f"{known} Until that is fixed, or an agreed schema says how to read it, it is described and checked only."]
    return [
        *check_before_use(held, accept=accept),
        f"{site}: {len(held)} clients with {int(held.train.sizes.sum())} training samples.",
    ]


class DataError(UserError):
    """About the site's own files: the server does not see it."""


@contextmanager
def _reading_data() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise DataError(str(error)) from error


class SiteData:
    """The data of a kit, read when they are first needed: a table that cannot be trained on can still be described."""

    def __init__(self, kit: Path, settings: SiteSettings) -> None:
        self.kit, self.settings = kit, settings
        self.name = read_json_object(kit / "kit.json", site=str)["site"] if (kit / "kit.json").is_file() else None

    @cached_property
    def federation(self) -> Federation:
        """The site's clients, as its data spec names them."""
        own = self.settings
        with _reading_data():
            return load_site_data(own.data, own.clients, data_seed=own.data_seed, data_dir=own.folder, site=self.name)

    @cached_property
    def table(self) -> RawTable:
        """The site's table, as its files hold it."""
        with _reading_data():
            return read_raw_table(self.settings.data, self.settings.folder)

    @property
    def mapping(self) -> dict[str, ColumnMapping]:
        """The site's own names, factors and words; read again each time, since it may have been edited."""
        with _reading_data():
            return read_mapping(self.kit / MAPPING_FILE)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """By client of the table, a hash of its rows."""
        return hash_clients(self.table, self.name or "site")

    def load(self, schema: Schema | None) -> Federation:
        """The data in the form of a schema: in another order of columns, or read by what the sites agreed on."""
        if schema is None:
            return self.federation
        if (agreed := schema.agreed_schema) is None:
            return conform_federation(self.federation, schema, where="The site")
        made = load_conformed(self.table, agreed, self.mapping, self.name or "site", self.settings.data_seed)
        if self.settings.clients is not None:
            made = select_clients(made, self.settings.clients)
        if schema.scaling is not None:
            made = scale_federation(made, Scaling.from_dict(schema.scaling))
        return conform_federation(made, schema, where="The site")

    def count_samples(self, *, by_table: bool) -> dict[str, int]:
        """Training samples by client; of a table that is not divided yet, its rows."""
        if by_table:
            return dict(Counter(self.table.clients or (self.name or "site",) * len(self.table.frame)))
        return {name: int(size) for name, size in zip(self.federation.ids, self.federation.train.sizes, strict=True)}
