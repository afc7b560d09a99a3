"""What a site's operator is told while it takes part: which orders wait, which run asks, what was received, what went wrong."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

from coterie.core.json_object import read_object
from coterie.deploy.approvals import Approvals, OrderRecord
from coterie.deploy.files import kit_files
from coterie.deploy.names import escape_text
from coterie.deploy.orders import SHORT_HASH, describe_order
from coterie.deploy.policy import read_policy


class SiteNews:
    """Reads what is added to the kit's files from now on."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.bundles, self.approvals = kit, kit / "bundles", Approvals(kit)
        self.audit, self.log = (_Tail(path) for path in (kit_files(kit).audit, kit / "site.log"))
        self._run, self._said = "", set[str]()
        self._received = self._bundles()

    def wait(self, seconds: float) -> list[str]:
        """The news after a while."""
        sleep(seconds)
        return list(self._news())

    def waiting_orders(self) -> list[str]:
        """The orders that came before and still wait, in words."""
        return [
            line for order, record in self.approvals.records().items() if record.state == "pending" for line in self._pending(order, record)
        ]

    def _news(self) -> Iterator[str]:
        for line in self.audit.lines():
            entry = json.loads(line)
            run = escape_text(str(entry.get("run", "")))
            if run and run != self._run:
                self._run, self._said = run, set()
            for told in self._told(entry, run):
                if told not in self._said:  # once a run
                    self._said.add(told)
                    yield told
        yield from (f"Could not answer: {escape_text(line.rstrip(), 1000)}" for line in self.log.lines())
        found = self._bundles()
        for folder in sorted({bundle.parent for bundle in found - self._received}):
            yield f"Run {folder.name} has ended: its models are in {folder}."
        self._received = found

    def _told(self, entry: Mapping[str, Any], run: str) -> Iterator[str]:
        """An entry of the log in words; most say nothing new."""
        event = entry.get("event", "ask")
        if event == "ask":
            if not any(said.startswith(f"Run {run} asks") for said in self._said):
                yield f"Run {run} asks: {escape_text(str(entry['ask']))}."
            if entry.get("denied"):
                yield f"Run {run} was denied: {escape_text(entry['denied'])}"
        elif event == "refused":
            yield f"Refused{f' of run {run}' if run else ''}: {escape_text(str(entry.get('reason')))}."
        elif event == "approval":
            yield from self._order(str(entry.get("order")), entry)

    def _order(self, order: str, entry: Mapping[str, Any]) -> Iterator[str]:
        run, short, record = escape_text(str(entry.get("run"))), order[:SHORT_HASH], self.approvals.find(order)
        if entry.get("state") == "approved":
            yield f"Run {run}: the order {short} is approved (by {escape_text(str(entry.get('by')))})."
        elif entry.get("state") == "refused":
            yield f"Run {run}: the order {short} is refused."
        elif record is not None:
            yield "\n".join(self._pending(order, record))

    def _pending(self, order: str, record: OrderRecord) -> list[str]:
        """An order with what its operator can do about it."""
        short = order[:SHORT_HASH]
        todo = [
            f"  Approve it:  coterie policy approve {self.kit} {short}",
            f"  Refuse it:   coterie policy refuse {self.kit} {short} --reason '...'",
        ]
        return [*order_lines(order, record, self.kit), *(todo if record.state == "pending" else [])]

    def _bundles(self) -> set[Path]:
        return {path for path in self.bundles.glob("*/*") if not path.name.startswith(".")}


def order_lines(order: str, record: OrderRecord, kit: Path) -> list[str]:
    """An order in words, for a terminal."""
    terms = record.order
    told = {"pending": "waits for your approval", "approved": f"is approved (by {escape_text(record.by)})", "refused": "is refused"}
    if (kit / "kit.json").is_file():
        terms = replace(
            terms, operator=f"{terms.operator or 'no name'}, by the server {read_object(kit / 'kit.json', server=str)['server']}"
        )
    lines = [f"Run {escape_text(terms.run)}: the order {order[:SHORT_HASH]} {told[record.state]}."]
    return lines + [f"  {heading:<9} {text}" for heading, text in describe_order(terms, read_policy(kit_files(kit).policy), record.epsilon)]


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
