"""Runs of a federation: orders, status and journal, all read from and written to the run's folder.

Only `coterie serve` starts jobs from them.
"""

import getpass
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from os import SEEK_END
from pathlib import Path
from time import time
from typing import Any

from coterie._util.errors import UserError, suggest_names
from coterie._util.json_io import read_json_object, to_json_value, write_json
from coterie.core.local import Local
from coterie.deploy.files import LONGEST_NAME, escape_text, is_name
from coterie.deploy.messages import LIMIT
from coterie.deploy.orders import KINDS_OF_ORDER, LONGEST_NOTE, OrderTerms, find_asks
from coterie.deploy.server.federation import FederationFolder
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.inspect.inspection import InspectPlan, run_inspection
from coterie.inspect.pilot import PilotPlan
from coterie.methods.catalogue import build
from coterie.run.callbacks import Callback
from coterie.run.lanes import Lane, derive_seed

STATUS_FILE, JOURNAL_FILE = "status.json", "journal.jsonl"
LONGEST_ENTRY = 2000  # characters of a text in a line


def read_journal(folder: Path, after: int = 0) -> list[dict[str, Any]]:
    """The lines of a run's journal from this one on; none before it begins. Half a line (a full disk, a kill) is passed over."""
    path, found = folder / JOURNAL_FILE, []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found[after:]


def _escape_values(details: Mapping[str, Any]) -> dict[str, Any]:
    """Details whose texts a terminal may show: a site may have sent them. A trace keeps its lines, and is omitted."""
    return {name: escape_text(text, LONGEST_ENTRY) if isinstance(text, str) and name != "trace" else text for name, text in details.items()}


class Journal(Callback):
    """Written by the server's job, read by all commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def begin(self, sites: list[str]) -> None:
        """Note the start of a run's job with these sites."""
        write_json(self.folder / STATUS_FILE, {"status": "running"})
        self.append("began", {"sites": sites})

    def append(self, what: str, details: Mapping[str, Any]) -> None:
        """Append a line, after the end of one that was cut short."""
        with (self.folder / JOURNAL_FILE).open("ab+") as lines:
            size = lines.seek(0, SEEK_END)
            lines.seek(max(size - 1, 0))
            torn = size > 0 and lines.read(1) != b"\n"
            line = json.dumps({"time": round(time(), 3), "what": what, **_escape_values(details)})
            lines.write((b"\n" if torn else b"") + line.encode() + b"\n")

    def fault(self, sentence: str) -> None:
        """What stands in the way of a site."""
        self.append("fault", {"sentence": sentence})

    def end(self, status: str, **details: Any) -> None:
        """How this part of the run ended: complete, again (continue with the next job), refused, failed or aborted."""
        self.append("ended", {"status": status, **details})
        write_json(self.folder / STATUS_FILE, {"status": status, **_escape_values(details)})

    def lines(self, after: int = 0) -> list[dict[str, Any]]:
        """The lines from this one on."""
        return read_journal(self.folder, after)

    def on_notice(self, sentence: str) -> None:
        self.append("notice", {"told": sentence})

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        self.append("start", {"total": total_rounds, "done": done_rounds, "rounds": settings.plan.rounds})

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        details: dict[str, Any] = {"method": lane.label, "seed": lane.seed, "round": record.round_, "absent": len(record.absences)}
        details["steps"] = record.cost.steps
        if (score := record.score(lane.problem.task)) is not None:
            details["accuracy"] = score  # of survival times the index of prediction accuracy
        self.append("round", details)


@dataclass(frozen=True)
class InspectOrder:
    """What is to be asked, as it travels to the server."""

    data: str  # for the record
    model: str = "mclr"
    seed: int = 0
    plan: InspectPlan = field(default_factory=InspectPlan)

    def as_json(self) -> dict[str, Any]:
        return dict(to_json_value(asdict(self)))

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "InspectOrder":
        """What `as_json` wrote."""
        plan, pilot = dict(tree["plan"]), tree["plan"]["pilot"]
        plan["pilot"] = (
            PilotPlan(**{**pilot, "local": Local(**pilot["local"]), "rates": tuple(pilot["rates"])}) if pilot is not None else None
        )
        return cls(**{**tree, "plan": InspectPlan(**plan)})


