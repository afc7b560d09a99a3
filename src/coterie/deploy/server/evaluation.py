"""A bundle at the sites of a federation: which fits, how it does there in one look, and the history by which changes are noticed.

An order of kind `evaluate` names a bundle by its hash and so many looks. Each look is a job of the same order, so that sites
approve it once: it asks for the scores of the bundle on the test parts that sites have then, and adds one line to the run's history. Looks
are counted, and times are the server's: the clocks of sites do not matter.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie._util.files import lock_file
from coterie.core.arrays import Floats
from coterie.core.asks import Evaluated
from coterie.core.layout import InitialModels
from coterie.core.method import Problem
from coterie.core.serving import COMBINED, Serving
from coterie.core.specs import is_external_code
from coterie.deploy.bundle.bundle import Bundle
from coterie.deploy.bundle.files import HEAD_FILE, read_bundle, read_bundle_bytes, read_head
from coterie.deploy.messages import read_schema
from coterie.deploy.server.federation import SCHEMA_FILE, FederationFolder
from coterie.deploy.server.members import Members, read_stored_schema
from coterie.deploy.server.validation import clean_text
from coterie.statistics.change import KEPT, ChangeTest

HISTORY_FILE, BUNDLE_FOLDER = "history.jsonl", "bundle"  # in the folder of a run
MOST_LOOKS = 100_000
RATE, MARGIN = 0.005, 0.05  # false alarms in a look, at most; a rise of the error that is no change
CHECK = "check"  # the field of a line that continues the hashes of those before


@dataclass(frozen=True)
class EvaluateOrder:
    """What is to be evaluated, as it travels to the server."""

    data: str  # for the record
    model: str
    bundle: str  # its hash
    method: str  # that trained them
    looks: int = 1
    every: float = 0.0  # seconds between looks, for people: the server counts looks

    def as_json(self) -> dict[str, Any]:
        """With the plan that sites read and approve."""
        return {**asdict(self), "plan": {"rounds": self.looks, "bundle": self.bundle, "method": self.method, "every": self.every}}

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "EvaluateOrder":
        """What `as_json` wrote."""
        return cls(**{name: value for name, value in tree.items() if name != "plan"})


def open_bundle(folder: Path) -> tuple[Bundle, str]:
    """A bundle that sites can be asked about, and the hash of all that it holds.

    Raises:
        UserError: Where there is none, or a federation cannot use it.
    """
    head = read_head(folder)
    if is_external_code(head.model):
        raise UserError(f"{folder} has the model {head.model!r}, which is code of its own: sites are asked about Coterie's models only.")
    bundle = read_bundle(folder)
    if not bundle.task.counts_classes:
        raise UserError(f"{folder} is of a {bundle.task}: the sites of a federation classify; name a bundle of a classification.")
    if bundle.combiner is not None or COMBINED in bundle.clients.values():
        raise UserError(f"{folder} combines several models for a client: name a bundle that serves one model a client.")
    return bundle, sha256(read_bundle_bytes(folder / HEAD_FILE)).hexdigest()  # which holds the hash of the models


def keep_bundle(source: Path, run: Path) -> None:
    """Copy a bundle into a run's folder, where its jobs read it; a copy that was cut short is made again."""
    target = run / BUNDLE_FOLDER
    shutil.rmtree(target, ignore_errors=True)
    run.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target)


def load_kept_bundle(run: Path, expected: str) -> Bundle:
    """The bundle of a run's folder, if it is the one that was ordered."""
    bundle, found = open_bundle(run / BUNDLE_FOLDER)
    if found != expected:
        raise UserError(f"{run / BUNDLE_FOLDER} is not the bundle that was ordered: order it again under another --name.")
    return bundle


def check_fit(bundle: Bundle, members: Members) -> None:
    """Refuse a bundle of another task than the sites have."""
    if bundle.classes != members.classes:
        ours, theirs = (clean_text(", ".join(names)) for names in (bundle.classes, members.classes))
        raise UserError(f"The bundle predicts {ours}, and the sites have the classes {theirs}: name a bundle of the same task.")
    if bundle.input_shape != members.input_shape:
        raise UserError(
            f"The bundle takes samples of shape {bundle.input_shape}, the sites have {members.input_shape}: name a bundle of these columns."
        )
    if bundle.features is not None and members.schema and (own := read_features(members.schema)) and own != bundle.features:
        other = next((ours, theirs) for ours, theirs in zip(bundle.features, own, strict=True) if ours != theirs)
        raise UserError(
            f"The bundle takes the column {clean_text(other[0])!r} where the sites have {clean_text(other[1])!r}: name another."
        )


