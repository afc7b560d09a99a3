"""From a study's evidence to its records.

Files are read piece by piece and only the columns needed, so that ten million rows take seconds and their counts, not the rows, stay in
memory. A damaged file is named in `faults`; what the other files hold is still read. A run that stopped early keeps the scores and groups
of its last round, and costs nothing more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.analysis import metrics
from coterie.analysis.metrics import DEFAULT_METRICS, METRICS, Counts, Metric, MetricFunction, get_metric
from coterie.analysis.records import COSTS, Cluster, Records
from coterie.core.arrays import Array, Bools, Doubles, Ints
from coterie.core.tasks import SUMS, compute_pooled_variance
from coterie.evidence.reader import Evidence, encode_methods, read_notes
from coterie.evidence.records import MALICIOUS, RUNNING, STOPPED, SUMMARY_COLUMNS, LaneEnd, LaneKey
from coterie.evidence.settings import Settings
from coterie.evidence.tables import ANSWERS

LanePlace = tuple[int, int]  # of a method, and of a seed


def _find_early_stops(ends: Mapping[LaneKey, LaneEnd], settings: Settings) -> dict[LanePlace, int]:
    """By place, the round after which a run stopped early."""
    return {
        (settings.methods.index(key.method), settings.seeds.index(key.seed)): end.round_
        for key, end in ends.items()
        if end.status == STOPPED and key.method in settings.methods and key.seed in settings.seeds
    }


def _extend_scores(tables: Iterable[Array | None], numbers: Ints, stops: Mapping[LanePlace, int], last: int) -> None:
    """Let a stopped run keep the scores of its last round up to `last`; tables are (M, S, R, ...), of the rounds `numbers`."""
    for (method, seed), round_ in stops.items():
        own, after = np.flatnonzero(numbers <= round_), np.flatnonzero((numbers > round_) & (numbers <= last))
        for table in tables:
            if table is not None and len(own) and len(after):
                table[method, seed, after] = table[method, seed, own[-1]]


# (names of columns) -> pieces of the table of clients: places of methods and seeds, and columns, the round among them
ColumnBatches = Iterator[tuple[Ints, Ints, dict[str, Array]]]


@dataclass(frozen=True)
class RoundEvaluations:
    """Of M methods, S seeds, R rounds and N clients."""

    credits: Array  # (M, S, R, N) credits; -1, or nan where they are no counts, of what was not evaluated
    tested: Ints  # (R, N) test samples; none where the metric is not defined
    loss: Doubles  # (M, S, R)
    auroc: Doubles | None  # (M, S, R) mean over clients, of two-class tasks
    mae: Doubles | None = None  # (M, S, R) mean absolute error over all test samples, of a regression
    rmse: Doubles | None = None  # (M, S, R) root mean squared error
    perplexity: Doubles | None = None  # (M, S, R) of all test tokens, where texts are predicted
    unit: Doubles | None = None  # (S,) what a sample's error, or its right labels, are divided by in the last round
    concordance: Doubles | None = None  # (M, S, R) of survival times: pairs within clients in the right order
    brier: Doubles | None = None  # (M, S, R) integrated Brier score
    calibration: Doubles | None = None  # (M, S, R) events for each one that is expected


@dataclass(frozen=True)
class EvaluationTargets:
    """What is fixed of test parts in each evaluated round, (R, N) each: samples, and what targets or times sum up to."""

    samples: Ints
    targets: Mapping[str, Doubles]

    def scales(self, honest: Bools) -> tuple[Doubles, Doubles]:
        """(R,) twice: the variance of these clients' targets about their mean, and their mean distance from that of training; of survival
        times the Brier score of the Kaplan-Meier curve, and nothing."""
        nothing = np.full(len(self.samples), np.nan)
        if not self.targets:
            return nothing, nothing
        counts = np.where(honest, self.samples, 0)
        if "target_brier" in self.targets:
            return metrics.ratio((self.targets["target_brier"] * honest).sum(axis=1), counts.sum(axis=1)), nothing
        triples = zip(counts, self.targets["target_mean"], self.targets["target_squares"] * honest, strict=True)
        distances = (self.targets["target_distance"] * honest).sum(axis=1)
        return np.array([compute_pooled_variance(*row) for row in triples]), metrics.ratio(distances, counts.sum(axis=1))


SUMMED = ("_error", "_likelihood", "_pairs", "_events")  # what is summed up over clients ends so


class EvaluationReader:
    """Fills `RoundEvaluations`, a piece of the table of clients at a time."""

    def __init__(
        self, evidence: Evidence, metric: Metric, shape: tuple[int, int], rounds: Ints, malicious: Bools | None, held: EvaluationTargets
    ) -> None:
        self.evidence, self.metric, self.malicious, self.held = evidence, metric, malicious, held
        self.place = np.zeros(evidence.settings.plan.rounds + 1, dtype=np.int64)
        self.place[rounds] = np.arange(len(rounds))
        most = held.samples.max(initial=0)
        self.whole = metric.is_count
        kind = (np.int16 if most < np.iinfo(np.int16).max else np.int32) if self.whole else np.float64
        self.shape = (*shape, len(rounds))
        self.credits = np.full((*self.shape, held.samples.shape[1]), -1 if self.whole else np.nan, dtype=kind)
        self.undefined = np.zeros(held.samples.shape, dtype=np.bool_)
        self.totals: dict[str, Doubles] = {name: np.zeros(int(np.prod(self.shape))) for name in ("loss", "weight", "area", "areas")}
        self.errors = {name: np.zeros(int(np.prod(self.shape))) for name in SUMS[evidence.task] if name.endswith(SUMMED)}
        self.honest = np.ones((shape[1], held.samples.shape[1]), dtype=np.bool_) if malicious is None else ~malicious
        self.scales = [held.scales(own) for own in self.honest]  # by seed

    def add(self, method: Ints, seed: Ints, batch: Mapping[str, Array]) -> None:
        """Rows of clients in rounds."""
        row, client = self.place[batch["round"]], batch["client"]
        counts = self._counts(seed, row, client, batch)
        value = self.metric.compute(counts)
        credit = np.where(np.isnan(value), 0.0, value * counts.samples)
        self.credits[method, seed, row, client] = np.rint(credit) if self.whole else credit
        self.undefined[row[np.isnan(value)], client[np.isnan(value)]] = True
        cell = np.ravel_multi_index((method, seed, row), self.shape)
        self._sum_up(cell, seed, client, counts, batch)

    def _counts(self, seed: Ints, row: Ints, client: Ints, batch: Mapping[str, Array]) -> Counts:
        classes = self.evidence.classes
        if self.metric is METRICS["accuracy"]:  # of ten million rows only the sums of right answers are wanted
            hits = sum((batch[f"hits_{c}"] for c in range(classes)), start=np.zeros(len(row), np.int64))[:, None]
            predicted = actual = np.broadcast_to(np.int64(0), hits.shape)
        else:
            hits, predicted = (_stack_classes(batch, name, classes, len(row)) for name in ("hits", "predicted"))
            actual = _stack_classes(batch, "actual", classes, len(row)) if "actual_0" in batch else self.evidence.actual[client]
        variance, distance = (np.array([own[which] for own in self.scales])[seed, row] for which in (0, 1))
        nothing = np.full(len(row), np.nan)
        sums = {name: table[row, client] for name, table in self.held.targets.items()}
        sums |= {name: batch[name] for name in SUMS[self.evidence.task] if name in batch}
        samples = self.held.samples[row, client]
        return Counts(hits, predicted, actual, samples, batch.get("auroc", nothing), sums, variance, distance)

    def _sum_up(self, cell: Ints, seed: Ints, client: Ints, counts: Counts, batch: Mapping[str, Array]) -> None:
        """Losses, errors and areas; those of malicious clients do not count."""
        honest = self.honest[seed, client]
        known = np.where(np.isfinite(batch["loss"]) & honest, counts.samples, 0)
        self._add("loss", cell, np.where(known > 0, batch["loss"], 0.0) * known)
        self._add("weight", cell, known)
        for name, total in self.errors.items():
            values = batch[name] if name in batch else self.held.targets[name][self.place[batch["round"]], client]
            total += np.bincount(cell, weights=np.where(known > 0, values, 0.0), minlength=len(total))
        defined = np.isfinite(counts.auroc) & honest
        self._add("area", cell[defined], counts.auroc[defined])
        self._add("areas", cell[defined], np.ones(int(defined.sum())))

    def _add(self, name: str, cell: Ints, weights: Array) -> None:
        self.totals[name] += np.bincount(cell, weights=weights, minlength=len(self.totals[name]))

    def result(self) -> RoundEvaluations:
        """A client with an undefined metric in any run of a round counts in none of them: runs are compared on the same clients."""
        totals = self.totals
        loss, area = (metrics.ratio(totals[top], totals[low]).reshape(self.shape) for top, low in (("loss", "weight"), ("area", "areas")))
        errors = {name: metrics.ratio(total, totals["weight"]).reshape(self.shape) for name, total in self.errors.items()}
        root = np.sqrt(errors["squared_error"]) if "squared_error" in errors else None
        return RoundEvaluations(
            self.credits,
            np.where(self.undefined, 0, self.held.samples),
            loss,
            area if "auroc" in self.evidence.columns("clients") else None,
            errors.get("absolute_error"),
            root,
            np.exp(-errors["log_likelihood"]) if "log_likelihood" in errors else None,  # samples have the same number of tokens
            self._unit(),
            **self._score_times(),
        )

    def _score_times(self) -> dict[str, Doubles]:
        """Of survival times, (M, S, R) each: over all test samples, and over the pairs within clients."""
        if self.evidence.task != "survival":
            return {}
        total = self.errors
        found = {
            "concordance": metrics.ratio(total["concordant_pairs"], total["target_pairs"]),
            "brier": metrics.ratio(total["brier_error"], self.totals["weight"]),
            "calibration": metrics.ratio(total["target_events"], total["expected_events"]),
        }
        return {name: values.reshape(self.shape) for name, values in found.items()}

    def _unit(self) -> Doubles | None:
        name, seeds = self.metric.name, len(self.honest)
        if self.evidence.task == "multilabel":
            return np.full(seeds, float(self.evidence.classes))
        if self.evidence.task == "next-token":
            return np.ones(seeds)
        which = {"r2": 0, "mae": 1, "ipa": 0}.get(name)
        return None if which is None else np.array([own[which][-1] for own in self.scales])


def _stack_classes(batch: Mapping[str, Array], name: str, classes: int, rows: int) -> Array:
    """(rows, C) the columns of counts by class."""
    return np.array([batch[f"{name}_{c}"] for c in range(classes)], dtype=np.int64).reshape(classes, rows).T


def select_columns(evidence: Evidence, metric: Metric) -> list[str]:
    """The columns of the table of clients that are read: of accuracy, which needs right answers only, no more than those."""
    there = evidence.columns("clients")
    kinds = ("hits", "actual") if metric.name == "accuracy" else ("hits", "predicted", "actual")
    by_class = [f"{kind}_{c}" for kind in kinds for c in range(evidence.classes)]
    return [name for name in ["client", "loss", *by_class, "auroc", *SUMS[evidence.task]] if name in there]


def read_evaluation_targets(evidence: Evidence, rounds: Ints, test: Ints, pieces: ColumnBatches) -> EvaluationTargets:
    """What is fixed of test parts: from the roster, or, where data drift or clients come later, from every round."""
    names = [name for name in SUMS[evidence.task] if name.startswith("target")]
    samples = np.repeat(test[None, :], len(rounds), axis=0)
    targets = {name: np.repeat(evidence.get_roster_column(name)[None, :], len(rounds), axis=0).astype(np.float64) for name in names}
    there = evidence.columns("clients")
    by_class = [f"actual_{c}" for c in range(evidence.classes) if f"actual_{c}" in there]
    counts = by_class if evidence.task == "classification" else ["samples"]
    if not counts or counts[0] not in there:
        return EvaluationTargets(samples, targets)
    samples[:] = 0
    place = np.zeros(evidence.settings.plan.rounds + 1, dtype=np.int64)
    place[rounds] = np.arange(len(rounds))
    for _, _, batch in pieces:
        row, client = place[batch["round"]], batch["client"]
        samples[row, client] = np.sum([batch[name] for name in counts], axis=0)
        for name, table in targets.items():
            table[row, client] = batch[name]
    return EvaluationTargets(samples, targets)


MAX_ANSWER_BYTES = 1 << 28  # bytes of answers laid out at once


def read_records(evidence: Evidence, metric: str | MetricFunction | None = None) -> Records:
    """Read everything that scores and findings need from the evidence of one draw, by the task's own metric or the one named."""
    settings, plan = evidence.settings, evidence.settings.plan
    if len(settings.draws) != 1:
        raise ValueError("records are of one draw: take it with `evidence.select_draw`")
    faults: list[str] = []
    n, index = len(evidence.ids), _LaneIndex(settings)
    rounds = np.array([r for r in range(plan.rounds + 1) if plan.is_evaluated(r)])
    malicious = _read_malicious(evidence, index, faults) if plan.attack is not None else None
    chosen = get_metric(metric, evidence.task, evidence.classes)
    judged = _read_evaluations(evidence, index, rounds, chosen, malicious, faults)
    by_round = _read_rounds(evidence, index, faults)
    population = _population_scores(evidence, by_round, rounds, chosen)
    validation, groups = by_round["validation"][:, :, rounds], _read_groups(evidence, index, faults)
    seconds = _read_server_seconds(evidence, index, faults)
    ends = evidence.ends(faults)
    stops = _find_early_stops(ends, settings)
    last = max((end.round_ for end in ends.values() if end.status == RUNNING), default=plan.rounds)  # up to which stopped runs count
    scores = [
        judged.credits,
        judged.loss,
        judged.auroc,
        judged.mae,
        judged.rmse,
        judged.perplexity,
        judged.concordance,
        judged.brier,
        judged.calibration,
        validation,
        *population.values(),
    ]
    _extend_scores(scores, rounds, stops, last)
    for (method, seed), round_ in stops.items():  # it costs nothing more, and its groups stay
        after = slice(round_ + 1, last + 1)
        for table in (*(by_round[name] for name in (*COSTS, "discrepancy")), seconds):
            table[method, seed, after] = 0.0
        if (own := groups.get(settings.methods[method])) is not None:
            own[seed, after] = own[seed, round_]
    truth = evidence.roster["group"].to_numpy()[:n]
    return Records(
        settings=settings,
        ids=tuple(evidence.ids),
        train=evidence.roster["train"].to_numpy()[:n].astype(np.int64),
        test=evidence.tested,
        truth=truth.astype(np.int64) if (truth >= 0).any() else None,
        rounds=rounds,
        **{**vars(judged), "loss": population.get("all_loss", judged.loss)},
        population=population,
        metric=chosen,
        validation=validation,
        costs={name: by_round[name] for name in COSTS},
        discrepancy=by_round["discrepancy"],
        clock=by_round["clock"] if np.isfinite(by_round["clock"]).any() else None,
        server_seconds=seconds,
        groups=groups,
        clusters=_read_clusters(evidence, index, faults),
        silhouette=_read_silhouettes(evidence, index, faults),
        malicious=malicious,
        **_read_answers(evidence, index, n, faults),
        stopped={(key.method, key.seed): end for key, end in ends.items() if end.failed},
        early={(settings.methods[method], settings.seeds[seed]): round_ for (method, seed), round_ in stops.items()},
        faults=tuple(dict.fromkeys(faults)),
        evidence=evidence,
        unseen=None if evidence.is_unseen or (unseen := evidence.select_unseen()) is None else read_records(unseen, metric),
    )


