"""A study's evidence as arrays over methods, seeds, rounds and clients: all that a comparison is computed from.

Files are read piece by piece and only the columns needed, so that ten million rows take seconds and their counts, not the rows, stay in
memory. A damaged file is named in `faults`, and what the others hold is still there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.core.arrays import Array, Doubles, Ids, Ints
from coterie.core.errors import UserError
from coterie.evidence.reader import Evidence, read_json, segments
from coterie.evidence.settings import Settings
from coterie.run.lanes import RUNNING

COSTS = ("messages", "bytes_down", "bytes_up", "passes", "steps", "samples")


@dataclass(frozen=True)
class Records:
    """M methods, S seeds, T + 1 rounds (0 is the start), R of them evaluated, N clients. What was not measured is nan (or -1 in counts)."""

    settings: Settings
    ids: tuple[str, ...]  # (N,)
    train: Ints  # (N,) training samples
    test: Ints  # (N,) test samples
    truth: Ids | None  # (N,) true groups, where they are known
    rounds: Ints  # (R,) the evaluated rounds
    right: Array  # (M, S, R, N) test samples that each client's model got right
    loss: Doubles  # (M, S, R) over all clients' test samples
    validation: Doubles  # (M, S, R) accuracy over all clients' validation samples
    costs: dict[str, Doubles]  # each (M, S, T + 1), of the round by itself
    server_seconds: Doubles  # (M, S, T + 1)
    groups: dict[str, Array]  # by method that keeps groups: (S, T + 1, N), -1 for a client not yet in a group
    clusters: dict[
        str, dict[tuple[int, int], tuple[Ids, Ids]]
    ]  # by method with groups of a round: (seed's place, round) -> clients, labels
    silhouette: Doubles  # (M, S) the last that the method recorded
    stopped: dict[tuple[str, int], str]  # (method, seed) -> why it ended early
    faults: tuple[str, ...]
    evidence: Evidence  # where all this was read

    @cached_property
    def accuracy(self) -> Doubles:
        """(M, S, R) over all clients' test samples; nan for a round in which any client is missing."""
        total, counted = max(int(self.test.sum()), 1), self.test > 0
        table = np.full(self.right.shape[:3], np.nan)
        for method, right in enumerate(self.right):  # one method at a time: the masks are as large as the counts
            whole = (right[:, :, counted] >= 0).all(axis=-1)
            table[method] = np.where(whole, right.sum(axis=-1, where=right >= 0, dtype=np.int64) / total, np.nan)
        return table

    def by_client(self, method: int, rounds: slice) -> Doubles:
        """(S, N) each client's accuracy with one method, averaged over some of the evaluated rounds; nan without test samples."""
        right = self.right[method, :, rounds].astype(np.float64)
        right[right < 0] = np.nan
        return np.where(self.test > 0, right.mean(axis=1) / np.maximum(self.test, 1), np.nan)

    def place(self, label: str) -> int:
        return self.settings.methods.index(label)


def records_of(evidence: Evidence) -> Records:
    """Read everything that a comparison needs from a study's evidence."""
    settings, plan = evidence.settings, evidence.settings.plan
    faults: list[str] = []
    m, s, t, n = len(settings.methods), len(settings.seeds), plan.rounds + 1, len(evidence.ids)
    rounds = np.array([r for r in range(t) if r % plan.evaluate_every == 0 or r == plan.rounds])
    test = evidence.actual.sum(axis=1).astype(np.int64)
    right, loss = _judged(evidence, rounds, test, faults)
    costs = _costs(evidence, faults)
    truth = evidence.roster["group"].to_numpy()[:n]
    notes = _notes(evidence, faults)
    stopped = _stopped(evidence, faults)
    return Records(
        settings=settings,
        ids=tuple(evidence.ids),
        train=evidence.roster["train"].to_numpy()[:n].astype(np.int64),
        test=test,
        truth=truth.astype(np.int64) if (truth >= 0).any() else None,
        rounds=rounds,
        right=right.reshape(s, m, len(rounds), n).swapaxes(0, 1),
        loss=loss.reshape(s, m, len(rounds)).swapaxes(0, 1),
        validation=costs.pop("validation")[:, :, rounds],
        costs=costs,
        server_seconds=_server_seconds(evidence, faults),
        groups=_groups(evidence, faults),
        clusters=_clusters(evidence, notes, faults),
        silhouette=_silhouette(settings, notes),
        stopped=stopped,
        faults=tuple(dict.fromkeys(faults)),
        evidence=evidence,
    )


def _columns(evidence: Evidence, table: str, columns: list[str], faults: list[str]) -> Iterator[dict[str, Array]]:
    for batch in evidence.batches(table, columns, faults):
        yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in columns}


def _judged(evidence: Evidence, rounds: Ints, test: Ints, faults: list[str]) -> tuple[Array, Doubles]:
    """(lanes, R, N) right answers and (lanes, R) losses."""
    plan = evidence.settings.plan
    lanes = len(evidence.settings.methods) * len(evidence.settings.seeds)
    narrow = np.int16 if test.max(initial=0) < np.iinfo(np.int16).max else np.int32
    right = np.full((lanes, len(rounds), len(test)), -1, dtype=narrow)
    loss, weight = np.zeros((2, lanes * len(rounds)))
    place = np.zeros(plan.rounds + 1, dtype=np.int64)
    place[rounds] = np.arange(len(rounds))
    hits = [f"hits_{c}" for c in range(evidence.classes)]
    for batch in _columns(evidence, "clients", ["lane", "round", "client", "loss", *hits], faults):
        lane, row, client = batch["lane"], place[batch["round"]], batch["client"]
        right[lane, row, client] = sum((batch[name] for name in hits), start=np.zeros(len(lane), np.int32))
        cell = lane.astype(np.int64) * len(rounds) + row
        known = np.where(np.isfinite(batch["loss"]), test[client], 0)
        loss += np.bincount(cell, weights=np.where(known > 0, batch["loss"], 0.0) * known, minlength=len(loss))
        weight += np.bincount(cell, weights=known, minlength=len(loss))
    mean = np.divide(loss, weight, out=np.full(len(loss), np.nan), where=weight > 0)
    return right, mean.reshape(lanes, len(rounds))


