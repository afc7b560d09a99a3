"""What a site's operator is told while it takes part: which run asks, what was received, what went wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import sleep

from coterie.deploy.files import kit_files


class SiteNews:
    """Reads what is added to the kit's files from now on."""

    def __init__(self, kit: Path) -> None:
        self.bundles = kit / "bundles"
        self.audit, self.log = (_Tail(path) for path in (kit_files(kit).audit, kit / "site.log"))
        self._run, self._denied = "", set[str]()
        self._received = self._bundles()

    def wait(self, seconds: float) -> list[str]:
        """The news after a while."""
        sleep(seconds)
        return list(self._news())

    def _news(self) -> Iterator[str]:
        for line in self.audit.lines():
            entry = json.loads(line)
            if "ask" not in entry:  # a seal of the ledger, say
                continue
            if entry["run"] != self._run:
                self._run, self._denied = entry["run"], set()
                yield f"Run {self._run} asks: {entry['ask']}."
            if entry.get("denied") and entry["denied"] not in self._denied:
                self._denied.add(entry["denied"])
                yield f"Run {self._run} was denied: {entry['denied']}"
        yield from (f"Could not answer: {line.rstrip()}" for line in self.log.lines())
        found = self._bundles()
        for run in sorted({bundle.parent for bundle in found - self._received}):
            yield f"Run {run.name} has ended: its models are in {run}."
        self._received = found

    def _bundles(self) -> set[Path]:
        return set(self.bundles.glob("*/*"))


class _Tail:
    """The whole lines that a file grows by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.place)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.place += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
