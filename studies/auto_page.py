"""auto.md, made from the small tables of results/rivals/ and results/auto/ alone; `--check` exits with 1 if it is not up to date.

python studies/auto_page.py [--check]

Gains, intervals, regrets and counts are computed here from the scores of each draw. What is not in the tables is named as not run.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd
from scipy import stats

from coterie.core.arrays import Doubles

ROOT = Path(__file__).resolve().parents[1]
RIVALS, ADMISSIONS = ROOT / "results" / "rivals", ROOT / "results" / "auto" / "admissions.csv"
ABLATIONS = ROOT / "results" / "auto" / "ablations.csv"
PAGE = ROOT / "docs" / "explanation" / "auto.md"
MARGIN = 0.5  # points: of non-inferiority, of fine-tuning, and of a costly admission
REGRET = 2.0  # the worst that is aimed at

TITLE = "# auto: which model should each client get?\n"
TABLE = """\
Accuracy in %, the mean over draws. *Gain* is over FedAvg, with its 95 % interval over draws. *Best* is the method with the highest mean in
that world, in hindsight, of all methods of [the comparison](rivals.md) and both stages. *Regret* is best less `auto`. Made from
[scores](../../results/rivals/scores.csv) by `python studies/auto_page.py`; protocol: `studies/rivals.py`.
"""
NOT_RUN = (
    "`auto` is FedAvg unless another way is better on samples that did not train it. **Not run yet:** the comparison with all methods over "
    "worlds (`studies/rivals.py`), whose table this page begins with."
)
ADMITTED = """
Of the draws: in how many another option than FedAvg leads, in how many at least one client leaves FedAvg's model, and in how many test
accuracy is more than half a point below FedAvg's; target: at most 5 of 100. Protocol: `studies/auto_admissions.py`; made from
[admissions](../../results/auto/admissions.csv).
"""
ABLATED = (
    "Of `auto` the accuracy in %, of the others the difference to it in points, mean over draws ({draws}). With so few draws, differences "
    "of about a point are noise. Protocol: `studies/auto_ablations.py`; made from [ablations](../../results/auto/ablations.csv)."
)
DECIDES = """\
## How it decides

1. **Arms.** FedAvg; groups by the test of structure, refined by clusters of losses ([`structured`](../reference/methods/structured.md)); a
   weighted mean for each client ([`continuum`](../reference/methods/continuum.md)); and training alone. Each but the last is an option
   with 0, 1, 2, 5 and 10 epochs of fine-tuning.
2. **Cross-fitting.** Each client's training samples are two folds. A shadow of every arm trains without a fold and is judged on it. No
   sample is lost to validation, and no test sample is used.
3. **Gate.** The option with the best cross-fitted score leads if its gain over FedAvg has p < .2 in a one-sided t-test over clients. Of
   fewer than eight clients, samples are the units. Else FedAvg leads. Beside this p stands that of the best of all options, by the
   largest t under random signs of clients' gains (max-t); of fewer than eight clients it is Bonferroni's.
4. **Single clients.** A client's own gain is shrunk to the federation's by the noise of its own samples (empirical Bayes). It leaves the
   leading option only where the posterior probability of a loss is at most .1.
5. **Training.** What is chosen trains on all samples, from the first round on.

`level` and `harm` set the two thresholds. Level and number of folds were chosen on other draws of digits (rotated, iid, label swap,
Dirichlet), the refinement of groups on four other draws of label swaps, the dropping of the lowest arms on other draws of Dirichlet: kinds
of shift that are also in the table above, which is therefore no test on new kinds. Styles and mixtures were looked at on other draws and
changed nothing.

A client that keeps FedAvg has its model bitwise identical. Every option is reported with its score, gain and p: in a sentence by `coterie
show`, as a table in the report ("What auto decided"), and in the evidence (the note `auto`).

## What it costs

