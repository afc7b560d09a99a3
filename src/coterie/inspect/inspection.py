"""The questions before training: do clients differ, beyond their labels, in distinct groups, and would grouping help?"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie._util.json_io import to_json_value
from coterie._util.progress import StepsCallback, listen
from coterie.analysis.metrics import DEFAULT_METRICS, METRICS
from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Ask
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.plan import Plan
from coterie.core.tasks import TaskName
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.engines.batched import make_engine
from coterie.engines.world import World
from coterie.grouping.heterogeneity import compute_gini, compute_label_indices, compute_update_indices
from coterie.grouping.structure import DRAWS, StructureResult, find_groups
from coterie.grouping.structure_views import MIN_SAMPLES, has_enough_clients
from coterie.inspect.differences import (
    Difference,
    LabelSpread,
    combine_tests,
    compare_halves,
    compare_halves_by_class,
    compute_label_spread,
)
from coterie.inspect.pilot import EvaluationFold, Pilot, PilotPlan, run_pilot
from coterie.methods.client_probes import ask_pni, ask_probes
from coterie.models.catalogue import GivenModel, resolve_model
from coterie.run.callbacks import StepsBar
from coterie.run.driver import run_script
from coterie.run.execution import Execution


@dataclass
class StepCounter:
    """Counts the answers of each part of an inspection, and reports them to a callback."""

    gradients: int  # questions for gradients: two halves, each class
    pilot: int  # questions of the pilot
    watch: StepsCallback
    answered: int = field(default=0, init=False)

    def __call__(self, ask: Ask[Any]) -> None:
        self.answered += 1
        if self.answered <= self.gradients:
            self.watch(self.answered, self.gradients, "asking for gradients")
        elif self.answered == self.gradients + 1:
            self.watch(1, 1, "asking for errors")
        else:
            self.watch(self.answered - self.gradients - 1, self.pilot, "testing the groups")


MAX_CLIENTS = 2000  # a sample of more would change little but the time


@dataclass(frozen=True, kw_only=True)
class InspectPlan:
    """What may be asked, and how much."""

    labels: bool = True  # whether clients may be asked class by class, which reveals their label counts
    validation: bool = True  # whether clients have validation parts
    most: int = MAX_CLIENTS  # clients asked: of more, a random sample
    references: int = DRAWS  # draws of one population to compare with
    sketch: int | None = None  # random projections that leave a client instead of a gradient
    sketch_clip: float | None = None  # the longest of them
    sketch_noise: float = 0.0  # in clips
    pilot: PilotPlan | None = field(default_factory=PilotPlan)  # None: no pilot

    def __post_init__(self) -> None:
        if self.most < 2:
            raise UserError(f"Inspecting cannot use most={self.most}: at least two clients can be compared (default: {MAX_CLIENTS}).")
        if self.references < 19:
            raise UserError(
                f"Inspecting cannot use references={self.references}: at least 19 are needed for the level of .05 (default: {DRAWS})."
            )
        if self.sketch is not None and self.sketch < 1:
            raise UserError(f"Inspecting cannot use sketch={self.sketch}: give a whole number of 1 or more, such as 64.")
        clip, noise = self.sketch_clip, self.sketch_noise
        if (clip is not None and (self.sketch is None or clip <= 0)) or (noise and not clip):
            raise UserError("Inspecting needs a sketch for sketch_clip, which is above 0, and sketch_clip for sketch_noise.")


@dataclass(frozen=True)
class Inspection:
    """The answers and their evidence; rows are those of `clients`."""

    data: str
    model: str
    ids: tuple[str, ...]  # of the clients compared
    left_out: tuple[str, ...]
    sizes: Ids  # (n,) training samples
    differ: Difference
    beyond_labels: Difference | None  # None: labels were not to leave the clients
    labels: LabelSpread | None  # the same, or a single class
    classes: tuple[str, ...]
    groups: StructureResult
    similarity: Doubles  # (n, n) cosines of clients in the directions that both halves share
    indices: Mapping[str, float]
    task: TaskName = "classification"
    pilot: Pilot | None = None
    pilot_ids: tuple[str, ...] = ()
    everybody: int = 0  # clients from which those compared, and those left out, were drawn

    @property
    def sampled(self) -> str:
        """A note where not all clients were asked."""
        asked = len(self.ids) + len(self.left_out)
        return f"{asked:,} of {self.everybody:,} clients were asked, drawn at random." if asked < self.everybody else ""

    def __repr__(self) -> str:
        from coterie.inspect.answers import write_answers  # which know inspections

        answers = [f"  {answer.question} {answer.short}" for answer in write_answers(self)]
        return "\n".join([f"<Inspection of {self.data!r}, {self.model}, {len(self.ids)} clients>", *answers])

    def as_json(self) -> dict[str, Any]:
        """Everything but the similarity matrix, in plain numbers."""
        tree = asdict(self)
        tree.pop("similarity")
        if self.task == "classification":
            tree.pop("task")
        if self.pilot is not None:
            one, grouped, random = self.pilot.accuracies
            summary = {"verdict": self.pilot.verdict, "gain": self.pilot.gain, "error": self.pilot.error, "p_random": self.pilot.p_random}
            tree["pilot"].pop("task")
            score = METRICS[DEFAULT_METRICS[self.task]].name
            tree["pilot"] |= summary | {score: {"one": one, "grouped": grouped, "random": random}}
        return dict(to_json_value(tree))


def run_inspection(
    init: InitialModels, classes: tuple[str, ...], names: tuple[str, str], ctx: Context, plan: InspectPlan
) -> Round[Inspection]:
    """Ask, compare, pilot. `names` are those of the data and the model, for the record."""
    clients, model = ctx.sample(ctx.roster.available, plan.most, "inspected clients"), init()
    plan = plan if ctx.task.counts_classes else replace(plan, labels=False)  # there are no classes to be asked about one by one
    sketch = ctx.sketch(plan.sketch, plan.sketch_clip, plan.sketch_noise)
    probes = yield from ask_probes(model, clients, len(classes), ctx, labels=plan.labels, sketch=sketch)
    if not has_enough_clients(probes):
        raise UserError(f"Fewer than two clients have {2 * MIN_SAMPLES} training samples and answered: there is nothing to compare.")
    found = yield from ask_pni(clients, init)
    first = compare_halves(probes, ctx.rng("inspect differ"))
    second = compare_halves_by_class(probes, ctx.rng("inspect beyond labels")) if plan.labels else None
    held = compute_label_spread(probes.counts.sum(axis=0), ctx.rng("inspect labels")) if plan.labels else None
    groups = find_groups(probes, ctx.rng("inspect groups"), plan.references)
    whole = np.einsum("hnq,hn->nq", probes.halves, probes.sizes) / probes.sizes.sum(axis=0)[:, None]
    indices = {"gini": compute_gini(ctx.roster.sizes[ctx.roster.available]), "pni": found.literal, "pni_normalised": found.normalised}
    indices |= compute_update_indices(whole.astype(np.float32)) | (compute_label_indices(probes.counts.sum(axis=0)) if plan.labels else {})
    tested = None
    if plan.pilot is not None:
        # Judged on a half, the groups must not have seen it.
        labels = [groups.labels] if plan.validation else list(groups.half_labels)
        directions = EvaluationFold.on(plan.validation)
        tested = yield from run_pilot(model, probes.clients, labels, directions, plan.pilot, ctx.rng("inspect random groups"), ctx.task)
    ids = ctx.roster.ids
    return Inspection(
        *names,
        ids=tuple(ids[c] for c in probes.clients),
        left_out=tuple(ids[c] for c in probes.left_out),
        sizes=ctx.roster.sizes[probes.clients],
        differ=combine_tests(first, *(test.p for test in (second, held) if test is not None)),
        beyond_labels=second,
        labels=held,
        classes=classes,
        task=ctx.task.name,
        groups=groups,
        similarity=_compute_cosines(groups.coordinates),
        indices=indices,
        pilot=tested,
        everybody=len(ctx.roster.available),
        pilot_ids=tuple(ids[c] for c in tested.clients) if tested is not None else (),
    )


def inspect_data(
    data: str | Federation,
    *,
    model: GivenModel = "mclr",
    seed: int = 0,
    data_seed: int = 0,
    data_dir: Path | None = None,
    plan: InspectPlan | None = None,
    execution: Execution | None = None,
    watch: StepsCallback | None = None,
) -> Inspection:
    """Inspect a simulated federation: do clients differ, in distinct groups, and would grouping help?

    Args:
        data: A federation, or its spec.
        model: A spec, a module, or a class or function that makes one.
        seed: The seed of the random model, the halves and the reference.
        data_seed: The draw of the data.
        data_dir: The folder of data sets.
        plan: What is asked of clients, and the pilot.
        execution: Engine, device and threads.
        watch: Is called after every step with the number done of a part, its total and its name. Default: a bar in a notebook.

    Returns:
        The answers with their evidence; `coterie.inspect.answers.write_answers` writes them in words.

    Example:
        >>> found = ct.inspect_data("digits/rotated(clients=40,groups=4)")  # doctest: +SKIP
    """
    federation = data if isinstance(data, Federation) else load(data, data_seed, data_dir)
    named, make = resolve_model(model)
    world = World.from_spec(federation, named, make=make)
    plan = plan or InspectPlan()
    if federation.validation is None:
        plan = replace(plan, validation=False)
    problem, execution = world.problem, execution or Execution()
    ctx = Context(problem.roster_at(0), problem.layout, Plan(), seed, 0, task=federation.task)
    plan = plan if federation.task.counts_classes else replace(plan, labels=False)
    script = run_inspection(problem.initial(seed), federation.classes, (federation.name, named), ctx, plan)
    with (
        make_engine(world, execution.engine, execution.device, execution.threads, precision=execution.precision) as engine,
        nullcontext(watch) if watch is not None else StepsBar.in_notebook() as shown,
    ):
        pilot = 0 if plan.pilot is None else plan.pilot.asks(crossed=not plan.validation)
        steps = StepCounter(2 * (len(federation.classes) if plan.labels else 1), pilot, shown)
        with listen(shown):
            return run_script(script, engine, seed=seed, watch=steps)


def _compute_cosines(points: Doubles) -> Doubles:
    norms = np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-300)
    return np.asarray(np.clip((points / norms) @ (points / norms).T, -1.0, 1.0))
