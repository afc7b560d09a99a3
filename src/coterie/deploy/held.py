"""A site's own data: the clients that it holds, out of what a spec describes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.core.arrays import Ints
from coterie.core.errors import UserError, suggestion
from coterie.core.json_object import read_object
from coterie.data.catalogue import load
from coterie.data.federation import Federation, Parts
from coterie.data.table_files import ROWS, rows_of


def site_data(
    spec: str, clients: Sequence[str] | None = None, *, data_seed: int = 0, data_dir: Path | None = None, site: str | None = None
) -> Federation:
    """The federation of a site. Nothing of it ever leaves but what asks ask for.

    Args:
        spec: The data of the site.
        clients: The clients that it holds; default: all.
        data_seed: Which draw of the split.
        data_dir: Where data files are.
        site: The site's name, which its client has where neither a column nor several files name clients.
    """
    whole = load(spec, data_seed, data_dir, client=site)
    if whole.inputs is not None:
        raise UserError(f"The samples of {spec!r} have several inputs, which real federations do not carry yet: give one array.")
    if not whole.task.counts_classes:
        raise UserError(
            f"The data {spec!r} are a {whole.task}: real federations carry classifications so far, as no policy says yet what sites "
            "may tell of other labels; simulate it with 'coterie compare'."
        )
    if clients is None:
        return whole
    for name in clients:
        if name not in whole.ids:
            raise UserError(f"The data {spec!r} have no client {name!r}: {suggestion(name, whole.ids)}")
    return held_by_site(whole, clients)


def site_name(kit: Path) -> str | None:
    """The site that a kit is for, where it says so."""
    return str(read_object(kit / "kit.json", site=str)["site"]) if (kit / "kit.json").is_file() else None


def held_by_site(federation: Federation, clients: Sequence[str]) -> Federation:
    """The same federation with these clients alone, and only their samples."""
    place = {name: row for row, name in enumerate(federation.ids)}
    rows = [place[name] for name in clients]
    parts = [part for part in (federation.train, federation.test, federation.validation) if part is not None]
    kept = np.unique(np.concatenate([part.joined(np.array(rows, dtype=np.int64)) for part in parts]))

    def cut(part: Parts) -> Parts:
        return Parts.of([_places(kept, part[row]) for row in rows])

    lines = rows_of(federation.provenance)
    return federation.with_(
        x=np.asarray(federation.x[kept]),
        raw=None if federation.raw is None else np.asarray(federation.raw[kept]),
        y=federation.y[kept],
        provenance={**federation.provenance, **({} if lines is None else {ROWS: lines.select(kept).told()})},
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


def _places(kept: Ints, own: Ints) -> Ints:
    return np.searchsorted(kept, own).astype(np.int64)