`budget=4` bounds the client steps of training to four times FedAvg's: one for FedAvg itself, one for the chosen arm, two for the shadows.
Arms that are clearly behind at a first check are dropped, then the lowest while the others could not train until half of the rounds, when
the decision comes: options compared too early favour fine-tuning, since the common model is not trained yet. Fine-tuning is judged on all
clients, so that with small cohorts its epochs take many steps: lengths that the budget does not pay for are not judged. Every arm
trains for at least one round, which runs of three rounds or fewer may not pay for. `auto_cost` in the evidence is what was spent.
"""


MISSED = """\
Where targets are missed, one draw that is not judged (95, one seed) was looked at. In continuum-strong `auto` serves the models of two
groups (74.9 %); `structured` by itself goes from two groups to three (78.7 %), CLoVE is given eight (79.1 %): groups that the test of
structure finds are fewer than a continuum can use. In partial-labels, where ten of 40 clients take part in a round, nothing is missed on
that draw (`auto` 96.6 %, fine-tuned 96.3 %), so its cause is not known; readers and schools were not looked at.
"""


@dataclass(frozen=True)
class World:
    """The scores of one world, by draw, in percent."""

    name: str
    methods: dict[tuple[str, str], Doubles]  # by method and stage, (draws,)

    @property
    def auto(self) -> Doubles | None:
        return self.methods.get(("auto", "tuned"), self.methods.get(("auto", "served")))

    @property
    def fedavg(self) -> Doubles | None:
        return self.methods.get(("fedavg", "served"))

    @property
    def tuned(self) -> Doubles | None:
        return self.methods.get(("fedavg", "tuned"))

    @property
    def best(self) -> tuple[str, Doubles]:
        """The method with the highest mean; `auto` itself where it is that."""
        (name, stage), scores = max(self.methods.items(), key=lambda item: float(item[1].mean()))
        return (f"{name}, fine-tuned" if stage == "tuned" and ("served" in {s for n, s in self.methods if n == name}) else name), scores

    @property
    def regret(self) -> float:
        assert self.auto is not None
        return float(self.best[1].mean() - self.auto.mean())


def read_worlds(folder: Path = RIVALS) -> list[World]:
    """The worlds of the table of scores, in its order; none where there is no table."""
    path = folder / "scores.csv"
    if not path.exists():
        return []
    table = pd.read_csv(path, keep_default_na=False)
    draws = [name for name in table.columns if name.startswith("d") and name[1:].isdigit()]
    own = table[table["control"] == ""]
    return [
        World(
            str(name),
            {(row["method"], row["stage"]): np.array([float(row[draw]) for draw in draws]) for _, row in rows.iterrows()},
        )
        for name, rows in own.groupby("world", sort=False)
    ]


def compute_interval(differences: Doubles) -> tuple[float, float, float]:
    """Mean and 95 % interval over draws (t)."""
    mean, error = float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return mean, mean - half, mean + half


def make_page(
    worlds: Sequence[World], admissions: pd.DataFrame | None, costs: pd.DataFrame | None, ablations: pd.DataFrame | None = None
) -> str:
    """The whole page."""
    parts = [*_render_worlds(worlds), DECIDES, *_render_costs(costs), *_render_ablations(ablations), *_render_admissions(admissions)]
    return "\n".join([TITLE, *parts]).rstrip() + "\n"


def _render_worlds(worlds: Sequence[World]) -> Iterator[str]:
    judged = [world for world in worlds if world.auto is not None and world.fedavg is not None]
    if not judged:
        yield fill(NOT_RUN, 140) + "\n"
        return
    yield fill(_sum_up(judged), 140) + "\n"
    yield "| world | FedAvg | fine-tuned | `auto` | gain | best | regret |"
    yield "| --- | ---: | ---: | ---: | --- | --- | ---: |"
    for world in judged:
        assert world.auto is not None
        assert world.fedavg is not None
        mean, low, high = compute_interval(world.auto - world.fedavg)
        name, best = world.best
        tuned = "" if world.tuned is None else f"{world.tuned.mean():.1f}"
        cells = [world.name, f"{world.fedavg.mean():.1f}", tuned, f"{world.auto.mean():.1f}", f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"]
        yield f"| {' | '.join([*cells, f'{name} {best.mean():.1f}', f'{world.regret:.1f}'])} |"
    yield f"\n{TABLE}"
    yield f"{MISSED}\n"
    if missing := [world.name for world in worlds if world not in judged]:
        yield f"Not run: `auto` in {', '.join(missing)}.\n"


def _sum_up(judged: Sequence[World]) -> str:
    """Each target, and whether it is met."""
    regrets = {world.name: world.regret for world in judged}
    worst = max(regrets, key=lambda name: regrets[name])
    gains = {world.name: compute_interval(_subtract(world.auto, world.fedavg)) for world in judged}
    below = [name for name, (_, _, high) in gains.items() if high < 0]
    inferior = [name for name, (_, low, _) in gains.items() if low < -MARGIN]
    tuned = {world.name: float(_subtract(world.auto, world.tuned).mean()) for world in judged if world.tuned is not None}
    behind = [name for name, gain in tuned.items() if gain < -MARGIN]
    mean = float(np.mean(list(regrets.values())))
    return " ".join(
        [
            f"Over {len(judged)} worlds `auto` gains {np.mean([gain for gain, *_ in gains.values()]):+.1f} points over FedAvg on average.",
            f"Its mean regret to the best of all methods in hindsight is {mean:.2f} points (target {MARGIN}: {_judge(mean <= MARGIN)}),",
            f"the worst {regrets[worst]:.1f} in {worst} (target {REGRET:g}: {_judge(regrets[worst] <= REGRET)}).",
            f"Significantly worse than FedAvg: {_list(below)} (target none: {_judge(not below)});",
            f"not shown to be within {MARGIN} points of FedAvg or better: {_list(inferior)}.",
            f"More than {MARGIN} points behind fine-tuned FedAvg: {_list(behind)} (target none: {_judge(not behind)}).",
            _compare_regrets(judged),
        ]
    )


def _compare_regrets(judged: Sequence[World]) -> str:
    """Mean regret of `auto` and of the other methods, each over the worlds that both ran in."""
    found = {}
    for key in dict.fromkeys(key for world in judged for key in world.methods if key[0] != "auto"):
        shared = [world for world in judged if key in world.methods]
        if 2 * len(shared) < len(judged):
            continue
        own = float(np.mean([world.best[1].mean() - world.methods[key].mean() for world in shared]))
        found[key] = (own, float(np.mean([world.regret for world in shared])), len(shared))
    if not found:
        return ""
    ahead = all(own > regret for own, regret, _ in found.values())
    (name, stage), (own, regret, count) = min(found.items(), key=lambda item: item[1][0] - item[1][1])
    return (
        f"Of {len(found)} other methods and stages that ran in at least half of these worlds, {name} ({stage}) comes nearest: mean regret "
        f"{own:.2f} over its {count} worlds, where `auto` has {regret:.2f} (target ahead of every rival: {_judge(ahead)})."
    )


def _subtract(one: Doubles | None, other: Doubles | None) -> Doubles:
    assert one is not None
    assert other is not None
    return one - other


def _judge(met: bool) -> str:
    return "met" if met else "missed"


def _list(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def _render_costs(costs: pd.DataFrame | None) -> Iterator[str]:
    """Client steps of `auto` in those of FedAvg."""
    if costs is None or "auto" not in set(costs["method"]):
        yield "**Not run yet:** the cost over worlds.\n"
        return
    base = costs[(costs["method"] == "fedavg") & (costs["stage"] == "served")].set_index("world")["steps"].astype(float)
    own = costs[costs["method"] == "auto"].drop_duplicates("world").set_index("world")["steps"].astype(float)
    ratio = (own / base).dropna()
    yield f"Over {len(ratio)} worlds it took {ratio.mean():.1f} times FedAvg's client steps on average, at most {ratio.max():.1f}.\n"


def _render_ablations(ablations: pd.DataFrame | None) -> Iterator[str]:
    """Each variant less `auto`, by world, mean over draws."""
    yield "## What each part contributes\n"
    if ablations is None or ablations.empty:
        yield "**Not run yet:** `studies/auto_ablations.py`.\n"
        return
    scores = ablations.pivot_table(index="variant", columns="world", values="score", sort=False)
    costs = ablations.groupby("variant", sort=False)["cost"].mean()
    draws = ablations.groupby("world", sort=False)["draw"].nunique()
    yield f"| variant | {' | '.join(scores.columns)} | steps, in FedAvg's |"
    yield f"| --- | {'---: | ' * len(scores.columns)}---: |"
    for variant, own in scores.iterrows():
        cells = [f"{own[world]:.1f}" if variant == "auto" else f"{own[world] - scores.loc['auto', world]:+.1f}" for world in scores.columns]
        yield f"| {variant} | {' | '.join(cells)} | {costs[variant]:.1f} |"
    run = ", ".join(f"{world} {count}" for world, count in draws.items())
    yield "\n" + fill(ABLATED.format(draws=run), 140) + "\n"


def _render_admissions(admissions: pd.DataFrame | None) -> Iterator[str]:
    yield "## False admissions\n"
    if admissions is None or admissions.empty:
        yield "**Not run yet:** `studies/auto_admissions.py` (100 draws without structure, 100 with label skew)."
        return
    yield "| world | draws | another option leads | clients moved | costly (> 0.5 points) | mean gain | worst | steps, in FedAvg's |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for world, own in admissions.groupby("world", sort=False):
        gain = own["auto"] - own["fedavg"]
        led, moved = int((own["chosen"] != "fedavg").sum()), int((own["moved"] > 0).sum())
        numbers = [
            len(own),
            led,
            moved,
            int((gain < -MARGIN).sum()),
            f"{gain.mean():+.2f}",
            f"{gain.min():+.2f}",
            f"{own['cost'].mean():.1f}",
        ]
        yield f"| {world} | {' | '.join(map(str, numbers))} |"
    yield ADMITTED
    if len(admissions) < 200:
        yield f"Not run: {200 - len(admissions)} of 200 draws."


def _read(path: Path) -> pd.DataFrame | None:
    return pd.read_csv(path) if path.exists() else None


def main() -> None:
    """Write the page, or check it."""
    text = make_page(read_worlds(), _read(ADMISSIONS), _read(RIVALS / "costs.csv"), _read(ABLATIONS))
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else "docs/explanation/auto.md is not up to date.")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
