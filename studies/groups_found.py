"""Do the methods find known groups? Settings are chosen on label-swapped digits and then reported once on rotated digits.

python studies/groups_found.py choose    # the grid, on digits/labelswap, seeds 100-109
python studies/groups_found.py figure    # docs/results/groups_found.svg, from the page's second table
python studies/groups_found.py report    # the chosen settings and the papers' own, on digits/rotated, seeds 0-9

A method counts as finding the groups where the adjusted Rand index is at least 0.95.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd

import coterie as ct
from coterie.reproduce.figures import METHOD_COLOURS, get_method, render_svg

PLAN = ct.Plan(rounds=30, cohort=20, local=ct.Local(epochs=20, batch_size=10, lr=0.1))
ENOUGH = 0.95

GRID = [
    *(f"fedgroup(groups=4,pretrain={epochs})" for epochs in (1, 10, 20, 50, 100)),
    *(f"fesem(groups=4,warmup={epochs},lam={lam})" for epochs in (20, 50) for lam in (0.01, 0.1)),
    *(f"ifca(groups=4)+restarts(starts={starts},trial={rounds})" for starts, rounds in ((1, 1), (5, 3), (30, 5), (30, 8), (60, 8))),
    *(f"cfl(eps1={one},eps2={two})" for one, two in ((0.3, 0.6), (0.4, 0.8), (0.4, 1.0), (0.5, 1.0), (0.6, 1.2))),
    *(f"flhc(groups=4,warmup={rounds})" for rounds in (3, 5, 10)),
    *(f"fedex(groups=4,warmup={epochs},combiner=own)" for epochs in (5, 50, 100, 200)),
]
# The best of the grid by the number of seeds on which the groups are found, then by accuracy.
CHOSEN = [
    "fedgroup(groups=4,pretrain=100)",
    "fesem(groups=4,warmup=50,lam=0.1)",
    "ifca(groups=4)+restarts(starts=60,trial=8)",
    "cfl(eps1=0.4,eps2=1.0)",
    "flhc(groups=4,warmup=3)",
    "fedex(groups=4,warmup=200,combiner=own)",
]
# What the papers say, as far as they say it: one epoch of pre-training, a warm-up of one local training, one start, ten rounds,
# five epochs.
LITERAL = [
    "fedgroup(groups=4,literal=true)",
    "fesem(groups=4)",
    "ifca(groups=4)",
    "cfl(relative=false)",
    "flhc(warmup=10)",
    "fedex(groups=4,warmup=5)",
]
WRONG_NUMBER = [f"{name}(groups={groups})" for name in ("fedgroup", "fesem", "flhc", "fedex") for groups in (2, 7)]
WRONG_NUMBER += [f"ifca(groups={groups})+restarts" for groups in (2, 7)]


def table(methods: list[str], data: str, seeds: range) -> str:
    """Accuracy and agreement with the true groups, a line a method."""
    result = ct.study(["fedavg", *methods], data=data, plan=PLAN, seeds=seeds)
    scores = result.scores
    scores["found"] = scores["ari"] >= ENOUGH
    rows = scores.groupby("method", observed=True, sort=False).agg(final=("final", "mean"), ari=("ari", "mean"), found=("found", "sum"))
    lines = ["| method | accuracy % | gain over FedAvg | ARI | seeds with ARI of 0.95 or more |", "| --- | --- | --- | --- | --- |"]
    base = rows["final"].iloc[0]
    for name, row in rows.iterrows():
        groups = f"{row['ari']:.3f} | {int(row['found'])} of {len(seeds)}" if row["ari"] == row["ari"] else "– | –"
        lines.append(f"| `{name}` | {100 * row['final']:.1f} | {100 * (row['final'] - base):+.1f} | {groups} |")
    lines += [f"\n{key.method}, seed {key.seed}: {end}" for key, end in result.problems.items()]
    return "\n".join(lines)


PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "groups_found.md"
ROW = re.compile(r"^\| `(.+)` \| ([\d.]+) \| ([+-][\d.]+) \| ([\d.]+) \|", re.MULTILINE)


def draw_figure(alt: Any) -> Any:
    """The gain over FedAvg, and the adjusted Rand index, of the chosen settings (square) and the papers' own (circle)."""
    found = {name: (float(gain), ari) for name, _, gain, ari in ROW.findall(PAGE.read_text(encoding="utf-8").split("## Reported")[1])}
    colours = [METHOD_COLOURS.get(get_method(name), "#000000") for name in (*CHOSEN, *LITERAL)]
    data = pd.DataFrame(
        {"method": name, "gain": found[name][0], "ari": found[name][1], "colour": colour, "shape": "square" if name in CHOSEN else "circle"}
        for name, colour in zip((*CHOSEN, *LITERAL), colours, strict=True)
    )
    base = alt.Chart(data).encode(y=alt.Y("method:N", sort=None, title=None, axis=alt.Axis(labelLimit=320)))
    x = alt.X("gain:Q", title="gain over FedAvg, points of accuracy (■ chosen settings, ● the paper's own)")
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=x, shape=alt.Shape("shape:N", scale=None), color=alt.Color("colour:N", scale=None)
    )
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#666666").encode(x="x:Q")
    plot = (zero + dots).properties(width=420, height=alt.Step(22))
    title = alt.TitleParams("ARI", fontSize=11, anchor="start")
    ari = (
        alt.Chart(data, title=title).mark_text(align="left").encode(y=alt.Y("method:N", sort=None, axis=None), text="ari:N", x=alt.value(0))
    )
    return alt.hconcat(plot, ari.properties(width=60, height=alt.Step(22)), background="white").configure_view(stroke=None)


if __name__ == "__main__":
    if sys.argv[1:] == ["choose"]:
        print(table(GRID, "digits/labelswap(clients=40,groups=4)", range(100, 110)))
    elif sys.argv[1:] == ["report"]:
        print(table([*CHOSEN, *LITERAL, *WRONG_NUMBER], "digits/rotated(clients=40,groups=4)", range(10)))
    elif sys.argv[1:] == ["figure"]:
        import altair

        PAGE.with_suffix(".svg").write_text(render_svg(draw_figure(altair)), encoding="utf-8")
    else:
        sys.exit(__doc__)