class _LaneIndex:
    """Where rows of a table belong: by method and seed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seeds = {seed: place for place, seed in enumerate(settings.seeds)}
        self.shape = (len(settings.methods), len(settings.seeds))
        self._sorted = np.sort(np.asarray(settings.seeds))
        self._places = np.argsort(np.asarray(settings.seeds))

    def of(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """(rows,) the places of each row's method and seed."""
        methods = encode_methods(batch.column("method"), self.settings.methods)
        seeds = self._places[np.searchsorted(self._sorted, batch.column("seed").to_numpy())]
        return methods, seeds

    def table(self) -> Doubles:
        """(M, S, T + 1) of what is not known yet."""
        return np.full((*self.shape, self.settings.plan.rounds + 1), np.nan)


def _iter_columns(
    evidence: Evidence, index: _LaneIndex, table: str, names: Sequence[str], faults: list[str]
) -> Iterator[tuple[Ints, Ints, dict[str, Array]]]:
    """Pieces of a table: the places of methods and seeds, and columns, the round among them."""
    for batch in evidence.batches(table, list(names), faults):
        if len(batch):
            yield *index.of(batch), {name: batch.column(name).to_numpy(zero_copy_only=False) for name in ("round", *names)}


def _read_evaluations(
    evidence: Evidence, index: _LaneIndex, rounds: Ints, metric: Metric, malicious: Bools | None, faults: list[str]
) -> RoundEvaluations:
    """Credits, test samples and losses of evaluated rounds; malicious clients' losses do not count."""
    columns = select_columns(evidence, metric)
    held = read_evaluation_targets(evidence, rounds, evidence.tested, _iter_columns(evidence, index, "clients", columns, []))
    judging = EvaluationReader(evidence, metric, index.shape, rounds, malicious, held)
    for method, seed, batch in _iter_columns(evidence, index, "clients", columns, faults):
        judging.add(method, seed, batch)
    return judging.result()


