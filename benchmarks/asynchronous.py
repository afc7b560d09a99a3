"""Accuracy against simulated time, synchronous and asynchronous, where one client in ten takes ten times as long.

    python -m benchmarks.asynchronous [--draws 20] [--out results/asynchronous/curves.csv] [--figure docs/figures/asynchronous.svg]

Two federations: ten clients, all in every round, one of them slow (digits, Dirichlet 0.3); and thirty, ten in every round, three slow
(synthetic(1,1)). Both run for the same simulated time. Each draw has its own partition, first model, slow clients and batches, the same for
every method and way. Printed are means over draws with 95 % intervals of paired differences.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from coterie.analysis.costs import find_time_to_target, sample_at_moments
from coterie.analysis.record_reader import read_records
from coterie.core.arrays import Doubles
from coterie.core.plan import Plan, Slowed
from coterie.evidence.settings import Settings
from coterie.report.figure import CONFIG, SPEC_VERSION
from coterie.run.study import Study
from coterie.statistics import compute_interval

METHODS = ("fedavg", "fedprox(mu=0.1)", "simprox")
SPEEDS = Slowed()  # a tenth, ten times as long
HORIZON = 200.0


WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"buffer_size": 5},
    "asynchronous, a = 0": {"buffer_size": 5, "staleness": 0.0},  # an old update counts as much as any
}


@dataclass(frozen=True)
class Case:
    """A federation, and the rounds that fill the time: synchronous, and asynchronous."""

    name: str
    data: str
    cohort: int | None
    rounds: tuple[int, int]


CASES = (
    Case("ten clients, one slow", "digits/dirichlet(0.3,clients=10)", None, (20, 400)),
    Case("ten of thirty, three slow", "synthetic(1,1,clients=30)", 10, (60, 350)),
)


@dataclass(frozen=True)
class Runs:
    """Of one method in one way: (draws, moments) accuracies, and what is read from them for each draw."""

    curves: Doubles
    end: Doubles  # accuracy at the horizon
    slow: Doubles  # that of the slow clients
    trainings: Doubles  # of clients until then
    runs: list[tuple[Doubles, Doubles]]  # accuracies and times of all evaluated rounds


def carried_out(case: Case, way: str, draws: int, moments: Doubles) -> dict[str, Runs]:
    """All methods in one way."""
    rounds = case.rounds[bool(WAYS[way])]
    plan = Plan(rounds=rounds, cohort=case.cohort, speeds="slowed", evaluate_every=max(1, rounds // 60), **WAYS[way])
    settings = Settings(methods=METHODS, data=case.data, draws=tuple(range(draws)), own_seeds=True, plan=plan)
    study = Study.prepare(settings)
    evidence = study.run().evidence
    found: dict[str, Runs] = {}
    lanes = {(lane.label, lane.key.draw): lane for lane in study.lanes()}
    records = [read_records(evidence.select_draw(draw)) for draw in settings.draws]
    for place, label in enumerate(METHODS):
        runs, slow, trainings = [], [], []
        for draw, own in zip(settings.draws, records, strict=True):
            assert own.clock is not None
            clock = own.clock[place, 0, own.rounds]
            if clock[-1] < HORIZON:
                raise SystemExit(f"{case.name}, {way}: {own.rounds[-1]} rounds end at {clock[-1]:.0f}, before {HORIZON:.0f}")
            runs.append((own.accuracy[place, 0], clock))
            last = int(np.searchsorted(clock, HORIZON, side="right")) - 1
            lane = lanes[label, draw]
            late = SPEEDS.times(lane.problem.roster, lane.derived_seed) > 1
            slow.append(own.credits[place, 0, last, late].sum() / max(own.tested[last, late].sum(), 1))
            trainings.append(own.costs["passes"][place, 0, : own.rounds[last] + 1].sum() / plan.local.epochs)
        curves = np.stack([sample_at_moments(*run, moments) for run in runs])
        found[label] = Runs(curves, curves[:, -1], np.array(slow), np.array(trainings), runs)
    return found


def rows_of(case: Case, way: str, found: dict[str, Runs], moments: Doubles) -> list[dict[str, object]]:
    """The curves, as means over draws."""
    rows: list[dict[str, object]] = []
    for label, own in found.items():
        for i, moment in enumerate(moments):
            one = {"case": case.name, "method": label, "way": way, "time": round(float(moment), 1)}
            rows.append({**one, "accuracy": round(100 * float(own.curves[:, i].mean()), 2)})
    return rows


def tell(case: Case, found: dict[str, dict[str, Runs]]) -> None:
    """What the asynchronous ways gain and lose, draw by draw against the synchronous one."""
    print(f"\n{case.name}: {case.data}, time {HORIZON:.0f}")
    print("| method | way | accuracy, % | minus synchronous | slow clients, % | minus synchronous | time to the same | trainings |")
    print("| --- " * 8 + "|")
    for label in METHODS:
        base = found["synchronous"][label]
        for way in WAYS:
            own = found[way][label]
            sooner = [find_time_to_target(*run, target) for run, target in zip(own.runs, base.end, strict=True)]
            there = [time for time in sooner if np.isfinite(time)]
            time = f"{np.median(there):.3g} ({len(there)} of {len(sooner)})" if there else "never"
            gains = [_gain(getattr(own, name) - getattr(base, name)) if WAYS[way] else "" for name in ("end", "slow")]
            scores = f"{100 * own.end.mean():.1f} | {gains[0]} | {100 * own.slow.mean():.1f} | {gains[1]}"
            print(f"| {label} | {way} | {scores} | {time} | {own.trainings.mean():.0f} |")


def _gain(difference: Doubles) -> str:
    low, high = compute_interval(difference)
    return f"{100 * difference.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def draw_figure(table: pd.DataFrame, path: Path) -> None:
    """A panel for each federation and method."""
    values: Any = table.to_dict("records")
    ways = list(dict.fromkeys(table["way"]))
    colour = alt.Color("way:N", sort=ways, scale=alt.Scale(domain=ways, range=["#000000", "#0072B2", "#E69F00"]))
    base = (
        alt.Chart()
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("time:Q", title="simulated time"),
            y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=alt.StrokeDash("way:N", sort=ways, scale=alt.Scale(domain=ways, range=[[1, 0], [6, 3], [2, 2]])),
        )
    )
    panels = base.properties(width=240, height=180).facet(
        row=alt.Row("case:N", sort=None, title=None),
        column=alt.Column("method:N", sort=None, title=None),
        data=alt.InlineData(values=values),
    )
    tree = panels.resolve_scale(y="independent").to_dict()
    tree["config"] = {**CONFIG, "background": "white"}
    path.write_text(vl_convert.vegalite_to_svg(tree, vl_version=SPEC_VERSION), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/asynchronous/curves.csv"))
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/asynchronous.svg"))
    options = parser.parse_args()
    moments = np.linspace(0.0, HORIZON, 61)
    rows = []
    for case in CASES:
        found = {way: carried_out(case, way, options.draws, moments) for way in WAYS}
        for way, own in found.items():
            rows += rows_of(case, way, own, moments)
        tell(case, found)
    table = pd.DataFrame(rows)
    table.to_csv(options.out, index=False)
    draw_figure(table, options.figure)


if __name__ == "__main__":
    main()