def check_columns(bundle: Bundle, federation: FederationFolder) -> None:
    """Refuse, before any site is asked, a bundle of other columns than the sites of the last run agreed on."""
    text = read_stored_schema(federation.folder / SCHEMA_FILE)
    own = read_features(text) if text else ()
    if own and bundle.features is not None and own != bundle.features:
        extra = next((name for name in bundle.features if name not in own), "") or next(name for name in own if name not in bundle.features)
        raise UserError(f"The bundle and the sites differ in the column {clean_text(extra)!r}: name a bundle of the sites' columns.")


def read_features(schema: str) -> tuple[str, ...]:
    """The features that a schema's columns become, in their order."""
    return tuple(read_schema(schema).features)


@dataclass(frozen=True, eq=False)
class ContinuedProblem(Problem):
    """What is learned, from models that are there: the i-th initial model is the i-th of these, and further ones are drawn as usual."""

    start: Floats | None = None  # (k, d)

    def initial(self, seed: int) -> InitialModels:
        drawn, start = super().initial(seed), self.start
        assert start is not None
        return lambda i=0: np.array(start[i]) if i < len(start) else drawn(i)


def serve_bundle(bundle: Bundle, members: Members) -> tuple[Serving, list[str]]:
    """What each client that is there is served, and the clients that the bundle has no model for."""
    roster = members.roster()
    only = 0 if len(bundle.models) == 1 else None
    rows = {int(client): bundle.clients.get(roster.ids[client], only) for client in roster.available}
    known = [client for client, row in rows.items() if row is not None]
    without = [roster.ids[client] for client, row in rows.items() if row is None]
    served = np.array([rows[client] for client in known], dtype=np.int64)
    return Serving(np.array(known, dtype=np.int64), bundle.models, served), without


@dataclass(frozen=True)
class Score:
    """How a bundle does on one client in one look."""

    site: str
    right: int
    samples: int
    loss: float | None  # None where it is no number


@dataclass(frozen=True)
class Look:
    """One line of a history."""

    look: int
    time: float  # the server's
    bundle: str
    clients: Mapping[str, Score]
    absent: tuple[str, ...]  # clients that were asked and did not answer


def make_look(number: int, bundle: str, judged: Evaluated, serving: Serving, members: Members, before: Sequence[Look]) -> Look:
    """The look as it is written down. A client counts for the site that had it first: no other can speak for it."""
    owners = {name: score.site for look in reversed(before) for name, score in look.clients.items()}
    clients = {}
    for client, hits, samples, loss in zip(judged.clients, judged.hits.sum(axis=1), judged.sizes, judged.loss, strict=True):
        member = members.members[int(client)]
        if samples > 0 and owners.get(member.id, member.site) == member.site:
            clients[member.id] = Score(member.site, int(hits), int(samples), float(loss) if math.isfinite(loss) else None)
    asked = [members.members[int(client)].id for client in serving.clients]
    return Look(number, round(time(), 3), bundle, clients, tuple(name for name in asked if name not in clients))