def _read_rounds(evidence: Evidence, index: _LaneIndex, faults: list[str]) -> dict[str, Doubles]:
    of_all = () if not _is_sampled(evidence) else ("everybody", *SUMMARY_COLUMNS)
    names = [*COSTS, "discrepancy", "validation", "clock", *of_all]
    tables = {name: index.table() for name in names}
    for method, seed, batch in _iter_columns(evidence, index, "rounds", names, faults):
        for name, table in tables.items():
            table[method, seed, batch["round"]] = batch[name]
    return tables


def _is_sampled(evidence: Evidence) -> bool:
    """Whether rows are kept of a sample of the evaluated clients; of clients that took no part all rows are kept."""
    return evidence.settings.plan.keep_clients is not None and not evidence.is_unseen


def _population_scores(evidence: Evidence, by_round: Mapping[str, Doubles], rounds: Ints, metric: Metric) -> dict[str, Doubles]:
    """(M, S, R) each, scores of all clients where rows are of a sample; they are kept for the task's own metric only."""
    if not _is_sampled(evidence) or metric.name != DEFAULT_METRICS[evidence.task] or not np.isfinite(by_round["everybody"]).any():
        return {}
    return {name: by_round[name][:, :, rounds] for name in ("everybody", *SUMMARY_COLUMNS)}


