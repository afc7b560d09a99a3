"""What to do when clients' data change? Watch, its policies, FedDrift and Flux on three scenarios of drift. Written before its results.

python studies/drift.py run      # results/drift/scores.csv and results/drift/alarms.csv
python studies/drift.py page     # docs/explanation/drift.md: its tables, and its figure, from these two files alone
python studies/drift.py page --check

The protocol.

- Three scenarios of 40 clients with about 45 samples each, three in ten for tests. From round 23 on a quarter of the clients is in another
  group: digits with pairs of labels exchanged (`concept`), turned by 180 degrees (`rotation`), and in another style (`style`).
- Softmax regression, 40 rounds, one local epoch in batches of 10, learning rate 0.3, all clients in every round; draws 100 to 109, a seed
  each. Groups where a method is told their number: that of the scenario.
- Base method: FedGroup, whose groups are final. `nothing` is FedGroup; the policies are those of `+watch` at its defaults.
- FedDrift with a delta of 0.5, every 5 rounds as watch; Flux clustered every 5 rounds. IFCA for comparison: it re-assigns clients in every
  round.
- Score: accuracy over all clients' test samples, mean of rounds 32 to 40. Before: mean of rounds 18 to 22. Every second round is evaluated.
- Draws are run one after the other, and a draw counts when all scenarios have it: a run that ends early has the first of them.
- Delay: rounds from 23 to the first alarm that names a client that changed (FedDrift: a client that left for a new model; Flux: a new
  clustering). Found: the share of the clients that changed which were named. False alarms: rounds before 23 with an alarm, and clients
  that were named and did not change.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import coterie as ct
from coterie._util.files import write_atomic
from coterie._util.formatting import format_markdown_table
from coterie.analysis.drift_alarms import read_alarms
from coterie.run.execution import Execution

AT, ROUNDS, FIRST, DRAWS = 23, 40, 100, 10
EVALUATED = 2  # every second round
LATE, EARLY = range(32, 41, EVALUATED), range(18, 23, EVALUATED)
_40 = "clients=40,test=0.3"
SCENARIOS = {
    "concept": (2, f"digits/labelswap(groups=2,pairs=5,{_40})/drift(at={AT},share=0.25)"),
    "rotation": (2, f"digits/rotated(groups=2,{_40})/drift(at={AT},share=0.25)"),
    "style": (2, f"digits/style(groups=2,strength=1,{_40})/drift(at={AT},share=0.25)"),
}
METHODS = {
    "nothing": "fedgroup(groups={})",
    "watch, place": "fedgroup(groups={})+watch(policy=place)",
    "watch, regroup": "fedgroup(groups={})+watch(policy=regroup)",
    "watch, new": "fedgroup(groups={})+watch(policy=new)",
    "FedDrift": "feddrift(delta=0.5)",
    "Flux, again": "flux(again=5)",
    "IFCA": "ifca(groups={})",
}
ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "results" / "drift"
PAGE, FIGURE = ROOT / "docs" / "explanation" / "drift.md", ROOT / "docs" / "figures" / "drift.svg"


def run_draw(scenario: str, draw: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The accuracy of every method in every round, and what was noticed, in one draw."""
    groups, data = SCENARIOS[scenario]
    labels = {name: spec.format(groups) for name, spec in METHODS.items()}
    result = ct.study(
        [*labels.values()],
        data=data,
        data_seed=draw,
        seeds=(draw,),
        rounds=ROUNDS,
        epochs=1,
        batch_size=10,
        lr=0.3,
        evaluate_every=EVALUATED,
        execution=Execution(threads=1),
    )
    federation = ct.load(data, draw)
    before, after = federation.at_round(AT - 1).groups, federation.at_round(AT).groups
    assert before is not None
    moved = {federation.ids[client] for client in np.flatnonzero(before != after).tolist()}
    clients = result.evidence.frame("clients")
    hits = [column for column in clients if str(column).startswith("hits_")]
    actual = [column for column in clients if str(column).startswith("actual_")]
    scores, found = [], []
    for name, label in labels.items():
        own = clients[clients["method"] == label].groupby("round")[[*hits, *actual]].sum()
        curve = own[hits].sum(axis=1) / own[actual].sum(axis=1)
        scores += [{"scenario": scenario, "draw": draw, "method": name, "round": r, "accuracy": round(a, 5)} for r, a in curve.items()]
        found += [{"scenario": scenario, "draw": draw, "method": name, **alarm} for alarm in find_alarms(result.evidence, label, moved)]
    return scores, found


