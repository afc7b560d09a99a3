"""Figures of tables that stand on pages of the documentation: drawn from the tables themselves, into docs/figures.

python -m benchmarks.page_figures [NAME ...]        # default: all
python -m benchmarks.page_figures attacks --form png --folder /tmp/look
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt

from coterie.report.figure import Figure
from coterie.report.style import GREY, OKABE_ITO

DOCS = Path(__file__).resolve().parents[1] / "docs"
ATTACKS, RATES = DOCS / "reference" / "attacks-measured.md", DOCS / "reference" / "error-rates.md"
LEAKS = DOCS / "reference" / "leaks-measured.md"
ASYNCHRONOUS = DOCS / "explanation" / "asynchronous.md"
CALIBRATION = DOCS / "reference" / "inspect-calibration.md"
METHODS = {
    "fedavg": "FedAvg",
    "simprox": "SimProx",
    "fedsim": "FedSim",
    "fedgroup": "FedGroup",
    "fesem": "FeSEM",
    "ifca": "IFCA",
    "robust": "Robust",
}
Row = dict[str, str]
Chart = Any  # of altair, in any of its kinds


def read_table(page: Path, mark: str) -> list[Row]:
    """The rows of the first table after a mark or heading of a page, by column."""
    text = page.read_text(encoding="utf-8")
    lines = text[text.index(mark) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    head, _, *body = rows
    return [dict(zip(head, row, strict=True)) for row in body]


def to_chart(rows: list[dict[str, Any]]) -> alt.Chart:
    """A chart of these rows."""
    values: Any = rows
    return alt.Chart(alt.InlineData(values=values))


def draw_attacks() -> Chart:
    """Accuracy under each attack, coloured by what is lost against no attack; without a guard at the left, with it at the right."""
    lines = []
    for title, mark in (("Digits, 8 of 40 clients malicious", "digits-accuracy-20"), ("MNIST, 200 of 1,000", "mnist-accuracy-20")):
        table = read_table(ATTACKS, f"<!-- poisoning:{mark} -->")
        sides = [[row for row in table if row["method"].strip("`").endswith("+guard") == guarded] for guarded in (False, True)]
        panels = [_draw_attacked(side, f"{title}, {words}") for side, words in zip(sides, ("no guard", "with guard"), strict=True)]
        lines.append(alt.hconcat(*panels).resolve_scale(color="shared"))
    return alt.vconcat(*lines)


def _draw_attacked(table: list[Row], title: str) -> Chart:
    """One panel: a row a method, a column an attack."""
    rows, attacks = [], [name for name in table[0] if name != "method"]
    for row in table:
        name = METHODS[re.split(r"[`(+]", row["method"])[1]]
        clean = float(row["no attack"])
        rows += [
            {"method": name, "attack": attack, "accuracy": float(row[attack]), "lost": clean - float(row[attack])} for attack in attacks
        ]
    columns = alt.Axis(orient="top", labelAngle=-35, labelOverlap=False, domain=False, ticks=False)
    base = to_chart(rows).encode(
        x=alt.X("attack:N", sort=attacks, title=None, axis=columns),
        y=alt.Y("method:N", sort=None, title=None, axis=alt.Axis(domain=False, ticks=False, labels="no guard" in title)),
    )
    shades = ["#ffffff", "#f6c9a6", OKABE_ITO["vermillion"]]
    legend = alt.Legend(title="points lost to the attack", orient="bottom", gradientLength=200, titleLimit=300, format=".0f")
    scale = alt.Scale(domain=[0, 10, 30], range=shades, clamp=True, interpolate="rgb")
    tile = base.mark_rect(stroke="#dcdcdc").encode(color=alt.Color("lost:Q", scale=scale, legend=legend))
    text = base.mark_text(fontSize=12).encode(text=alt.Text("accuracy:Q", format=".0f"), color=alt.value("#111111"))
    return alt.layer(tile, text).properties(width=340, height=22 * len(table), title=title)


def draw_site_shares() -> Chart:
    """Accuracy with one malicious site of three quarters of the clients, without a bound on its share and with it."""
    table = read_table(ATTACKS, "<!-- site shares -->")
    series = ["no bound", "most_share = 1/3"]
    panels = []
    for place, attack in enumerate(("no attack", "signflip", "scale", "labelflip")):
        pairs = [(row["method"].strip("`"), float(row[attack]), float(row[f"{attack}, bounded"])) for row in table]
        spans = [{"method": method, "free": free, "bounded": bounded} for method, free, bounded in pairs]
        dots = [
            {"method": method, "accuracy": value, "series": name}
            for method, *both in pairs
            for name, value in zip(series, both, strict=True)
        ]
        height = alt.Y("method:N", sort=None, title=None, axis=alt.Axis(labels=place == 0, ticks=False, domain=False))
        across = alt.Scale(domain=[0, 100])
        line = to_chart(spans).mark_rule(color=GREY, strokeWidth=2).encode(y=height, x=alt.X("free:Q", scale=across), x2="bounded:Q")
        dot = (
            to_chart(dots)
            .mark_point(size=70, filled=True, opacity=1)
            .encode(
                y=height,
                x=alt.X("accuracy:Q", scale=across, title="accuracy, %"),
                color=alt.Color("series:N", scale=alt.Scale(domain=series, range=[OKABE_ITO["vermillion"], OKABE_ITO["blue"]])),
                shape=alt.Shape("series:N", scale=alt.Scale(domain=series, range=["triangle-down", "circle"])),
            )
        )
        panels.append(alt.layer(line, dot).properties(width=112, height=140, title=alt.Title(attack, frame="group")))
    return alt.hconcat(*panels)


def draw_error_rates() -> Chart:
    """False positives of the deciding test by the shape of differences, and coverage of the interval over draws by design."""
    kinds = {"normal": "normal", "t, 3 degrees": "heavy tails (t, 3 df)", "skewed up": "skewed up", "skewed down": "skewed down"}
    kinds |= {"discrete": "discrete", "real": "real (Natural-12)"}
    rejected = [
        {"kind": title, "share": float(row[kind].strip("*")), "test": row["decides"]}
        for row in read_table(RATES, "<!-- deciding test -->")
        for kind, title in kinds.items()
    ]
    covered: list[dict[str, Any]] = []
    for row in read_table(RATES, "<!-- coverage -->"):
        seeds = "own seeds" if row["seeds"] == "own" else f"shared seeds: {row['draws x seeds'].split(' x ')[1]}"
        shape = "" if row["shape"] == "normal" else f", {row['shape']}"
        covered.append({"kind": f"{seeds}{shape}", "share": float(row["over draws"].strip("*")), "test": row["draws x seeds"]})
    covered.sort(key=lambda row: ("shared" in row["kind"], "," in row["kind"], row["kind"]))
    left = _draw_rates(rejected, "False positives, % of null studies (aim: 5)", (0, 18), (0, 7.5))
    right = _draw_rates(covered, "Coverage of 95 % intervals over draws, %", (70, 100), (93, 97))
    return alt.hconcat(left, right).resolve_scale(color="independent", shape="independent")


def _draw_rates(rows: list[dict[str, Any]], title: str, domain: tuple[float, float], band: tuple[float, float]) -> Chart:
    """A dot a design, by kind of study; the band is what is aimed at."""
    series = list(dict.fromkeys(row["test"] for row in rows))
    colours = [OKABE_ITO[name] for name in ("blue", "vermillion", "green", "purple")]
    across = alt.Scale(domain=domain, zero=False, nice=False)
    aim = to_chart([{"low": band[0], "high": band[1]}]).mark_rect(color=OKABE_ITO["sky"], opacity=0.25)
    aim = aim.encode(x=alt.X("low:Q", scale=across, title=None), x2="high:Q")
    dot = (
        to_chart(rows)
        .mark_point(filled=True, size=60, opacity=0.9)
        .encode(
            y=alt.Y("kind:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False)),
            x=alt.X("share:Q", title=None, scale=across),
            color=alt.Color("test:N", scale=alt.Scale(domain=series, range=colours), legend=alt.Legend(columns=4)),
            shape=alt.Shape("test:N", scale=alt.Scale(domain=series, range=["circle", "triangle-up", "square", "diamond"])),
        )
    )
    return alt.layer(aim, dot).properties(width=270, height=180, title=alt.Title(title, frame="group"))


def draw_calibration() -> Chart:
    """How often `inspect` reports distinct groups: where there are groups (and with their right number), and where there are none."""
    table = read_table(CALIBRATION, "<!-- calibration -->")
    words = ["distinct groups reported", "with the right number"]
    panels = []
    for title, grouped in (("True groups: seeds of 100 (higher is better)", True), ("No groups: seeds of 100 (aim: at most 10)", False)):
        rows = []
        for row in table:
            name = row["federation"].strip("`").replace("clients=", "").replace("groups=", "").replace("alpha=", "")
            if row["true groups"].isdigit() == grouped:
                counts = {words[0]: row["**3: distinct groups**"].strip("*"), words[1]: row["with the right number"]}
                rows += [{"federation": name, "what": what, "count": int(count)} for what, count in counts.items() if count.isdigit()]
        panels.append(
            to_chart(rows)
            .mark_point(filled=True, size=70, opacity=0.9)
            .encode(
                y=alt.Y("federation:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelPadding=8)),
                x=alt.X("count:Q", title=None, scale=alt.Scale(domain=[0, 100])),
                color=alt.Color("what:N", scale=alt.Scale(domain=words, range=[OKABE_ITO["blue"], OKABE_ITO["orange"]])),
                shape=alt.Shape("what:N", scale=alt.Scale(domain=words, range=["circle", "diamond"])),
            )
            .properties(width=330, height=20 * len({row["federation"] for row in rows}), title=alt.Title(title, frame="group"))
        )
    return alt.vconcat(*panels)


ANSWERS = {
    "Train": "trained model",
    "Gradient": "gradient",
    "Gradient by class": "gradient by class",
    "Gradient of a half": "gradient of half the samples",
    "SketchedGradient": "sketch of the gradient",
    "SketchedGradient of a half": "sketch, half the samples",
    "SketchedTrain": "sketch of the update",
    "SketchedGradient noised": "sketch of the gradient, epsilon 8",
    "SketchedTrain noised": "sketch of the update, epsilon 8",
    "Describe": "moments of features",
    "Describe by class": "moments of features by class",
    "AskSubspaces": "directions of samples",
    "AskSubspaces by class": "directions of samples by class",
    "Losses": "losses of three models",
    "AskErrors": "errors of five random models",
    "Train by LossRule": "losses of seven steps, beside the model",
    "Train by MixtureRule": "mean responsibilities, beside the models",
    "Train by MixtureRule by class": "responsibilities by class, beside the models",
    "Evaluate": "counts by class, training part",
    "Evaluate on test parts": "counts by class, test part",
}


def draw_leaks() -> Chart:
    """How well label proportions can be recovered from each kind of answer, by an attacker who has learned and by one who has not."""
    series = {"learned": "after learning elsewhere", "without learning": "without learning"}
    rows = []
    for row in read_table(LEAKS, "<!-- answers -->"):
        name = f"{ANSWERS[row['answer'].strip('`')]} ({row['numbers']} numbers)"
        rows += [{"answer": name, "series": title, "share": float(row[kind])} for kind, title in series.items() if row[kind] != "–"]
    order = [f"{title} (" for title in ANSWERS.values()]
    rows.sort(key=lambda row: next(place for place, start in enumerate(order) if str(row["answer"]).startswith(start)))
    names = list(series.values())
    across = alt.X("share:Q", title="correlation of recovered and true label proportions", scale=alt.Scale(domain=[0, 1]))
    height = alt.Y("answer:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=320, labelOverlap=False))
    line = to_chart([row for row in rows if row["series"] == names[0]]).mark_rule(color="#dcdcdc", strokeWidth=2)
    dot = (
        to_chart(rows)
        .mark_point(filled=True, size=80, opacity=0.9)
        .encode(
            x=across,
            y=height,
            color=alt.Color("series:N", scale=alt.Scale(domain=names, range=[OKABE_ITO["vermillion"], OKABE_ITO["blue"]])),
            shape=alt.Shape("series:N", scale=alt.Scale(domain=names, range=["circle", "diamond"])),
        )
    )
    return alt.layer(line.encode(x=across, y=height, x2=alt.datum(0)), dot).properties(width=330, height=410)


def draw_asynchronous() -> Chart:
    """What asynchronous rounds change, for all clients and for the slow ones."""
    titles = {
        "<!-- ten clients -->": "digits/dirichlet, one of ten slow",
        "<!-- thirty clients -->": "synthetic(1,1), three of thirty slow",
    }
    series = ["all clients", "slow clients"]
    panels = []
    for place, (mark, title) in enumerate(titles.items()):
        text = ASYNCHRONOUS.read_text(encoding="utf-8")
        lines = [line for line in text[text.index(mark) :].partition("<!-- end -->")[0].splitlines() if " asynchronous" in line]
        rows: list[dict[str, Any]] = []
        for line in lines:
            method, way, _, everyone, _, slow, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            name = f"{METHODS.get(method, method.partition('(')[0].replace('fedprox', 'FedProx'))}, a = {0 if way.endswith('0') else '1/2'}"
            for who, cell in zip(series, (everyone, slow), strict=True):
                mean, low, high = map(float, re.findall(r"[+-][\d.]+", cell))
                rows.append({"name": name, "series": who, "mean": mean, "low": low, "high": high})
        base = to_chart(rows).encode(
            y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labels=place == 0, ticks=False, domain=False, labelOverlap=False)),
            yOffset=alt.YOffset("series:N", sort=series),
            color=alt.Color("series:N", scale=alt.Scale(domain=series, range=[OKABE_ITO["blue"], OKABE_ITO["vermillion"]])),
        )
        zero = to_chart([{"at": 0}]).mark_rule(color=GREY).encode(x=alt.X("at:Q", title="points over synchronous rounds"))
        bar = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
        shapes = alt.Scale(domain=series, range=["circle", "triangle-down"])
        dot = base.mark_point(filled=True, size=60, opacity=1).encode(x="mean:Q", shape=alt.Shape("series:N", scale=shapes))
        panels.append(alt.layer(zero, bar, dot).properties(width=300, height=210, title=alt.Title(title, frame="group")))
    return alt.hconcat(*panels)


FIGURES: dict[str, Callable[[], Chart]] = {
    "attacks": draw_attacks,
    "site-shares": draw_site_shares,
    "error-rates": draw_error_rates,
    "inspect-calibration": draw_calibration,
    "leaks": draw_leaks,
    "asynchronous-slow": draw_asynchronous,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []], default=[])
    parser.add_argument("--form", default="svg", choices=("svg", "png", "pdf"))
    parser.add_argument("--folder", type=Path, default=DOCS / "figures")
    given = parser.parse_args()
    for name in given.names or FIGURES:
        Figure(name, "", "", FIGURES[name](), several=True).save(given.folder, given.form)


if __name__ == "__main__":
    main()
