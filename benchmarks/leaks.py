"""What leaves a client and what it gives away: the tables of docs/reference/leaks-measured.md.

python -m benchmarks.leaks            # every method, ten federations: five to learn on, five to attack

For each method of the catalogue (and variants with sketches) all answers to the server are recorded. An attacker who has
federations whose label proportions it knows learns to read them off these answers, and is judged on federations it has not seen.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.leak_attack import Federations, analytic, learned
from benchmarks.recording import JUDGED, RecordingEngine, Seen
from coterie.core.arrays import Doubles
from coterie.core.asks import Ask, Train
from coterie.core.descriptions import AskSubspaces, Describe, count_features
from coterie.core.local import Local
from coterie.core.method import Context, Problem, Round
from coterie.core.plan import Plan
from coterie.core.rng import make_key
from coterie.core.vectors import Sketch, project
from coterie.data.catalogue import load
from coterie.deploy.site.explain import describe_disclosure
from coterie.deploy.site.ledger import calibrate_noise
from coterie.deploy.site.policy import UNUSUAL_ASKS, Policy
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.evidence.records import RUNNING
from coterie.inspect.inspection import InspectPlan, run_inspection
from coterie.methods.catalogue import build, methods
from coterie.methods.reporting_rules import LossRule, MixtureRule
from coterie.run.driver import drive, run_script
from coterie.run.lanes import make_lanes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "leaks-measured.md"
DATA, MODEL, SEED = "digits/dirichlet(clients=40,alpha=0.5)", "mclr", 0
KNOWN, OTHER = range(5), range(5, 10)  # draws of the data
ROUNDS = 3
PLAN = Plan(rounds=ROUNDS, evaluate_every=1, local=Local(epochs=2, batch_size=10, lr=0.05))
NOISE = f"sketch_clip=0.01,sketch_noise={calibrate_noise(8.0, 1e-5, 1):.3f}"  # one such answer is at epsilon 8, delta 1e-5
VARIANTS = [
    "fedex(combiner=gate,gate_part=train)",
    "fedsim(clusters=auto)",
    "fedsim(sketch=64)",
    "fedsim(sketch=8)",
    f"fedsim(sketch=64,{NOISE})",
    "fedgroup(start_from=w0,sketch=64)",
    f"fedgroup(start_from=w0,sketch=64,{NOISE})",
]
INSPECTIONS = {
    "inspect": InspectPlan(pilot=None, references=19),
    "inspect --no-labels": InspectPlan(labels=False, pilot=None, references=19),
    "inspect --no-labels --sketch 64": InspectPlan(labels=False, pilot=None, references=19, sketch=64),
}


def ask_once(name: str, problem: Problem) -> Ask[Any]:
    """An ask that no method of the tables makes, at the first models of a run."""
    clients, models = problem.roster.clients, np.stack([problem.initial(SEED)(i) for i in range(3)])
    if name.startswith("describe"):
        classes = problem.model.outputs if name.endswith("by class") else 0
        key, size = (make_key(SEED, "leak"), 10) if "10" in name else (None, count_features(problem.layout))
        return Describe(clients, models[:1], size=size, key=key, classes=classes)
    if name.startswith("subspaces"):
        classes = problem.model.outputs if name.endswith("by class") else 0
        return AskSubspaces(clients, size=problem.context(PLAN, SEED, 0).features, classes=classes)
    if name.startswith("losses"):
        return Train(clients, models[:1], PLAN.local.replace(rule=LossRule(first=7)))
    classes = problem.model.outputs if name.endswith("by class") else 0
    rule, even = MixtureRule(components=3, classes=classes), np.full((len(clients), 3), 1 / 3)
    extra = rule.bring(models, even, np.full((3, classes), 1 / classes) if classes else None)
    return Train(clients, models[:1], PLAN.local.replace(rule=rule), extra=extra)


SINGLE_ASKS = (
    *("describe", "describe in 10 projections", "describe by class", "subspaces", "subspaces by class"),
    *("losses of 7 steps", "mixture of 3", "mixture of 3 by class"),
)


@dataclass(frozen=True)
class Leak:
    """One kind of answer of one method."""

    numbers: float  # that a client sends each time
    times: float  # that a client is asked, a round
    learned: float
    analytic: float | None  # None: there is no bias to read


def iter_ask(ask: Ask[Any]) -> Round[Any]:
    """A script of one ask."""
    return (yield from ask)


def recorded(name: str, draw: int, world: World) -> Mapping[str, Seen]:
    """What a server sees of a method in a few rounds, or of an inspection."""
    problem = world.problem
    with BatchedEngine({draw: world}) as inner:
        engine = RecordingEngine(inner)
        if name in SINGLE_ASKS:
            run_script(iter_ask(ask_once(name, problem)), engine, seed=SEED, draw=draw)
        elif name in INSPECTIONS:
            ctx = Context(problem.roster_at(0), problem.layout, Plan(), SEED, 0)
            script = run_inspection(problem.initial(SEED), world.federation.classes, (DATA, MODEL), ctx, INSPECTIONS[name])
            run_script(script, engine, seed=SEED, draw=draw)
        else:
            lanes = make_lanes([(name, build(name))], [SEED], {draw: problem}, PLAN)
            drive(lanes, engine, ROUNDS, lambda lane, record: None)
            assert all(lane.status == RUNNING for lane in lanes), [lane.reason for lane in lanes]
    return engine.seen


def leaks(name: str, worlds: Mapping[int, World]) -> dict[str, Leak]:
    """By kind of answer, how much it gives away."""
    seen = {draw: recorded(name, draw, world) for draw, world in worlds.items()}
    rounds = 1 if name in (*INSPECTIONS, *SINGLE_ASKS) else ROUNDS
    clients, layout = sum(len(world.federation) for world in worlds.values()), worlds[0].model.layout
    found = {}
    for kind in dict.fromkeys(kind for draw in seen.values() for kind in draw):
        known, other = (_together({d: seen[d][kind] for d in draws if kind in seen[d]}, worlds) for draws in (KNOWN, OTHER))
        numbers = [n for draw in seen.values() if kind in draw for n in draw[kind].numbers]
        share = 1.0 if kind.endswith("by class") else learned(known, other)  # by class, the counts themselves are sent
        whole = _as_whole(kind, other.sent, layout.size)
        bare = None if whole is None else analytic(Federations(whole, other.shares), layout)
        found[kind] = Leak(float(np.mean(numbers)), len(numbers) / clients / rounds, share, bare)
    return found


def _as_whole(kind: str, sent: Doubles, size: int) -> Doubles | None:
    """What was sent as vectors of the model's length: as it is, or, of sketches, projected back, since the server knows the signs."""
    if kind.startswith("Sketched"):
        back = project(np.eye(size), Sketch(sent.shape[1], make_key(SEED, "sketch")))  # (d, r)
        return np.asarray(sent @ back.T)
    return sent if sent.shape[1] == size else None


