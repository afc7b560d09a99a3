"""What is compared: curves with intervals, methods beside their controls, scores, and the rounds in which a method is better."""

from typing import Any

import altair as alt
import numpy as np

from coterie.analysis.measures import ACCURACY, Measure
from coterie.analysis.wording import score_name
from coterie.report.charts.common import INTERVAL, inline, lines, measure_axis, rounds_axis, side_by_side, told
from coterie.report.figure import PANEL, Figure
from coterie.report.style import BROWN, CONTROLS, GREY, OKABE_ITO, OLIVE, SOLID, LineStyle, scales
from coterie.report.subject import ROUNDS, Subject, percent, thinned

SWITCH = "Click a name to switch it off or on."


def accuracy_figures(subject: Subject) -> list[Figure]:
    """All figures about what is compared."""
    return [curves(subject), *controls(subject), scores(subject), *significance(subject)]


def curves(subject: Subject) -> Figure:
    """The mean by round with its 95 % band, for methods and baselines."""
    rows = [row for label in subject.shown for row in _curve(subject, label)]
    styles = [subject.styles[label] for label in subject.shown]
    chart = lines(rows, styles, rounds_axis(), measure_axis(subject.measure.axis), _round_told(subject), band=True).properties(height=360)
    again = subject.findings.repetitions
    over = "draws" if again.several_draws else "seeds"
    band = f"lines are means of {again}, bands 95 % intervals over {over}" if again.runs > 1 else "one seed, so no intervals"
    measure = subject.measure
    what = (
        "Share of all clients' test samples that are answered rightly" if measure is ACCURACY else f"{measure.title}, {over_whom(measure)}"
    )
    note = f"{what}, after each round; {band}. {SWITCH}"
    return Figure(subject.id("curves"), f"{measure.title} round by round", note, chart)


def over_whom(measure: Measure) -> str:
    """Of what a federation's value is the mean."""
    return "mean over clients, each counting alike" if measure.alike else "over all clients' test samples"


def controls(subject: Subject) -> list[Figure]:
    """Each grouping method beside the same method with random and with true groups."""
    roles, rows = subject.findings.roles, []
    for label, own in roles.controls.items():
        for shown in [roles.baseline, label, *own.values()]:
            kind = subject.name(shown).removeprefix(f"{subject.name(label)}, ") if shown in own.values() else "similar groups"
            kind = subject.baseline.name if shown == roles.baseline else kind
            rows += [{**row, "panel": subject.name(label), "method": kind} for row in _curve(subject, shown)]
    if not rows:
        return []
    known = (subject.baseline.name, "similar groups", *(kind for kind, _ in CONTROLS.values()))
    used = [kind for kind in known if any(row["method"] == kind for row in rows)]
    colours = {"similar groups": OKABE_ITO["blue"], "random groups": OKABE_ITO["orange"], "true groups": OKABE_ITO["green"]}
    colours |= {"random groups of like sizes": OKABE_ITO["purple"], "one group": BROWN, "dealt groups": OLIVE}
    dashes = dict(CONTROLS.values())
    styles = [LineStyle(kind, colours.get(kind, GREY), dashes.get(kind, SOLID)) for kind in used]
    panel = lines(rows, styles, rounds_axis(), measure_axis(subject.measure.axis), _round_told(subject), band=True).properties(
        width=PANEL, height=220
    )
    chart = side_by_side(panel, [subject.name(label) for label in roles.controls])
    note = (
        "The same method when similarity decides who shares a model, when chance decides (groups of the same sizes) and, where they are "
        "known, with the true groups. If chance does as well, the gain is not from similarity."
    )
    return [Figure(subject.id("controls"), "Similar groups against random ones", note, chart, several=True)]


def scores(subject: Subject) -> Figure:
    """The headline score of everything, with intervals, and each seed as a point."""
    findings, means, dots = subject.findings, [], []
    for label, finding in findings.methods.items():
        own, name = finding.scores[findings.score], subject.name(label)
        mean, low, high = percent([own.mean, own.low, own.high])
        means.append({"method": name, "accuracy": mean, "low": low, "high": high})
        dots += [{"method": name, "accuracy": value} for value in percent(own.values) if value is not None]
    order = [style.name for style in subject.styles.values()]
    colour = scales(list(subject.styles.values()))[0].legend(None)
    y = alt.Y("method:N", sort=order, title=None)
    x = alt.X("accuracy:Q", title=subject.measure.axis, scale=alt.Scale(zero=False))
    data = inline(means)
    chart = alt.layer(
        alt.Chart(inline(dots)).mark_tick(opacity=0.35, thickness=1.5).encode(x=x, y=y, color=colour),
        alt.Chart(data).mark_rule(strokeWidth=2.5).encode(x="low:Q", x2="high:Q", y=y, color=colour),
        alt.Chart(data)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=told("method:N", ("accuracy:Q", subject.measure.axis), *INTERVAL)),
    ).properties(height=alt.Step(26))
    unit = findings.repetitions.unit
    note = f"The {score_name(findings)}: means with 95 % intervals over {unit}s; every thin tick is one run."
    return Figure(subject.id("scores"), f"{subject.measure.title} at the end", note, chart)


def significance(subject: Subject) -> list[Figure]:
    """In which rounds each method is better than the baseline beyond chance."""
    rows = []
    for label, finding in subject.methods.items():
        tests = finding.by_round
        if tests is None or subject.findings.repetitions.runs < 2:
            continue
        for i in thinned(len(tests.rounds), ROUNDS):
            p = float(tests.wilcoxon_p[i])
            better = "better (p < 0.05)" if tests.significant[i] else "not shown to be better"
            rows.append(
                {"method": subject.name(label), "round": int(tests.rounds[i]), "result": better, "p": round(p, 4) if p == p else None}
            )
    if not rows:
        return []
    colour = alt.Color(
        "result:N", scale=alt.Scale(domain=["better (p < 0.05)", "not shown to be better"], range=[OKABE_ITO["blue"], "#CFCFCF"])
    )
    chart = (
        alt.Chart(inline(rows))
        .mark_rect(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("round:O", title="round", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("method:N", title=None, sort=None),
            color=colour,
            tooltip=told("method:N", "round:O", ("p:Q", "p (Wilcoxon, one-sided)")),
        )
        .properties(height=alt.Step(26))
    )
    note = (
        f"Each round tested by itself against {subject.baseline.name} over {subject.findings.repetitions.unit}s (Wilcoxon, one-sided, not "
        "corrected for the number of rounds). It does not see the chance of test samples, and plays no part in the verdict."
    )
    return [Figure(subject.id("rounds"), f"Rounds in which a method beats {subject.baseline.name}", note, chart)]


def _round_told(subject: Subject) -> list[alt.Tooltip]:
    return told("method:N", "round:Q", ("accuracy:Q", subject.measure.axis), *INTERVAL)


def _curve(subject: Subject, label: str) -> list[dict[str, Any]]:
    center, lower, upper = subject.findings.curves[label]
    if subject.measure.share:  # a t interval knows no bounds; a share does
        lower, upper = np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)
    mean, low, high = percent(center), percent(lower), percent(upper)
    rounds = subject.findings.rounds
    keys = ("method", "round", "accuracy", "low", "high")
    kept = [i for i in thinned(len(rounds), ROUNDS) if mean[i] is not None]
    return [dict(zip(keys, (subject.name(label), int(rounds[i]), mean[i], low[i], high[i]), strict=True)) for i in kept]
