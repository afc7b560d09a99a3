"""From a study's evidence to its records.

Files are read piece by piece and only the columns needed, so that ten million rows take seconds and their counts, not the rows, stay in
memory. A damaged file is named in `faults`, and what the others hold is still there.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.analysis.choosing import ValueOf, metric_of
from coterie.analysis.early_stops import carry_on, keep_groups, reached, rest, stops_of
from coterie.analysis.judging import JudgedRounds, Judging, held_in, wanted_columns
from coterie.analysis.measures import OWN, Metric
from coterie.analysis.records import COSTS, Cluster, Records
from coterie.core.arrays import Array, Bools, Doubles, Ints
from coterie.evidence.everybody import SUMMED
from coterie.evidence.reader import Evidence, json_notes, method_places
from coterie.evidence.record import HOSTILE
from coterie.evidence.settings import Settings
from coterie.evidence.tables import ANSWERS

MOST_ANSWERS = 1 << 28  # bytes of answers laid out at once


def records_of(evidence: Evidence, metric: str | ValueOf | None = None) -> Records:
    """Read everything that scores and findings need from the evidence of one draw, by the task's own metric or the one named."""
    settings, plan = evidence.settings, evidence.settings.plan
    if len(settings.draws) != 1:
        raise ValueError("records are of one draw: take it with `evidence.of_draw`")
    faults: list[str] = []
    n, index = len(evidence.ids), _Index(settings)
    rounds = np.array([r for r in range(plan.rounds + 1) if plan.evaluates(r)])
    hostile = _hostile(evidence, index, faults) if plan.attack is not None else None
    chosen = metric_of(metric, evidence.task, evidence.classes)
    judged = _judged(evidence, index, rounds, chosen, hostile, faults)
    by_round = _by_round(evidence, index, faults)
    everybody = _everybody(evidence, by_round, rounds, chosen)
    validation, groups = by_round["validation"][:, :, rounds], _groups(evidence, index, faults)
    seconds = _server_seconds(evidence, index, faults)
    ends = evidence.ends(faults)
    stops, last = stops_of(ends, settings), reached(ends, plan.rounds)
    carry_on([judged.right, judged.loss, judged.auroc, judged.mae, judged.rmse, judged.perplexity, validation], rounds, stops, last)
    carry_on(everybody.values(), rounds, stops, last)
    rest([*(by_round[name] for name in (*COSTS, "discrepancy")), seconds], stops, last)
    keep_groups(groups, settings.methods, stops, last)
    truth = evidence.roster["group"].to_numpy()[:n]
    return Records(
        settings=settings,
        ids=tuple(evidence.ids),
        train=evidence.roster["train"].to_numpy()[:n].astype(np.int64),
        test=evidence.tested,
        tested=judged.tested,
        truth=truth.astype(np.int64) if (truth >= 0).any() else None,
        rounds=rounds,
        right=judged.right,
        loss=everybody.get("all_loss", judged.loss),
        everybody=everybody,
        auroc=judged.auroc,
        mae=judged.mae,
        rmse=judged.rmse,
        perplexity=judged.perplexity,
        unit=judged.unit,
        measure=chosen.measure,
        validation=validation,
        costs={name: by_round[name] for name in COSTS},
        discrepancy=by_round["discrepancy"],
        clock=by_round["clock"] if np.isfinite(by_round["clock"]).any() else None,
        server_seconds=seconds,
        groups=groups,
        clusters=_clusters(evidence, index, faults),
        silhouette=_silhouette(evidence, index, faults),
        hostile=hostile,
        **_answers(evidence, index, n, faults),
        stopped={(key.method, key.seed): end for key, end in ends.items() if end.failed},
        early={(settings.methods[method], settings.seeds[seed]): round_ for (method, seed), round_ in stops.items()},
        faults=tuple(dict.fromkeys(faults)),
        evidence=evidence,
        unseen=None if evidence.outside or (unseen := evidence.of_unseen()) is None else records_of(unseen, metric),
    )


class _Index:
    """Where rows of a table belong: by method and seed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seeds = {seed: place for place, seed in enumerate(settings.seeds)}
        self.shape = (len(settings.methods), len(settings.seeds))
        self._sorted = np.sort(np.asarray(settings.seeds))
        self._places = np.argsort(np.asarray(settings.seeds))

    def of(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """(rows,) the places of each row's method and seed."""
        methods = method_places(batch.column("method"), self.settings.methods)
        seeds = self._places[np.searchsorted(self._sorted, batch.column("seed").to_numpy())]
        return methods, seeds

    def table(self) -> Doubles:
        """(M, S, T + 1) of what is not known yet."""
        return np.full((*self.shape, self.settings.plan.rounds + 1), np.nan)


def _columns(
    evidence: Evidence, index: _Index, table: str, names: Sequence[str], faults: list[str]
) -> Iterator[tuple[Ints, Ints, dict[str, Array]]]:
    """Pieces of a table: the places of methods and seeds, and columns, the round among them."""
    for batch in evidence.batches(table, list(names), faults):
        if len(batch):
            yield *index.of(batch), {name: batch.column(name).to_numpy(zero_copy_only=False) for name in ("round", *names)}


