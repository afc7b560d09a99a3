"""The result of a study: tables and data frames computed by the analysis, and the error raised when no run finished."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.formatting import format_count
from coterie._util.json_io import to_json_value
from coterie.analysis import metrics
from coterie.analysis.caveats import describe_malicious, describe_sampling
from coterie.analysis.class_scores import make_round_table
from coterie.analysis.comparison import Comparison
from coterie.analysis.costs import describe_times
from coterie.analysis.findings import Divergence, summarize_divergence
from coterie.analysis.metrics import TABLED, Metric
from coterie.analysis.record_reader import read_records
from coterie.analysis.records import Records
from coterie.analysis.scores import DECILE_TITLES, Scope, compute_deciles, compute_scores, find_scope
from coterie.core.arrays import Array
from coterie.evidence.reader import Evidence, insert_column
from coterie.evidence.records import LaneEnd, LaneKey
from coterie.run.lanes import Lane

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CompletedRun:
    """A study that was run in this process, with its lanes at their end."""

    study: Any  # a `Study`, which makes results
    lanes: Sequence[Lane]


@dataclass(frozen=True)
class Result:
    """The evidence of a study, and views of it.

    Args:
        evidence: The records of the study.
        seconds: The time of the run, without loading and compiling.
        setup_seconds: The time of loading and compiling.
        run: The study and its lanes, where it was run in this process.

    Example:
        >>> result = ct.study(["fedavg", "fedsim"], data="heart")  # doctest: +SKIP
        >>> result.table()  # doctest: +SKIP
    """

    evidence: Evidence
    seconds: float = 0.0
    setup_seconds: float = 0.0
    run: CompletedRun | None = field(default=None, repr=False, compare=False)  # None for a result that was read from a folder

    def __repr__(self) -> str:
        return f"{self._line}\n{self._short_table()}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<p>{escape(self._line)}</p>{self._short_table().to_html()}"

    @property
    def _line(self) -> str:
        made = self.evidence.settings
        runs = ", ".join(
            format_count(len(many), what) for many, what in ((made.methods, "method"), (made.draws, "draw"), (made.seeds, "seed"))
        )
        return f"<Result on {made.data!r}: {runs}, {format_count(made.plan.rounds, 'round')}>"

    def _short_table(self) -> "pd.DataFrame":
        table = self.table()
        return table[[name for name in ("final", "±", "last10", "worst", "ari", "seeds") if name in table]].round(4)

    @property
    def groups(self) -> "pd.DataFrame":
        """A row for each client, round and lane of methods with groups: the client's name (`id`) and its group (-1: none yet)."""
        return self._named(self.evidence.frame("groups"))

    @cached_property
    def problems(self) -> dict[LaneKey, LaneEnd]:
        """The lanes that did not reach the end, and why."""
        return {key: end for key, end in self.evidence.ends().items() if end.failed}

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """A row for each evaluated round of each lane: scores over clients' own test parts, costs, discrepancy."""
        import pandas as pd

        return pd.concat([make_round_table(records) for records, _ in self._draws], ignore_index=True)

    @property
    def clients(self) -> "pd.DataFrame":
        """A row for each client, evaluated round and lane: its `train` and `test` samples, its `accuracy` and counts by class (where the
        task has classes), and its loss."""
        frame = self._named(self.evidence.frame("clients"))
        place = list(frame.columns).index("id") + 1
        predicted = [name for name in frame.columns if name.startswith("predicted_")]
        if predicted:
            hits = frame[[name for name in frame.columns if name.startswith("hits_")]].sum(axis=1)
            tests = frame[predicted].sum(axis=1)
            frame = insert_column(frame, place, "accuracy", (hits / tests).where(tests > 0))
            frame = insert_column(frame, place, "test", tests)
        train = self._of_clients(frame, lambda draw: next(iter(draw.rosters.values())).column("train").to_numpy())
        return insert_column(frame, place, "train", train)

    def _named(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """The frame with the clients' names beside their numbers."""
        return insert_column(frame, list(frame.columns).index("client") + 1, "id", self._of_clients(frame, lambda draw: draw.ids))

    def _of_clients(self, frame: "pd.DataFrame", values: Callable[[Evidence], Sequence[Any] | Array]) -> "pd.Series[Any]":
        """For each row of a frame, the value of its client; `values` gives those of all clients of a draw."""
        import pandas as pd

        known = [values(self.evidence.select_draw(draw)) for draw in self.evidence.settings.draws]
        begins = pd.Series(np.cumsum([0, *map(len, known)])[:-1], index=list(self.evidence.settings.draws))
        place = begins.loc[frame["draw"]].to_numpy() + frame["client"].to_numpy()
        found: pd.Series[Any] = pd.Series([one for own in known for one in own]).take(place).set_axis(frame.index)
        return found

    @property
    def last(self) -> int:
        """The last round that is compared: in an incomplete study, the last that all lanes have reached."""
        return min(scope.last for _, scope in self._draws)

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """A row for each lane that counts; a score is missing where the lane did not reach the last round."""
        import pandas as pd

        rows = []
        for records, scope in self._draws:
            seeds = np.asarray(records.settings.seeds)[scope.seeds]
            for place, label in enumerate(records.settings.methods):
                found = compute_scores(records, scope, place)
                known = {name: found[name] for name in TABLED if name in found}
                rows.append(pd.DataFrame({"draw": records.settings.draws[0], "method": label, "seed": seeds} | known))
        table = pd.concat(rows, ignore_index=True)
        table["method"] = pd.Categorical(table["method"], categories=list(self.evidence.settings.methods))
        return table

    def table(self) -> "pd.DataFrame":
        """A row for each method: scores averaged over the seeds that reached the last round, with their spread, and the cost of a round."""
        scores = self.scores.groupby("method", observed=False, sort=False)
        numbers = [name for name in TABLED if name in self.scores]
        table = scores[numbers].mean()
        table.insert(1, "±", scores["final"].std())
        table["seeds"] = scores["final"].count()
        for name, costs in (("MB/round", ("bytes_up", "bytes_down")), ("steps/round", ("steps",))):
            table[name] = self._per_round(costs)
        table["MB/round"] /= 1e6
        table.index = table.index.astype(str)
        return table.drop(columns=[name for name in ("ari",) if table[name].isna().all()])

    @cached_property
    def spread(self) -> "pd.DataFrame | None":
        """Quantiles of all clients' own scores after the last round, a row for each method; None where rows of all clients are kept."""
        import pandas as pd

        found = {label: compute_deciles(self._draws, place) for place, label in enumerate(self.evidence.settings.methods)}
        known = {label: tenths for label, tenths in found.items() if tenths is not None}
        return pd.DataFrame.from_dict(known, orient="index", columns=list(DECILE_TITLES)) if known else None

    @property
    def metric(self) -> Metric:
        """What the scores are of: the task's own metric."""
        return self._draws[0][0].metric

    @property
    def remarks(self) -> list[str]:
        """Remarks on the scores, in sentences."""
        found = (remark for records, _ in self._draws for remark in (describe_malicious(records), describe_sampling(records)))
        diverged = [f"{label}: {own}." for label, own in self.diverged.items()]
        return [remark for remark in found if remark is not None] + diverged + describe_times([records for records, _ in self._draws])

    @cached_property
    def diverged(self) -> dict[str, Divergence]:
        """By method, the runs that reached the end although training diverged: their scores are of saturated models."""
        found = {label: summarize_divergence(self._draws, label) for label in self.evidence.settings.methods}
        return {label: own for label, own in found.items() if own is not None}

    def as_json(self, folder: str | None) -> dict[str, Any]:
        """The one object that `coterie run --json` prints."""
        scores = self.scores.groupby("method", observed=False, sort=False)
        steps = int(sum(np.nansum(records.costs["steps"]) for records, _ in self._draws))
        methods = {
            str(name): {
                **{score: lanes[score].mean() for score in ("final", "last10", "mean", "ari", "unseen") if score in lanes},
                "seeds": int(lanes["final"].count()),
                **({"diverged": str(self.diverged[str(name)])} if str(name) in self.diverged else {}),
                **({} if self.spread is None else {"tenths": list(self.spread.loc[str(name)])}),
            }
            for name, lanes in scores
        }
        problems = [
            {**key._asdict(), "round": end.round_, "status": end.status, "reason": end.reason} for key, end in self.problems.items()
        ]
        tree = {"study": folder, "seconds": self.seconds, "setup_seconds": self.setup_seconds, "client_steps": steps, "methods": methods}
        return dict(to_json_value(tree | {"problems": problems}))

    @cached_property
    def _draws(self) -> list[tuple[Records, Scope]]:
        found = [read_records(self.evidence.select_draw(draw)) for draw in self.evidence.settings.draws]
        return [(records, find_scope(records)) for records in found]

    def _per_round(self, costs: tuple[str, ...]) -> "pd.Series[float]":
        """The mean cost of a round of each method, over rounds and lanes."""
        import pandas as pd

        tables = [np.sum([records.costs[name] for name in costs], axis=0)[:, :, 1:] for records, _ in self._draws]  # (M, S, T) each
        for table, (records, _) in zip(tables, self._draws, strict=True):
            for (label, seed), last in records.early.items():
                table[records.place(label), records.settings.seeds.index(seed), last:] = np.nan  # rounds that it did not run
        methods = self.evidence.settings.methods
        means = [float(metrics.mean(np.concatenate([table[i].ravel() for table in tables]))) for i in range(len(methods))]
        return pd.Series(means, index=pd.CategoricalIndex(methods, categories=list(methods)), dtype=float)


MAX_REASONS = 5  # reasons named in the message


class NothingFinishedError(RuntimeError):
    """No lane of a study reached the end.

    Args:
        result: The rounds before, and every reason; of a comparison, those of the first federation.
        comparison: The whole comparison, where it is one.
    """

    def __init__(self, result: Result, comparison: Comparison | None = None) -> None:
        self.result, self.comparison = result, comparison
        super().__init__(" ".join(map(describe_failures, [result] if comparison is None else list_results(comparison))))


def check_finished(result: Result) -> Result:
    """The result, if at least one lane reached the end."""
    if has_no_finished_run(result):
        raise NothingFinishedError(result)
    return result


def check_comparison_finished(comparison: Comparison) -> Comparison:
    """The comparison, if at least one lane of any federation reached the end."""
    results = list_results(comparison)
    if results and all(map(has_no_finished_run, results)):
        raise NothingFinishedError(results[0], comparison)
    return comparison


def list_results(comparison: Comparison) -> list[Result]:
    """The studies of a comparison, each with all its draws."""
    return [Result(findings.evidence) for findings in comparison.federations]


def has_no_finished_run(result: Result) -> bool:
    """Whether every lane failed. A study that ran out of time has lanes that can be resumed."""
    ends = result.evidence.ends()
    return bool(ends) and len(result.problems) == len(ends)


def describe_failures(result: Result) -> str:
    """The message about such a study: the number of lanes, and each reason once."""
    reasons = list(dict.fromkeys(f"{key.method}, {end}" for key, end in result.problems.items()))
    more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    return f"None of {len(result.problems)} runs reached the end: {'; '.join(reasons[:MAX_REASONS])}{more}."