def find_alarms(evidence: Any, label: str, moved: set[str]) -> list[dict[str, Any]]:
    """By round with an alarm: the clients named that have changed, of how many, and those that have not."""
    rows = []
    notes = evidence.frame("notes")
    own = notes[notes["method"] == label]
    if "watch" in label:
        named: dict[int, set[str]] = {}
        for alarm in read_alarms(evidence)[1]:
            if alarm.method == label:
                named.setdefault(alarm.round_, set()).update(alarm.clients)
        rows = [(round_, len(who & moved), len(who - moved)) for round_, who in named.items()]
    elif label.startswith("feddrift"):  # it notes how many have left, and who they are is read from no note
        rows = [(int(r), int(v), 0) for r, v in own[own["name"] == "drifted"][["round", "value"]].itertuples(index=False) if int(v)]
    elif label.startswith("flux"):
        rows = [(int(r), int(v), 0) for r, v in own[own["name"] == "regrouped"][["round", "value"]].itertuples(index=False) if int(v)]
    return [{"round": r, "right": right, "wrong": wrong, "moved": len(moved)} for r, right, wrong in sorted(rows)]


def run() -> None:
    """Run the draws that are not there yet, and add each to both files."""
    FILES.mkdir(parents=True, exist_ok=True)
    done = set(read_scores()["draw"]) if (FILES / "scores.csv").exists() else set()
    for draw in sorted({*range(FIRST, FIRST + DRAWS)} - done):
        made = [run_draw(scenario, draw) for scenario in SCENARIOS]
        scores = pd.DataFrame([row for rows, _ in made for row in rows])
        wide = scores.pivot_table(index=["scenario", "draw", "method"], columns="round", values="accuracy").reset_index()
        columns = ["scenario", "draw", "method", "round", "right", "wrong", "moved"]
        alarms = pd.DataFrame([row for _, rows in made for row in rows], columns=columns)
        for name, frame in (("alarms", alarms), ("scores", wide)):  # the scores last: a draw without them is run again
            path = FILES / f"{name}.csv"
            whole = pd.concat([pd.read_csv(path), frame.rename(columns=str)]) if path.exists() else frame.rename(columns=str)
            write_atomic(path, whole[~((whole["draw"] == draw) & whole.duplicated())].to_csv(index=False))
        print(draw, flush=True)


def read_scores() -> pd.DataFrame:
    """By scenario, draw and method the accuracy before, after, and in every round."""
    return pd.read_csv(FILES / "scores.csv")


def summarize(scores: pd.DataFrame, alarms: pd.DataFrame) -> pd.DataFrame:
    """One row for each scenario and method: means over draws, and the interval of the gain over doing nothing."""
    rows = []
    for scenario in SCENARIOS:
        own = scores[scores["scenario"] == scenario].set_index(["method", "draw"])
        late = own[[str(r) for r in LATE]].mean(axis=1)
        early = own[[str(r) for r in EARLY]].mean(axis=1)
        for method in METHODS:
            gain = 100 * (late[method] - late["nothing"])
            half = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain))
            noticed = alarms[(alarms["scenario"] == scenario) & (alarms["method"] == method)]
            after = noticed[(noticed["round"] >= AT) & (noticed["right"] > 0)]
            delays = after.groupby("draw")["round"].min() - AT
            shares = after.groupby("draw")["right"].sum() / after.groupby("draw")["moved"].first()
            rows.append(
                {
                    "scenario": scenario,
                    "method": method,
                    "before": 100 * early[method].mean(),
                    "after": 100 * late[method].mean(),
                    "gain": gain.mean(),
                    "half": half,
                    "draws": len(delays),
                    "delay": delays.median() if len(delays) else np.nan,
                    "found": shares.sum() / len(gain),
                    "of": len(gain),
                    "false": int((noticed["round"] < AT).sum()),
                    "wrong": int(noticed["wrong"].sum()),
                }
            )
    return pd.DataFrame(rows)