class History:
    """The looks of a run: a file that only grows, line by line, each with a hash that continues those before."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HISTORY_FILE

    def read(self) -> list[Look]:
        """All looks. A last line that was cut short by a kill is no look.

        Raises:
            UserError: Where a line before was changed or cannot be read.
        """
        return [look for look, _ in self._read()]

    def append(self, look: Look) -> None:
        """Add a look: on disk, or not there."""
        with lock_file(self.path):
            before = self._read()
            if look.look != len(before) + 1:
                raise UserError(
                    f"{self.path} has {len(before)} looks, and look {look.look} cannot follow: start another monitor with --name."
                )
            body = json.dumps(asdict(look), sort_keys=True, allow_nan=False)
            check = _continue_hash(before[-1][1] if before else "", body)
            with self.path.open("ab+") as file:
                file.truncate(self._count_whole_bytes())
                file.write(json.dumps({"line": body, CHECK: check}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def _count_whole_bytes(self) -> int:
        """Bytes up to the end of the last line that is whole."""
        data = self.path.read_bytes() if self.path.exists() else b""
        return data.rfind(b"\n") + 1

    def _read(self) -> list[tuple[Look, str]]:
        data = self.path.read_bytes() if self.path.exists() else b""
        found: list[tuple[Look, str]] = []
        for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
            try:
                tree = json.loads(line)
                body = json.loads(tree["line"])
                clients = {name: Score(**score) for name, score in body["clients"].items()}
                look = Look(body["look"], float(body["time"]), body["bundle"], clients, tuple(body["absent"]))
                whole = tree[CHECK] == _continue_hash(found[-1][1] if found else "", tree["line"]) and look.look == number
            except (ValueError, KeyError, TypeError, AttributeError):
                whole = False
            if not whole:
                raise UserError(f"{self.path} is damaged at line {number}: restore it from a copy, or start another monitor with --name.")
            found.append((look, tree[CHECK]))
        return found


def _continue_hash(before: str, body: str) -> str:
    return sha256(f"{before}{body}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Change:
    """A client whose errors have risen."""

    look: int
    client: str
    site: str
    before: float  # error at its reference, between 0 and 1
    now: float
    statistic: float  # log of the e-value
    threshold: float


def find_changes(looks: Sequence[Look], test: ChangeTest) -> list[Change]:
    """The changes in a history: each client against its first look, and after a change against the look that follows it.

    Clients are tested each by itself, so that a site that claims many samples cannot hide, or feign, a change of others.
    """
    references: dict[str, tuple[float, float]] = {}
    late: dict[str, list[tuple[float, float]]] = {}
    found = []
    for look in looks:
        tested = []
        for name, score in look.clients.items():
            error = 1 - score.right / score.samples
            if name not in references:
                references[name], late[name] = (error, float(score.samples)), []
            else:
                late[name] = [(float(score.samples - score.right), float(score.samples)), *late[name]][:KEPT]
                tested.append(name)
        if not tested:
            continue
        means, samples = np.array([references[name] for name in tested]).T
        padded = np.array([late[name] + [(0.0, 0.0)] * (KEPT - len(late[name])) for name in tested])
        statistics = test.compute_statistics(means, samples, padded[:, :, 0], padded[:, :, 1])
        changed, threshold = test.find_changed(statistics)
        for place in np.flatnonzero(changed).tolist():
            name, (errors, count) = tested[place], late[tested[place]][0]
            site, own = look.clients[name].site, references.pop(name)
            found.append(Change(look.look, name, site, own[0], errors / count, float(statistics[place]), threshold))
    return found


def describe_history(run: Path, federation: Path) -> dict[str, Any] | None:
    """The looks of a run for people, as JSON: scores by look, what has changed and since when, and how to train on; None without any.

    Raises:
        UserError: The history is damaged.
    """
    looks = History(run).read()
    if not looks:
        return None
    changes, times = find_changes(looks, ChangeTest(RATE, MARGIN)), {look.look: look.time for look in looks}
    series: dict[str, list[list[float]]] = {}
    for name in dict.fromkeys(change.client for change in changes):
        own = [(look.look, look.clients[name]) for look in looks if name in look.clients]
        series[clean_text(name)] = [[look, score.right / score.samples] for look, score in own]
    pooled = []
    for look in looks:
        right, samples = (sum(getattr(score, field) for score in look.clients.values()) for field in ("right", "samples"))
        pooled.append({"look": look.look, "time": look.time, "clients": len(look.clients), "absent": len(look.absent), "samples": samples})
        pooled[-1]["accuracy"] = right / samples if samples else None
    return {
        "looks": pooled,
        "changed": series,
        "changes": [{**asdict(change), "client": clean_text(change.client), "time": times[change.look]} for change in changes],
        "proposal": f"coterie launch METHOD --federation {federation} --from {run / BUNDLE_FOLDER}" if changes else None,
    }