def _empty(settings: Settings) -> Doubles:
    """(S, M, T + 1): a lane is a seed's place times M plus a method's, so (S, M) flattens to lanes."""
    return np.full((len(settings.seeds), len(settings.methods), settings.plan.rounds + 1), np.nan)


def _costs(evidence: Evidence, faults: list[str]) -> dict[str, Doubles]:
    names = [*COSTS, "validation"]
    tables = {name: _empty(evidence.settings) for name in names}
    for batch in _columns(evidence, "rounds", ["lane", "round", *names], faults):
        for name, table in tables.items():
            table.reshape(-1, table.shape[2])[batch["lane"], batch["round"]] = batch[name]
    return {name: table.swapaxes(0, 1) for name, table in tables.items()}


def _server_seconds(evidence: Evidence, faults: list[str]) -> Doubles:
    table = _empty(evidence.settings)
    for batch in _columns(evidence, "timings", ["lane", "round", "phase", "seconds"], faults):
        own = batch["phase"] == "server"
        table.reshape(-1, table.shape[2])[batch["lane"][own], batch["round"][own]] = batch["seconds"][own]
    return table.swapaxes(0, 1)


def _groups(evidence: Evidence, faults: list[str]) -> dict[str, Array]:
    settings = evidence.settings
    found: dict[str, Array] = {}
    for batch in _columns(evidence, "groups", ["lane", "round", "client", "group"], faults):
        method = batch["lane"] % len(settings.methods)
        for number in np.unique(method):
            label = settings.methods[number]
            if label not in found:
                found[label] = np.full((len(settings.seeds), settings.plan.rounds + 1, len(evidence.ids)), -1, dtype=np.int16)
            own = method == number
            seed = batch["lane"][own] // len(settings.methods)
            found[label][seed, batch["round"][own], batch["client"][own]] = batch["group"][own]
    return found


def _notes(evidence: Evidence, faults: list[str]) -> dict[str, dict[tuple[int, int], Any]]:
    """The notes that say something about groups, by name, then by (lane, round)."""
    kept: dict[str, dict[tuple[int, int], Any]] = {"clusters": {}, "silhouette": {}}
    for batch in _columns(evidence, "notes", ["lane", "round", "name", "value"], faults):
        for i in np.flatnonzero(np.isin(batch["name"].astype(str), list(kept))):
            kept[str(batch["name"][i])][int(batch["lane"][i]), int(batch["round"][i])] = json.loads(batch["value"][i])
    return kept


def _silhouette(settings: Settings, notes: dict[str, dict[tuple[int, int], Any]]) -> Doubles:
    table = np.full((len(settings.methods), len(settings.seeds)), np.nan)
    for (lane, _), value in sorted(notes["silhouette"].items()):
        table[lane % len(settings.methods), lane // len(settings.methods)] = value
    return table


def _clusters(
    evidence: Evidence, notes: dict[str, dict[tuple[int, int], Any]], faults: list[str]
) -> dict[str, dict[tuple[int, int], tuple[Ids, Ids]]]:
    """Groups that live for one round (FedSim's): labels are noted in the order of the clients of the aggregation matrix."""
    methods, noted = evidence.settings.methods, notes["clusters"]
    found: dict[str, dict[tuple[int, int], tuple[Ids, Ids]]] = {}
    if not noted:
        return found
    lanes = np.unique([lane for lane, _ in noted])
    for batch in _columns(evidence, "mixing", ["lane", "round", "source", "kept"], faults):
        own = np.isin(batch["lane"], lanes) & ~batch["kept"]
        lane, round_, source = (batch[name][own] for name in ("lane", "round", "source"))
        starts = np.flatnonzero(np.diff(lane, prepend=-1) | np.diff(round_, prepend=-1))
        for a, b in zip(starts, [*starts[1:], len(lane)], strict=True):
            at = (int(lane[a]), int(round_[a]))
            if at in noted and len(noted[at]) == b - a:
                cell = found.setdefault(methods[at[0] % len(methods)], {})
                cell[at[0] // len(methods), at[1]] = (source[a:b].astype(np.int64), np.asarray(noted[at], dtype=np.int64))
    return found


def _stopped(evidence: Evidence, faults: list[str]) -> dict[tuple[str, int], str]:
    """The lanes that ended early, from the last segment of each wave."""
    if evidence.folder is None:
        return {}
    settings = evidence.settings
    found: dict[tuple[str, int], str] = {}
    for segment in segments(evidence.folder):
        try:
            entries = read_json(segment / "lanes.json")
        except UserError as error:
            faults.append(str(error))
            continue
        for entry in entries:
            if entry["status"] != RUNNING:
                seed, method = divmod(entry["lane"], len(settings.methods))
                found[settings.methods[method], settings.seeds[seed]] = f"{entry['status']} {entry['reason']}".strip()
    return found
