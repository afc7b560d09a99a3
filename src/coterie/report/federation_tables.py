"""Which tables a federation has."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from coterie.analysis.auto_decisions import group_decisions, make_decision_table
from coterie.analysis.drift_alarms import make_alarm_table, read_alarms
from coterie.analysis.findings import Finding
from coterie.analysis.metrics import SCORES
from coterie.analysis.verdict import TEST_NAMES, describe_score
from coterie.core.survival import compute_kaplan_meier
from coterie.report.charts.clients import PARTS, TOTAL
from coterie.report.client_tables import (
    METHOD,
    build_binary_tables,
    build_decile_tables,
    build_named_client_tables,
    build_source_tables,
    build_unseen_tables,
)
from coterie.report.federation_view import FederationView
from coterie.report.overview_section import build_overview_table, build_stage_tables
from coterie.report.page import Column, ReportTable, show_amount, show_interval, show_number, show_points, show_text


def build_tables(view: FederationView) -> dict[str, ReportTable]:
    """Every table, by name; those that would be empty are left out."""
    made = [
        build_overview_table(view, view.overview),
        *build_decision_tables(view),
        *build_alarm_tables(view),
        *build_stage_tables(view, view.overview),
        build_score_table(view),
        *build_source_tables(view),
        *build_binary_tables(view),
        *build_named_client_tables(view),
        *build_decomposition_tables(view),
        build_fairness_table(view),
        *build_decile_tables(view),
        *build_grouping_table(view),
        build_cost_table(view),
        build_client_table(view),
        *build_unseen_tables(view),
        *build_last_groups_table(view),
        *build_survival_table(view),
    ]
    return {table.name: table for table in made}


def build_decision_tables(view: FederationView) -> list[ReportTable]:
    """Of methods that choose (`auto`), every option with its cross-fitted score; nothing where none does."""
    frames = [
        make_decision_table(own).rename_axis("option").reset_index().assign(label=label, method=view.name(label))
        for label, own in group_decisions(view.findings.evidence).items()
    ]
    columns = (
        METHOD,
        Column("option", show_text("option")),
        Column("chosen", lambda row: f"{row['chosen']:.0f} of {row['runs']:.0f}"),
        Column("score", show_points("score")),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("low", "high", signed=True)),
        Column("p", show_number("p", ".3f")),
        Column("clients served", show_amount("clients")),
    )
    caption = (
        "Options by their cross-fitted score: each is judged on training samples that did not train it. Score, gain over the first option "
        "and clients served are means over runs; the interval is that of one run, p the median (one-sided, not corrected)."
    )
    return [ReportTable(view.id("decisions"), caption, pd.concat(frames, ignore_index=True), columns)] if frames else []


def build_alarm_tables(view: FederationView) -> list[ReportTable]:
    """Of methods that watch, every alarm; nothing where there is none."""
    alarms = read_alarms(view.findings.evidence)[1]
    frame = make_alarm_table(alarms)
    columns = (
        Column("method", lambda row: view.name(row["label"])),
        Column("draw", show_amount("draw")),
        Column("seed", show_amount("seed")),
        Column("round", show_amount("round")),
        Column("changed", show_text("unit")),
        Column("error before", show_number("before", ".2f")),
        Column("now", show_number("now", ".2f")),
        Column("log e-value", show_number("statistic", ".1f")),
        Column("threshold", show_number("threshold", ".1f")),
    )
    caption = "Alarms: errors are of the reference model, between 0 and 1, before and now. An e-value is evidence against no change."
    return [ReportTable(view.id("alarms"), caption, frame.rename(columns={"method": "label"}), columns)] if alarms else []


def build_score_table(view: FederationView) -> ReportTable:
    """Scores, and gains over the baseline with their tests."""
    findings = view.findings
    names = list(next(iter(findings.methods.values())).scores)

    def row(finding: Finding) -> dict[str, Any]:
        own, test = finding.scores[findings.score], finding.over_baseline[findings.score]
        base = finding.role == "baseline"
        numbers = {
            "gain": test.mean,
            "gain_low": finding.gap.low,
            "gain_high": finding.gap.high,
            "d": test.d,
            "rank_biserial": test.rank_biserial,
        }
        return {
            "runs": int(np.isfinite(own.values).sum()),
            **{name: estimate.mean for name, estimate in finding.scores.items()},
            "sd": own.sd,
            "low": own.low,
            "high": own.high,
            **{name: np.nan if base else value for name, value in numbers.items()},
            "wilcoxon_p": np.nan if base else test.wilcoxon_p,
            "t_p": np.nan if base else test.t_p,
            "corrected_p": finding.corrected_p,
        }

    frame = _make_frame(view, row)
    defined = [name for name in names if frame[name].notna().any()]
    columns = [
        METHOD,
        *(Column(SCORES[name].title, show_points(name) if SCORES[name].percent else show_number(name, ".4g")) for name in defined),
        Column("95 % interval", show_interval("low", "high")),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("gain_low", "gain_high", signed=True)),
        Column("p", show_number("corrected_p", ".3f")),
        Column("effect d", show_number("d", ".2f")),
    ]
    caption = (
        f"{view.metric.times_100} and gain in points over {view.baseline.name}, {findings.repetitions}. Intervals and gain are of "
        f"the {describe_score(findings)}; the gain's is the widest over the sources of error that decide; p is one-sided, the largest of "
        f"theirs (over {findings.repetitions.unit}s by {TEST_NAMES[findings.test]}), after Holm's correction, of methods under test; d is "
        f"Cohen's, of paired differences over {findings.repetitions.unit}s."
    )
    return ReportTable(view.id("scores"), caption, frame, tuple(columns))


def build_decomposition_tables(view: FederationView) -> list[ReportTable]:
    """The steps of each gain."""
    rows = []
    for label, finding in view.methods.items():
        parts = finding.decomposition
        steps = [*((PARTS[step.name], step.gain) for step in parts.steps), (TOTAL, parts.total)] if parts is not None else []
        rows += [
            {
                "label": label,
                "method": view.name(label),
                "part": name,
                "repetitions": gain.n,
                "gain": gain.mean,
                "low": gain.low,
                "high": gain.high,
                "p": gain.get_p_value(view.findings.test),
            }
            for name, gain in steps
        ]
    columns = (
        METHOD,
        Column("part", show_text("part")),
        Column("points", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("low", "high", signed=True)),
    )
    caption = f"The gain over {view.baseline.name} in steps; the steps add up to the gain, up to rounding."
    return [ReportTable(view.id("decomposition"), caption, pd.DataFrame(rows), columns)] if rows else []


def build_fairness_table(view: FederationView) -> ReportTable:
    """Clients that lose, and those served worst."""

    def row(finding: Finding) -> dict[str, Any]:
        own = finding.fairness
        base, alone = finding.role == "baseline", finding.role == "local"
        return {
            "worse": np.nan if base else own.worse,
            "clearly_worse": np.nan if base else own.clearly_worse,
            "worse_than_alone": np.nan if alone else own.worse_than_alone,
            "bottom_decile": own.bottom_decile.mean,
            "bottom_decile_low": own.bottom_decile.low,
            "bottom_decile_high": own.bottom_decile.high,
            "worst": own.worst.mean,
            "worst_low": own.worst.low,
            "worst_high": own.worst.high,
        }

    columns = (
        METHOD,
        Column(f"lower than {view.baseline.name}", show_number("worse", ".0f", " %", 100)),
        Column("clearly", show_number("clearly_worse", ".3g")),
        Column("lower than alone", show_number("worse_than_alone", ".0f", " %", 100)),
        Column("worst tenth", show_points("bottom_decile")),
        Column("95 % interval", show_interval("bottom_decile_low", "bottom_decile_high")),
        Column("worst client", show_points("worst")),
    )
    caption = (
        "Share of clients that score lower; clearly: how many clients do significantly, by runs and by their test samples; and the "
        f"{view.metric.noun}, times 100, of the tenth of clients served worst and of the worst client of each run, averaged."
    )
    return ReportTable(view.id("fairness"), caption, _make_frame(view, row), columns)


def build_grouping_table(view: FederationView) -> list[ReportTable]:
    """How good the groups are."""

    def row(finding: Finding) -> dict[str, Any]:
        own = finding.group_quality
        assert own is not None
        known = {
            name: value.mean if value is not None else np.nan
            for name, value in (("ari", own.ari), ("nmi", own.nmi), ("silhouette", own.silhouette))
        }
        return {
            **known,
            "used": own.used.mean,
            "between_rounds": own.between_rounds,
            "between_seeds": own.between_seeds,
            "between_draws": own.between_draws,
            "collapse_rate": own.collapse_rate,
        }

    labels = [label for label, finding in view.findings.methods.items() if finding.group_quality is not None]
    columns = (
        METHOD,
        Column("groups used", show_number("used", ".1f")),
        Column("ARI", show_number("ari", ".2f")),
        Column("NMI", show_number("nmi", ".2f")),
        Column("silhouette", show_number("silhouette", ".2f")),
        Column("between rounds", show_number("between_rounds", ".2f")),
        Column("between seeds", show_number("between_seeds", ".2f")),
        Column("between draws", show_number("between_draws", ".2f")),
        Column("collapsed", show_number("collapse_rate", ".0f", " %", 100)),
    )
    caption = (
        "Agreement with the true groups (adjusted Rand index, normalised mutual information: 1 is perfect, 0 is chance), of the groups of "
        "one round with the next, of two seeds and, where clients are the same in all of them, of two draws (adjusted Rand index), and the "
        "share of runs that end with fewer groups than were asked for or found."
    )
    return [ReportTable(view.id("grouping"), caption, _make_frame(view, row, labels), columns)] if labels else []


def build_cost_table(view: FederationView) -> ReportTable:
    """What runs cost, in all and up to the target, and how steady they are."""
    findings = view.findings
    timed = findings.records.clock is not None

    def row(finding: Finding) -> dict[str, Any]:
        own, steady = finding.spending, finding.stability
        return {
            "megabytes": own.bytes_ / 1e6,
            "passes": own.passes,
            "steps": own.steps,
            "server_seconds": own.server_seconds,
            "target": findings.target,
            "reached": own.reached,
            "rounds_to_target": steady.median_rounds,
            "megabytes_to_target": own.bytes_to_target / 1e6,
            "passes_to_target": own.passes_to_target,
            "server_seconds_to_target": own.server_seconds_to_target,
            **({"time": own.time, "time_to_target": own.time_to_target} if timed else {}),
            "change": steady.change.mean,
        }

    columns = (
        METHOD,
        Column("MB", show_amount("megabytes")),
        Column("passes", show_number("passes", ",.0f")),
        Column("server s", show_amount("server_seconds")),
        Column("rounds to target", show_number("rounds_to_target", ",.0f")),
        Column("MB to target", show_amount("megabytes_to_target")),
        Column("passes to target", show_number("passes_to_target", ",.0f")),
        *([Column("simulated time", show_amount("time")), Column("time to target", show_amount("time_to_target"))] if timed else []),
        Column("change a round", show_points("change")),
    )
    caption = (
        f"Of a whole run, mean over runs, and up to {findings.metric.format_score(findings.target)} (median over the runs that reach it); "
        f"a pass is one client's way once through its data. Last, the mean change of {findings.metric.noun} from round to round, in points."
    )
    return ReportTable(view.id("cost"), caption, _make_frame(view, row), columns)


def build_client_table(view: FederationView) -> ReportTable:
    """Every client with every method: for further work, not for reading."""
    records = view.findings.records
    pieces = []
    for label, finding in view.findings.methods.items():
        own = finding.fairness
        alone = own.gain_over_local if own.gain_over_local is not None else np.full(len(records.ids), np.nan)
        columns = {"client": records.ids, "samples": records.train, view.metric.name: own.accuracy, "gain": own.gain}
        columns["gain_over_alone"] = alone
        piece = pd.DataFrame(columns | ({"true_group": records.truth} if records.truth is not None else {}))
        piece.insert(0, "label", label)
        pieces.append(piece)
    return ReportTable(view.id("clients"), "", pd.concat(pieces, ignore_index=True))


def build_last_groups_table(view: FederationView) -> list[ReportTable]:
    """The last group of every client in every run: for further work, not for reading."""
    rows = []
    for own in view.findings.draws.each:
        records = own.records
        for label, groups in records.groups.items():
            for place in own.scope.seeds:
                run = {"label": label, "draw": records.settings.draws[0], "seed": records.settings.seeds[place]}
                rows.append(pd.DataFrame({**run, "client": records.ids, "group": groups[place, own.scope.last]}))
    return [ReportTable(view.id("groups"), "", pd.concat(rows, ignore_index=True))] if rows else []


def build_survival_table(view: FederationView) -> list[ReportTable]:
    """Of survival times, every client's events and censored times, and the shares without an event at the ends of the intervals."""
    records = view.findings.records
    if records.evidence.task != "survival":
        return []
    exits, grid = records.evidence.exits, records.evidence.grid
    curves = compute_kaplan_meier(exits)
    shares = {f"survival_{end:g}": curves[:, j] for j, end in enumerate(grid) if j}
    counts = {"client": records.ids, "events": exits[:, 0].sum(axis=1), "censored": exits[:, 1].sum(axis=1)}
    middle = len(grid) // 2
    columns = (
        Column("client", show_text("client")),
        Column("events", show_amount("events")),
        Column("censored", show_amount("censored")),
        *(Column(f"at {grid[j]:g}, %", show_points(f"survival_{grid[j]:g}")) for j in dict.fromkeys((middle, len(grid) - 1))),
    )
    caption = (
        "Events and censored times of all samples (those beyond the grid are censored at its end), and the Kaplan-Meier estimate; of a "
        "real federation those of training samples, with rare counts combined."
    )
    return [ReportTable(view.id("survival-by-client"), caption, pd.DataFrame(counts | shares), columns)]


def _make_frame(view: FederationView, row: Callable[[Finding], dict[str, Any]], labels: Sequence[str] | None = None) -> pd.DataFrame:
    methods = view.findings.methods
    chosen = list(methods) if labels is None else labels
    return pd.DataFrame(
        [{"label": label, "method": view.name(label), "role": methods[label].role, **row(methods[label])} for label in chosen]
    )