APPROVALS_FILE = "approvals.json"  # the order's hash, and the sites that have not approved it yet


@dataclass(frozen=True)
class Order:
    """What is to be done, as it travels to the server: plain text and numbers."""

    run: str
    kind: str  # one of KINDS_OF_ORDER
    settings: Mapping[str, Any]  # of the study, as JSON
    order: tuple[str, ...] = ()  # of the sites, as the federation lists them
    minimum: int = 1  # sites without which nothing begins
    limit: int = LIMIT
    trusted: tuple[str, ...] = ()  # methods and samplers that are code of the operator's own, by their specs: others are not imported
    operator: str = ""  # whose order it is; sites are shown it, and the purpose
    purpose: str = ""
    start: str = ""  # of a study that continues from a bundle: its hash
    prepares: tuple[str, ...] = ()  # the questions that the sites of a study answer first, by which all are prepared

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "Order":
        """From what a file or a job holds."""
        listed = {name: tuple(tree.get(name) or ()) for name in ("order", "trusted", "prepares")}
        made = cls(**{**tree, **listed})
        if made.kind not in KINDS_OF_ORDER:
            raise UserError(f"An order cannot be of kind {escape_text(str(made.kind), 100)!r}: use {', '.join(KINDS_OF_ORDER)}.")
        if not is_name(made.run):  # it is a folder's
            raise UserError(f"A run cannot be called {escape_text(str(made.run), 100)!r}: use letters, digits, - . = and _.")
        return made

    def terms(self, methods: Sequence[Any] | None = None) -> OrderTerms:
        """The order as sites read and approve it. `methods` are the study's, where they are built already."""
        note: dict[str, Any] = {"operator": self.operator[:LONGEST_NOTE], "purpose": self.purpose[:LONGEST_NOTE]}
        return OrderTerms(kind=self.kind, run=self.run, **note, **TERMS[self.kind](self, methods))


def _state_study(order: Order, methods: Sequence[Any] | None) -> dict[str, Any]:
    settings = Settings.from_json(order.settings)
    made = methods if methods is not None else [build(spec, trust=spec in order.trusted) for spec in settings.methods]
    seeds = [derive_seed(draw, seed) if settings.own_seeds else seed for draw in settings.draws for seed in settings.seeds]
    common = {"data": settings.data, "model": settings.model, "seeds": tuple(dict.fromkeys(seeds)), "methods": settings.methods}
    plan = to_json_value(settings.as_json()["plan"])
    asks = (*find_asks(made, "Evaluate"), *order.prepares)
    return {**common, "asks": asks, "plan": plan | ({"start": order.start} if order.start else {})}


def _state_inspection(order: Order, methods: Sequence[Any] | None) -> dict[str, Any]:
    wanted = InspectOrder.read(order.settings)
    common = {"data": wanted.data, "model": wanted.model, "seeds": (wanted.seed,), "plan": to_json_value(order.settings["plan"])}
    return {**common, "methods": ("inspect",), "asks": find_asks([run_inspection])}


def _state_evaluation(order: Order, methods: Sequence[Any] | None) -> dict[str, Any]:
    tree = order.settings
    common = {"data": tree["data"], "model": tree["model"], "seeds": (0,), "plan": to_json_value(tree["plan"])}
    return {**common, "methods": ("evaluate",), "asks": ("Evaluate",)}


def _state_table_order(order: Order, methods: Sequence[Any] | None) -> dict[str, Any]:
    schema = order.settings["schema"]
    asks = ("SummarizeTable",) if order.kind == "statistics" else ("DescribeTable",) if schema is None else ("CheckTable",)
    return {"data": "tables", "model": "", "seeds": (0,), "methods": (order.kind,), "asks": asks, "plan": to_json_value({"schema": schema})}