def _together(seen: Mapping[int, Seen], worlds: Mapping[int, World]) -> Federations:
    sent, shares = [], []
    for draw, one in seen.items():
        federation = worlds[draw].federation
        for client in sorted(one.rows):
            sent.append(one.rows[client])
            shares.append(
                np.bincount(federation.y[federation.train[client]], minlength=len(federation.classes)) / federation.train.sizes[client]
            )
    return Federations(np.stack(sent), np.stack(shares))


def by_method(found: Mapping[str, Mapping[str, Leak]]) -> str:
    """What every method sends, and the most that it gives away."""
    lines = [
        "| method | what a client is asked, a round | bytes it sends, a round | label proportions recovered | from |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, every in found.items():
        kinds = {kind: one for kind, one in every.items() if kind != JUDGED}
        if not kinds:
            lines.append(f"| `{name}` | nothing | 0 | – | – |")
            continue
        asked = ", ".join(f"{one.times:.2g} `{kind}`" for kind, one in kinds.items())
        worst = max(kinds, key=lambda kind: _most(kinds[kind]))
        lines.append(
            f"| `{name}` | {asked} | {sum(4 * k.numbers * k.times for k in kinds.values()):,.0f} | {_most(kinds[worst]):.2f} | `{worst}` |"
        )
    return "\n".join(lines)


def by_kind(found: Mapping[str, Mapping[str, Leak]]) -> str:
    """Every kind of answer: in words, in numbers, and how much it gives away."""
    lines = ["| answer | seen in | what leaves | numbers | learned | without learning |", "| --- | --- | --- | --- | --- | --- |"]
    seen: set[tuple[str, int]] = set()
    for name, kinds in found.items():
        for kind, one in kinds.items():
            if (kind, round(one.numbers)) not in seen:
                seen.add((kind, round(one.numbers)))
                bare = "–" if one.analytic is None else f"{one.analytic:.2f}"
                lines.append(f"| `{kind}` | `{name}` | {_words(kind)} | {one.numbers:.0f} | {one.learned:.2f} | {bare} |")
    return "\n".join(lines)


def _words(kind: str) -> str:
    """As a site's policy is explained: one source."""
    first = next(iter(describe_disclosure(kind.split()[0], Policy(), "as many numbers as the model has")))  # type: ignore[arg-type]
    if kind.startswith(UNUSUAL_ASKS):
        policy = Policy(label_shares=kind.endswith("by class"))
        return next(iter(describe_disclosure(kind.split()[0], policy, ""))).removeprefix("Leaves: ").rstrip(".")  # type: ignore[arg-type]
    for rule, words in {"LossRule": "the losses of its steps", "MixtureRule": "mean responsibilities of each model"}.items():
        if rule in kind:
            return f"beside what `Train` sends, {words}{' for the samples of each class' * kind.endswith('by class')}"
    if kind == JUDGED:
        return "of each client's test part, right answers, predictions and samples by class: whatever the method, where a study evaluates"
    rest = {"of a half": " (on half its samples)", "by class": " (of one class and half its samples)"}
    return first.removeprefix("Leaves: ").rstrip(".") + next((words for end, words in rest.items() if kind.endswith(end)), "")


def _most(leak: Leak) -> float:
    return max(leak.learned, leak.analytic or 0.0)


def main() -> None:
    """Measure, and write the tables between their marks."""
    worlds = {draw: World.from_spec(load(DATA, draw), MODEL) for draw in (*KNOWN, *OTHER)}
    found = {name: leaks(name, worlds) for name in (*methods, *VARIANTS, *INSPECTIONS)}
    single = {name: leaks(name, worlds) for name in SINGLE_ASKS}
    text = PAGE.read_text()
    for mark, table in {"answers": by_kind(found | single), "methods": by_method(found)}.items():
        text = re.sub(rf"<!-- {mark} -->.*?<!-- /{mark} -->", f"<!-- {mark} -->\n{table}\n<!-- /{mark} -->", text, flags=re.DOTALL)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