def _judged(evidence: Evidence, index: _Index, rounds: Ints, metric: Metric, hostile: Bools | None, faults: list[str]) -> JudgedRounds:
    """Credits, test samples and losses of evaluated rounds; hostile clients' losses do not count."""
    columns = wanted_columns(evidence, metric)
    held = held_in(evidence, rounds, evidence.tested, _columns(evidence, index, "clients", columns, []))
    judging = Judging(evidence, metric, index.shape, rounds, hostile, held)
    for method, seed, batch in _columns(evidence, index, "clients", columns, faults):
        judging.add(method, seed, batch)
    return judging.result()


def _by_round(evidence: Evidence, index: _Index, faults: list[str]) -> dict[str, Doubles]:
    of_all = () if not _of_sample(evidence) else ("everybody", *SUMMED)
    names = [*COSTS, "discrepancy", "validation", "clock", *of_all]
    tables = {name: index.table() for name in names}
    for method, seed, batch in _columns(evidence, index, "rounds", names, faults):
        for name, table in tables.items():
            table[method, seed, batch["round"]] = batch[name]
    return tables


def _of_sample(evidence: Evidence) -> bool:
    """Whether rows are kept of a sample of those who were evaluated: of clients that took no part they are always all kept."""
    return evidence.settings.plan.keep_clients is not None and not evidence.outside


def _everybody(evidence: Evidence, by_round: Mapping[str, Doubles], rounds: Ints, metric: Metric) -> dict[str, Doubles]:
    """(M, S, R) each, what is told of everybody where rows are of a sample; it is told by the task's own metric and no other."""
    if not _of_sample(evidence) or metric.measure.name != OWN[evidence.task] or not np.isfinite(by_round["everybody"]).any():
        return {}
    return {name: by_round[name][:, :, rounds] for name in ("everybody", *SUMMED)}


def _server_seconds(evidence: Evidence, index: _Index, faults: list[str]) -> Doubles:
    table = index.table()
    for method, seed, batch in _columns(evidence, index, "timings", ["phase", "seconds"], faults):
        own = batch["phase"] == "server"
        table[method[own], seed[own], batch["round"][own]] = batch["seconds"][own]
    return table


def _groups(evidence: Evidence, index: _Index, faults: list[str]) -> dict[str, Array]:
    settings = evidence.settings
    found: dict[str, Array] = {}
    for method, seed, batch in _columns(evidence, index, "groups", ["client", "group"], faults):
        for number in np.unique(method):
            label = settings.methods[number]
            if label not in found:
                found[label] = np.full((len(settings.seeds), settings.plan.rounds + 1, len(evidence.ids)), -1, dtype=np.int16)
            own = method == number
            found[label][seed[own], batch["round"][own], batch["client"][own]] = batch["group"][own]
    return found


def _clusters(evidence: Evidence, index: _Index, faults: list[str]) -> dict[str, dict[tuple[int, int], Cluster]]:
    """Groups that live for one round (FedSim's)."""
    found: dict[str, dict[tuple[int, int], Cluster]] = {}
    for method, seed, batch in _columns(evidence, index, "clusters", ["client", "cluster"], faults):
        starts = np.flatnonzero(np.diff(method, prepend=-1) | np.diff(seed, prepend=-1) | np.diff(batch["round"], prepend=-1))
        for a, b in zip(starts, [*starts[1:], len(seed)], strict=True):
            cell = found.setdefault(evidence.settings.methods[method[a]], {})
            at, piece = (int(seed[a]), int(batch["round"][a])), [batch[name][a:b].astype(np.int64) for name in ("client", "cluster")]
            if at in cell:  # a round may be spread over two pieces
                piece = [np.concatenate(pair) for pair in zip(cell[at], piece, strict=True)]
            cell[at] = (piece[0], piece[1])
    return found


def _answers(evidence: Evidence, index: _Index, n: int, faults: list[str]) -> dict[str, Array]:
    """The answers of the last round, sample by sample; nothing where they were not kept, or are too many to lay out."""
    if ANSWERS not in evidence.columns("clients"):
        return {}
    most = int(evidence.tested.max(initial=0))
    length = -(-most // 8) if evidence.task == "classification" else 4 * most  # a bit, or a float32, for each sample
    if not length or int(np.prod(index.shape)) * n * length > MOST_ANSWERS:
        return {}
    bits, kept = np.zeros((*index.shape, n, length), np.uint8), np.zeros((*index.shape, n), np.bool_)
    for batch in evidence.batches("clients", ["client", ANSWERS], faults):
        own = batch.filter(pc.is_valid(batch.column(ANSWERS)))
        if len(own):
            method, seed = index.of(own)
            rows = np.stack([np.frombuffer(row.ljust(length, b"\0")[:length], np.uint8) for row in own.column(ANSWERS).to_pylist()])
            client = own.column("client").to_numpy()
            bits[method, seed, client], kept[method, seed, client] = rows, True
    return {"answers": bits, "answered": kept} if kept.any() else {}


def _hostile(evidence: Evidence, index: _Index, faults: list[str]) -> Bools:
    """(S, N) whom the attack made hostile: the same clients for all methods of a seed."""
    table = np.zeros((index.shape[1], len(evidence.ids)), dtype=np.bool_)
    for key, _, clients in json_notes(evidence, HOSTILE, faults):
        table[index.seeds[key.seed], clients] = True
    return table


def _silhouette(evidence: Evidence, index: _Index, faults: list[str]) -> Doubles:
    table = np.full(index.shape, np.nan)
    for key, _, value in json_notes(evidence, "silhouette", faults):
        if value is not None:
            table[evidence.settings.methods.index(key.method), index.seeds[key.seed]] = value
    return table