# by kind, the terms of an order but its run, operator and purpose
TERMS: Mapping[str, Callable[[Order, Sequence[Any] | None], dict[str, Any]]] = {
    "study": _state_study,
    "inspect": _state_inspection,
    "evaluate": _state_evaluation,
    "schema": _state_table_order,
    "statistics": _state_table_order,
}


ORDER_FILE, STOP_FILE = "order.json", "stop"
WAITING, SUBMITTED, RUNNING_NOW, AGAIN = "waiting", "submitted", "running", "again"
END_STATES = ("complete", "refused", "failed", "aborted")  # what else a run may come to


@dataclass(frozen=True)
class RunFolder:
    """One run: its order, its status, its journal, and the evidence in `study`."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def study(self) -> Path:
        return self.folder / "study"

    @property
    def status_details(self) -> Mapping[str, Any]:
        """How it stands: the status, and a reason where there is one."""
        return read_json_object(self.folder / STATUS_FILE, status=str)

    @property
    def status(self) -> str:
        return str(self.status_details["status"])

    def set_status(self, status: str, **details: Any) -> None:
        """Set how it stands."""
        write_json(self.folder / STATUS_FILE, {"status": status, **details})

    def place(self, order: Order, timeout: float) -> None:
        """Order it: from now on it waits for the server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / ORDER_FILE, {"order": asdict(order), "timeout": timeout})
        self.set_status(WAITING)

    def order(self) -> tuple[Order, float]:
        """What was ordered, and how many seconds sites have for an answer."""
        tree = read_json_object(self.folder / ORDER_FILE, order=dict)
        return Order.read(tree["order"]), float(tree["timeout"])

    @property
    def is_stop_requested(self) -> bool:
        return (self.folder / STOP_FILE).exists()

    @property
    def pending_sites(self) -> tuple[str, ...]:
        """The sites that had not approved the order when they were last asked."""
        path = self.folder / APPROVALS_FILE
        return tuple(read_json_object(path, pending=list)["pending"]) if path.exists() else ()

    def request_stop(self) -> None:
        """Ask the server to abort it."""
        (self.folder / STOP_FILE).touch()

    def clear_stop(self) -> None:
        (self.folder / STOP_FILE).unlink(missing_ok=True)


def list_runs(federation: FederationFolder) -> list[RunFolder]:
    """All runs, the oldest order first."""
    orders = sorted(federation.runs.glob(f"*/{ORDER_FILE}"), key=lambda path: (path.stat().st_mtime, path.parent.name))
    return [RunFolder(path.parent) for path in orders if (path.parent / STATUS_FILE).exists()]


def find_run(federation: FederationFolder, name: str) -> RunFolder:
    """The run of a name."""
    names = {run.name: run for run in list_runs(federation)}
    if name not in names:
        raise UserError(f"The federation {federation.folder} has no run {name!r}: {suggest_names(name, names)}")
    return names[name]


def make_run(federation: FederationFolder, name: str) -> RunFolder:
    """A run that is not there yet."""
    if not is_name(name):
        raise UserError(f"A run cannot be called {escape_text(name, 100)!r}: use letters, digits, - . = and _, at most {LONGEST_NAME}.")
    if _is_taken(federation, name):
        raise UserError(f"The federation has a run {name!r} already: choose another --name, or resume it with --resume.")
    return RunFolder(federation.runs / name)


def _is_taken(federation: FederationFolder, name: str) -> bool:
    """Whether there is a run of a name. The status is written last: a folder without one is of a launch that was killed."""
    return (federation.runs / name / STATUS_FILE).exists()


def get_operator_name() -> str:
    """The operator of an order, as sites see it: the user and the machine."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


def find_free_name(federation: FederationFolder, stem: str) -> str:
    """A name that no run has: the stem, or the stem with a number."""
    number = 1
    while _is_taken(federation, name := stem if number == 1 else f"{stem}-{number}"):
        number += 1
    return name
