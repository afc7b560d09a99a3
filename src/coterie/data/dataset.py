"""One loader for every data set that has files: found in order, checked, decoded once, opened as memory maps."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.data import store
from coterie.data.federation import Samples
from coterie.data.folder import cache_folder, data_folders
from coterie.data.hub import Hub
from coterie.data.table import Table, as_samples, check_table

Finish = Callable[[Table], Table]  # makes the features: the table that comes out has them as its values


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is known of a data set: where its files lie, how many samples they hold, whose they are and how they are read."""

    name: str
    title: str
    files: tuple[str, ...]  # below the data folder
    counts: Mapping[str, int]  # samples by part of the set's own split
    clients: int | None = None
    licence: str
    citation: str
    source: str  # where a user gets it who cannot use the hub
    read: Callable[[Path], Table]  # from the data folder
    hub: Hub | None = None
    version: int = 1  # of the reader: another one decodes anew

    def samples(self, finish: Finish, data_dir: Path | None = None, **settings: Any) -> Samples:
        """The samples with the features that `finish` makes under these settings, from the cache if they were decoded before."""
        folder, fetched = self.locate(data_dir)
        sources = [folder / store.ABOUT] if fetched else [folder / file for file in self.files]
        told = {"source": f"{self.title}: {self.source}", "licence": self.licence, "citation": self.citation}

        def read() -> Table:
            table = store.open_table(folder) if fetched else self.read(folder)
            if not fetched:  # what was fetched has been checked
                self.check(table, str(folder), self.counts, self.clients)
            return finish(table)

        return decoded(self.name, sources, read, told, version=self.version, **settings)

    def locate(self, data_dir: Path | None = None) -> tuple[Path, bool]:
        """The data folder that has all the files, or else the folder of what was fetched from the hub (True)."""
        places = data_folders(data_dir)
        for place in places:
            if all((place / file).is_file() for file in self.files):
                return place, False
        if self.fetched.exists():
            return self.fetched, True
        missing = [file for file in self.files if not (places[0] / file).is_file()]
        fetch = f"run 'coterie data get {self.name}', or " if self.hub else ""
        raise UserError(
            f"{self.title} is missing: {fetch}put {', '.join(missing)} ({self.source}) into {' or '.join(map(str, places))}, or say with "
            "--data-dir or COTERIE_DATA which folder they are in."
        )

    @property
    def fetched(self) -> Path:
        """Where `coterie data get` puts the set."""
        return cache_folder() / "fetched" / self.name

    def fetch(self) -> Path:
        """Get the set from the hub into the user's cache."""
        if self.hub is None:
            raise UserError(
                f"{self.title} is not on the Hugging Face hub: put {', '.join(self.files)} ({self.source}) into {cache_folder()}."
            )
        if not self.fetched.exists():
            table = self.hub.table(self.title)
            self.check(table, f"{self.hub.repo} on the hub", self.hub.counts, clients=None)
            store.save_table(table, self.fetched)
        return self.fetched

    def check(self, table: Table, where: str, counts: Mapping[str, int], clients: int | None) -> None:
        """Refuse a table that is not what the set should be."""
        check_table(table, f"{self.title} in {where}")
        for part, wanted in counts.items():
            if (found := table.count(part)) != wanted:
                raise UserError(f"{self.title} in {where} has {found} {part} samples where {wanted} are expected: is it the right file?")
        if clients is not None and len(table.owner_names) != clients:
            raise UserError(
                f"{self.title} in {where} has {len(table.owner_names)} clients where {clients} are expected: is it the right file?"
            )


def decoded(name: str, files: Sequence[Path], read: Callable[[], Table], told: Mapping[str, Any], **settings: Any) -> Samples:
    """Samples as memory maps: read and written to the cache the first time these files are met with these settings."""
    final = cache_folder() / "decoded" / f"{name}-{fingerprint(files, **settings)}"
    if not final.exists():
        store.save_samples(as_samples(name, read(), told), final)
    return store.open_samples(final)


def fingerprint(files: Sequence[Path], **settings: Any) -> str:
    """Sixteen letters that change with the files' names, sizes and times, the reader's version and the settings."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([stats, settings], sort_keys=True, default=str).encode()).hexdigest()[:16]