def _read_server_seconds(evidence: Evidence, index: _LaneIndex, faults: list[str]) -> Doubles:
    table = index.table()
    for method, seed, batch in _iter_columns(evidence, index, "timings", ["phase", "seconds"], faults):
        own = batch["phase"] == "server"
        table[method[own], seed[own], batch["round"][own]] = batch["seconds"][own]
    return table


def _read_groups(evidence: Evidence, index: _LaneIndex, faults: list[str]) -> dict[str, Array]:
    settings = evidence.settings
    found: dict[str, Array] = {}
    for method, seed, batch in _iter_columns(evidence, index, "groups", ["client", "group"], faults):
        for number in np.unique(method):
            label = settings.methods[number]
            if label not in found:
                found[label] = np.full((len(settings.seeds), settings.plan.rounds + 1, len(evidence.ids)), -1, dtype=np.int16)
            own = method == number
            found[label][seed[own], batch["round"][own], batch["client"][own]] = batch["group"][own]
    return found


def _read_clusters(evidence: Evidence, index: _LaneIndex, faults: list[str]) -> dict[str, dict[tuple[int, int], Cluster]]:
    """Groups that live for one round (FedSim's)."""
    found: dict[str, dict[tuple[int, int], Cluster]] = {}
    for method, seed, batch in _iter_columns(evidence, index, "clusters", ["client", "cluster"], faults):
        starts = np.flatnonzero(np.diff(method, prepend=-1) | np.diff(seed, prepend=-1) | np.diff(batch["round"], prepend=-1))
        for a, b in zip(starts, [*starts[1:], len(seed)], strict=True):
            cell = found.setdefault(evidence.settings.methods[method[a]], {})
            at, piece = (int(seed[a]), int(batch["round"][a])), [batch[name][a:b].astype(np.int64) for name in ("client", "cluster")]
            if at in cell:  # a round may be spread over two pieces
                piece = [np.concatenate(pair) for pair in zip(cell[at], piece, strict=True)]
            cell[at] = (piece[0], piece[1])
    return found


