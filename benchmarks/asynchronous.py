"""Accuracy against simulated time, synchronous and asynchronous, where one client in ten takes ten times as long.

    python -m benchmarks.asynchronous [--draws 10] [--out docs/asynchronous.csv] [--figure docs/figures/asynchronous.svg]

Two federations: ten clients, all in every round, one of them slow (digits, Dirichlet 0.3); and thirty, ten of them in every round, three slow
(synthetic(1,1)). Both run for the same simulated time. Each draw deals out the data, the first model, who is slow and all batches anew, the
same for every method and way. Printed are means over draws with 95 % intervals of paired differences.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from coterie.analysis.reading import records_of
from coterie.analysis.times import at_moments, time_to
from coterie.core.arrays import Doubles
from coterie.core.plan import Plan
from coterie.core.speeds import Slowed
from coterie.evidence.settings import Settings
from coterie.report.figure import CONFIG, SPEC_VERSION
from coterie.run.study import Study
from coterie.statistics import interval

METHODS = ("fedavg", "fedprox(mu=0.1)", "simprox")
SPEEDS = Slowed()  # a tenth, ten times as long
HORIZON = 300.0


@dataclass(frozen=True)
class Case:
    """A federation, and the rounds that fill the time, by how many answers are waited for (0: all)."""

    name: str
    data: str
    cohort: int | None
    rounds: dict[int, int]


CASES = (
    Case("ten clients, one slow", "digits/dirichlet(0.3,clients=10)", None, {0: 30, 5: 580, 2: 1450}),
    Case("ten of thirty, three slow", "synthetic(1,1,clients=30)", 10, {0: 60, 5: 420, 2: 1050}),
)


@dataclass(frozen=True)
class Runs:
    """Of one method in one way: (draws, moments) accuracies, and what is read from them for each draw."""

    curves: Doubles
    end: Doubles  # accuracy at the horizon
    slow: Doubles  # that of the slow clients
    runs: list[tuple[Doubles, Doubles]]  # accuracies and times of all evaluated rounds


def way_of(wanted: int) -> str:
    return f"asynchronous, {wanted}" if wanted else "synchronous"


def carried_out(case: Case, wanted: int, draws: int, moments: Doubles) -> dict[str, Runs]:
    """All methods in one way."""
    plan = Plan(rounds=case.rounds[wanted], cohort=case.cohort, speeds="slowed", evaluate_every=max(1, case.rounds[wanted] // 60))
    plan = replace(plan, asynchronous=wanted or None)
    settings = Settings(methods=METHODS, data=case.data, draws=tuple(range(draws)), own_seeds=True, plan=plan)
    study = Study.prepare(settings)
    evidence = study.run().evidence
    found: dict[str, Runs] = {}
    lanes = {(lane.label, lane.key.draw): lane for lane in study.lanes()}
    records = [records_of(evidence.of_draw(draw)) for draw in settings.draws]
    for place, label in enumerate(METHODS):
        runs, slow = [], []
        for draw, own in zip(settings.draws, records, strict=True):
            assert own.clock is not None
            clock = own.clock[place, 0, own.rounds]
            if clock[-1] < HORIZON:
                raise SystemExit(f"{case.name}, {way_of(wanted)}: {own.rounds[-1]} rounds end at {clock[-1]:.0f}, before {HORIZON:.0f}")
            runs.append((own.accuracy[place, 0], clock))
            last = int(np.searchsorted(clock, HORIZON, side="right")) - 1
            lane = lanes[label, draw]
            late = SPEEDS.times(lane.problem.roster, lane.keyed) > 1
            slow.append(own.right[place, 0, last, late].sum() / max(own.tested[last, late].sum(), 1))
        curves = np.stack([at_moments(*run, moments) for run in runs])
        found[label] = Runs(curves, curves[:, -1], np.array(slow), runs)
    return found


def rows_of(case: Case, wanted: int, found: dict[str, Runs], moments: Doubles) -> list[dict[str, object]]:
    """The curves, as means over draws."""
    rows: list[dict[str, object]] = []
    for label, own in found.items():
        for i, moment in enumerate(moments):
            one = {"case": case.name, "method": label, "way": way_of(wanted), "time": round(float(moment), 1)}
            rows.append({**one, "accuracy": round(100 * float(own.curves[:, i].mean()), 2)})
    return rows


def tell(case: Case, found: dict[int, dict[str, Runs]]) -> None:
    """What the asynchronous ways gain and lose, draw by draw against the synchronous one."""
    print(f"\n{case.name}: {case.data}, time {HORIZON:.0f}")
    print("| method | way | accuracy at the end | minus synchronous | slow clients | minus synchronous | time to the synchronous end |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label in METHODS:
        base = found[0][label]
        for wanted in case.rounds:
            own = found[wanted][label]
            sooner = [time_to(*run, target) for run, target in zip(own.runs, base.end, strict=True)]
            there = [time for time in sooner if np.isfinite(time)]
            time = f"{np.median(there):.3g} ({len(there)} of {len(sooner)})" if there else "never"
            gains = [_gain(getattr(own, name) - getattr(base, name)) if wanted else "" for name in ("end", "slow")]
            print(
                f"| {label} | {way_of(wanted)} | {100 * own.end.mean():.1f} | {gains[0]} | {100 * own.slow.mean():.1f} | {gains[1]} | {time} |"
            )


def _gain(difference: Doubles) -> str:
    low, high = interval(difference)
    return f"{100 * difference.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def draw_figure(table: pd.DataFrame, path: Path) -> None:
    """A panel for each federation and method."""
    ways = list(dict.fromkeys(table["way"]))
    colour = alt.Color("way:N", sort=ways, scale=alt.Scale(domain=ways, range=["#000000", "#0072B2", "#E69F00"]))
    base = (
        alt.Chart()
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("time:Q", title="simulated time"),
            y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=alt.StrokeDash("way:N", sort=ways),
        )
    )
    panels = base.properties(width=240, height=180).facet(
        row=alt.Row("case:N", sort=None, title=None),
        column=alt.Column("method:N", sort=None, title=None),
        data=alt.InlineData(values=table.to_dict("records")),
    )
    tree = panels.resolve_scale(y="independent").to_dict()
    tree["config"] = {**CONFIG, "background": "white"}
    path.write_text(vl_convert.vegalite_to_svg(tree, vl_version=SPEC_VERSION), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("docs/asynchronous.csv"))
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/asynchronous.svg"))
    options = parser.parse_args()
    moments = np.linspace(0.0, HORIZON, 61)
    rows = []
    for case in CASES:
        found = {wanted: carried_out(case, wanted, options.draws, moments) for wanted in case.rounds}
        for wanted, own in found.items():
            rows += rows_of(case, wanted, own, moments)
        tell(case, found)
    table = pd.DataFrame(rows)
    table.to_csv(options.out, index=False)
    draw_figure(table, options.figure)


if __name__ == "__main__":
    main()