def make_table(summary: pd.DataFrame, scenario: str) -> str:
    """A scenario's table."""
    rows = []
    for row in summary[summary["scenario"] == scenario].itertuples():
        watches = str(row.method).startswith("watch")
        notices = watches or str(row.method).startswith("FedDrift") or row.method == "Flux, again"
        gain = "" if row.method == "nothing" else f"{row.gain:+.1f} ({row.gain - row.half:+.1f} to {row.gain + row.half:+.1f})"
        delay = "" if not notices else f"{row.delay:.0f} ({row.draws} of {row.of})" if row.draws else f"none in {row.of}"
        rows.append(
            [
                str(row.method),
                f"{row.before:.1f}",
                f"{row.after:.1f}",
                gain,
                delay,
                f"{100 * row.found:.0f} %" if watches else "",
                f"{row.false}" if notices else "",
                f"{row.wrong}" if watches else "",
            ]
        )
    header = ["method", "before", "after", "gain (95 % CI)", "delay, rounds", "found", "false alarms", "wrongly named"]
    return "\n".join(format_markdown_table(header, rows))


def draw_figure(scores: pd.DataFrame) -> str:
    """Accuracy by round, a panel for each scenario, as SVG."""
    import altair as alt
    import vl_convert

    rounds, shown = [str(r) for r in range(EVALUATED, ROUNDS + 1, EVALUATED)], [*METHODS]
    means = scores[scores["method"].isin(shown)].groupby(["scenario", "method"])[rounds].mean().stack().rename("accuracy").reset_index()
    means.columns = pd.Index(["scenario", "method", "round", "accuracy"])
    means["round"], means["accuracy"] = means["round"].astype(int), (100 * means["accuracy"]).round(2)
    lines = (
        alt.Chart()
        .mark_line()
        .encode(
            x=alt.X("round:Q", title="round"),
            y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False)),
            color=alt.Color("method:N", sort=shown, title=None, legend=alt.Legend(orient="top", columns=4)),
        )
        .properties(width=230, height=230)
    )
    rule = alt.Chart().mark_rule(strokeDash=[4, 4], color="#666666").encode(x=alt.datum(AT))
    chart = alt.layer(lines, rule, data=means).facet(column=alt.Column("scenario:N", sort=[*SCENARIOS], title=None))
    return str(vl_convert.vegalite_to_svg(chart.to_json()))


BEGIN, END = "<!-- study -->", "<!-- /study -->"
HEADINGS = {"concept": "Labels exchanged", "rotation": "Turned images", "style": "Another style"}
SECTION = """\
## Ways to react

![Accuracy by round for each way to react, in three scenarios; the data change at the dashed line](../figures/drift.svg)

{draws} of {planned} declared draws; the protocol is at the top of [`studies/drift.py`](../../studies/drift.py), and the numbers are made
from [scores](../../results/drift/scores.csv) and [alarms](../../results/drift/alarms.csv). Accuracy in percent, before the change (rounds
18 to 22) and after it (32 to 40); the gain is over doing nothing. Delay: from the change to the first alarm that names a client that
changed, median over the draws with one. Simulated clients keep their samples between changes, so false alarms are measured above and not
here.
"""


def make_section(scores: pd.DataFrame, alarms: pd.DataFrame) -> str:
    """The section of the page, from both files."""
    summary = summarize(scores, alarms)
    tables = [f"**{HEADINGS[scenario]}** (`{scenario}`)\n\n{make_table(summary, scenario)}\n" for scenario in SCENARIOS]
    return "\n".join([SECTION.format(draws=scores["draw"].nunique(), planned=DRAWS), *tables])


def make_page(text: str) -> str:
    """The page with its section between the marks."""
    head, _, rest = text.partition(BEGIN)
    section = make_section(read_scores(), pd.read_csv(FILES / "alarms.csv"))
    return f"{head}{BEGIN}\n{section}{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run, or make the page."""
    if sys.argv[1:2] == ["run"]:
        run()
        return
    before = PAGE.read_text(encoding="utf-8")
    page = make_page(before)
    if "--check" in sys.argv:
        sys.exit(0 if page == before else 1)
    PAGE.write_text(page, encoding="utf-8")
    FIGURE.write_text(draw_figure(read_scores()), encoding="utf-8")


if __name__ == "__main__":
    main()