def _read_answers(evidence: Evidence, index: _LaneIndex, n: int, faults: list[str]) -> dict[str, Array]:
    """The answers of the last round, sample by sample; nothing where they were not kept, or are too many to lay out."""
    if ANSWERS not in evidence.columns("clients"):
        return {}
    most = int(evidence.tested.max(initial=0))
    length = -(-most // 8) if evidence.task == "classification" else 4 * most  # a bit, or a float32, for each sample
    if not length or int(np.prod(index.shape)) * n * length > MAX_ANSWER_BYTES:
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


def _read_malicious(evidence: Evidence, index: _LaneIndex, faults: list[str]) -> Bools:
    """(S, N) clients that the attack made malicious: the same clients for all methods of a seed."""
    table = np.zeros((index.shape[1], len(evidence.ids)), dtype=np.bool_)
    for key, _, clients in read_notes(evidence, MALICIOUS, faults):
        table[index.seeds[key.seed], clients] = True
    return table


def _read_silhouettes(evidence: Evidence, index: _LaneIndex, faults: list[str]) -> Doubles:
    table = np.full(index.shape, np.nan)
    for key, _, value in read_notes(evidence, "silhouette", faults):
        if value is not None:
            table[evidence.settings.methods.index(key.method), index.seeds[key.seed]] = value
    return table
